# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt.convert`: between levels of the format, and from and to other formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

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
from ckptfmt._base.names import path_text, prefix_text
from ckptfmt._base.patterns import Filters
from ckptfmt._base.progress import Progress
from ckptfmt._base.renaming import Rename
from ckptfmt._base.save_options import SaveOptions
from ckptfmt._base.untrusted import output_most
from ckptfmt.bundle.graph_keys import missing_tensors
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.writer import check_shards
from ckptfmt.errors import masked_repr
from ckptfmt.files.locate import locate
from ckptfmt.files.outputs import checkpoint_files, output_path
from ckptfmt.files.places import names_in
from ckptfmt.formats import safetensors, torch_state
from ckptfmt.formats.tensors import Kind
from ckptfmt.recipe.changes import Cast, Changes
from ckptfmt.recipe.checkpoint import rebuild, write_checkpoint
from ckptfmt.recipe.edit import edited
from ckptfmt.recipe.export import Export
from ckptfmt.recipe.sources import WAY_OUT, Format, Taken, format_of, module_of, opened, take
from ckptfmt.recipe.values import Result

Path = str | bytes | os.PathLike[Any]


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    Attributes:
        path: of the result; of a TensorFlow checkpoint its prefix.
        format: of the result.
        tensors: number of tensors.
        nbytes: bytes of their arrays.
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

    >>> ckptfmt.save("model", {"w": np.ones((2, 3), "float32"), "b": np.zeros(3, "float32")})
    >>> done = ckptfmt.convert("model", "model.safetensors", cast="float16", drop="b")
    >>> done.format, done.tensors, done.nbytes
    ('safetensors', 1, 12)

    Args:
        source: a checkpoint (a prefix, an `.index` or data file, a directory, a SavedModel, or a
            URL), or a file or directory of another format.
        destination: a prefix, or the path of a file of another format (`.safetensors`, `.npz`,
            `.h5`), which is replaced.
        to: the format of the result: "tensorflow", "safetensors", "npz" or "hdf5". None: by the
            extension of `destination`, without a known one "tensorflow".
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses. TensorFlow
            checkpoints only.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
            TensorFlow checkpoints only.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
            TensorFlow checkpoints only.
        drop_metadata: True leaves out the metadata, damaged ones as well.
        limits: what a file may ask of this process: a mapping of names of `ckptfmt_limits` in
            `ckptfmt.h` to int, such as {"index_bytes_max": 1 << 30}; None: the defaults there. Of a
            file of another format, `expansion_max` times its bytes (default 1100), or 1 GiB if that
            is more, are the limit of all arrays that it becomes.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. Arrays of NumPy and scales of quantized tensors in a state of
            `ckptfmt.torch` are only cast if a filter of a mapping matches them.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. The result counts them.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name. A transformed tensor is in memory. Between checkpoints slices
            stay, and the object graph and the structure of a state follow the names.
        drop: which tensors to leave out: a name, a glob pattern, `/REGEX/`, a compiled pattern or a
            function, or a list of these. Weights as well.
        keep: which tensors to keep, in the same forms; the others are dropped.
        max_shard_bytes: divide a safetensors result into files of at most this many bytes, with an
            index.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        shards: number of data files of a TensorFlow checkpoint on a fresh prefix, 1 to 1024.
        check_result: False does not read the result back, before it becomes visible, to compare it
            with the source. A TensorFlow source is always verified.
        progress: called as `progress(done, total)` with two ints, of bytes of the arrays.

    Returns:
        What was written, cast and dropped. The object graph of TensorFlow is dropped where the
        result has no place for it, and so is metadata. Attributes of HDF5 are dropped.

    Raises:
        InvalidError: an argument; a tensor whose name or dtype the result cannot hold (`cast`,
            `drop`); a cast that loses values, without `allow_loss`.
        TensorNotFoundError: a filter of `cast` or `drop`, or a name of a mapping `rename`, matches
            nothing.
        CheckpointNotFoundError: there is nothing at `source`.
        CorruptError: the source is damaged, or the result differs from it.
        LimitError, UnsupportedError: the source is beyond `limits`, or of an unknown version.
        StorageError: it could not be written; a file or checkpoint that was there is unchanged.
        BusyError: another process holds the lock of the directory.
        DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
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
    most = most_of(kind, from_path, limits)
    keeps = not drop_metadata and (result == "safetensors" or level != "v2")
    in_several = max_shard_bytes is not None
    if in_several and (result != "safetensors" or not is_positive(max_shard_bytes)):
        raise invalid(
            "max_shard_bytes", "max_shard_bytes= takes a positive number, for safetensors"
        )
    options = SaveOptions(
        level=level, alignment=alignment, durability=durability, compression=compression
    )
    if result == "tensorflow":
        check_limits(limits)
        target = prefix_text(to_path, "destination", urls=True)
        made = Result(target, options, limits, check_shards(shards) or 1)
        wait_for_saves()
        if kind == "tensorflow":
            return _again(from_path, made, changes, drop_metadata, check_result, progress)
        # Renamed tensors are not where the layout of the source has them.
        states = module_of(kind).optimizer_paths if kind == "hdf5" and rename is None else None
        with opened(
            kind, from_path, limits, keeps=keeps, forgets=drop_metadata, as_state=keeps
        ) as every:
            taken = take(every, changes)
            kinds, bits = write_checkpoint(taken, made, check_result, progress, states, most)
            return _conversion(taken, target, result, kinds, bits)
    for option in [*options.of_format(), *(["shards"] if shards != 1 else [])]:
        raise invalid(option, f"{option} is for TensorFlow checkpoints, not for {result!r}")
    to_path = output_path(to_path, files_in(kind, from_path), regular=True)
    out = Export(result, to_path, durability, max_shard_bytes)
    keeps = keeps and result == "safetensors"
    with opened(kind, from_path, limits, keeps=keeps, forgets=drop_metadata) as every:
        taken = take(every, changes)
        path, kinds = out.write(taken, check_result, progress, most)
        return _conversion(taken, path, result, kinds, {})


