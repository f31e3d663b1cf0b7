# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt show`: print the values of tensors or of slices of them."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ckptfmt
from ckptfmt import CkptfmtError, InvalidError, TensorNotFoundError
from ckptfmt._base.arguments import Verify
from ckptfmt._base.dtypes import code_of_array, little_endian, plain_quantized
from ckptfmt._base.hints import near
from ckptfmt._base.names import in_order
from ckptfmt._base.patterns import filter_function
from ckptfmt._base.progress import Meter
from ckptfmt._base.values import as_json, quoted
from ckptfmt.bundle.comparing import pieces
from ckptfmt.bundle.graph import leaf_name
from ckptfmt.bundle.meanings import meant
from ckptfmt.cli import text
from ckptfmt.cli.destination import writing_output
from ckptfmt.cli.output import Output
from ckptfmt.cli.progress import Progress
from ckptfmt.errors import masked
from ckptfmt.formats import npz
from ckptfmt.naming.states import state_of, value_text
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.opening import Opened, kind_of, open_any, open_tensors
from ckptfmt.report.statistics import statistics_of
from ckptfmt.types import TensorHandle

EPILOG = """
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, or a SavedModel directory; or a safetensors, npz or HDF5 file, the index of a model in
several safetensors files, or a directory of torch.distributed.checkpoint (DCP), of which the tensor
is converted into a temporary directory. NAME is any name of a tensor: as it is stored, as `ckptfmt
inspect` prints it, or a path of its object that `ckptfmt inspect --tree` prints; or a glob or
/REGEX/ for the names of several; or the same of values in a state of ckptfmt.torch, which no option
but --all takes. After it may be an index in brackets as in numpy: integers, slices
with or without a step, and `...`. Quote it for the shell. Without NAME the names are listed.

Values are printed as NumPy prints them, shortened unless --all is given. Of a tensor of more than
64 MiB only the printed values are read, which may not be enough to verify them. Strings are escaped
as names are by `ckptfmt inspect`. --stats reads all values, piece by piece, and prints minimum,
maximum, mean, standard deviation and a histogram of those that are finite, and how many are zero,
infinite or NaN.

--unverified prints what is stored whether or not the checksums hold: of a checkpoint, not of a file
of another format.

--npy writes all values to a file that numpy.load reads, or to standard output if FILE is -. An
existing .npy file is replaced, any other is refused. --raw writes the bytes of the values,
little-endian and row-major, to standard output.

--npy, --raw and --json take one tensor.

--json prints {"schema": 2, "path", "prefix", "name", "display", "dtype", "shape", "index",
"values"}: the stored name, the one that `ckptfmt inspect` shows, and all values as nested lists,
with "NaN", "Infinity" and "-Infinity" for numbers that JSON lacks; [real, imaginary] for complex
numbers; a lone surrogate (\\udc80 to \\udcff) for a byte that is not UTF-8; the stored bytes for an
unknown dtype.

examples:
  ckptfmt show model.ckpt-1000
  ckptfmt show model.ckpt-1000 global_step
  ckptfmt show model.ckpt-1000 'encoder/*/bias'
  ckptfmt show model.ckpt-1000 'layer/kernel[0:3, :]'
  ckptfmt show --stats model.ckpt-1000 layer/kernel
  ckptfmt show --npy kernel.npy model.ckpt-1000 layer/kernel
  ckptfmt show --json model 'layer/bias[::-1]' | python3 -m json.tool

exit status:
  0  shown
  1  the checkpoint is damaged
  2  wrong usage, no checkpoint at PATH, no such tensor, or output that could not be written
"""

# Of a larger tensor only the printed values are read.
EDGES_BYTES = 64 << 20
# NumPy's defaults for printing: threshold and edgeitems.
SHOWN_MAX = 1000
EDGE_ITEMS = 3
# Longer strings are cut.
TEXT_MAX = 200


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("path", metavar="PATH", help="the checkpoint")
    add(
        "name",
        metavar="NAME[INDEX]",
        nargs="?",
        help="the tensor or tensors, optionally with an index; without it: list the names",
    )
    add("--all", action="store_true", help="print all values, and long strings in full")
    add("--unverified", action="store_true", help="print values whose checksum does not hold")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--stats", action="store_true", help="print statistics and a histogram")
    form.add_argument("--npy", metavar="FILE", help="write the values to a .npy file; -: stdout")
    form.add_argument("--raw", action="store_true", help="write the bytes to standard output")
    form.add_argument("--json", action="store_true", help="one JSON document, with all values")


