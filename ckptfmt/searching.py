# SPDX-License-Identifier: Apache-2.0
"""Regular expressions over many names at once: an object for each name that matches, and none for
the others."""

from __future__ import annotations

import re

__all__ = ["line_pattern", "lines_found"]

# What means the same at the border of a line as at that of a text.
FLAGS = re.IGNORECASE | re.UNICODE | re.ASCII | re.MULTILINE
# Sets that a line break is not in.
ESCAPED_SETS = "dwS"


def line_pattern(pattern: re.Pattern[str]) -> re.Pattern[str] | None:
    """A pattern that finds in a text just the lines of which `pattern`, asked of each by itself,
    finds something; None where nobody can tell that of it by a look.

    A match must not reach across the end of a line, and nothing around the line may matter. So
    what is negated is made to exclude the line break, and patterns that look around, refer back, or
    have flags inside are left alone.
    """
    if pattern.flags & ~FLAGS or any(character < " " for character in pattern.pattern):
        return None
    text, parts, at = pattern.pattern, [""], 0
    while at < len(text):
        end = _end_of_part(text, at)
        if end is None:
            return None
        part = text[at:end]
        if part.startswith("[^"):
            # Behind another character these two would no longer stand for themselves.
            part = "[^\n" + ("\\" if part[2] in "]-" else "") + part[2:]
        parts.append(part)
        at = end
    return re.compile("".join(parts), pattern.flags | re.MULTILINE)


def _end_of_part(text: str, at: int) -> int | None:
    """Where the part of a pattern ends that begins here; None if it is none of those that are
    known to stay inside a line."""
    if text[at] == "\\":
        return at + 2 if _is_known_escape(text[at + 1], "b") else None
    if text[at] == "[":
        return _end_of_set(text, at)
    if text.startswith("(?", at):
        named = re.compile(r"\(\?(:|P<\w+>)").match(text, at)
        return named.end() if named else None
    return at + 1


def _end_of_set(text: str, at: int) -> int | None:
    at += 2 if text.startswith("[^", at) else 1
    first = at
    while text[at] != "]" or at == first:
        if text[at] == "\\":
            if not _is_known_escape(text[at + 1]):
                return None
            at += 1
        at += 1
    return at + 1


def _is_known_escape(character: str, more: str = "") -> bool:
    # Of letters and digits only some; others are the character itself.
    return character in ESCAPED_SETS + more or not (character.isalnum() and character.isascii())


def lines_found(pattern: re.Pattern[str], text: str) -> list[str]:
    """The lines of a text in which a `line_pattern` finds something, each of them once."""
    found: list[str] = []
    at = 0
    while (match := pattern.search(text, at)) is not None:
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        if end < 0:
            return [*found, text[begin:]]
        found.append(text[begin:end])
        at = end + 1
    return found
