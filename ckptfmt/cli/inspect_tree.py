# SPDX-License-Identifier: Apache-2.0
"""Print `inspect --tree`: lines below lines, of names split at slashes (at dots, if no name has a
slash) or of an object graph (`inspect_graph.py`), with totals per branch. Lines that differ only in
a number, as layers do, become one."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt.cli import text
from ckptfmt.cli.contents import Tensors
from ckptfmt.cli.output import Output

# Deeper lines are not shown, and names are not split deeper; a name may consist of slashes.
DEPTH_MAX = 40
LINES = ("├─ ", "└─ ", "│  ", "   ")
ASCII_LINES = ("|- ", "`- ", "|  ", "   ")
# A million lines at once would take a gigabyte.
LINES_AT_ONCE = 1 << 15


@dataclass(slots=True)  # not frozen, which would take most of the time of a million lines
class Line:
    """One line: a branch, a tensor, or both.

    Attributes:
        label: the text, not escaped yet.
        row: its tensor.
        dtype: the text instead of the dtype, if it has no tensor.
        count: how many tensors are in a branch.
        elements: how many elements they have.
        nbytes: their size; None shows none.
        kind: the kind of the object.
        inside: returns the lines below; None if there are none.
        folded: how many tensors of its totals the lines below do not show.
    """

    label: str
    row: int | None = None
    dtype: str = ""
    count: int | None = None
    elements: int | None = None
    nbytes: int | None = None
    kind: str = ""
    inside: Callable[[], list[Line]] | None = None
    folded: int = 0


class _Names:
    """The names as a tree. A branch is a range of rows: in key order, the names that begin with its
    text are beside each other. Nothing is made of a branch before its lines are asked for."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self._names = tensors.names
        self.mark = "/" if any("/" in name for name in self._names) else "."
        # Of the rows before each, so that a range costs two look-ups.
        self._elements = _sums(tensors.elements)
        self._nbytes = _sums(tensors.nbytes)

    def lines(self, start: int, stop: int, begin: int, level: int) -> list[Line]:
        """Return the lines of the rows from `start` to `stop`, whose names have `begin` characters
        before them, in `level` pieces."""
        names, mark, leaf = self._names, self.mark, self._leaf
        found: dict[str, Line] = {}
        at = start
        while at < stop:
            name = names[at]
            cut = name.find(mark, begin) if level < DEPTH_MAX else -1
            if cut < 0:
                piece = name[begin:]
                found[piece] = leaf(piece, at)
                at += 1
            else:
                end = self._end(name[: cut + 1], at, stop)
                # In key order, a tensor is before those whose names begin with its name.
                piece = name[begin:cut]
                tensor = found.get(piece)
                row = None if tensor is None else tensor.row
                found[piece] = self._branch(piece, row, at, end, begin, level)
                at = end
        return list(found.values())

    def _end(self, text: str, at: int, stop: int) -> int:
        """Return the first row from `at` that does not begin with `text`, by galloping."""
        names, step = self._names, 1
        while at + step < stop and names[at + step].startswith(text):
            at, step = at + step, 2 * step
        while step:
            while at + step < stop and names[at + step].startswith(text):
                at += step
            step //= 2
        return at + 1

    def _branch(
        self, label: str, row: int | None, start: int, stop: int, begin: int, level: int
    ) -> Line:
        names, mark = self._names, self.mark
        begin, level = begin + len(label) + 1, level + 1
        # A branch with a single child shares its line.
        while row is None:
            first = names[start]
            if start + 1 == stop:
                return self._leaf(f"{label}{mark}{first[begin:]}", start)
            cut = first.find(mark, begin) if level < DEPTH_MAX else -1
            single = first[: cut + 1] if cut >= 0 else first + mark
            if level == DEPTH_MAX or not names[stop - 1].startswith(single):
                break
            if cut < 0:
                if not names[start + 1].startswith(single):
                    break
                row, start = start, start + 1
            label = f"{label}{mark}{single[begin:-1]}"
            begin, level = len(single), level + 1
        elements = int(self._elements[stop] - self._elements[start])
        nbytes = int(self._nbytes[stop] - self._nbytes[start])
        if row is not None:
            elements += self.tensors.elements[row]
            nbytes += self.tensors.nbytes[row]
        return Line(
            f"{label}{mark}",
            row,
            count=stop - start + (row is not None),
            elements=elements,
            nbytes=nbytes,
            inside=_Branch(self, start, stop, begin, level),
        )

    def _leaf(self, label: str, row: int) -> Line:
        tensors = self.tensors
        return Line(label, row, "", None, tensors.elements[row], tensors.nbytes[row])


