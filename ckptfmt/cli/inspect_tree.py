# SPDX-License-Identifier: Apache-2.0
"""Print `inspect --tree`: lines below lines, of names split at slashes (at dots, if no name has a
slash) or of an object graph (`inspect_graph.py`), with totals per branch. Lines that differ only in
a number, as layers do, become one."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ckptfmt.cli import text
from ckptfmt.cli.contents import Tensors
from ckptfmt.cli.output import Output

__all__ = ["DEPTH_MAX", "Line", "lines", "show"]

# Deeper lines are not shown, and names are not split deeper; a name may consist of slashes.
DEPTH_MAX = 40
LINES = ("├─ ", "└─ ", "│  ", "   ")
ASCII_LINES = ("|- ", "`- ", "|  ", "   ")


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


class _Branch:
    """A branch of names, which may be a tensor as well."""

    __slots__ = ("children", "count", "elements", "nbytes", "parent", "row")

    def __init__(self, parent: _Branch | None) -> None:
        self.parent = parent
        self.children: dict[str, _Branch] = {}
        self.row: int | None = None
        self.count = self.elements = self.nbytes = 0

    def lines(self, mark: str) -> list[Line]:
        """Return the lines below this one."""
        found = []
        for name, branch in self.children.items():
            # A branch with a single child branch shares its line.
            while len(branch.children) == 1 and branch.row is None:
                piece, branch = next(iter(branch.children.items()))  # noqa: PLW2901
                name = f"{name}{mark}{piece}"  # noqa: PLW2901
            if branch.children:
                found.append(
                    Line(
                        f"{name}{mark}",
                        branch.row,
                        count=branch.count,
                        elements=branch.elements,
                        nbytes=branch.nbytes,
                        inside=functools.partial(branch.lines, mark),
                    )
                )
            else:
                found.append(Line(name, branch.row, elements=branch.elements, nbytes=branch.nbytes))
        return found


def lines(tensors: Tensors) -> list[Line]:
    """Return the lines of the names."""
    mark = "/" if any("/" in name for name in tensors.names) else "."
    root = _Branch(None)
    created: list[_Branch] = []  # parents first
    # Names in their order share most of their branches with the one before.
    before: list[str] = []
    path = [root]
    for row, name in enumerate(tensors.names):
        pieces = name.split(mark, DEPTH_MAX)
        shared = 0
        for piece, other in zip(pieces, before, strict=False):
            if piece != other:
                break
            shared += 1
        del path[shared + 1 :]
        for piece in pieces[shared:]:
            children = path[-1].children
            branch = children.get(piece)
            if branch is None:
                branch = children[piece] = _Branch(path[-1])
                created.append(branch)
            path.append(branch)
        path[-1].row = row
        before = pieces
    elements, nbytes = tensors.elements, tensors.nbytes
    for branch in reversed(created):
        if branch.row is not None:
            branch.count += 1
            branch.elements += elements[branch.row]
            branch.nbytes += nbytes[branch.row]
        parent = branch.parent
        if parent is not None:
            parent.count += branch.count
            parent.elements += branch.elements
            parent.nbytes += branch.nbytes
    return root.lines(mark)


def _walk(
    top: list[Line],
    marks: tuple[str, str, str, str],
    ordered: Callable[[list[Line]], list[Line]],
    depth: int,
) -> Iterator[tuple[str, Line]]:
    """Yield each line with its label behind the marks of the tree, without recursion."""

    def stacked(found: list[Line], indent: str) -> list[tuple[str, bool, Line]]:
        found = ordered(found)
        return [(indent, line is found[-1], line) for line in reversed(found)]

    waiting = stacked(top, "")
    while waiting:
        indent, last, line = waiting.pop()
        deepest = len(indent) >= (depth - 1) * len(marks[0])
        below: list[tuple[str, bool, Line]] = []
        if line.inside and not deepest:
            below = stacked(line.inside(), indent + marks[3 if last else 2])
        label = f"{indent}{marks[1 if last else 0]}{text.printable(line.label)}"
        yield f"{label} ..." if line.inside and deepest else label, line
        waiting += below


def show(
    out: Output,
    tensors: Tensors,
    top: list[Line],
    limit: int | None,
    *,
    by_size: bool,
    kinds: bool = False,
    depth: int | None = None,
    folds: bool = True,
) -> None:
    """Print the lines.

    Args:
        limit: how many tensors; None prints all.
        by_size: whether the largest come first.
        kinds: whether to add the kinds of objects.
        depth: how many levels; None prints all.
        folds: whether lines that are alike become one.
    """

    def ordered(found: list[Line]) -> list[Line]:
        if folds:
            found = folded(found, tensors)
        return sorted(found, key=lambda line: -(line.nbytes or 0)) if by_size else found

    marks = LINES if out.fits("".join(LINES)) else ASCII_LINES
    rows: list[tuple[str, ...]] = []
    seen: set[int] = set()
    hidden = 0
    for label, line in _walk(top, marks, ordered, DEPTH_MAX + 1 if depth is None else depth):
        if limit is not None and len(seen) >= limit:
            break
        dtype, shape = line.dtype, ""
        if line.row is not None:
            seen.add(line.row)
            dtype, shape = tensors.dtypes[line.row], text.shape(tensors.shapes[line.row])
        hidden += line.folded
        count = "" if line.count is None else f"{line.count:,}"
        elements = "" if line.elements is None else text.count(line.elements)
        nbytes = "" if line.nbytes is None else text.size(line.nbytes)
        rows.append((label, count, elements, nbytes, dtype, shape, line.kind))
    titles = ("name", "tensors", "elements", "bytes", "dtype", "shape", "kind")[: 7 if kinds else 6]
    columns = [
        text.Column(title, [row[number] for row in rows], right=number in (1, 2, 3))
        for number, title in enumerate(titles)
    ]
    pieces = text.table(columns, out.width)
    out.write(out.paint(next(pieces).rstrip("\n"), "bold") + "\n")
    for piece in pieces:
        out.write(piece)
    left = len(tensors) - len(seen) - hidden
    if depth is None and left > 0:
        out.line(f"... and {text.plural(left, 'tensor')} more")
    out.line()


# ---- folding ---------------------------------------------------------------------------------

# Fewer lines than this are not worth one that stands for them.
FOLDED_MIN = 3
_NUMBER = re.compile(r"[0-9]+")


def folded(found: list[Line], tensors: Tensors) -> list[Line]:
    """Return the lines, of which those that differ only in one number of their labels, and are
    alike below, are one: `layer_{0..11}/`, with the totals of all and the lines of the first."""
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


def _number_keys(found: list[Line]) -> list[tuple[str, str, str] | None]:
    """Return for each label the number by which it differs from the most others, and what is before
    and after it; None if no label is like it."""
    possible = [
        [
            (line.label[: match.start()], match[0], line.label[match.end() :])
            for match in _NUMBER.finditer(line.label)
        ]
        for line in found
    ]
    counts = Counter((start, end) for keys in possible for start, _, end in keys)
    return [
        key if key is not None and counts[key[0], key[2]] >= FOLDED_MIN else None
        for keys in possible
        for key in [max(keys, key=lambda one: counts[one[0], one[2]], default=None)]
    ]


def _signature(line: Line, tensors: Tensors, level: int = 0) -> tuple[object, ...]:
    """Return what must be equal in lines that become one."""
    if level == DEPTH_MAX:
        return (object(),)  # too deep to compare
    tensor = None if line.row is None else (tensors.dtypes[line.row], tensors.shapes[line.row])
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
