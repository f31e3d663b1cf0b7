# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt diff`: compares two checkpoints, values included."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from ckptfmt import TensorNotFoundError, UnsupportedError
from ckptfmt._base.names import in_order
from ckptfmt._base.progress import Meter
from ckptfmt._base.values import as_json, few_as_text
from ckptfmt.bundle.comparing import (
    Difference,
    Tolerance,
    changed_metadata,
    compare,
    norms,
    ratio,
)
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.reader import Reader
from ckptfmt.cli import text
from ckptfmt.cli.options import name_filter, number
from ckptfmt.cli.output import COLORS, Output
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.renaming import renames
from ckptfmt.errors import masked
from ckptfmt.naming.graphs import graphs_equal
from ckptfmt.naming.metadata import renamed_metadata
from ckptfmt.naming.states import state_of, value_text
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.opening import open_any
from ckptfmt.types import TensorHandle

EPILOG = """
A and B are paths as for `ckptfmt inspect`. Only contents are compared: data files, slices, order
and level may differ.

Values are compared bit by bit: 0.0 and -0.0 differ, and a NaN equals a NaN of the same bits. With
--rtol or --atol, also of 0, floating-point and complex numbers a, b are equal if
|a - b| <= atol + rtol * |b|, or both NaN. Then tensors of different dtypes, such as a cast to
bfloat16, are compared as well. What is equal within the tolerance is counted, and is not a
difference; of another dtype it is printed.

One line per difference, in the order of `ckptfmt inspect`: of at most 4 elements the values in A
and B; how many elements differ; of numbers the largest absolute difference, the norm of the change
(L2, of B - A) and, as "relative", its ratio to the norm of A; how many are NaN or infinite, which
the norms leave out. The last line has the norm over all floating-point and complex tensors that
differ and have at least one dimension. Object graphs of TensorFlow are equal if they have the same
objects and keys. With --rename, graphs and metadata are compared as `ckptfmt edit --rename` leaves
them.

Tensors of more than 64 MiB are compared in pieces, which cannot be verified at level v2: run
`ckptfmt verify` first. With --checksums, tensors with the same checksum in both indexes are equal
and not read; damage of their data is not noticed.

A or B may also be a safetensors, npz or HDF5 file or a directory of torch.distributed.checkpoint,
which is converted into a temporary directory first. If A and B are of different formats, the object
graph of TensorFlow and the metadata are not compared: most formats have no place for them; but the
values that two states of torch (ckptfmt.torch, DCP) both have are, apart from random states. A
filter is a glob for the whole name (* also matches /), or /REGEX/ found anywhere in it, of the
stored name or of a path of the object; with a filter, metadata are not compared.

--json prints {"schema": 2, "a", "b": paths, "equal", "metadata_equal", "metadata": {name: [value in
A, in B], ...} of those that differ, null where it is missing, "values": {path: [in A, in B], ...}
of two states of ckptfmt.torch as text, "tensors_equal": how many, "norm_a", "norm_change": over
all, "differences": [{"name", "display", "kind", "a", "b": {"dtype", "shape"} or null,
"elements", "elements_within_tolerance", "max_abs_difference", "norm_a", "norm_change", "nan_a",
"nan_b", "infinite_a", "infinite_b", "values_a", "values_b"}, ...]}; kind is "only in A", "only in
B", "dtype", "shape" or "values"; numbers are null where values were not compared or are not
numbers, values where there are more than 4, else they are those of `ckptfmt show --json`; an
infinite number is "Infinity". A difference with "elements": 0 is equal within the tolerance.

examples:
  ckptfmt diff model.ckpt-1000 model.ckpt-2000
  ckptfmt diff --quiet before after && echo the same
  ckptfmt diff --rtol 1e-5 --filter '*/kernel' before after
  ckptfmt diff --rtol 1e-2 before cast-to-bfloat16
  ckptfmt diff --rename 'bert/*=encoder/*' model other.safetensors

exit status:
  0  equal, with --rtol or --atol also of other floating-point dtypes
  1  different, or one of them is damaged
  2  wrong usage, no checkpoint at A or B, or output that could not be written
"""

# Longer strings and metadata are cut.
STRING_MAX = 60


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("a", metavar="A", help="a checkpoint")
    add("b", metavar="B", help="another one")
    add("--rtol", metavar="X", type=number, help="relative tolerance")
    add("--atol", metavar="X", type=number, help="absolute tolerance")
    add(
        "--filter",
        metavar="PATTERN",
        action="append",
        type=name_filter,
        help="only tensors whose name in B matches; may be given several times, any may match",
    )
    add(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="other names for tensors of A, as in `ckptfmt edit`; may be given several times",
    )
    add(
        "--checksums",
        action="store_true",
        help="do not read tensors that have the same checksum in both indexes",
    )
    add("--raw-names", action="store_true", help="print names as they are stored")
    add("--summary", action="store_true", help="print only the last line")
    add("--json", action="store_true", help="one JSON document")
    add("-q", "--quiet", action="store_true", help="no output, only the exit status")
    add("--color", choices=COLORS, default="auto", help="colours; auto: on a terminal")