@dataclass(slots=True)
class _Branch:
    """The lines below a branch of names, which are made when it is called."""

    names: _Names
    start: int
    stop: int
    begin: int
    level: int

    def __call__(self) -> list[Line]:
        return self.names.lines(self.start, self.stop, self.begin, self.level)

    def signature(self) -> tuple[object, ...]:
        """Return what must be equal in branches that are alike."""
        tensors, rows = self.names.tensors, slice(self.start, self.stop)
        return (
            tuple([name[self.begin :] for name in tensors.names[rows]]),
            tuple(tensors.dtypes[rows]),
            tuple(tensors.shapes[rows]),
        )


def _sums(numbers: list[int]) -> NDArray[Any]:
    """Return the sums of the first 0, 1, 2, ... numbers, exact however large they are."""
    count = len(numbers)
    fits = max(numbers, default=0) * count <= np.iinfo(np.int64).max
    sums = np.zeros(count + 1, np.int64 if fits else object)
    sums[1:] = numbers
    totals: NDArray[Any] = np.cumsum(sums, dtype=sums.dtype)
    return totals


def lines(tensors: Tensors) -> list[Line]:
    """Return the lines of the names, which are in key order."""
    return _Names(tensors).lines(0, len(tensors), 0, 0)


def _walk(
    top: list[Line],
    marks: tuple[str, str, str, str],
    ordered: Callable[[list[Line]], list[Line]],
    depth: int,
) -> Iterator[tuple[str, Line]]:
    """Yield each line with its label behind the marks of the tree, without recursion. The labels
    are not escaped yet."""
    branch, end, bar, blank = marks
    top = ordered(top)
    waiting = [("", iter(top), top[-1:])]
    while waiting:
        indent, found, last = waiting[-1]
        is_deepest = len(waiting) >= depth
        for line in found:
            is_last = line is last[0]
            label = f"{indent}{end if is_last else branch}{line.label}"
            if not line.inside:
                yield label, line
                continue
            yield f"{label} ..." if is_deepest else label, line
            if not is_deepest:
                below = ordered(line.inside())
                waiting.append((indent + (blank if is_last else bar), iter(below), below[-1:]))
                break
        else:
            waiting.pop()


def show(
    out: Output,
    tensors: Tensors,
    top: list[Line],
    limit: int | None,
    *,
    by_size: bool,
    kinds: bool = False,
    hidden: int = 0,
    depth: int | None = None,
    folds: bool = True,
) -> None:
    """Print the lines.

    Args:
        limit: how many tensors; None prints all.
        by_size: whether the largest come first.
        kinds: whether to show the kinds of objects.
        hidden: how many objects are not among the lines.
        depth: how many levels; None prints all.
        folds: whether lines that are alike become one.
    """

    def ordered(found: list[Line]) -> list[Line]:
        if folds:
            found = folded(found, tensors)
        return sorted(found, key=lambda line: -(line.nbytes or 0)) if by_size else found

    marks = LINES if out.fits("".join(LINES)) else ASCII_LINES
    walked = _walk(top, marks, ordered, DEPTH_MAX + 1 if depth is None else depth)
    seen, folded_away = bytearray(len(tensors)), 0

    def rows() -> Iterator[tuple[str, ...]]:
        nonlocal folded_away
        dtypes, shapes, shown = tensors.dtypes, tensors.shapes, 0
        count, size = functools.lru_cache(text.count), functools.lru_cache(text.size)
        shape = functools.lru_cache(text.shape)
        for label, line in walked:
            if limit is not None and shown >= limit:
                return
            dtype, dims, row = line.dtype, "", line.row
            if row is not None:
                dtype, dims = dtypes[row], shape(shapes[row])
                shown += not seen[row]
                seen[row] = 1
            folded_away += line.folded
            yield (
                label,
                "" if line.count is None else f"{line.count:,}",
                "" if line.elements is None else count(line.elements),
                "" if line.nbytes is None else size(line.nbytes),
                dtype,
                dims,
                line.kind,
            )

    titles = ("name", "tensors", "elements", "bytes", "dtype", "shape", "kind")[: 7 if kinds else 6]
    out.table(text.table_of_parts(_parts(rows(), titles), out.width))
    left = len(tensors) - seen.count(1) - folded_away
    if depth is None and left > 0:
        out.line(f"... and {text.plural(left, 'tensor')} more")
    if hidden:
        out.line(f"... and {text.plural(hidden, 'object')} without tensors (--all lists them)")
    out.line()


