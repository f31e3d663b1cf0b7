# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt inspect`: show tensors and totals. Never changes anything.

`contents.py` collects; `inspect_text.py`, `inspect_tree.py` and `inspect_json.py` print;
`inspect_graph.py` prepares an object graph for `inspect_tree.py`.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt._base.names import in_order
from ckptfmt._base.patterns import filter_function, no_match
from ckptfmt.bundle.graph import leaf_name
from ckptfmt.bundle.verify import finding_of, only_unread
from ckptfmt.cli import DAMAGE, inspect_graph, inspect_json, inspect_text, inspect_tree
from ckptfmt.cli.contents import (
    RESERVED,
    Contents,
    Tensors,
    gather,
    gather_file,
    gather_unopened,
)
from ckptfmt.cli.options import count, name_filter
from ckptfmt.cli.output import COLORS, Output, colored, complain
from ckptfmt.files.locate import locate
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.opening import kind_of
from ckptfmt.types import Finding

EPILOG = r"""
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, or a SavedModel directory; or a safetensors, npz or HDF5 file, the index of a model in
several safetensors files, or a directory of torch.distributed.checkpoint (DCP).

Only the index is read (and the object graph for --tree). A damaged checkpoint is shown as far as it
can be read; problems go to standard error. Names are escaped: \n, \x1b and \xff are bytes, \u202e
is a character, \\ is a backslash. Variables of an object graph are shown by the paths of their
objects (--raw-names: as they are stored); filters take the stored name, and every path of the
object.

--json prints {"schema": 2, "path", "prefix", "format", "level", "header": {"num_shards",
"big_endian", "producer", "min_consumer", "index_size", "block_count"}, "metadata", "tensors":
[{"name", "display", "dtype", "shape", "nbytes", "stored_nbytes", "shard", "offset", "crc32c",
"slices": [{"start", "shape", "nbytes", "raw_nbytes", "shard", "offset", "crc32c", "missing"},
...]}, ...], "totals": {"tensors", "elements", "nbytes", "by_dtype", "index_bytes", "data_bytes",
"files"}, "problems": [...]}. "name" is the stored name, "display" the one that the table shows.
What is unknown, or has no meaning in the format, is null; keys may be added within a schema. A
tensor of a file that cannot be read has the dtype "unreadable", and a problem, or a note if it is
sound, says why.

examples:
  ckptfmt inspect model.ckpt-1000
  ckptfmt inspect --sort size --limit 20 model.ckpt-1000
  ckptfmt inspect --filter '*/kernel' --slices checkpoints/
  ckptfmt inspect --filter '/^encoder.*(bias|scale)$/' --tree run/
  ckptfmt inspect --json model | python3 -m json.tool

exit status:
  0  everything could be shown
  1  something is damaged or missing
  2  wrong usage, no checkpoint at PATH, or something that could not be read or written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("path", metavar="PATH", help="the checkpoint")
    add(
        "--filter",
        metavar="PATTERN",
        action="append",
        type=name_filter,
        help="only tensors whose name matches: a name, else a glob for all of it (* matches / as "
        "well), or /REGEX/ found anywhere in it; may be given several times, any may match",
    )
    add(
        "--sort",
        choices=["name", "size", "shard", "dtype"],
        default="name",
        help="order of the tensors: name (byte order, as stored), size (most bytes first), shard "
        "(data file, then offset), dtype; with --tree only name and size",
    )
    add("--limit", metavar="N", type=count, help="show the first N tensors only")
    add("--raw-names", action="store_true", help="print names as they are stored")
    add("--slices", action="store_true", help="list the slices of partitioned tensors, and offsets")
    add(
        "--all",
        action="store_true",
        help=f"list the format's own tensors ({RESERVED}*) as well, and with --tree the objects "
        "without tensors",
    )
    add(
        "--tree",
        action="store_true",
        help="the objects of the object graph, where there is one, else names split at /, with "
        "sums per branch; layers that are alike are one line, with the lines of the first below",
    )
    add("--depth", metavar="N", type=count, help="with --tree: the first N levels")
    add("--full", action="store_true", help="with --tree: layers that are alike are not folded")
    add("--json", action="store_true", help="one JSON document, sizes exact")
    add("--color", choices=COLORS, default="auto", help="colours; auto: on a terminal")


def run(options: argparse.Namespace) -> int:
    """Show a checkpoint and return the exit status.

    Raises:
        CkptfmtError: it is missing, or cannot be opened for another reason than damage.
    """
    # A million tensors are many objects, in no cycles: looking for cycles takes half of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _run(options)
    finally:
        if was_enabled:
            gc.enable()


def _run(options: argparse.Namespace) -> int:
    if options.tree and not options.json and options.sort in ("shard", "dtype"):
        raise InvalidError(f"--tree cannot be sorted by {options.sort}: use name or size")
    kind = kind_of(options.path)
    if kind != "tensorflow":
        contents = gather_file(kind, options.path)
        assert contents.tensors is not None
        _show(contents, _chosen(contents.tensors, None, options), None, None, options)
        return _complain(contents.problems, options.color)
    prefix = locate(options.path)
    try:
        reader = ckptfmt.open(prefix)
    except DAMAGE as error:
        contents = gather_unopened(prefix, finding_of(error))
        _show(contents, None, None, None, options)
        return _complain(contents.problems, options.color)
    with reader:
        contents = gather(reader)
        names = chosen = None
        if contents.tensors is not None:
            names = TensorNames(reader)
            chosen = _chosen(contents.tensors, names, options)
        objects = None
        if options.tree and not options.json and chosen is not None:
            objects = inspect_graph.objects_of(reader, contents)
        _show(contents, chosen, names, objects, options)
    return _complain(contents.problems, options.color)


def _chosen(tensors: Tensors, names: TensorNames | None, options: argparse.Namespace) -> Tensors:
    rows = _listed(tensors, options)
    if options.filter:
        stored = tensors.names
        present = {*stored, *map(leaf_name, stored)}

        def passing(given: str) -> Callable[[str], object]:
            if names is not None:
                return names.passing(given)
            passes = filter_function(given, present)
            assert passes is not None
            return lambda name: passes(name) or passes(leaf_name(name))

        filters = list(map(passing, options.filter))
        listed, rows = rows, [r for r in rows if any(passes(stored[r]) for passes in filters)]
        if not rows:
            names_listed = [stored[row] for row in listed]
            error = no_match("filter", " or ".join(options.filter), names_listed, options.path)
            for given in options.filter:
                if any(given in name for name in names_listed):
                    error.hint(f"; try: --filter '*{given}*'")
            raise error
    # They are in the order of names. A tree needs that, and sorts each of its branches by size.
    if options.sort != "name" and (options.json or not options.tree):
        keys: list[Any]
        if options.sort == "size":
            keys = [-size for size in tensors.nbytes]
        elif options.sort == "shard":
            keys = list(zip(tensors.shards, tensors.offsets, strict=True))
        else:
            keys = tensors.dtypes
        rows = sorted(rows, key=keys.__getitem__)
    elif not (options.tree or options.json or options.raw_names):
        name_of = leaf_name if names is None else names.shown
        shown = [name_of(tensors.names[row]) for row in rows]
        rows = [rows[at] for at in in_order(shown)]
    return tensors.pick(rows)


def _listed(tensors: Tensors, options: argparse.Namespace) -> Sequence[int] | NDArray[np.intp]:
    """Return the rows to choose from: the format's own tensors are listed with --all only."""
    own = [row for row, name in enumerate(tensors.names) if name.startswith(RESERVED)]
    if options.all or not own:
        return range(len(tensors))
    return np.delete(np.arange(len(tensors)), own)