def run(options: argparse.Namespace) -> int:
    """Show values and return the exit status.

    Raises:
        CkptfmtError: no such tensor, a malformed index, or damage.
    """
    out, shown = Output(), 0
    only_one = options.json or options.raw or options.npy is not None
    if options.name is None:
        if only_one or options.stats:
            raise InvalidError("give the NAME of a tensor; without it the names are listed")
        for name in names_of(options.path):
            out.line(name)
    found = [] if options.name is None else _of_file(options.path, options.name)
    for given in found:
        verify: Verify = "off" if options.unverified else "auto"
        with open_any(options.path, given, verify) as opened:
            names = TensorNames(opened.reader)
            try:
                chosen = _chosen(names, given)
            except TensorNotFoundError as missing:
                values = _values_of_state(names, given, missing)
                if only_one or options.stats:
                    raise InvalidError(
                        f"{given!r} is a value of the state, not a tensor: only `ckptfmt show "
                        "[--all] PATH NAME` takes it"
                    ) from None
                for name, value in values.items():
                    title = "" if len(values) == 1 else f"{text.printable(name)}  "
                    out.line(title + value_text(value, everything=options.all))
                continue
            if only_one and (len(chosen) > 1 or len(found) > 1):
                raise InvalidError(
                    f"{options.name!r} matches several tensors: give the name of one"
                )
            for stored, index in chosen:
                if shown:
                    out.line()
                _show(out, options, opened, names.shown(stored), stored, index)
                shown += 1
    out.flush()
    return 0


def _show(
    out: Output,
    options: argparse.Namespace,
    opened: Opened,
    display: str,
    stored: str,
    index: str | None,
) -> None:
    reader, path, *_ = opened
    handle = meant(reader[stored])
    if options.json:
        _show_json(out, options.path, path, display, handle, index)
    elif options.npy is not None:
        with writing_output(options.npy, reader.prefix, "npy") as write:
            _write_npy(write, _values(handle, index))
    elif options.raw:
        out.flush()
        out.write_bytes(_raw(handle, index))
    elif options.stats:
        _show_stats(out, text.printable(display), handle, index)
    else:
        _show_text(out, text.printable(display), handle, index, everything=options.all)


# ---- arguments


def names_of(path: str) -> list[str]:
    """Return the names of all tensors, and of the values of a state, as `inspect` shows them."""
    kind = kind_of(path)
    if kind == "tensorflow":
        with ckptfmt.open(path) as reader:
            names = TensorNames(reader)
            found = list(map(names.shown, names.stored))
            state = state_of(reader.metadata)
            found += state.values if state is not None else ()
    else:
        with open_tensors(kind, path) as (tensors, _):
            found = list(map(leaf_name, tensors))
    return text.printable_all([found[at] for at in in_order(found)])


def _splits(given: str) -> list[tuple[str, str | None]]:
    """Return what a text may mean: a name, whose end may be a bracket, or a name and an index."""
    bracket = given.rfind("[")
    return [(given, None), *([(given[:bracket], given[bracket:])] if bracket > 0 else [])]


def _of_file(path: str, given: str) -> list[str]:
    """Return the names in a file of another format that a pattern matches, with the index; what is
    given if it is a name, and for a checkpoint."""
    kind = kind_of(path)
    if kind != "tensorflow":
        with open_tensors(kind, path) as (tensors, _):
            known = {one for name in tensors for one in (name, leaf_name(name), text.name(name))}
            if not any(name in known for name, _ in _splits(given)):
                for pattern, index in _splits(given):
                    passes = filter_function(pattern)
                    assert passes is not None, "None is no filter"
                    if found := [name + (index or "") for name in tensors if passes(name)]:
                        return found
    return [given]


def _chosen(names: TensorNames, given: str) -> list[tuple[str, str | None]]:
    """Return the stored names of the tensors, each with the text of the index."""
    error: CkptfmtError
    for name, index in _splits(given):
        try:
            found = names.find(name)
        except TensorNotFoundError as missing:
            error = missing
            continue
        if index is None or index.endswith("]"):
            return [(found, index and index[1:-1])]
        error = InvalidError(f"{given!r} has a [ without a ]: give NAME[INDEX]")
    for name, index in _splits(given):
        passes = names.passing(name, "NAME")
        matching = [one for one in names.stored if passes(one)]
        if matching and (index is None or index.endswith("]")):
            return [(one, index and index[1:-1]) for one in matching]
    raise error


def _values_of_state(
    names: TensorNames, given: str, missing: TensorNotFoundError
) -> dict[str, Any]:
    """Return the values of a state of `ckptfmt.torch` that have a name or match a pattern; raise
    the error of a missing tensor if there are none."""
    state = state_of(names.reader.metadata)
    if state is None:
        raise missing
    passes = filter_function(given, state.values)
    assert passes is not None, "None is no filter"
    found = {name: one for name, one in state.values.items() if passes(name)}
    found = found or {n: one for n, one in state.values.items() if text.printable(n) == given}
    if not found:
        hint = near(given, [*map(names.shown, names.stored), *state.values])
        raise TensorNotFoundError(
            f"not found in checkpoint{hint}", path=missing.path, tensor=given
        ) from None
    return found


def parse_index(index: str) -> tuple[Any, ...]:
    """Parse the text in the brackets as an argument of `__getitem__`.

    Raises:
        InvalidError: something other than integers, slices and `...`.
    """
    parts = [part.strip() for part in index.split(",")]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(_index_part(part, index) for part in parts)