def run(options: argparse.Namespace) -> int:
    """Compare two checkpoints and return the exit status.

    Raises:
        CkptfmtError: one of them cannot be read.
    """
    out = Output(options.color)
    found: list[Difference] = []
    equal = 0
    choice: dict[str, Any] = {"by_checksum": options.checksums}
    if options.rtol is not None or options.atol is not None:
        choice["tolerance"] = Tolerance(options.rtol or 0.0, options.atol or 0.0)
    with open_any(options.a) as one, open_any(options.b) as other:
        a, b, one_format = one.reader, other.reader, one.format == other.format
        if (one.left_out or other.left_out) and not options.filter:
            raise UnsupportedError(
                "what is left out cannot be compared: --filter '*' compares the rest"
            )
        names = TensorNames(a), TensorNames(b)
        passes = [one.passing(given) for one in names for given in options.filter or ()]
        choice["chosen"] = lambda name: (
            (one_format or name != OBJECT_GRAPH_KEY)
            and (not passes or any(chosen(name) for chosen in passes))
        )
        metadata_of_a: Mapping[str, Any] = a.metadata
        if options.rename:
            choice["renamed"] = renames(options.rename, list(a), one.path, names[0].shown)
            metadata_of_a = renamed_metadata(a, choice["renamed"])
        choice["graphs_equal"] = partial(graphs_equal, a, b, choice.get("renamed"))
        with_metadata = one_format and not options.filter
        metadata = changed_metadata(metadata_of_a, b.metadata) if with_metadata else {}
        with_values = bool(metadata) or not (one_format or options.filter)
        state = _changed_values(metadata_of_a, b.metadata) if with_values else {}
        with Progress("comparing", quiet=options.quiet) as progress:
            meter = Meter(progress.update, min(_bytes_of(a), _bytes_of(b)))
            for difference in compare(a, b, meter.add, **choice):
                if difference is None:
                    equal += 1
                    continue
                found.append(difference)
                if options.quiet and not difference.is_near:
                    break
        if options.filter and not equal and not found:
            given = " or ".join(options.filter)
            raise TensorNotFoundError(f"filter {given!r} matches no tensor of A and B")
        same = not (metadata or state) and all(difference.is_near for difference in found)
        shown = [names[one.b is not None].shown(one.name) for one in found]
        if options.json and not options.quiet:
            out.document(_document(options, found, shown, equal, metadata, state, same=same))
        elif not options.quiet:
            if not options.summary:
                _show(out, found, None if options.raw_names else shown, metadata, state)
            out.line(_last_line(out, found, equal, metadata=bool(metadata or state), same=same))
    out.flush()
    return 0 if same else 1