def _conversion(
    taken: Taken, path: str, result: Format, kinds: list[Kind], bits: Mapping[str, str]
) -> Conversion:
    done = taken.changes.results()
    return Conversion(
        path,
        result,
        len(kinds),
        sum(kind.nbytes for kind in kinds),
        taken.casts,
        tuple(taken.dropped),
        {name: (dtype, "uint8") for name, dtype in bits.items()},
        taken.missing,
        done["losses"],
        done["zeros"],
        taken.uncast,
    )


def _again(
    source: str,
    made: Result,
    changes: Changes,
    drop_metadata: bool,
    check_result: bool,
    progress: Progress | None,
) -> Conversion:
    """Write a checkpoint again."""
    with Reader(locate(source), verify="full", limits=made.limits) as reader:
        if reader._settle_metadata(replaced=drop_metadata, way_out=WAY_OUT):
            dropped = ["the metadata"]
        else:
            dropped = torch_state.left_out(reader, reader.metadata) if drop_metadata else []
        done = edited(
            reader,
            made.prefix,
            changes,
            partial(rebuild, made, check_result),
            made.options,
            metadata={} if drop_metadata else None,
            drop_weights=True,
            level=made.options.level,
            is_fresh=True,
            way_out=WAY_OUT,
            progress=progress,
        )
    with Reader(made.prefix, limits=made.limits) as reader:
        return Conversion(
            made.prefix,
            "tensorflow",
            done.tensors,
            int(reader.table()["nbytes"].sum()),
            {done.renamed.get(old, old): kinds for old, kinds in done.casts.items()},
            tuple(dropped),
            {},
            missing_tensors(reader),
            {done.renamed.get(old, old): count for old, count in done.losses.items()},
            {done.renamed.get(old, old): count for old, count in done.zeros.items()},
            tuple(done.renamed.get(old, old) for old in done.uncast),
        )


def files_in(kind: Format, path: str) -> Iterator[str]:
    """Yield the files of a source in several files. A source in one file may be replaced."""
    if kind == "tensorflow":
        wait_for_saves()
        yield from checkpoint_files(locate(path))
    elif kind == "dcp":
        yield from (os.path.join(path, name) for name in names_in(path))
    elif kind == "safetensors":
        yield from safetensors.shards(path)


def most_of(kind: Format, path: str, limits: Mapping[str, int] | None) -> int:
    """Return how many bytes the arrays of a source may have; of a checkpoint, its reader limits
    each by what is stored of it."""
    if kind == "tensorflow":
        return sys.maxsize
    if limits is not None and not is_positive(limits.get("expansion_max", 1)):
        raise invalid("limits", "limits: expansion_max is a positive number")
    folder = path if kind != "dcp" or os.path.isdir(path) else os.path.dirname(path)
    files = [path, *files_in(kind, folder)]
    return output_most(sum(os.path.getsize(one) for one in files if os.path.isfile(one)), limits)
