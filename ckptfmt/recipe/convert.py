# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.convert`: between levels of the format, and from and to other formats."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes, foreign, names
from ckptfmt._base.arguments import (
    Durability,
    Level,
    check_choice,
    check_limits,
    check_progress,
    check_switch,
    invalid,
    is_positive,
)
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.casting import dtype_text
from ckptfmt._base.hints import some
from ckptfmt._base.names import path_text, prefix_text
from ckptfmt._base.patterns import Filters
from ckptfmt._base.progress import Meter, Progress
from ckptfmt._base.renaming import Rename
from ckptfmt._base.save_options import SaveOptions
from ckptfmt._base.untrusted import output_most
from ckptfmt.bundle.comparing import pieces
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.graph_keys import missing_tensors
from ckptfmt.bundle.meanings import COMPLEX, E8M0, FP4, Meant, meant
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.writer import Writer, check_shards, metadata_json
from ckptfmt.errors import InvalidError, LimitError, masked_repr, storage_errors
from ckptfmt.files.locate import holds_checkpoints, locate, recognised
from ckptfmt.files.outputs import checkpoint_files, output_path
from ckptfmt.files.places import is_file, names_in
from ckptfmt.files.temporary import (
    make_directory,
    open_directory,
    replacing_file,
)
from ckptfmt.formats import safetensors, torch_state
from ckptfmt.formats.tensors import Box, Kind, Read, Tensor
from ckptfmt.naming.metadata import PRNG_KEYS, NamedInMetadata
from ckptfmt.naming.roles import OPTIMIZER_STATES
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe import levels
from ckptfmt.recipe.changes import Cast, Changes
from ckptfmt.recipe.sources import WAY_OUT, Planned, is_transformed, planned_tensors
from ckptfmt.recipe.values import (
    HELD_MAX,
    Result,
    Value,
    build,
    equal_values,
    mapped_array,
    other_values,
    rewrite,
)

Path = str | bytes | os.PathLike[Any]
Format = Literal["tensorflow", "safetensors", "npz", "hdf5", "dcp"]

