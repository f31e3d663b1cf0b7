# SPDX-License-Identifier: Apache-2.0
"""Print `inspect --tree`: lines below lines, of names split at slashes or of an object graph
(`inspect_graph.py`), with totals per branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ckptfmt.cli import text
from ckptfmt.cli.contents import Tensors
from ckptfmt.cli.output import Output

__all__ = ["DEPTH_MAX", "Line", "lines", "show"]

# Deeper lines are not shown, and names are not split deeper; a name may consist of slashes.
DEPTH_MAX = 40
LINES = ("├─ ", "└─ ", "│  ", "   ")
ASCII_LINES = ("|- ", "`- ", "|  ", "   ")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a branch, a tensor, or both.

    Attributes:
        label: the text, not escaped yet.
        row: its tensor.
        dtype: the text instead of the dtype, if it has no tensor.
        count: how many tensors are in a branch.
        nbytes: their size; None shows none.
        kind: the kind of the object.
        inside: returns the lines below; None if there are none.
    """

    label: str
    row: int | None = None
    dtype: str = ""
    count: int | None = None
    nbytes: int | None = None
    kind: str = ""
    inside: Callable[[], list[Line]] | None = None


class _Branch:
    """A branch of names, which may be a tensor as well."""

    __slots__ = ("children", "count", "nbytes", "row")

    def __init__(self) -> None:
        self.children: dict[str, _Branch] = {}
        self.row: int | None = None
        self.count = self.nbytes = 0

    def lines(self) -> list[Line]:
        """Return the lines below this one."""
        found = []
        for name, branch in self.children.items():
            # A branch with a single child branch shares its line.
            while len(branch.children) == 1 and branch.row is None:
                piece, branch = next(iter(branch.children.items()))  # noqa: PLW2901
                name = f"{name}/{piece}"  # noqa: PLW2901
            if branch.children:
                found.append(
                    Line(
                        f"{name}/",
                        branch.row,
                        count=branch.count,
                        nbytes=branch.nbytes,
                        inside=branch.lines,
                    )
                )
            else:
                found.append(Line(name, branch.row, nbytes=branch.nbytes))
        return found


def lines(tensors: Tensors) -> list[Line]:
    """Return the lines of the names."""
    root = _Branch()
    for row, (name, nbytes) in enumerate(zip(tensors.names, tensors.nbytes, strict=True)):
        branch = root
        for piece in name.split("/", DEPTH_MAX):
            branch = branch.children.setdefault(piece, _Branch())
            branch.count += 1
            branch.nbytes += nbytes
        branch.row = row
    return root.lines()


def _walk(
    top: list[Line], marks: tuple[str, str, str, str], by_size: bool
) -> Iterator[tuple[str, Line]]:
    """Yield each line with its label behind the marks of the tree, without recursion."""

    def stacked(found: list[Line], indent: str) -> list[tuple[str, bool, Line]]:
        if by_size:
            found = sorted(found, key=lambda line: -(line.nbytes or 0))
        return [(indent, line is found[-1], line) for line in reversed(found)]

    waiting = stacked(top, "")
    while waiting:
        indent, last, line = waiting.pop()
        below = stacked(line.inside(), indent + marks[3 if last else 2]) if line.inside else []
        cut = bool(below) and len(indent) >= DEPTH_MAX * len(marks[0])
        label = f"{indent}{marks[1 if last else 0]}{text.printable(line.label)}"
        yield f"{label} ..." if cut else label, line
        if not cut:
            waiting += below


def show(
    out: Output,
    tensors: Tensors,
    top: list[Line],
    limit: int | None,
    *,
    by_size: bool,
    kinds: bool = False,
) -> None:
    """Print the lines; `limit` counts tensors, and `kinds` adds the kinds of objects."""
    marks = LINES if out.fits("".join(LINES)) else ASCII_LINES
    rows: list[tuple[str, ...]] = []
    seen: set[int] = set()
    for label, line in _walk(top, marks, by_size):
        if limit is not None and len(seen) >= limit:
            break
        dtype, shape = line.dtype, ""
        if line.row is not None:
            seen.add(line.row)
            dtype, shape = tensors.dtypes[line.row], text.shape(tensors.shapes[line.row])
        count = "" if line.count is None else f"{line.count:,}"
        nbytes = "" if line.nbytes is None else text.size(line.nbytes)
        rows.append((label, count, nbytes, dtype, shape, line.kind))
    titles = ("name", "tensors", "bytes", "dtype", "shape", "kind")[: 6 if kinds else 5]
    columns = [
        text.Column(title, [row[number] for row in rows], right=number in (1, 2))
        for number, title in enumerate(titles)
    ]
    pieces = text.table(columns)
    out.write(out.paint(next(pieces).rstrip("\n"), "bold") + "\n")
    for piece in pieces:
        out.write(piece)
    if len(seen) < len(tensors):
        out.line(f"... and {text.plural(len(tensors) - len(seen), 'tensor')} more")
    out.line()
