# SPDX-License-Identifier: Apache-2.0
"""Text for terminals: escaped names, sizes, counts and tables.

A table is formatted by column and its rows by one format string, so that 100,000 rows take a
fraction of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckptfmt.errors import masked
from ckptfmt.names import printable as printable  # noqa: PLC0414 (exported)
from ckptfmt.objects.nodes import leaf_name

# A longer cell shifts the rest of its own row instead of widening the column.
WIDTH_MAX = 72
ROWS_AT_ONCE = 8192
# Names are not cut shorter than this, however narrow the terminal is.
NAME_MIN = 24
CUT_MIN = 12
_MARKS = re.compile(r"[│├└|`][│├└─|` -]*|")


def path(value: str) -> str:
    """Return `printable` of a path, with the credentials of a URL masked."""
    return printable(masked(value))


def name(stored: str) -> str:
    """Return `printable` of a tensor's name, of a variable without the suffix that all have."""
    return printable(leaf_name(stored))


def printable_all(names: list[str]) -> list[str]:
    """Return `printable` of each name."""
    joined = "".join(names)
    if joined.isprintable() and "\\" not in joined:
        return names
    return [printable(name) for name in names]


def size(count: int) -> str:
    """Format a byte count: "512 B", "1.5 KiB"."""
    if count < 1024:
        return f"{count} B"
    # One decimal: from 1023.95 on it would read "1024.0".
    value, units = float(count), ["EiB", "PiB", "TiB", "GiB", "MiB", "KiB"]
    while value >= 1023.95 and units:
        value /= 1024
        unit = units.pop()
    return f"{value:.1f} {unit}"


def count(number: int) -> str:
    """Format a number of elements: "1,234", "12.3 M"."""
    if number < 100_000:
        return f"{number:,}"
    value, units = float(number), ["E", "P", "T", "G", "M", "k"]
    while value >= 999.95 and units:
        value /= 1000
        unit = units.pop()
    return f"{value:.1f} {unit}"


def sizes(counts: list[int]) -> list[str]:
    """Return `size` of each count."""
    known = {count: size(count) for count in set(counts)}
    return [known[count] for count in counts]


def plural(count: int, what: str) -> str:
    """Format a count with its noun: "1 tensor", "1,234 tensors"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def shape(dims: Sequence[int]) -> str:
    """Format a shape: "[4, 6]", "[]"."""
    return f"[{', '.join(map(str, dims))}]"


def box(start: Sequence[int], lengths: Sequence[int], dims: Sequence[int]) -> str:
    """Format a slice as NumPy does: "[0:2, :]"; `:` for a full dimension."""
    parts = (
        ":" if not first and length == dim else f"{first}:{first + length}"
        for first, length, dim in zip(start, lengths, dims, strict=True)
    )
    return f"[{', '.join(parts)}]"


def cells_of(text: str) -> int:
    """Return the width of the text in terminal cells."""
    if text.isascii():
        return len(text)
    import unicodedata  # noqa: PLC0415 (most names are ASCII)

    return sum(
        0
        if unicodedata.combining(character)
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )


def _is_narrow(text: str) -> bool:
    """Return whether every character takes one cell."""
    return text.isascii() or all(cells_of(character) == 1 for character in set(text))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: a title and one text per row."""

    title: str
    cells: list[str]
    right: bool = False


def _fitted(column: Column, least: int) -> tuple[str, list[str], str, int]:
    """Return title, cells, the `%` format that aligns them, and the width, which is `least` or
    more."""
    title, cells = column.title, column.cells
    align = "" if column.right else "-"
    least = max(least, len(title))
    if _is_narrow("".join(cells)):
        width = max(least, min(max(map(len, cells), default=0), WIDTH_MAX))
        return title, cells, f"%{align}{width}s", width
    # `%` counts characters; a terminal counts cells.
    taken = [cells_of(cell) for cell in cells]
    width = max(least, min(max(taken), WIDTH_MAX))
    blanks = [" " * (width - count) for count in taken]
    pairs = zip(blanks, cells, strict=True) if column.right else zip(cells, blanks, strict=True)
    return f"%{align}{width}s" % title, [a + b for a, b in pairs], "%s", width


def cut(cell: str, width: int) -> str:
    """Return the text with its middle left out, if it takes more cells than `width`. The marks of a
    tree before it stay, and at least a few of its characters."""
    if len(cell) <= width and cells_of(cell) <= width:
        return cell
    marks = _MARKS.match(cell)
    indent = marks.end() if marks else 0
    width = max(width - indent, CUT_MIN)
    mark, cell = cell[:indent], cell[indent:]
    if cells_of(cell) <= width:
        return mark + cell
    end = (width - 3) // 2
    first, last = cell[: width - 3 - end], cell[len(cell) - end :]
    while cells_of(first) + cells_of(last) > width - 3 and (first or last):
        first, last = first[:-1], last[1:]
    return f"{mark}{first}...{last}"


def table(columns: Sequence[Column], width: int | None = None) -> Iterator[str]:
    """Yield the title line, then chunks of many lines; no line has trailing blanks.

    Args:
        columns: their cells.
        width: cells that a line may take: those of the first column are cut. None: as needed.
    """
    return table_of_parts([columns], width)


def table_of_parts(parts: Iterable[Sequence[Column]], width: int | None = None) -> Iterator[str]:
    """As `table`, of the rows of one part after the other, which are not all in memory at a time.
    The columns of a part are as wide as those of the part before, or wider."""
    widths: tuple[int, ...] = ()
    for part in parts:
        columns, is_first = part, not widths
        least = widths or (0,) * len(columns)
        if width is not None:
            names, *others = columns
            taken = sum(
                2 + max(least, len(one.title), min(max(map(len, one.cells), default=0), WIDTH_MAX))
                for one, least in zip(others, least[1:], strict=True)
            )
            room = max(width - taken, NAME_MIN)
            columns = [Column(names.title, [cut(cell, room) for cell in names.cells]), *others]
        titles, texts, formats, widths = zip(*map(_fitted, columns, least), strict=True)
        row = "  ".join(formats)
        # Stripping takes a quarter of the time and is rarely needed.
        ragged = not columns[-1].right or "" in columns[-1].cells
        if is_first:
            yield (row % titles).rstrip() + "\n"
        for first in range(0, len(texts[0]), ROWS_AT_ONCE):
            some = zip(*(cells[first : first + ROWS_AT_ONCE] for cells in texts), strict=True)
            lines = map(row.__mod__, some)
            yield "\n".join(map(str.rstrip, lines) if ragged else lines) + "\n"