# What other formats have no place for: TensorFlow's description of objects.
_GRAPH = OBJECT_GRAPH_KEY


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    Attributes:
        path: of the result; of a TensorFlow checkpoint its prefix.
        format: of the result.
        tensors, nbytes: tensors, and bytes of their arrays.
        casts: by name, the dtypes before and after.
        dropped: what the source has and the result has no place for, in words; of a "dcp" directory
            the names of the values that cannot be read, and their classes.
        bits: by name, the dtypes before and after of tensors of a dtype that the result lacks, of
            which it holds the bits, and a note in its metadata: float8_e8m0fnu as uint8.
        missing: keys of the source's object graph without a tensor.
        losses: by name, how many elements casts changed by more than rounding (`allow_loss`).
        zeros: by name, how many elements casts rounded to 0.
        uncast: 0-d tensors of the kind of `cast=DTYPE`, which leaves them.
    """

    path: str
    format: Format
    tensors: int
    nbytes: int
    casts: dict[str, tuple[str, str]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    bits: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    losses: dict[str, int] = field(default_factory=dict)
    zeros: dict[str, int] = field(default_factory=dict)
    uncast: tuple[str, ...] = ()

    __repr__ = masked_repr


Conversion.__module__ = "ckptfmt.types"


def format_of(path: str, *, exists: bool) -> Format:
    """Return the format of a path: if it `exists` by what is there, where that can be recognised,
    else by its extension. What `convert` cannot read counts as "tensorflow", whose reader reports
    what it is."""
    if exists and not names.is_url(path):
        if is_file(names.index_name(path)):
            return "tensorflow"
        kind = recognised(path)
        if kind is not None:
            return kind.convertible or "tensorflow"
        found = names_in(path) if os.path.isdir(path) else []
        # Such a file does not make a directory a model, but there is nothing else to convert.
        if any(name.endswith(".safetensors") for name in found) and not holds_checkpoints(found):
            return "safetensors"
    named = foreign.by_name(path)
    return (named[0].convertible if named is not None else None) or "tensorflow"


def module_of(name: Format) -> Any:
    """Return the module of a format other than "tensorflow"."""
    return importlib.import_module(f"ckptfmt.formats.{name}")


def convert(
    source: Path,
    destination: Path,
    *,
    to: Format | None = None,
    level: Level = "v2+",
    compression: str | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    rename: Rename | None = None,
    drop: Filters | None = None,
    keep: Filters | None = None,
    max_shard_bytes: int | None = None,
    drop_metadata: bool = False,
    alignment: int | None = None,
    durability: Durability = "full",
    shards: int = 1,
    check_result: bool = True,
    progress: Progress | None = None,
    limits: Mapping[str, int] | None = None,
) -> Conversion:
    """Write a checkpoint again in another format or at another level, all or nothing.

    Formats are TensorFlow checkpoints ("tensorflow", at any level), safetensors files (with an
    index for several), NumPy's `.npz`, HDF5 files, and directories of torch.distributed.checkpoint
    ("dcp", which are only read). Names and values stay as they are; a result named `.weights.h5`
    is refused unless a Keras model can have these names and dtypes in such a file. Whether it fits
    a certain model, only Keras can say.
    Memory is bounded except for string tensors: larger values go through a temporary file.

    Args:
        source: any path that `ckptfmt.open` takes, or a file or directory of another format.
        destination: a prefix, or the path of a file of another format, which is replaced.
        to: the format of the result; default by the extension of `destination`, without a known
            one "tensorflow".
        level, compression, alignment: as in `ckptfmt.Writer`, of a TensorFlow checkpoint.
        drop_metadata: whether to omit metadata that the result cannot hold, or, where the format or
            names change, all of it.
        limits: as in `ckptfmt.open`. Of a file of another format, `expansion_max` times its bytes
            (default 1100), or 1 GiB if that is more, are the limit of all arrays that it becomes.
        cast: as in `ckptfmt.load_into`, a dtype or a mapping; of a torch state as in `edit`.
        allow_loss: as in `ckptfmt.load_into`; the result says how many values were lost.
        rename: which tensors to convert, under what names and with what transforms, as in
            `ckptfmt.load_into`, for example a table of `ckptfmt.huggingface`. Partitioned tensors
            become whole, and the object graph is dropped. A transformed tensor is in memory.
        drop, keep: which tensors to leave out or to take, as in `ckptfmt.editing.edit`.
        max_shard_bytes: divide a safetensors result into files of at most this size, with an index.
        durability: as in `ckptfmt.save`.
        shards: number of data files of a TensorFlow checkpoint on a fresh prefix, 1 to 1024.
        check_result: whether to read the result back before it becomes visible, and compare it with
            the source. A TensorFlow source is always verified.
        progress: as in `ckptfmt.load`.

    Returns:
        What was written, cast and dropped. The object graph of TensorFlow is dropped where the
        result has no place for it, and so is metadata. Attributes of HDF5 are dropped.

    Raises:
        InvalidError: an argument; a tensor whose name or dtype the result cannot hold (`cast`,
            `drop`); a cast that loses values, without `allow_loss`.
        TensorNotFoundError: a filter of `cast` or `drop`, or a name of a mapping `rename`, matches
            nothing.
        CheckpointNotFoundError, CorruptError, LimitError, UnsupportedError: of the source.
        CorruptError: the result differs from the source.
        StorageError, BusyError, DurabilityUnknownError: as in `ckptfmt.Writer`.
    """
    check_progress(progress)
    check_switch("check_result", check_result)
    check_switch("drop_metadata", drop_metadata)
    from_path = path_text(source, "source", urls=True)
    to_path = path_text(destination, "destination", urls=True)
    kind = format_of(from_path, exists=True)
    result = format_of(to_path, exists=False) if to is None else to
    check_choice("to", result, get_args(Format))
    for path, name in ((from_path, kind), (to_path, result)):
        if name != "tensorflow":
            path_text(path)  # other formats are files of the file system
    changes = Changes.of(
        None, None, rename, cast, allow_loss, drop=drop, keep=keep, has_targets=False
    )
    most = _output_most(kind, from_path, limits)
    keeps = not drop_metadata and (result == "safetensors" or level != "v2")
    in_several = max_shard_bytes is not None
    if in_several and (result != "safetensors" or not is_positive(max_shard_bytes)):
        raise invalid(
            "max_shard_bytes", "max_shard_bytes is a positive number, for safetensors results"
        )
    if result == "tensorflow":
        options = SaveOptions(
            level=level, alignment=alignment, durability=durability, compression=compression
        )
        check_limits(limits)
        target = prefix_text(to_path, "destination", urls=True)
        made = Result(target, options, limits, check_shards(shards) or 1)
        wait_for_saves()
        if kind == "tensorflow" and rename is None:
            for argument, given in (("cast", cast), ("drop", drop), ("keep", keep)):
                if given is not None:
                    raise invalid(
                        argument,
                        f"{argument}: between TensorFlow checkpoints, use `edit`",
                    )
            levels.convert(
                from_path,
                made,
                drop_metadata=drop_metadata,
                check_result=check_result,
                progress=progress,
            )
            with Reader(target, limits=limits) as reader:
                nbytes = sum(handle.nbytes for handle in reader.values())
                missed = missing_tensors(reader)
                return Conversion(target, "tensorflow", len(reader), nbytes, missing=missed)
        # Renamed tensors are not where the layout of the source has them.
        states = module_of(kind).optimizer_paths if kind == "hdf5" and rename is None else None
        with _opened(kind, from_path, limits, changes, keeps=keeps, is_stored=keeps) as opened:
            return _import(opened, made, check_result, progress, states, most)
    only_ours = {"level": "v2+", "compression": None, "alignment": None, "shards": 1}
    given = {"level": level, "compression": compression, "alignment": alignment, "shards": shards}
    for option, default in only_ours.items():
        if given[option] != default:
            raise invalid(option, f"{option} is for TensorFlow checkpoints, not for {result!r}")
    if result == "dcp":
        raise invalid(
            "to", "to: 'dcp' directories are only read; ckptfmt.torch.dcp saves with torch"
        )
    to_path = output_path(to_path, _files_of(kind, from_path), regular=True)
    out = _Export(module_of(result), result, to_path, durability, max_shard_bytes)
    keeps = keeps and result == "safetensors"
    with _opened(kind, from_path, limits, changes, keeps=keeps) as opened:
        return out.write(opened, check_result, progress, most)


def _files_of(kind: Format, path: str) -> Iterator[str]:
    """Yield the files of a source in several files. A source in one file may be replaced."""
    if kind == "tensorflow":
        wait_for_saves()
        yield from checkpoint_files(locate(path))
    elif kind == "dcp":
        yield from (os.path.join(path, name) for name in names_in(path))
    elif kind == "safetensors":
        yield from safetensors.shards(path)


def _output_most(kind: Format, path: str, limits: Mapping[str, int] | None) -> int:
    """Return how many bytes the arrays of a source may have; of a checkpoint, its reader limits
    each by what is stored of it."""
    if kind == "tensorflow":
        return sys.maxsize
    if limits is not None and not is_positive(limits.get("expansion_max", 1)):
        raise invalid("limits", "limits: expansion_max is a positive number")
    folder = path if kind != "dcp" or os.path.isdir(path) else os.path.dirname(path)
    files = [path, *_files_of(kind, folder)]
    return output_most(sum(os.path.getsize(one) for one in files if os.path.isfile(one)), limits)


def _check_output(tensors: Mapping[str, Tensor], most: int, path: str) -> None:
    """Refuse what becomes far more than its file has."""
    total = 0
    for one in tensors.values():
        total += math.prod(one.shape) * one.dtype.itemsize
        if total > most:
            raise LimitError(
                f"its arrays have more than {most} bytes, far more than the file; "
                "limits={'expansion_max': N} allows N times its bytes",
                path=path,
                tensor=one.name,
            )


# ---- what is taken -------------------------------------------------------------------------------


@dataclass
class _Opened:
    """What changes take of a source, by new names.

    Attributes:
        path: of the source.
        changes: cast values, and count what that loses.
        planned: the tensors, without the object graph and what cannot be read, and the metadata.
        dropped: in words, what the source has that is not taken.
        missing: keys of the object graph without a tensor.
        are_values: whether the tensors are what their bits stand for.
    """

    path: str
    changes: Changes
    planned: Planned
    dropped: list[str]
    missing: tuple[str, ...]
    are_values: bool

    def kinds(self, holds: Callable[[np.dtype[Any]], bool], result: str, most: int) -> list[Kind]:
        """Return what the tensors become.

        Raises:
            InvalidError: the result cannot hold a dtype.
            LimitError: the tensors have more than `most` bytes.
        """
        tensors, casts = self.planned.tensors, self.planned.only_cast
        kinds = [Kind(name, casts.get(name, one.dtype), one.shape) for name, one in tensors.items()]
        for name, dtype, _ in kinds:
            if not holds(dtype):
                hint = "" if dtype.kind == "O" else f"cast={{{name!r}: DTYPE}} converts it, "
                raise invalid(
                    None,
                    f"{result} cannot hold {dtype_text(dtype)}; {hint}drop={name!r} leaves it out",
                    tensor=name,
                )
        _check_output(tensors, most, self.path)
        return kinds

    def conversion(
        self, path: str, result: Format, kinds: list[Kind], bits: Mapping[str, str]
    ) -> Conversion:
        """Return what was done."""
        tensors, done = self.planned.tensors, self.changes.results()
        casts = _complex(tensors)
        for name, (before, to) in self.planned.casts.items():
            meaning = getattr(tensors[name], "meaning", None)
            casts[name] = meaning or dtype_text(before), dtype_text(to)
        return Conversion(
            path,
            result,
            len(kinds),
            _nbytes(kinds),
            casts,
            tuple(self.dropped),
            {name: (dtype, "uint8") for name, dtype in bits.items()},
            self.missing,
            done["losses"],
            done["zeros"],
            self.planned.uncast,
        )


def _described(opened: _Opened, bits: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata, with `bits` the dtypes of torch that tensors are the bits of, and
    otherwise without notes on tensors that are values now."""
    tensors, metadata, casts, *_ = opened.planned
    changed = [name for name in tensors if name in casts or is_transformed(tensors[name])]
    notes: dict[str, str | None] = dict(bits or {})
    if opened.are_values:
        notes = dict.fromkeys([*changed, *_complex(tensors)]) | notes
    if notes:
        metadata = NamedInMetadata(tensors, metadata, opened.path, way_out=WAY_OUT).noted(notes)
    return metadata


