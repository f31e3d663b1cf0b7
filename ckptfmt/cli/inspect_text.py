# SPDX-License-Identifier: Apache-2.0
"""Print the header, the table and the totals of `inspect`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from ckptfmt import CkptfmtError
from ckptfmt._base.hints import some
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.state_tree import KEY as STATE_KEY
from ckptfmt.bundle.state_tree import PYTREE
from ckptfmt.cli import text
from ckptfmt.cli.contents import RESERVED, Contents, Tensors
from ckptfmt.cli.inspect_graph import Objects
from ckptfmt.cli.output import Output
from ckptfmt.naming.roles import ModelRole, model_roles
from ckptfmt.naming.states import value_text

# Characters of a value, and how many are printed.
VALUE_MAX, VALUES_MAX = 200, 20
LABELS: dict[ModelRole, str] = {
    "weight": "weights",
    "optimizer": "optimizer",
    "unknown": "unknown",
}


def show_header(out: Output, contents: Contents) -> None:
    """Print level, versions and files."""
    header, blocks, count = contents.header, "", len(contents.files)
    out.line(out.paint(text.path(contents.prefix), "bold"))
    if contents.format != "tensorflow":
        out.line(f"  format    {contents.format}")
    elif header is None:
        out.line(f"  format    unknown, {out.paint('the index cannot be opened', 'red')}")
    else:
        versions = f"producer {header.producer}, min consumer {header.min_consumer}"
        order = "big-endian" if header.big_endian else "little-endian"
        out.line(f"  format    level {contents.level or 'unknown'}, {order}, {versions}")
        blocks = f" in {text.plural(header.block_count, 'data block')}"
        count = header.num_shards
    if contents.format == "tensorflow":
        out.line(f"  index     {_size(contents.index_size)}{blocks}")
    there = [file.size for file in contents.files if file.size is not None]
    data = f"{text.size(sum(there))} in {text.plural(count, 'file')}"
    if len(there) < len(contents.files):
        missing = f"{len(contents.files) - len(there)} missing or not readable"
        data += f", {out.paint(missing, 'red')}"
    out.line(f"  data      {data}")
    state = contents.state
    if state is not None:
        random = f", random states: {text.printable(some(state.random, ''))}"
        out.line(f"  state     of ckptfmt.torch{random if state.random else ''}")
        shown = {name: value_text(value) for name, value in state.values.items()}
        _show_lines(out, shown, "`ckptfmt show PATH` lists the names")
    shown_above = (PYTREE, *([] if state is None else [STATE_KEY]))
    left = {key: one for key, one in contents.metadata.items() if key not in shown_above}
    if left:
        out.line("  metadata")
        # JSON escapes control characters.
        _show_lines(out, {key: json.dumps(one) for key, one in left.items()}, "--json prints all")
    out.line()


def _show_lines(out: Output, lines: Mapping[str, str], way: str) -> None:
    """Print names and texts, short ones of not too many."""
    some = dict(islice(lines.items(), VALUES_MAX))
    names = text.printable_all(list(some))
    width = max(map(len, names), default=0)
    for name, line in zip(names, some.values(), strict=True):
        more = f"... ({len(line):,} characters)" if len(line) > VALUE_MAX else ""
        out.line(f"    {name:{width}}  {line[:VALUE_MAX]}{more}")
    if len(lines) > len(some):
        out.line(f"    ... and {len(lines) - len(some):,} more: {way}")


def show_files(out: Output, contents: Contents) -> None:
    """Print the data files of a checkpoint whose tensors cannot be listed."""
    if contents.header is not None:
        out.line(out.paint("the tensors cannot be listed: the index is damaged", "red"))
        out.line()
    if contents.files:
        columns = [
            text.Column("data file", [text.path(file.path) for file in contents.files]),
            text.Column("bytes", [_size(file.size) for file in contents.files], right=True),
        ]
        for piece in text.table(columns):
            out.write(piece)
        out.line()
    out.line("`ckptfmt verify` lists all problems.")


def _size(size: int | None) -> str:
    return "unknown" if size is None else text.size(size)


def show_table(
    out: Output,
    tensors: Tensors,
    limit: int | None,
    name_of: Callable[[str], str] | None,
    parameter_of: Callable[[str], str | None] | None = None,
    *,
    slices: bool,
) -> None:
    """Print one row per tensor, under the name that `name_of` gives it, and beside the parameter
    to which it belongs."""
    shown = tensors if limit is None else tensors.pick(range(min(limit, len(tensors))))
    names = shown.names if name_of is None else list(map(name_of, shown.names))
    names = text.printable_all(names)
    columns = _with_slices(shown, names) if slices and shown.in_checkpoint else _plain(shown, names)
    owners = [parameter_of(name) or "" for name in shown.names] if parameter_of else []
    if any(owners):
        columns.append(text.Column("of", text.printable_all(owners)))
    out.table(text.table(columns, out.width))
    if len(shown) < len(tensors):
        out.line(f"... and {text.plural(len(tensors) - len(shown), 'tensor')} more")
    out.line()


def _plain(tensors: Tensors, names: list[str]) -> list[text.Column]:
    shapes = {dims: text.shape(dims) for dims in set(tensors.shapes)}
    numbers = {shard: str(shard) for shard in set(tensors.shards)}
    shards = [numbers[shard] for shard in tensors.shards]
    counts = [""] * len(tensors)
    for row in tensors.partitioned:
        shards[row] = shards_of(tensors, row)
        counts[row] = str(tensors.slice_counts[row])
    columns = [
        text.Column("name", names),
        text.Column("dtype", tensors.dtypes),
        text.Column("shape", [shapes[dims] for dims in tensors.shapes]),
        text.Column("bytes", text.sizes(tensors.nbytes), right=True),
    ]
    if tensors.in_checkpoint:
        columns.append(text.Column("shard", shards, right=True))
    if tensors.partitioned:
        columns.append(text.Column("slices", counts, right=True))
    return columns


def shards_of(tensors: Tensors, row: int) -> str:
    """Return the data files of a partitioned tensor: "0-3", "0,7"."""
    found = sorted({part.shard for part in tensors.slices(row) if not part.missing})
    runs: list[list[int]] = []
    for shard in found:
        if runs and runs[-1][1] == shard - 1:
            runs[-1][1] = shard
        else:
            runs.append([shard, shard])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) or "-"


def _with_slices(tensors: Tensors, names: list[str]) -> list[text.Column]:
    """As `_plain`, with offsets, and a row per slice below its tensor."""
    rows: list[tuple[str, ...]] = []
    sizes = text.sizes(tensors.nbytes)
    for row, name in enumerate(names):
        dims, count = tensors.shapes[row], tensors.slice_counts[row]
        head = (name, tensors.dtypes[row], text.shape(dims), sizes[row])
        if not count:
            shard, offset = str(tensors.shards[row]), str(tensors.offsets[row])
            rows.append((*head, shard, "", offset, f"{tensors.crcs[row]:08x}"))
            continue
        rows.append((*head, shards_of(tensors, row), str(count), "", ""))
        for part in tensors.slices(row):
            where = f"  {text.box(part.start, part.shape, dims)}"
            lengths = text.shape(part.shape)
            if part.missing:
                rows.append((where, "", lengths, "missing", "", "", "", ""))
            else:
                shard, offset = str(part.shard), str(part.offset)
                crc = f"{part.crc32c:08x}"
                rows.append((where, "", lengths, text.size(part.nbytes), shard, "", offset, crc))
    titles = ("name", "dtype", "shape", "bytes", "shard", "slices", "offset", "crc32c")
    cells = list(zip(*rows, strict=True)) or [()] * len(titles)
    return [
        text.Column(title, list(column), right=number > 2)
        for number, (title, column) in enumerate(zip(titles, cells, strict=True))
    ]


def show_totals(out: Output, contents: Contents, chosen: Tensors, candidates: int | None) -> None:
    """Print the sums over the tensors chosen, whether shown or not, and over those of each dtype.

    `candidates` is how many tensors a filter chose from; None: there was no filter.
    """
    total, by_dtype = chosen.totals()
    everything = contents.tensors
    of_all = ""
    if candidates is not None:
        of_all = f" (of {text.plural(candidates, 'tensor')})"
    out.line(
        out.paint(
            f"{text.plural(total.tensors, 'tensor')}{of_all}, "
            f"{text.plural(total.elements, 'element')}, {text.size(total.nbytes)}",
            "bold",
        )
    )
    if by_dtype:
        sums = by_dtype.values()
        columns = [
            text.Column("", [f"  {dtype}" for dtype in by_dtype]),
            text.Column("", [text.plural(one.tensors, "tensor") for one in sums], right=True),
            text.Column("", [text.plural(one.elements, "element") for one in sums], right=True),
            text.Column("", [text.size(one.nbytes) for one in sums], right=True),
        ]
        lines = text.table(columns)
        next(lines)  # without titles
        for piece in lines:
            out.write(piece)
    if everything is not None and candidates is None and len(chosen) < len(everything):
        own = text.plural(len(everything) - len(chosen), "tensor")
        out.line(f"  and {own} of the format itself ({RESERVED}*; --all lists them)")


def roles_line(
    everything: Tensors, chosen: Tensors, reader: Reader, objects: Objects | None
) -> str | None:
    """Return how many elements are weights, and how many the state of an optimizer."""
    graph = None if objects is None else objects.graph
    columns = everything.names, everything.shapes, everything.dtypes
    try:
        roles = model_roles(reader, columns, graph)
    except CkptfmtError:
        return None  # of a damaged graph, which is among the problems
    sums = Counter[ModelRole]()
    for name, elements in zip(chosen.names, chosen.elements, strict=True):
        if not name.startswith(RESERVED):
            sums[roles[name]] += elements
    parts = [f"{LABELS[role]} {sums[role]:,}" for role in LABELS if sums[role]]
    return f"  elements: {', '.join(parts)}" if parts else None
