# SPDX-License-Identifier: Apache-2.0
"""The tables of `spec/conformance.md` agree with the rules and the vectors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.vectors import (
    FORMAT,
    SPEC,
    VECTORS,
    Reference,
    Refusal,
    load_reference,
    outcomes,
    rules_of_text,
)

PAGE = (SPEC / "conformance.md").read_text(encoding="utf-8")
PROGRAMS = [
    *("v2 reader", "v2+ reader", "full reader", "strict verifier", "canonical writer", "merger")
]
WORDS = {"yes", "accept", "report", "may", "-"}
BY_NAME = {vector.name: vector for vector in VECTORS}


def table(first: str) -> Iterator[list[str]]:
    """The rows, heading apart, of the table whose first heading is this."""
    lines = PAGE[PAGE.index(f"\n| {first} |") + 1 :].splitlines()
    for line in lines[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def rules_in(cell: str) -> Iterator[str]:
    """The rules of a cell, those inside `A-1 to A-5` too."""
    for first, last in re.findall(r"\b([A-Z]{3}-\d+)(?: to ([A-Z]{3}-\d+))?", cell):
        family, number = first.split("-")
        end = (last or first).split("-")
        assert end[0] == family
        yield from (f"{family}-{one}" for one in range(int(number), int(end[1]) + 1))


def rows() -> list[tuple[list[str], dict[str, str]]]:
    """The rules of each row, and what each program does with them."""
    found = []
    for cells in table("rules"):
        assert len(cells) == len(PROGRAMS) + 1, cells
        found.append((list(rules_in(cells[0])), dict(zip(PROGRAMS, cells[1:], strict=True))))
    return found


def test_version() -> None:
    assert f"\nVersion {FORMAT} of this specification" in PAGE


def test_heading_names_the_programs() -> None:
    heading = "| rules | " + " | ".join(PROGRAMS) + " |"
    assert heading in PAGE.splitlines()
    assert [cells[0] for cells in table("program")] == PROGRAMS


def test_each_rule_is_in_one_row() -> None:
    known = rules_of_text()
    assert len(known) > 230
    times = Counter(rule for rules, _ in rows() for rule in rules)
    assert set(times) - set(known) == set(), "no such rules"
    assert set(known) - set(times) == set(), "rules in no row"
    assert [rule for rule, count in times.items() if count > 1] == []


def test_each_rule_is_of_a_program() -> None:
    for rules, programs in rows():
        assert set(programs.values()) <= WORDS, rules
        assert set(programs.values()) != {"-"}, rules


def test_reports_are_deviations() -> None:
    """The strict verifier reports the rules that name a deviation."""
    deviating = {rule for rule, body in rules_of_text().items() if re.search(r"Deviation:\s", body)}
    reported = {rule for rules, do in rows() for rule in rules if do["strict verifier"] == "report"}
    assert reported == deviating


def test_levels_include_each_other() -> None:
    """A v2+ reader needs what a v2 reader needs, a full reader what both need."""
    for rules, do in rows():
        needed = [do[name] != "-" for name in PROGRAMS[:3]]
        assert needed == sorted(needed), rules
        family = rules[0][:3]
        if family in ("EXT", "CMP"):
            assert do["v2 reader"] == "-", rules


@pytest.mark.parametrize(
    "cells", list(table("failed")), ids=lambda cells: cells[0].split(":")[0][:30]
)
def test_vectors_show_what_is_still_checked(cells: list[str]) -> None:
    """Each vector of a row has a verify step with a rule of that row."""
    failed, _, names = cells
    rules = set(rules_in(failed))
    found = re.findall(r"`([a-z0-9-]+)`", names)
    assert found
    for name in found:
        (step,) = [one for one in BY_NAME[name].steps if one["step"] == "verify"]
        assert rules & {rule for _, rule in step.get("problems", step.get("among"))}, name


def test_restarts_may_be_left_out() -> None:
    """Without BLK-9 and BLK-10 the vectors that the page names are accepted, and no others."""
    disabled, accepted = load_reference().DISABLED, set()
    for vector in VECTORS:
        steps = [step for step in vector.steps if step["step"] != "verify"]
        asked = replace(vector, steps=steps)
        before = outcomes(asked, Reference)
        disabled |= {"BLK-9", "BLK-10"}
        try:
            after = outcomes(asked, Reference)
        finally:
            disabled.clear()
        # The first record of blk-10-first breaks BLK-7 as well.
        if before != after and vector.name != "blk-10-first":
            assert not any(isinstance(one, Refusal) for one in after), vector.name
            accepted.add(vector.name)
    assert accepted == {name for name in BY_NAME if name.startswith("blk-9") or name == "blk-10"}


def test_vectors_of_the_text_exist() -> None:
    for name in re.findall(r"`([a-z0-9]+-[a-z0-9-]+(?:\.\.\.)?)`", PAGE):
        assert any(one.startswith(name.rstrip(".")) for one in BY_NAME), name