def _complex(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, str]]:
    """Return the names of complex32 tensors, and the dtypes that they have and are read as."""
    meanings = {name: getattr(one, "meaning", None) for name, one in tensors.items()}
    return {name: (one, "complex64") for name, one in meanings.items() if one == COMPLEX}


def _compare(kinds: list[Kind], result: Read, source: Read) -> None:
    """Raise CorruptError if the result does not hold what the source does."""
    for kind in kinds:
        for box in pieces(kind.shape, max(kind.dtype.itemsize, 1)):
            if not equal_values(result(kind.name, box), source(kind.name, box)):
                raise other_values(kind.name)


def _reading(kinds: list[Kind], tensors: Mapping[str, Tensor]) -> Read:
    """Return a function that reads a box of a tensor and casts it to its kind."""
    again, kind_of = Changes(allow_loss=True), {kind.name: kind for kind in kinds}

    def read(name: str, box: Box) -> NDArray[Any]:
        return again.converted(_read(tensors[name], kind_of[name], box), kind_of[name].dtype, name)

    return read


def _read(tensor: Tensor, kind: Kind, box: Box) -> NDArray[Any]:
    """Return a box of a tensor, that of a quantized one as numbers if it is cast."""
    if isinstance(tensor, _Handle) and kind.dtype != tensor.dtype:
        tensor = tensor.dequantized
    return tensor.read(box)