def _index_part(part: str, index: str) -> Any:
    if part == "...":
        return Ellipsis
    numbers = part.split(":")
    try:
        if len(numbers) == 1:
            return int(part)
        if len(numbers) > 3:
            raise ValueError
        return slice(*(int(number) if number.strip() else None for number in numbers))
    except ValueError:
        raise InvalidError(
            f"invalid index [{index}]: {part!r} must be an integer, a slice start:stop:step or ..."
        ) from None


def _values(handle: TensorHandle, index: str | None) -> NDArray[Any]:
    if index is None:
        return plain_quantized(handle.read())
    try:
        found = handle[parse_index(index)]
    except IndexError as error:
        raise InvalidError(str(error), tensor=handle.name) from None
    array = np.asarray(found, handle.dtype)
    return plain_quantized(array)


# ---- text


def _show_text(
    out: Output, name: str, handle: TensorHandle, index: str | None, *, everything: bool
) -> None:
    whole = index is None and handle.dtype is not None
    if whole and not everything and handle.size > SHOWN_MAX and handle.nbytes > EDGES_BYTES:
        values, threshold = plain_quantized(_edges(handle)), 0
    else:
        values = _values(handle, index)
        threshold = sys.maxsize if everything else SHOWN_MAX
    shape = text.shape(handle.shape)
    if index is not None:
        name += f"[{text.printable(index)}]"
        shape = f"{text.shape(values.shape)} of {shape}"
    elif handle.dtype is None:
        shape += f", {text.plural(values.size, 'byte')} as stored"
    out.line(f"{name}  {handle.dtype_name} {shape}")

    text_max = None if everything else TEXT_MAX
    formatter: Any = {"object": partial(quoted, limit=text_max)}
    shown = np.array2string(
        values,
        threshold=threshold,
        edgeitems=EDGE_ITEMS,
        formatter=formatter if values.dtype == np.dtype(object) else None,
    )
    out.line(shown)


def _edges(handle: TensorHandle) -> NDArray[Any]:
    """Return a small array that NumPy prints as it would print the whole tensor: of each shortened
    dimension the printed values and one more."""
    around = 2 * EDGE_ITEMS + 1
    parts: list[list[tuple[slice, slice]]] = [
        [(slice(0, dim), slice(0, dim))]
        if dim <= around
        else [
            (slice(0, EDGE_ITEMS), slice(0, EDGE_ITEMS)),
            (slice(dim - EDGE_ITEMS - 1, dim), slice(EDGE_ITEMS, around)),
        ]
        for dim in handle.shape
    ]
    array = np.empty([min(dim, around) for dim in handle.shape], handle.dtype)
    for pairs in itertools.product(*parts):
        array[tuple(to for _, to in pairs)] = handle[tuple(source for source, _ in pairs)]
    return array


# ---- statistics, files


def _show_stats(out: Output, name: str, handle: TensorHandle, index: str | None) -> None:
    with Progress("reading") as progress:
        meter = Meter(progress.update, 2 * handle.nbytes)

        def values() -> Iterator[NDArray[Any]]:
            for piece in _pieces(handle) if index is None else [_values(handle, index)]:
                yield piece
                meter.add(piece.nbytes)

        found = statistics_of(values)
    if found is None:
        raise InvalidError("--stats needs numbers", tensor=handle.name)
    where = "" if index is None else f"[{text.printable(index)}]"
    shape = text.shape(handle.shape)
    of = ", absolute values" if handle.dtype is not None and handle.dtype.kind == "c" else ""
    out.line(f"{name}{where}  {handle.dtype_name} {shape}{of}")
    for title, value in found.rows():
        out.line(f"  {title:9} {value}")
    out.line()
    for line in found.histogram(solid=out.fits("█")):
        out.line(f"  {line}")


def _pieces(handle: TensorHandle) -> Iterator[NDArray[Any]]:
    if handle.dtype is None or handle.dtype == np.dtype(object):
        yield np.empty(0, object)
        return
    for box in pieces(handle.shape, handle.dtype.itemsize):
        yield plain_quantized(handle[box] if box else handle.read())


def _write_npy(write: Callable[[bytes], object], values: NDArray[Any]) -> None:
    if not npz.holds(values.dtype):
        kind = "strings" if values.dtype == np.dtype(object) else values.dtype
        raise InvalidError(f"a .npy file cannot hold {kind}")
    # Of a stream that only has `write`, NumPy needs no position, which a pipe lacks.
    stream: Any = SimpleNamespace(write=write)
    np.save(stream, values, allow_pickle=False)


def _raw(handle: TensorHandle, index: str | None) -> bytes:
    values = _values(handle, index)
    if values.dtype == np.dtype(object):
        raise InvalidError("--raw needs elements of one size, not strings", tensor=handle.name)
    code = code_of_array(values.dtype) or (handle.dtype_code, False)
    return little_endian(values, code[0]).tobytes()


# ---- JSON


def _show_json(
    out: Output, path: str, prefix: str, display: str, handle: TensorHandle, index: str | None
) -> None:
    values = as_json(_values(handle, index))
    document = {
        "path": masked(path),
        "prefix": masked(prefix),
        "name": handle.name,
        "display": display,
        "dtype": handle.dtype_name,
        "shape": handle.shape,
        "index": index,
        "values": values,
    }
    out.document(document)
