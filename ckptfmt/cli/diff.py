# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt diff`: compares two checkpoints, values included."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from ckptfmt import TensorNotFoundError
from ckptfmt._base.progress import Meter
from ckptfmt.bundle.comparing import Difference, Tolerance, compare
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.reader import Reader
from ckptfmt.cli import text
from ckptfmt.cli.options import name_filter, number
from ckptfmt.cli.output import COLORS, Output
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.renaming import renames
from ckptfmt.errors import masked
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.opening import open_any
from ckptfmt.types import TensorHandle

EPILOG = """
A and B are paths as for `ckptfmt inspect`. Only contents are compared: data files, slices, order
and level may differ.

Values are compared bit by bit: 0.0 and -0.0 differ, and a NaN equals a NaN of the same bits. With
--rtol or --atol, floating-point and complex numbers a, b are equal if |a - b| <= atol + rtol * |b|,
or both NaN. Then tensors of different dtypes, such as a cast to bfloat16, are compared as well:
within the tolerance they are printed, but are not a difference.

The largest absolute and relative differences are printed. One line per difference, in byte order of
the names in B. Tensors of more than 64 MiB are compared in pieces, which cannot be verified at
level v2: run `ckptfmt verify` first. With --checksums, tensors with the same checksum in both
indexes are equal and not read; damage of their data is not noticed.

A or B may also be a safetensors, npz or HDF5 file or a directory of torch.distributed.checkpoint,
which is converted into a temporary directory first. If A and B are of different formats, the object
graph of TensorFlow and the metadata are not compared: most formats have no place for them. A filter
is a glob for the whole name (* also matches /), or /REGEX/ found anywhere in it, of the stored name
or of a path of the object; with a filter, metadata are not compared.

--json prints {"schema": 1, "a", "b": paths, "equal", "metadata_equal", "tensors_equal": how many,
"differences": [{"name", "kind", "a", "b": {"dtype", "shape"} or null, "elements",
"max_abs_difference", "max_rel_difference", "nan_in_one"}, ...]}; kind is "only in A", "only in B",
"dtype", "shape" or "values"; an infinite difference is "Infinity". A "dtype" with "elements": 0 is
equal within the tolerance.

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("a", metavar="A", help="a checkpoint")
    add("b", metavar="B", help="another one")
    add("--rtol", metavar="X", type=number, default=0.0, help="relative tolerance, default 0")
    add("--atol", metavar="X", type=number, default=0.0, help="absolute tolerance, default 0")
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
    text_wanted = not options.quiet and not options.json
    found: list[Difference] = []
    equal = 0
    choice: dict[str, Any] = {
        "tolerance": Tolerance(options.rtol, options.atol),
        "by_checksum": options.checksums,
    }
    with open_any(options.a) as one, open_any(options.b) as other:
        a, b, one_format = one.reader, other.reader, one.format == other.format
        names = TensorNames(a), TensorNames(b)
        passes = [one.passing(given) for one in names for given in options.filter or ()]
        choice["chosen"] = lambda name: (
            (one_format or name != OBJECT_GRAPH_KEY)
            and (not passes or any(chosen(name) for chosen in passes))
        )
        if options.rename:
            choice["renamed"] = renames(options.rename, list(a), one.path)
        # 1, 1.0 and true are equal in Python.
        texts = [json.dumps(one.metadata, sort_keys=True) for one in (a, b)]
        metadata_equal = bool(options.filter) or not one_format or texts[0] == texts[1]
        with Progress("comparing", quiet=options.quiet) as progress:
            meter = Meter(progress.update, min(_bytes_of(a), _bytes_of(b)))
            for difference in compare(a, b, meter.add, **choice):
                if difference is None:
                    equal += 1
                    continue
                found.append(difference)
                if options.quiet and not difference.is_near:
                    break
        shown = [
            one.name if options.raw_names else names[one.b is not None].shown(one.name)
            for one in found
        ]
    if options.filter and not equal and not found:
        given = " or ".join(options.filter)
        raise TensorNotFoundError(f"filter {given!r} matches no tensor of A and B")
    if text_wanted:
        for name, difference in [] if options.summary else zip(shown, found, strict=True):
            out.line(_line(out, text.printable(name), difference))
        if not metadata_equal and not options.summary:
            out.line(f"{out.paint('metadata', 'yellow')}: not the same")
        out.line(_last_line(out, found, equal, metadata_equal=metadata_equal))
    elif not options.quiet:
        out.document(
            {
                "a": masked(options.a),
                "b": masked(options.b),
                "equal": metadata_equal and _all_near(found),
                "metadata_equal": metadata_equal,
                "tensors_equal": equal,
                "differences": [_as_json(difference) for difference in found],
            }
        )
    out.flush()
    return 0 if metadata_equal and _all_near(found) else 1


def _all_near(found: list[Difference]) -> bool:
    return all(difference.is_near for difference in found)


def _bytes_of(reader: Reader) -> int:
    return sum(reader.table()["nbytes"].tolist())


def _line(out: Output, name: str, difference: Difference) -> str:
    a, b = difference.a, difference.b
    head = f"{out.paint(difference.kind, 'yellow')}: {name}"
    if a is None or b is None:
        there = a if a is not None else b
        return f"{head}  {_kind_of(there)}" if there is not None else head
    line = f"{head}  {_kind_of(a)}"
    if difference.kind != "values":
        line += f" in A, {_kind_of(b)} in B"
        if difference.is_near:
            return f"{line}: equal within the tolerance"
        if difference.elements is None:
            return line
    if difference.elements is None:
        return f"{line}: other bytes"
    line += f": {difference.elements:,} of {text.plural(a.size, 'element')}"
    if difference.largest is not None:
        line += f", largest difference {difference.largest:.6g}"
        line += f" (relative {difference.relative:.3g})"
    if difference.nans:
        line += f", {difference.nans:,} NaN in one only"
    return line


def _kind_of(handle: TensorHandle) -> str:
    return f"{handle.dtype_name} {text.shape(handle.shape)}"


def _last_line(out: Output, found: list[Difference], equal: int, *, metadata_equal: bool) -> str:
    same = f"{text.plural(equal, 'tensor')} equal"
    near = sum(difference.is_near for difference in found)
    if near:
        same += f", {near:,} of another dtype equal within the tolerance"
    if near == len(found) and metadata_equal:
        return f"{out.paint('equal', 'green')}: {same}"
    counts = Counter(difference.kind for difference in found if not difference.is_near)
    parts = [f"{count:,} {_VERDICTS[kind]}" for kind, count in counts.items()]
    if not metadata_equal:
        parts.append("other metadata")
    return f"{out.paint('different', 'red')}: {', '.join([*parts, same])}"


_VERDICTS = {
    "only in A": "only in A",
    "only in B": "only in B",
    "dtype": "of another dtype",
    "shape": "of another shape",
    "values": "with other values",
}


def _as_json(difference: Difference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "kind": difference.kind,
        "a": _handle_json(difference.a),
        "b": _handle_json(difference.b),
        "elements": difference.elements,
        "max_abs_difference": difference.largest,
        "max_rel_difference": difference.relative,
        "nan_in_one": difference.nans,
    }


def _handle_json(handle: TensorHandle | None) -> dict[str, Any] | None:
    return None if handle is None else {"dtype": handle.dtype_name, "shape": handle.shape}