def _changed_values(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values that two states of `ckptfmt.torch` both have, and that differ, by path."""
    one, other = state_of(a), state_of(b)
    if one is None or other is None:
        return {}
    both = {
        path: (old, other.values[path]) for path, old in one.values.items() if path in other.values
    }
    return {path: values for path, values in both.items() if repr(values[0]) != repr(values[1])}


def _bytes_of(reader: Reader) -> int:
    return sum(reader.table()["nbytes"].tolist())


def _show(
    out: Output,
    found: list[Difference],
    shown: list[str] | None,
    metadata: Mapping[str, tuple[str | None, str | None]],
    state: Mapping[str, tuple[Any, Any]],
) -> None:
    for at in range(len(found)) if shown is None else in_order(shown):
        name = found[at].name if shown is None else shown[at]
        if not found[at].is_near or found[at].kind == "dtype":
            out.line(_line(out, text.printable(name), found[at]))
    for member in metadata.items():
        out.line(_metadata_line(out, *member))
    for path, values in state.items():
        old, new = (_cut(value_text(one)) for one in values)
        out.line(f"{out.paint('value', 'yellow')} {text.printable(path)}: {old} -> {new}")


def _line(out: Output, name: str, difference: Difference) -> str:
    a, b = difference.a, difference.b
    head = f"{out.paint(difference.kind, 'yellow')}: {name}"
    if a is None or b is None:
        there = a if a is not None else b
        return f"{head}  {_kind_of(there)}" if there is not None else head
    line = f"{head}  {_kind_of(a)}"
    if difference.kind != "values":
        line += f" in A, {_kind_of(b)} in B"
    parts = []
    values = difference.values()
    if values is not None:
        old, new = (few_as_text(one, STRING_MAX) for one in values)
        parts.append(f"{old} -> {new}")
    if difference.name == OBJECT_GRAPH_KEY:
        parts.append("other objects or keys")
    elif difference.is_near:
        of = f"{difference.within:,} of {text.plural(a.size, 'element')}"
        parts.append(f"equal within the tolerance ({of} differ)")
    elif difference.elements is None:
        parts += ["other bytes"] if difference.kind == "values" else []
    elif a.size > 1:
        parts.append(f"{difference.elements:,} of {text.plural(a.size, 'element')}")
    if difference.within and not difference.is_near:
        parts.append(f"{difference.within:,} more within the tolerance")
    if difference.norm_change is not None and difference.norm_a is not None and a.size > 1:
        parts.append(f"largest difference {difference.largest:.6g}")
        parts.append(_change(difference.norm_a, difference.norm_change))
    for what, (in_a, in_b) in (("NaN", difference.nans), ("infinite", difference.infinite)):
        if (in_a or in_b) and a.size > 1:
            parts.append(f"{in_a:,} {what} in A and {in_b:,} in B")
    return f"{line}: {', '.join(parts)}" if parts else line


def _change(norm_a: float, norm_change: float) -> str:
    return f"norm of the change {norm_change:.6g} (relative {ratio(norm_change, norm_a):.3g})"


def _metadata_line(out: Output, name: str, values: tuple[str | None, str | None]) -> str:
    old, new = (one and text.printable(one) for one in values)
    head = f"{out.paint('metadata', 'yellow')} {text.printable(name)}"
    if old is None or new is None:
        return f"{head}: only in {'B' if old is None else 'A'}"
    if name.startswith("ckptfmt."):
        return f"{head}: the structure of the state, or values that are not tensors"
    return f"{head}: {_cut(old)} -> {_cut(new)}"


def _cut(shown: str) -> str:
    return shown if len(shown) <= STRING_MAX else f"{shown[:STRING_MAX]}..."


def _kind_of(handle: TensorHandle) -> str:
    return f"{handle.dtype_name} {text.shape(handle.shape)}"


def _last_line(
    out: Output, found: list[Difference], equal: int, *, metadata: bool, same: bool
) -> str:
    near = Counter(one.kind for one in found if one.is_near)
    tail = f"{text.plural(equal + near['values'], 'tensor')} equal"
    if near["values"]:
        within = sum(one.within for one in found if one.is_near and one.kind == "values")
        tail += f", {near['values']:,} of them within the tolerance"
        tail += f" ({text.plural(within, 'element')} {'differs' if within == 1 else 'differ'})"
    if near["dtype"]:
        tail += f", {near['dtype']:,} of another dtype equal within the tolerance"
    counts = Counter(one.kind for one in found if not one.is_near)
    parts = [f"{count:,} {_VERDICTS[kind]}" for kind, count in counts.items()]
    parts += [*(["other metadata"] if metadata else []), tail]
    verdict = out.paint("equal", "green") if same else out.paint("different", "red")
    line, over_all = f"{verdict}: {', '.join(parts)}", norms(found)
    return line if over_all is None else f"{line}; {_change(*over_all)}"


_VERDICTS = {
    "only in A": "only in A",
    "only in B": "only in B",
    "dtype": "of another dtype",
    "shape": "of another shape",
    "values": "with other values",
}


def _document(
    options: argparse.Namespace,
    found: list[Difference],
    shown: list[str],
    equal: int,
    metadata: Mapping[str, tuple[str | None, str | None]],
    state: Mapping[str, tuple[Any, Any]],
    *,
    same: bool,
) -> dict[str, Any]:
    norm_a, norm_change = norms(found) or (None, None)
    return {
        "a": masked(options.a),
        "b": masked(options.b),
        "equal": same,
        "metadata_equal": not metadata,
        "metadata": {
            name: [None if one is None else json.loads(one) for one in values]
            for name, values in metadata.items()
        },
        "values": {path: [*map(value_text, values)] for path, values in state.items()},
        "tensors_equal": equal,
        "norm_a": norm_a,
        "norm_change": norm_change,
        "differences": [
            {"name": one.name, "display": name, **_as_json(one)}
            for one, name in zip(found, shown, strict=True)
        ],
    }


def _as_json(difference: Difference) -> dict[str, Any]:
    values = difference.values()
    return {
        "kind": difference.kind,
        "a": _handle_json(difference.a),
        "b": _handle_json(difference.b),
        "elements": difference.elements,
        "elements_within_tolerance": difference.within,
        "max_abs_difference": difference.largest,
        "norm_a": difference.norm_a,
        "norm_change": difference.norm_change,
        **_pair("nan", difference.nans),
        **_pair("infinite", difference.infinite),
        **_pair("values", tuple(map(as_json, values)) if values else (None, None)),
    }


def _pair(what: str, values: tuple[Any, ...]) -> dict[str, Any]:
    return {f"{what}_a": values[0], f"{what}_b": values[1]}


def _handle_json(handle: TensorHandle | None) -> dict[str, Any] | None:
    return None if handle is None else {"dtype": handle.dtype_name, "shape": handle.shape}
