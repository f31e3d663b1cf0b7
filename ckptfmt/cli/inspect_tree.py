# SPDX-License-Identifier: Apache-2.0
"""Print the names of `inspect` as a tree split at slashes, with totals per branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptfmt.cli import text
from ckptfmt.cli.contents import Tensors
from ckptfmt.cli.output import Output

__all__ = ["show", "write_rows"]

# Names are not split deeper than this; a name may consist of slashes.
DEPTH_MAX = 40
LINES = ("├─ ", "└─ ", "│  ", "   ")
ASCII_LINES = ("|- ", "`- ", "|  ", "   ")


class _Node:
    """A branch, a tensor, or both."""

    __slots__ = ("children", "elements", "nbytes", "row", "tensors")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.row: int | None = None
        self.tensors = self.elements = self.nbytes = 0

    def add(self, row: int, elements: int, nbytes: int) -> None:
        """Add a tensor to the totals."""
        self.tensors += 1
        self.elements += elements
        self.nbytes += nbytes


def _grown(tensors: Tensors) -> _Node:
    root = _Node()
    columns = zip(tensors.names, tensors.elements, tensors.nbytes, strict=True)
    for row, (name, elements, nbytes) in enumerate(columns):
        node = root
        node.add(row, elements, nbytes)
        for piece in name.split("/", DEPTH_MAX):
            node = node.children.setdefault(piece, _Node())
            node.add(row, elements, nbytes)
        node.row = row
    return root


def _walk(
    node: _Node, lines: tuple[str, str, str, str], by_size: bool, indent: str = ""
) -> Iterator[tuple[str, _Node]]:
    """Yield every node below this one, with its name and the lines of the tree."""
    children = list(node.children.items())
    if by_size:
        children.sort(key=lambda item: -item[1].nbytes)
    for number, (name, child) in enumerate(children):
        last = number + 1 == len(children)
        # A branch with a single child branch shares its line.
        while len(child.children) == 1 and child.row is None:
            piece, child = next(iter(child.children.items()))  # noqa: PLW2901
            name = f"{name}/{piece}"  # noqa: PLW2901
        slash = "/" if child.children else ""
        yield f"{indent}{lines[1 if last else 0]}{text.printable(name)}{slash}", child
        yield from _walk(child, lines, by_size, indent + lines[3 if last else 2])


def show(out: Output, tensors: Tensors, limit: int | None, *, by_size: bool) -> None:
    """Print one line per branch and per tensor; `limit` counts tensors."""
    lines = LINES if out.fits("".join(LINES)) else ASCII_LINES
    rows: list[tuple[str, str, str, str, str]] = []
    seen = 0
    for label, node in _walk(_grown(tensors), lines, by_size):
        if limit is not None and seen >= limit:
            break
        dtype = shape = ""
        if node.row is not None:
            dtype, shape = tensors.dtypes[node.row], text.shape(tensors.shapes[node.row])
            seen += 1
        count = f"{node.tensors:,}" if node.children else ""
        rows.append((label, count, text.size(node.nbytes), dtype, shape))
    write_rows(out, ("name", "tensors", "bytes", "dtype", "shape"), rows)
    if seen < len(tensors):
        out.line(f"... and {text.plural(len(tensors) - seen, 'tensor')} more")
    out.line()


def write_rows(out: Output, titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """A table whose second and third columns are numbers."""
    cells = list(zip(*rows, strict=True)) or [()] * len(titles)
    columns = [
        text.Column(title, list(column), right=number in (1, 2))
        for number, (title, column) in enumerate(zip(titles, cells, strict=True))
    ]
    pieces = text.table(columns)
    out.write(out.paint(next(pieces).rstrip("\n"), "bold") + "\n")
    for piece in pieces:
        out.write(piece)
