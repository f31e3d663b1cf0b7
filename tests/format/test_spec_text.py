# SPDX-License-Identifier: Apache-2.0
"""How long the text of the specification is, and in which order it says things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SPEC = Path(__file__).resolve().parents[2] / "spec"
RULE = re.compile(r"^- \*\*\[([A-Z]{3}-\d+)\]\*\* (.*?)(?=^\S|\Z)", re.M | re.S)
CITED = re.compile(r"\b[A-Z]{3}-\d+\b")
# Where a list item, or a paragraph after a list, begins in a rule.
BREAK = re.compile(r"\n\s+(?=(?:-|\d+\.) )|\n\n\s*")
PART_I = ("# Part I:", "# Part II:")


def text(name: str) -> str:
    return (SPEC / name).read_text(encoding="utf-8")


def part_i() -> str:
    first, end = (text("format.md").index(f"\n{heading}") for heading in PART_I)
    return text("format.md")[first:end]


def is_item(part: str) -> bool:
    return re.match(r"(?:-|\d+\.) ", part) is not None


def test_format_is_short() -> None:
    assert len(text("format.md").split()) <= 12_300


@pytest.mark.parametrize("name", ["format.md", "lifecycle.md"])
def test_rules_are_short(name: str) -> None:
    """A paragraph of a rule has at most 80 words, a list item at most 40 (and its marker)."""
    rules = RULE.findall(text(name))
    assert len(rules) > 40
    parts = [(rule, part) for rule, body in rules for part in BREAK.split(body.strip())]
    assert any(is_item(part) for _, part in parts)
    long = {
        f"{rule}: {len(part.split())} words: {part[:60]}"
        for rule, part in parts
        if len(part.split()) > (41 if is_item(part) else 80)
    }
    assert long == set()


def test_rules_come_in_the_order_of_reading() -> None:
    """Few rules of part I cite a rule of this document that is stated later."""
    places = {rule[1]: rule.start() for rule in RULE.finditer(text("format.md"))}
    forward = [
        f"{rule} cites {cited}"
        for rule, body in RULE.findall(part_i())
        for cited in CITED.findall(body)
        if places.get(cited, 0) > places[rule]
    ]
    assert len(forward) <= 8, forward


def test_sections_are_labelled() -> None:
    """Each section is normative or informative."""
    for name in ("format.md", "lifecycle.md"):
        headings = re.findall(r"^## (.*)$", text(name), re.M)
        assert len(headings) > 6
        assert [
            one for one in headings if not re.search(r"\b(?:normative|informative)\)$", one)
        ] == []


def test_cited_sections_exist() -> None:
    """Sections are those of the same document, or of the one that is named."""
    known = {
        name: set(re.findall(r"^## (\d+)\.", text(name), re.M))
        for name in ("format.md", "lifecycle.md", "conformance.md")
    }
    for name in ("format.md", "lifecycle.md"):
        cited = re.findall(r"\bsections? (\d+)(?:\s+of\s+`(\w+\.md)`)?", text(name))
        assert cited
        assert [one for one in cited if one[0] not in known[one[1] or name]] == []