def _show(
    contents: Contents,
    chosen: Tensors | None,
    names: TensorNames | None,
    objects: inspect_graph.Objects | None,
    options: argparse.Namespace,
) -> None:
    out = Output(options.color)
    display = leaf_name if names is None else names.shown
    if options.json:
        inspect_json.show(out, options.path, contents, chosen, options.limit, display)
    elif chosen is None:
        inspect_text.show_header(out, contents)
        inspect_text.show_files(out, contents)
    else:
        # Before the lists of a million tensors are made.
        roles = None
        if names is not None:
            roles = inspect_text.roles_line(
                contents.tensors or chosen, chosen, names.reader, objects
            )
        inspect_text.show_header(out, contents)
        if options.tree:
            _show_tree(out, chosen, objects, options)
        else:
            name_of = None if options.raw_names else display
            owner_of = contents.state.parameter_of if contents.state is not None else None
            inspect_text.show_table(
                out, chosen, options.limit, name_of, owner_of, slices=options.slices
            )
        candidates = None
        if options.filter and contents.tensors is not None:
            candidates = len(_listed(contents.tensors, options))
        inspect_text.show_totals(out, contents, chosen, candidates)
        if roles is not None:
            out.line(roles)
    out.flush()


def _show_tree(
    out: Output,
    chosen: Tensors,
    objects: inspect_graph.Objects | None,
    options: argparse.Namespace,
) -> None:
    if objects is None:
        top, hidden, kinds = inspect_tree.lines(chosen), 0, False
    else:
        top, hidden, kinds = inspect_graph.lines(
            objects, chosen, filtered=bool(options.filter), everything=options.all
        )
    inspect_tree.show(
        out,
        chosen,
        top,
        options.limit,
        by_size=options.sort == "size",
        kinds=kinds,
        hidden=hidden,
        depth=options.depth or None,
        folds=not options.full,
    )


def _complain(problems: list[Finding], color: str) -> int:
    """Print the problems to standard error and return the exit status."""
    mark = "\x1b[31mproblem\x1b[0m" if colored(sys.stderr, color) else "problem"
    for problem in problems:
        complain(str(problem).replace("problem", mark, 1))
    problems = [one for one in problems if one.severity == "problem"]
    return 2 if only_unread(problems) else 1 if problems else 0
