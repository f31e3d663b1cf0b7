# SPDX-License-Identifier: Apache-2.0
"""Text for terminals: escaped names, sizes, counts and tables.

A table is formatted by column and its rows by one format string, so that 100,000 rows take a
fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckptfmt._base.names import printable as printable  # noqa: PLC0414 (exported)
from ckptfmt.bundle.graph import leaf_name
from ckptfmt.errors import masked

# A longer cell shifts the rest of its own row instead of widening the column.
WIDTH_MAX = 72
# Where there is no terminal, a longer name shifts its row.
NAME_MAX = 120
ROWS_AT_ONCE = 8192
# Names have so many cells, however narrow the terminal is.
NAME_MIN = 24


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


def _fitted(column: Column, least: int, most: int) -> tuple[str, list[str], str, int]:
    """Return title, cells, the `%` format that aligns them, and the width, from `least` to
    `most`."""
    title, cells = column.title, column.cells
    align = "" if column.right else "-"
    least = max(least, len(title))
    if _is_narrow("".join(cells)):
        width = max(least, min(max(map(len, cells), default=0), most))
        return title, cells, f"%{align}{width}s", width
    # `%` counts characters; a terminal counts cells.
    taken = [cells_of(cell) for cell in cells]
    width = max(least, min(max(taken), most))
    blanks = [" " * (width - count) for count in taken]
    pairs = zip(blanks, cells, strict=True) if column.right else zip(cells, blanks, strict=True)
    return f"%{align}{width}s" % title, [a + b for a, b in pairs], "%s", width


def _fitted_names(
    column: Column, others: Sequence[Column], least: int, room: int
) -> tuple[str, list[str], str, int]:
    """As `_fitted`. A name that takes more cells has a line of its own: its beginning, its middle
    or its end may be what tells it from others. One that is alone in its row just goes on."""
    names = column.cells
    if max(map(len, names), default=0) <= room and _is_narrow("".join(names)):
        return _fitted(column, least, room)
    fits = [
        (len(name) <= room and cells_of(name) <= room) or not any(cells)
        for name, *cells in zip(names, *(one.cells for one in others), strict=True)
    ]
    short = [name for name, is_short in zip(names, fits, strict=True) if is_short]
    title, aligned, form, width = _fitted(Column(column.title, short), least, room)
    rest = iter(aligned)
    cells = [
        next(rest) if is_short else f"{name}\n{_below(name):{width}}"
        for name, is_short in zip(names, fits, strict=True)
    ]
    return title, cells, form, width


def _below(name: str) -> str:
    """Return the marks of a tree that are continued in the line below a name."""
    marks = name[: len(name) - len(name.lstrip("│├└─ "))]
    return marks.replace("├─", "│ ").replace("└─", "  ")


def table(columns: Sequence[Column], width: int | None = None) -> Iterator[str]:
    """Yield the title line, then chunks of many lines; no line has trailing blanks.

    Args:
        columns: their cells.
        width: cells that a line may take: a name in the first column for which there is no room has
            a line of its own. None: as needed.
    """
    return table_of_parts([columns], width)


def table_of_parts(parts: Iterable[Sequence[Column]], width: int | None = None) -> Iterator[str]:
    """As `table`, of the rows of one part after the other, which are not all in memory at a time.
    The columns of a part are as wide as those of the part before, or wider."""
    widths: tuple[int, ...] = ()
    for part in parts:
        columns, is_first = part, not widths
        least = widths or (0,) * len(columns)
        names, *others = columns
        fitted = [_fitted(*one, WIDTH_MAX) for one in zip(others, least[1:], strict=True)]
        if width is None:
            cells = len if _is_narrow("".join(names.cells)) else cells_of
            usual = [taken for taken in map(cells, names.cells) if taken <= NAME_MAX]
            fitted.insert(0, _fitted(names, least[0], max(usual, default=0)))
        else:
            room = max(width - sum(2 + one[3] for one in fitted), NAME_MIN)
            fitted.insert(0, _fitted_names(names, others, least[0], room))
        titles, texts, formats, widths = zip(*fitted, strict=True)
        row = "  ".join(formats)
        # Stripping takes a quarter of the time and is rarely needed.
        ragged = not columns[-1].right or "" in columns[-1].cells
        if is_first:
            yield (row % titles).rstrip() + "\n"
        for first in range(0, len(texts[0]), ROWS_AT_ONCE):
            some = zip(*(cells[first : first + ROWS_AT_ONCE] for cells in texts), strict=True)
            lines = map(row.__mod__, some)
            yield "\n".join(map(str.rstrip, lines) if ragged else lines) + "\n"
