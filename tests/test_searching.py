# SPDX-License-Identifier: Apache-2.0
"""Regular expressions over joined names against the same over each name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptfmt.searching import line_pattern, lines_found

NAMES = st.lists(st.text("abAB1/_. -é\u2028\x85", max_size=6), min_size=1, max_size=8)
ATOMS = st.sampled_from(
    [
        *"abB1/._-é^$",
        *(r"\d", r"\w", r"\S", r"\b", r"\.", r"\/"),
        *("[ab]", "[]a-]", r"[\d\]]", "(?:a|b)", "(?P<n>a)", "(b)", "a|^b", "x{0,2}"),
        *("[^/]", "[^]a]", "[^-a]", "[^]-a]", "[^a-]", "[^^a]", r"[^\w]", r"[^\.b]"),
    ]
)
PATTERNS = st.lists(
    st.tuples(ATOMS, st.sampled_from(["", "", "", "?", "*", "+", "*?", "{1,2}"])), max_size=5
).map(lambda parts: "".join(atom + times for atom, times in parts))
FLAGS = st.sampled_from([0, re.IGNORECASE, re.ASCII, re.MULTILINE, re.ASCII | re.IGNORECASE])


@settings(max_examples=1000)
@given(pattern=PATTERNS, flags=FLAGS, names=NAMES)
def test_like_each_by_itself(pattern: str, flags: int, names: list[str]) -> None:
    try:
        compiled = re.compile(pattern, flags)
    except re.error:
        return
    joined = line_pattern(compiled)
    assert joined is not None
    wanted = [name for name in names if compiled.search(name)]
    assert lines_found(joined, "\n".join(names)) == wanted


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"a\s", r"\W", r"\D", r"[\s]", r"[^\s]", r"a\Z", r"\Aa", r"\Ba", r"(a)\1"),
        *("(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", "(?P<n>a)(?P=n)", "(a)?(?(1)b|c)"),
        *("(?i:a)", "(?i)a", "(?#no)a", "(?>a)", "a\nb", "[\n]", "[\x01-b]"),
        *(r"\n", r"\x0a", r"[\x0a]"),
    ],
)
def test_left_alone(pattern: str) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error:  # what this version of Python does not know
        return
    assert line_pattern(compiled) is None


@pytest.mark.parametrize("flags", [re.DOTALL, re.VERBOSE])
def test_flags_left_alone(flags: int) -> None:
    assert line_pattern(re.compile("a", flags)) is None


def test_each_line_once() -> None:
    pattern = line_pattern(re.compile("a*"))
    assert pattern is not None
    assert lines_found(pattern, "aab\nb\n") == ["aab", "b", ""]
