# SPDX-License-Identifier: Apache-2.0
"""Writer, which writes one checkpoint or one shard of a bigger one."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import names, slices
from ckptfmt._base.arguments import Durability, Level, check_metadata, invalid, whole, wrong
from ckptfmt._base.arrays import Columns, Sources, batches
from ckptfmt._base.progress import Meter, Progress
from ckptfmt._base.save_options import SaveOptions
from ckptfmt._base.threads import thread_count
from ckptfmt.bundle import incremental
from ckptfmt.bundle.codec import Zstd
from ckptfmt.errors import InvalidError, about, masked
from ckptfmt.files.places import store_of

Path = str | bytes | os.PathLike[Any]

# Bytes of one crossing into C: many keep its threads busy, few let Ctrl-C and progress through.
BATCH_BYTES = 256 << 20
WATCHED_BATCH_BYTES = 32 << 20
# A data file of fewer bytes is not worth a thread; more files than this wait for memory.
SHARD_BYTES, SHARDS_MAX = 64 << 20, 16
# More than a reader need take of metadata (EXT-7).
_DEPTH_MAX, _NUMBER_MAX = 100, 10**4300
_SURROGATE = re.compile("[\ud800-\udfff]")


class Writer:
    """Write one checkpoint, or one shard of a bigger one, tensor by tensor, as BundleWriter does in
    TensorFlow. Nothing is visible before `commit`.

    A context manager: commits on a clean exit, abandons on an exception. A writer that is collected
    unfinished abandons what it wrote, with a ResourceWarning. One writer belongs to one thread at a
    time. An array that another thread changes while it is added may be stored torn, partly old and
    partly new; the checkpoint can be loaded all the same.

    >>> with ckptfmt.Writer("model") as writer:
    ...     writer.add("step", 7)
    ...     for row in range(4):
    ...         writer.add_slice("table", np.full((1, 3), row), shape=(4, 3), offset=(row, 0))
    >>> ckptfmt.load("model")["table"][:, 0].tolist()
    [0, 1, 2, 3]

    Args:
        prefix: path without extension: str, bytes, os.PathLike or URL; directories are made. Taken
            literally.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd". If it
            helps nowhere, the level is "v2+".
        shards: the number of data files of a fresh prefix, 1 to 1024. Each tensor, in the order of
            adding, goes to the file with the fewest bytes.

    Raises:
        InvalidError: an argument of the wrong type or value.
        StorageError: the data file could not be created.
    """

    def __init__(
        self,
        prefix: Path,
        *,
        metadata: Mapping[str, Any] | None = None,
        level: Level = "v2+",
        alignment: int | None = None,
        durability: Durability = "full",
        compression: str | None = None,
        shards: int = 1,
    ) -> None:
        target = names.prefix_text(prefix, urls=True)
        options = SaveOptions(
            level=level, alignment=alignment, durability=durability, compression=compression
        )
        self._open(target, options, metadata_json(metadata, level), check_shards(shards) or 1)

    @classmethod
    def _of(
        cls,
        prefix: str,
        options: SaveOptions,
        metadata: bytes | None = None,
        shards: int = 1,
        data_size: int = 0,
    ) -> Writer:
        """Return a writer for any prefix that TensorFlow takes, which reserves `data_size` bytes of
        disk space at once; `metadata` is what `metadata_json` returned."""
        writer = cls.__new__(cls)
        writer._open(prefix, options, metadata, shards, data_size)
        return writer

    def _open(
        self,
        prefix: str,
        options: SaveOptions,
        metadata: bytes | None,
        shards: int,
        data_size: int = 0,
    ) -> None:
        self._handle: _core.WriterHandle | None = None
        self._failed = False
        self.prefix, self._metadata = prefix, metadata
        self._handle = _core.WriterHandle(
            prefix,
            options,
            data_size=data_size,
            coder=None if options.zstd is None else Zstd(options.zstd),
            shards=shards,
            store=store_of(prefix),
        )

    def add(self, name: str | bytes, array: Any, dtype: Any = None) -> None:
        """Append a whole tensor; returns when its bytes are no longer needed.

        Args:
            name: its name, str or bytes, at least one byte.
            array: a numpy array of any strides and byte order (not copied), or anything that
                `np.asarray` takes. Strings: arrays of bytes, str or objects of these; str is stored
                as UTF-8.
            dtype: what `np.asarray` should make of data that has no dtype; also names what numpy
                cannot tell apart: "variant" for object arrays of payloads, "qint8" and the like
                for plain integers.

        Raises:
            InvalidError: an empty, repeated or reserved name, or data that cannot be stored.
            StorageError: writing failed. After any error the writer refuses to commit.
        """
        with self._adding():
            sources = Sources()
            sources.add(names.user_name(name, "name"), array, dtype)
            self._add(sources)

    def add_slice(
        self,
        name: str | bytes,
        array: Any,
        shape: Sequence[int] | None = None,
        offset: Sequence[int] | None = None,
        *,
        spec: str | bytes | None = None,
        dtype: Any = None,
    ) -> None:
        """Append one slice of a tensor; other slices may follow, here or in the other bundles of a
        merge.

        Args:
            name: the name of the whole tensor, str or bytes, at least one byte.
            array: the slice's elements, in its shape: a numpy array of any strides and byte order,
                or anything that `np.asarray` takes; str is stored as UTF-8.
            shape: the full tensor's shape, ints.
            offset: the index of the slice's first element in it, one int for each dimension.
            spec: both as a shape_and_slice text of TensorFlow instead: "1000 64 250,250:-" is rows
                250 to 499; "" is the whole tensor.
            dtype: what `np.asarray` should make of data that has no dtype; "variant", "qint8" and
                the like name what numpy cannot tell apart.

        Raises:
            InvalidError: the slice is outside the tensor, was added before, or disagrees with an
                earlier one on dtype or shape. Slices that overlap are refused by `commit`.
            StorageError: writing failed. After any error the writer refuses to commit.
        """
        with self._adding():
            raw, sources = names.user_name(name, "name"), Sources()
            if spec is None:
                if shape is None or offset is None:
                    raise _invalid(raw, "a slice needs shape and offset, or spec", "spec")
                sources.add(raw, array, dtype)
                _set_slice(sources, shape, offset)
            elif shape is None and offset is None:
                sources.add(raw, array, dtype)
                set_spec(sources, spec)
            else:
                raise _invalid(raw, "give either spec or shape and offset", "spec")
            self._add(sources)

    @contextlib.contextmanager
    def _adding(self) -> Iterator[None]:
        """A call whose failure leaves the writer without a tensor that the caller meant to save."""
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def _add(
        self,
        sources: Columns,
        first: int = 0,
        last: int | None = None,
        report: Callable[[int], None] | None = None,
    ) -> None:
        """Append some of the sources; `report` is called with the bytes appended."""
        table, owners = sources.table(first, last)
        self._append(table)
        if report is not None:
            report(sum(sources.sizes[first:last]))
        del owners

    def _append(self, table: NDArray[Any]) -> None:
        """Append rows. The metadata come before the first, so that a data file which is cut short
        later still has them."""
        self._put_metadata().add(table)

    def _put_metadata(self) -> _core.WriterHandle:
        handle = self._open_handle()
        text, self._metadata = self._metadata, None
        if text is not None:
            handle.add_metadata(text)
        return handle

    def _open_handle(self) -> _core.WriterHandle:
        if self._handle is None:
            raise InvalidError("writer is closed")
        return self._handle

    def commit(self) -> None:
        """Make the checkpoint visible, all or nothing, and close the writer in any case.

        Raises:
            InvalidError: slices of one tensor overlap, or an earlier `add` or `add_slice` failed;
                an older checkpoint is still there.
            StorageError: it could not be written; an older checkpoint of this prefix is still
                there.
            DurabilityUnknownError: it is in place, but a power cut may bring the older one back.
        """
        handle = self._open_handle()
        if self._failed:
            self.abandon()
            raise InvalidError(
                "an earlier add to this writer failed, so that the checkpoint would be incomplete: "
                "write it again with a new writer"
            )
        self._put_metadata()
        self._handle = None
        handle.commit()

    def abandon(self) -> None:
        """Remove what was written. Harmless when the writer is closed already."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        elif self._handle is not None:
            try:
                self.commit()
            finally:
                self.abandon()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and not handle.foreign:
            warnings.warn(
                f"the writer of {masked(self.prefix)} was neither committed nor abandoned",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self.abandon()

    def __repr__(self) -> str:
        closed = " closed" if self._handle is None else ""
        return f"<ckptfmt.Writer {masked(self.prefix)!r}{closed}>"


Writer.__module__ = "ckptfmt"


def write_sources(
    prefix: str,
    sources: Columns,
    progress: Progress | None,
    options: SaveOptions,
    *,
    metadata: bytes | None = None,
    base: Path | None = None,
    shards: int | None = None,
) -> None:
    """Write a whole checkpoint; `base` and `shards` as in `save`, `metadata` as `metadata_json`
    returned them."""
    sizes, padding = sources.size_column(), options.padding or 1
    meter = Meter(progress, int(sizes.sum()))
    most = BATCH_BYTES if progress is None else WATCHED_BATCH_BYTES
    if base is None:
        data_size = 0
        if options.zstd is None:
            shards = shards or shard_count(sizes)
            data_size = int((-(-sizes // padding) * padding).sum()) if padding <= 1 << 30 else 0
        with Writer._of(prefix, options, metadata, shards or 1, data_size) as writer:
            if shards is not None and shards > 1 and len(sizes):
                # Enough for the thread of each data file.
                most = max(most, 2 * shards * int(sizes.max()))
            for batch in batches(sizes, most):
                report = None if progress is None else meter.add
                writer._add(sources, batch.start, batch.stop, report)
        return
    with incremental.Base(base, sources) as earlier:
        same = earlier.compare(plain=options.level == "v2", report=meter.add)
        with Writer._of(prefix, options, metadata, shards or 1) as writer:
            kept = earlier.keep(writer._open_handle(), padding)
            rest = np.flatnonzero(~kept)
            sizes = sizes[rest]
            unreported = np.where(same[rest], 0, sizes)  # unchanged bytes were reported before
            for batch in batches(sizes, most):
                chosen = rest[batch]
                writer._append(earlier.table[chosen])
                meter.add(int(unreported[batch].sum()))


def shard_count(sizes: NDArray[np.int64]) -> int:
    """Return how many data files a save of arrays of these sizes writes; see `save`."""
    total = int(sizes.sum())
    if total < 2 * SHARD_BYTES:
        return 1
    return min(thread_count(SHARDS_MAX), total // SHARD_BYTES, -(-total // int(sizes.max())))


def set_spec(sources: Sources, spec: str | bytes) -> None:
    """Make the last of the sources the slice that a shape_and_slice text describes."""
    with about(names.tensor_text(sources.names[-1])):
        parsed = slices.parse_spec(spec)
    if parsed is None:
        return
    actual = sources.arrays[-1].shape
    if parsed.shape != actual:
        raise _invalid(
            sources.names[-1],
            "Slice in shape_and_slice specification does not match the shape of the tensor to "
            f"save: {names.tensor_text(spec)}, tensor: [{','.join(map(str, actual))}]",
        )
    sources.slices[len(sources) - 1] = (parsed.full_shape, parsed.start, parsed.lengths)


def _set_slice(sources: Sources, shape: Sequence[int], offset: Sequence[int]) -> None:
    """Make the last of the sources a slice of a tensor of this shape."""
    name, actual = sources.names[-1], sources.arrays[-1].shape
    numbers: list[tuple[int, ...]] = []
    for argument, given in (("shape", shape), ("offset", offset)):
        try:
            numbers.append(tuple(map(operator.index, given)))
        except TypeError:
            message = f"{argument} must be a sequence of integers, not {given!r}"
            raise _invalid(name, message, argument) from None
    full, start = numbers
    if len(full) != len(start) or len(full) != len(actual):
        raise _invalid(
            name,
            f"shape {full}, offset {start} and an array of shape {actual} have different ranks",
            "offset",
        )
    if any(not 0 <= number < 2**63 for number in (*full, *start)):
        raise _invalid(name, f"shape {full} and offset {start} are not both in range", "offset")
    if full:
        # As SaveSliceInfo.spec: lengths are spelled out, but for empty dimensions, which have no
        # other form.
        lengths = [length if length else -1 for length in actual]
        sources.slices[len(sources) - 1] = (full, start, lengths)


def _invalid(name: bytes, message: str, argument: str | None = None) -> InvalidError:
    return invalid(argument, message, tensor=names.tensor_text(name))


def check_shards(shards: int | None) -> int | None:
    """Return a number of data files; refuse what is none."""
    if shards is not None and not 1 <= whole("shards", shards) <= 1024:
        raise invalid("shards", f"shards must be 1 to 1024 data files, not {shards}")
    return shards


def metadata_json(metadata: Mapping[str, Any] | None, level: Level) -> bytes | None:
    """Return metadata as they are stored: the canonical JSON of EXT-12.

    Raises:
        InvalidError: they cannot be stored.
    """
    if metadata is None:
        return None
    if level == "v2":
        raise invalid("metadata", "level 'v2' cannot store metadata: use 'v2+'")
    check_metadata(metadata)
    members = {}
    for name, value in metadata.items():
        if not isinstance(name, str):
            raise wrong("a name in metadata", "str", name, "metadata")
        try:
            members[_json_text(name)] = _json_value(value, 1)
        except ValueError as error:
            raise invalid("metadata", f"metadata {name!r} cannot be stored: {error}") from None
    try:
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    except ValueError as error:  # Python's own limit of digits may be set lower
        raise invalid("metadata", f"metadata cannot be stored: {error}") from None


def _json_value(value: Any, depth: int) -> Any:
    """Return a value of the metadata as JSON has it; `depth` counts the lists around it, and one.

    Raises:
        ValueError: it cannot be stored.
    """
    if isinstance(value, (np.bool_, np.integer, np.floating, np.str_)):
        value = value.item()
    if isinstance(value, str):
        return _json_text(value)
    if isinstance(value, int):  # bool too
        if abs(value) >= _NUMBER_MAX:
            raise ValueError("a number of more than 4300 digits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {float(value)!r}")
        return value
    if isinstance(value, (list, tuple)):
        if depth == _DEPTH_MAX:
            raise ValueError(f"lists are nested more than {_DEPTH_MAX} deep")
        return [_json_value(one, depth + 1) for one in value]
    kind = "None" if value is None else type(value).__name__
    raise ValueError(f"values must be str, numbers, bool, or lists of these, not {kind}")


def _json_text(text: str) -> str:
    if _SURROGATE.search(text):
        raise ValueError("text with half of a surrogate pair")
    return text