def _counted(
    kinds: list[Kind], tensors: Mapping[str, Tensor], meter: Meter, changes: Changes
) -> Read:
    """As `_reading`, for the one time that each box is read to be written: count the bytes, and
    what casts lose."""
    kind_of = {kind.name: kind for kind in kinds}

    def read(name: str, box: Box) -> NDArray[Any]:
        start = tuple(side.start for side in box)
        array = _read(tensors[name], kind_of[name], box)
        result = changes.converted(array, kind_of[name].dtype, name, start, start)
        meter.add(result.nbytes)
        return result

    return read


def _nbytes(kinds: list[Kind]) -> int:
    return sum(kind.nbytes for kind in kinds)


def _take_unread(tensors: dict[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    """Remove what cannot be read; return the names and classes in words."""
    kinds = {name: getattr(one, "left_out", None) for name, one in tensors.items()}
    found = {name: kind for name, kind in kinds.items() if kind is not None}
    for name in found:
        del tensors[name]
    texts = [f"'{names.printable(name)}', a {kind}" for name, kind in found.items()]
    if texts and not tensors and not metadata:
        raise InvalidError(f"no tensor is left: {texts[0]}, cannot be read")
    return texts


# ---- from another format -------------------------------------------------------------------------


class _Bits:
    """What a checkpoint stores of a tensor of a dtype of torch that it lacks."""

    dtype = np.dtype(np.uint8)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self.name, self.shape = tensor, tensor.name, tensor.shape
        self._is_packed = tensor.dtype.name != E8M0
        if self._is_packed:
            self.shape = (*tensor.shape[:-1], tensor.shape[-1] // 2)

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as an array."""
        if not self._is_packed:
            return self._tensor.read(box).view(np.uint8)
        if len(box) == len(self.shape):
            box = (*box[:-1], slice(2 * box[-1].start, 2 * box[-1].stop))
        return dtypes.packed_fp4(self._tensor.read(box))


def _import(
    opened: _Opened,
    made: Result,
    check_result: bool,
    progress: Progress | None,
    optimizer_paths: Callable[[Mapping[str, Any]], list[str]] | None,
    most: int,
) -> Conversion:
    """Convert what is taken of a source to a TensorFlow checkpoint."""
    tensors = opened.planned.tensors
    level = made.options.level
    notes = _take_bits(tensors, opened.planned.only_cast) if level != "v2" else {}
    kinds = opened.kinds(_ours_holds, "a TensorFlow checkpoint", most)
    names.check_saved(kind.name for kind in kinds)
    stored = _described(opened, notes)
    paths = optimizer_paths(tensors) if optimizer_paths is not None else []
    stored = {**stored, **({OPTIMIZER_STATES: paths} if paths else {})}
    read = _counted(kinds, tensors, Meter(progress, _nbytes(kinds)), opened.changes)

    def value(kind: Kind, folder: str | None) -> NDArray[Any]:
        if kind.nbytes <= HELD_MAX or kind.dtype.hasobject:
            return read(kind.name, ())
        array = mapped_array(kind.name, kind.shape, kind.dtype, folder)
        for box in pieces(kind.shape, kind.dtype.itemsize):
            array[box] = read(kind.name, box)
        return array

    def fill(writer: Writer, folder: str | None) -> None:
        raw = names.tensor_bytes
        values = (
            Value(raw(kind.name), kind.nbytes, functools.partial(value, kind, folder))
            for kind in kinds
        )
        rewrite(writer, values)

    def check(part: str, _: str | None) -> None:
        with Reader(part, limits=made.limits) as result:
            again = _reading(kinds, tensors)
            _compare(kinds, lambda name, box: np.asarray(result[name][(*box, ...)]), again)

    text = metadata_json(stored, level) if stored and level != "v2" else None
    build(made, text, fill, check if check_result else None)
    return opened.conversion(made.prefix, "tensorflow", kinds, notes)


def _take_bits(tensors: dict[str, Tensor], casts: Mapping[str, np.dtype[Any]]) -> dict[str, str]:
    """Replace tensors of dtypes of torch that a checkpoint lacks by their bits; return the dtypes.
    A checkpoint has FP4 as well, a value to a byte, which stays so."""
    found = {}
    for name, tensor in tensors.items():
        if name in casts or (isinstance(tensor, _Handle) and tensor.is_stored):
            continue
        if tensor.dtype.name == E8M0:
            found[name] = E8M0
        elif tensor.dtype.name == dtypes.FP4 and not isinstance(tensor, _Handle):
            found |= {name: FP4} if safetensors.has_pairs(tensor.shape) else {}
    tensors.update({name: _Bits(tensors[name]) for name in found})
    return found


def _ours_holds(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "O" or dtypes.code_of_array(dtype) is not None


# ---- to another format ---------------------------------------------------------------------------


class _Result(NamedTuple):
    """One file of the result, under its temporary name."""

    path: str
    kinds: list[Kind]


class _Export:
    """The conversion to a file, or files, of another format."""

    def __init__(
        self,
        module: Any,
        format: Format,  # noqa: A002 (the format's name)
        destination: str,
        durability: Durability,
        max_shard_bytes: int | None,
    ) -> None:
        check_choice("durability", durability, get_args(Durability))
        self._module, self._format, self._path = module, format, destination
        self._durability: Durability = durability
        self._most = max_shard_bytes
        if destination.endswith(safetensors.INDEX) and max_shard_bytes is None:
            raise invalid(
                "max_shard_bytes",
                "max_shard_bytes must be given for a safetensors index",
                path=destination,
            )

    def write(
        self, opened: _Opened, check_result: bool, progress: Progress | None, most: int
    ) -> Conversion:
        """Write all files, then make them visible, the index last."""
        tensors = opened.planned.tensors
        kinds = opened.kinds(self._module.holds, self._format, most)
        described = _described(opened)
        exported, lost = torch_state.exported(tensors, described, opened.changes.rename)
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in exported.items()
        }
        if others := [name for name in texts if _of_text(name, texts[name]) != exported[name]]:
            lost.append(f"the types of metadata, which become texts: {some(others)}")
        opened.dropped += lost
        named = foreign.by_name(self._path)
        is_keras = named is not None and named[0] is foreign.KERAS_WEIGHTS
        if is_keras and self._format == "hdf5":
            self._check_keras_names(kinds)
        read = _counted(kinds, tensors, Meter(progress, _nbytes(kinds)), opened.changes)
        again = _reading(kinds, tensors) if check_result else None
        path = self._write_files(kinds, texts, read, again)
        return opened.conversion(path, self._format, kinds, {})

    def _check_keras_names(self, kinds: list[Kind]) -> None:
        """Refuse what no Keras model loads: only a model says which variable is which."""
        unlike = self._module.unlike_keras(kinds)
        if unlike is not None:
            name, why = unlike
            raise InvalidError(
                f"{why}, so that it cannot be in a .weights.h5 file. Load the checkpoint into the "
                "model, ckptfmt.keras.load_weights(model, PATH), and save that, "
                "model.save_weights('NAME.weights.h5'); or name the result .h5 to keep the names",
                path=self._path,
                tensor=name,
            )

    def _write_files(
        self,
        kinds: list[Kind],
        metadata: Mapping[str, str],
        read: Read,
        again: Read | None,
    ) -> str:
        """Write all files; with `again`, compare them with what it reads. Return the path."""
        folder = os.path.dirname(self._path)
        make_directory(folder, self._durability)
        with open_directory(folder) as directory, contextlib.ExitStack() as stack:

            def new(path: str, like: str | None = None) -> str:
                opened = replacing_file(directory, path, self._durability, like)
                return stack.enter_context(opened)[0]

            index_name = None
            files = [_Result(self._path, kinds)]
            path, parts = self._path, [kinds]
            if self._most is not None:
                parts = safetensors.split(kinds, self._most)
            base = path.removesuffix(safetensors.INDEX).removesuffix(".safetensors")
            is_split = len(parts) > 1 or path.endswith(safetensors.INDEX)
            if self._format == "safetensors":
                safetensors.refuse_beside(path, is_split=is_split)
            if is_split:
                path = base + safetensors.INDEX
                index = new(path)  # entered first, so that it becomes visible last
                index_name = os.path.basename(path)
                paths = safetensors.shard_names(path, len(parts))
                files = [_Result(*one) for one in zip(paths, parts, strict=True)]
                for part in parts:
                    safetensors.header_of(part, metadata)  # refused before anything is read
                with open(index, "wb") as out:
                    by_file = {os.path.basename(one.path): one.kinds for one in files}
                    out.write(safetensors.index_json(by_file))
            for file in files:
                temporary = new(file.path, index_name)
                self._module.write(temporary, file.kinds, metadata, read)
                if again is not None:
                    self._check(temporary, file.kinds, again)
            if index_name is not None:
                # Never an index of old files and new ones, after a power cut either.
                gone = safetensors.shards_of(path) - {os.path.basename(one.path) for one in files}
                self._remove(directory, index_name, *sorted(gone))
        return path

    def _remove(self, directory: int, *names: str) -> None:
        """Remove files of the directory, the first one durably before the others."""
        for name in names:
            path = os.path.join(os.path.dirname(self._path), name)
            with storage_errors(path), contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
                if name == names[0] and self._durability == "full":
                    os.fsync(directory)

    def _check(self, path: str, kinds: list[Kind], read: Read) -> None:
        with self._module.open_tensors(path) as (tensors, _):
            if tensors.keys() != {kind.name for kind in kinds}:
                raise other_values(None)
            _compare(kinds, lambda name, box: tensors[name].read(box), read)


class _Handle:
    """A tensor of a TensorFlow checkpoint, verified whatever part of it is read.

    Args:
        handle: of the tensor.
        is_stored: whether what is stored is read, not what it stands for.
    """

    def __init__(self, handle: TensorHandle, *, is_stored: bool) -> None:
        self.is_stored, self.meaning = is_stored, None if is_stored else handle.meaning
        self._handle = handle if is_stored else meant(handle)
        self.name, self.shape = handle.name, self._handle.shape
        self._mapped: NDArray[Any] | None = None

    @functools.cached_property
    def dequantized(self) -> _Handle:
        """The same tensor with numbers, if it is quantized."""
        handle = self._handle
        return _Handle(handle.dequantized(), is_stored=True) if isinstance(handle, Meant) else self

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        self._handle._check_rank()
        if isinstance(self._handle, Meant):
            self._handle.taken(is_cast=True)
        if self._handle.dtype is None:
            raise self._handle._unsupported(
                f"the elements of {self._handle.dtype_name} are not known"
            )
        if self._handle.dtype_name == "variant":
            raise self._handle._unsupported("another format would hold variants as strings")
        return self._handle.dtype

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as an array."""
        if not box:
            return self._handle.read(verify="full")
        if self._handle.partial_reads_verified:
            return np.asarray(self._handle[(*box, ...)])
        if self._mapped is None:
            self._mapped = mapped_array(self.name, self.shape, self.dtype, None)
            self._handle.read_into(self._mapped, verify="full")
        return self._mapped[box]


@contextlib.contextmanager
def _opened(
    kind: Format,
    source: str,
    limits: Mapping[str, int] | None,
    changes: Changes,
    *,
    keeps: bool,
    is_stored: bool = False,
) -> Iterator[_Opened]:
    """Give what changes take of a source: of a checkpoint, if `is_stored`, what is stored; with its
    metadata if `keeps`."""
    dropped: list[str] = []
    missing: tuple[str, ...] = ()
    passing = None
    with contextlib.ExitStack() as stack:
        if kind != "tensorflow":
            tensors, metadata = stack.enter_context(module_of(kind).open_tensors(source))
            if kind == "dcp" and is_stored:
                metadata = module_of(kind).take_state(tensors)
            if kind == "hdf5" and tensors.has_attributes:
                dropped.append("the attributes of groups and datasets")
            if kind == "safetensors":
                metadata = {name: _of_text(name, one) for name, one in metadata.items()}
                metadata = torch_state.with_ties(tensors, metadata)
                if unknown := set[str]().union(*(one.unknown for one in tensors.values())):
                    dropped.append(f"unknown keys of the header: {some(sorted(unknown))}")
        else:
            reader = stack.enter_context(Reader(locate(source), limits=limits))
            missing, metadata = missing_tensors(reader), reader.metadata
            passing = TensorNames(reader).passing
            tensors = {one.name: _Handle(one, is_stored=is_stored) for one in reader.values()}
            if tensors.pop(_GRAPH, None):
                dropped.append("TensorFlow's object graph")
        if not keeps:
            dropped += torch_state.left_out(tensors, metadata)
        are_values = not (kind == "tensorflow" and is_stored)
        planned = planned_tensors(
            dict(tensors),
            metadata if keeps else {},
            changes,
            source,
            passing,
            are_values=are_values,
        )
        dropped += _take_unread(planned.tensors, planned.metadata)
        yield _Opened(source, changes, planned, dropped, missing, are_values)


def _of_text(name: str, text: str) -> Any:
    """Return the value of metadata from safetensors, which has texts alone: the list that
    `ckptfmt` stored, of members that name tensors."""
    if name in (OPTIMIZER_STATES, PRNG_KEYS):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            return found if isinstance(found, list) else text
    return text
