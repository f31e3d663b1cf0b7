# SPDX-License-Identifier: Apache-2.0
"""One matcher: a text that is a tensor's name means that tensor, else it is a pattern."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from cli.commands import Command

# Among them names that are patterns for others.
NAMES = ["/abs/", "a*", "a0", "a[0]", "ab", "abs", "p['d']['k']"]
# A filter, and the names that it matches.
FILTERS: dict[str, list[str]] = {
    "a[0]": ["a[0]"],
    "/abs/": ["/abs/"],
    "a*": ["a*"],
    "p['d']['k']": ["p['d']['k']"],
    "a?": ["a*", "a0", "ab"],
    "a[[]0]": ["a[0]"],
    "/^a.$/": ["a*", "a0", "ab"],
    "ab*": ["ab", "abs"],
    "/bs/": ["/abs/", "abs"],
    "/.b/": ["/abs/", "ab", "abs"],
    "[!/p]??": ["abs"],
}
ABSENT = ["a[1]", "b*", "/^b/", "A0", "b", "/", "[!/ap]*"]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matcher") / "m"
    ckptfmt.save(path, {name: np.ones(2, np.float32) for name in NAMES})
    return path


def edited(prefix: Path, how: str, given: str) -> list[str]:
    to = prefix.with_name("e")
    options: dict[str, Any] = {how: given, "drop_weights": True}
    done = ckptfmt.editing.edit(prefix, to, **options)
    return sorted(set(NAMES) - set(done.dropped) if how == "keep" else done.dropped)


def command(*line: object) -> Callable[[Command, Path, str], list[str]]:
    def run(command: Command, prefix: Path, given: str) -> list[str]:
        values = {"PATH": prefix, "TO": prefix.with_name("c"), "FILTER": given}
        ran = command(*(values.get(str(word), word) for word in line))
        if ran.status == 2:
            raise ckptfmt.TensorNotFoundError(ran.err)
        found = json.loads(ran.out)
        return sorted(found["dropped"] if "dropped" in found else map(_name, found["tensors"]))

    return run


def _name(tensor: dict[str, str]) -> str:
    return tensor["name"]


DOORS: dict[str, Callable[[Command, Path, str], list[str]]] = {
    "load": lambda _, prefix, given: sorted(ckptfmt.load(prefix, filter=given)),
    "load_into": lambda _, prefix, given: sorted(
        ckptfmt.load_into(
            prefix, {name: np.zeros(2, np.float32) for name in NAMES}, filter=given, strict=False
        ).matched
    ),
    "drop": lambda _, prefix, given: edited(prefix, "drop", given),
    "keep": lambda _, prefix, given: edited(prefix, "keep", given),
    "inspect": command("inspect", "--json", "--filter", "FILTER", "PATH"),
    "edit": command("edit", "--json", "-n", "--drop-weights", "--drop", "FILTER", "PATH", "TO"),
}


@pytest.mark.parametrize("door", DOORS)
def test_one_matcher(prefix: Path, command: Command, door: str) -> None:
    for given, expected in FILTERS.items():
        assert DOORS[door](command, prefix, given) == expected, given
    for given in ABSENT:
        with pytest.raises(ckptfmt.TensorNotFoundError):
            DOORS[door](command, prefix, given)


def test_names_that_are_missing(prefix: Path) -> None:
    for options in ({"rename": {"x": "y"}}, {"cast": {"x": "float16"}}):
        with pytest.raises(ckptfmt.TensorNotFoundError) as caught:
            ckptfmt.load(prefix, **options)  # type: ignore[arg-type]
        assert caught.value.argument == next(iter(options))
    assert len(ckptfmt.load(prefix, rename=[("x", "y")])) == len(NAMES)