def _parts(rows: Iterator[tuple[str, ...]], titles: Sequence[str]) -> Iterator[list[text.Column]]:
    """Yield the columns of the rows, so many at a time; once if there are none."""
    part = list(itertools.islice(rows, LINES_AT_ONCE))
    is_first = True
    while part or is_first:
        names, *others = map(list, zip(*part, strict=True)) if part else [[] for _ in titles]
        cells = [text.printable_all(names), *others]
        yield [
            text.Column(title, cells[number], right=number in (1, 2, 3))
            for number, title in enumerate(titles)
        ]
        part, is_first = list(itertools.islice(rows, LINES_AT_ONCE)), False


# ---- folding ---------------------------------------------------------------------------------

# Fewer lines than this are not worth one that stands for them.
FOLDED_MIN = 3
_NUMBER = re.compile(r"[0-9]+")


def folded(found: list[Line], tensors: Tensors) -> list[Line]:
    """Return the lines, of which those that differ only in one number of their labels, and are
    alike below, are one: `layer_{0..11}/`, with the totals of all and the lines of the first."""
    if len(found) < FOLDED_MIN or not _NUMBER.search("\n".join([line.label for line in found])):
        return found
    keys = _number_keys(found)
    groups: dict[tuple[object, ...], list[tuple[Line, str]]] = {}
    order: dict[tuple[object, ...], None] = {}
    for place, (line, key) in enumerate(zip(found, keys, strict=True)):
        group: tuple[object, ...] = (place,)
        if key is not None:
            start, number, end = key
            group = start, end, _signature(line, tensors)
            groups.setdefault(group, []).append((line, number))
        else:
            groups[group] = [(line, "")]
        order.setdefault(group)
    result = []
    for group in order:
        members = groups[group]
        if len(members) < FOLDED_MIN:
            result += [line for line, _ in members]
        else:
            result.append(_one_of(members, str(group[0]), str(group[1])))
    return result


def _number_keys(found: list[Line]) -> Iterator[tuple[str, str, str] | None]:
    """Yield for each label the number by which it differs from the most others, and what is before
    and after it; None if no label is like it."""
    counts = Counter((start, end) for line in found for start, _, end in _numbers(line.label))
    for line in found:
        possible = _numbers(line.label)
        key = max(possible, key=lambda one: counts[one[0], one[2]], default=None)
        yield key if key is not None and counts[key[0], key[2]] >= FOLDED_MIN else None


def _numbers(label: str) -> list[tuple[str, str, str]]:
    """Return each number of a label with what is before and after it."""
    return [
        (label[: match.start()], match[0], label[match.end() :])
        for match in _NUMBER.finditer(label)
    ]


def _signature(line: Line, tensors: Tensors, level: int = 0) -> tuple[object, ...]:
    """Return what must be equal in lines that become one."""
    if level == DEPTH_MAX:
        return (object(),)  # too deep to compare
    tensor = None if line.row is None else (tensors.dtypes[line.row], tensors.shapes[line.row])
    if isinstance(line.inside, _Branch):
        return tensor, line.inside.signature()
    inside = line.inside() if line.inside else ()
    return (
        tensor,
        line.dtype,
        line.kind,
        tuple((one.label, _signature(one, tensors, level + 1)) for one in inside),
    )


def _one_of(members: Sequence[tuple[Line, str]], start: str, end: str) -> Line:
    lines, numbers = [line for line, _ in members], [number for _, number in members]
    first = lines[0]
    count = sum(1 if line.count is None else line.count for line in lines)
    return replace(
        first,
        label=f"{start}{{{_ranges(numbers)}}}{end}",
        count=count,
        elements=sum(line.elements or 0 for line in lines),
        nbytes=sum(line.nbytes or 0 for line in lines),
        folded=count - (1 if first.count is None else first.count),
    )


def _ranges(numbers: Sequence[str]) -> str:
    """Return "0..11" for the numbers from 0 to 11, else "0,2..5,7"."""
    runs: list[list[str]] = []
    for number in sorted(numbers, key=int):
        if runs and int(number) == int(runs[-1][1]) + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(first if first == last else f"{first}..{last}" for first, last in runs)
