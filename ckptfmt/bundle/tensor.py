# SPDX-License-Identifier: Apache-2.0
"""TensorHandle: one tensor of an open checkpoint, which is read on demand."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes
from ckptfmt._base.arguments import Verify
from ckptfmt._base.targets import Target, as_target
from ckptfmt._core import cached_property
from ckptfmt.bundle import indexing
from ckptfmt.errors import InvalidError, UnsupportedError

# A partial read of a stored value up to this size reads and verifies all of it.
CHECKED_WHOLE_BYTES = 1 << 20
# Before allocating more than this, check that the data files are as large as the index claims.
PROBED_BYTES = 64 << 20
# Dtypes that tensors of dtypes of torch which the format lacks are stored as (meanings.py).
CARRIERS = frozenset(
    dtypes.code_of(name) for name in ("uint8", "uint16", "float16", "qint8", "quint8", "qint32")
)


class Opened(Protocol):
    """What a handle, and the object graph, need of a Reader."""

    _handle: _core.ReaderHandle
    _default_mode: int
    _forgotten: set[str]

    @property
    def prefix(self) -> str:
        """The checkpoint's prefix."""
        ...

    @property
    def _notes(self) -> dict[str, dict[str, Any]]: ...

    def _verify_mode(self, verify: Verify | None) -> int: ...

    def __getitem__(self, name: bytes, /) -> TensorHandle: ...

    def __iter__(self) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """One stored slice of a partitioned tensor.

    Attributes:
        start: the first index of its box in the tensor, by dimension.
        shape: the shape of that box.
        shard: number of the data file.
        offset: first byte in the data file.
        nbytes: stored bytes.
        crc32c: CRC-32C of the stored bytes, unmasked.
        chunk_size: uncompressed bytes per chunk checksum; 0 without chunk checksums.
        raw_nbytes: uncompressed bytes.
        compressed: whether the slice is compressed.
        missing: the tensor lists the slice, but the index has no entry for it.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int
    crc32c: int
    chunk_size: int
    raw_nbytes: int
    compressed: bool
    missing: bool


StoredSlice.__module__ = "ckptfmt.types"


class TensorHandle:
    """One tensor of an open checkpoint: `reader[name]`. Its attributes come from the index, and
    each read is one of the elements that are asked for. A handle keeps its reader alive.

    >>> ckptfmt.save("model", {"w": np.arange(6.0).reshape(3, 2)})
    >>> handle = ckptfmt.open("model")["w"]
    >>> handle.shape, handle.dtype, handle.nbytes, handle[1].tolist()
    ((3, 2), dtype('float64'), 48, [2.0, 3.0])

    Attributes:
        name: str, with surrogate escapes for bytes that are not UTF-8. `raw_name` is bytes.
        dtype: numpy dtype; `object` for strings; None for a dtype that this version does not know.
    """

    def __init__(self, reader: Opened, selection: _core.Selection, row: int, name: str) -> None:
        self._reader = reader
        self._selection = selection
        self._row = row
        self._record = selection.record(row)
        self.dtype = dtypes.NUMPY[self._record.dtype]
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: the checkpoint may have changed when it is opened again.
        return operator.getitem, (self._reader, self.raw_name)

    def __copy__(self) -> TensorHandle:
        return self  # immutable

    # ---- what the index says

    @property
    def raw_name(self) -> bytes:
        """The stored name."""
        return self.name.encode("utf-8", "surrogateescape")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self._record.shape

    @property
    def dtype_code(self) -> int:
        """TensorFlow's number of the dtype."""
        return self._record.dtype

    @property
    def dtype_name(self) -> str:
        """Name of the dtype, that of NumPy or ml_dtypes if they have it ("float32", "string")."""
        return dtypes.name_of(self._record.dtype)

    @property
    def meaning(self) -> str | None:
        """Torch's name of the dtype that the stored elements are bits of ("float8_e8m0fnu"). None
        if they are the values."""
        return None if self._note is None else str(self._note["dtype"])

    @property
    def _note(self) -> dict[str, Any] | None:
        return self._reader._notes.get(self.name) if self.dtype_code in CARRIERS else None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._record.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._record.element_count

    @cached_property
    def slices(self) -> tuple[StoredSlice, ...]:
        """The stored slices of a partitioned tensor; empty for one stored whole."""
        if not self.partitioned:
            return ()
        rank = len(self.shape)
        found = []
        for extents, stored in self._selection.slices(self._row):
            lengths = zip(self.shape, extents[rank:], strict=True)
            found.append(
                StoredSlice(
                    start=tuple(extents[:rank]),
                    shape=tuple(dim if length < 0 else length for dim, length in lengths),
                    shard=stored.shard,
                    offset=stored.offset,
                    nbytes=stored.size,
                    crc32c=stored.crc32c,
                    chunk_size=stored.chunk_size,
                    raw_nbytes=stored.raw_size,
                    compressed=bool(stored.flags & _core.STORED_COMPRESSED),
                    missing=bool(stored.flags & _core.STORED_MISSING),
                )
            )
        return tuple(found)

    @property
    def partitioned(self) -> bool:
        """True if it is stored in slices."""
        return self._record.slice_count > 0

    @property
    def shard(self) -> int | None:
        """Number of the data file; None for a partitioned tensor."""
        return None if self.partitioned else self._record.stored.shard

    @property
    def offset(self) -> int | None:
        """First byte in the data file; None for a partitioned tensor."""
        return None if self.partitioned else self._record.stored.offset

    @property
    def crc32c(self) -> int | None:
        """CRC-32C of the stored bytes, unmasked; None for a partitioned tensor."""
        return None if self.partitioned else self._record.stored.crc32c

    @property
    def chunk_size(self) -> int | None:
        """Bytes per chunk checksum, 0 without chunk checksums; None for a partitioned tensor."""
        return None if self.partitioned else self._record.stored.chunk_size

    @property
    def compressed(self) -> bool:
        """True if any of its stored values is compressed."""
        return self._selection.is_compressed(self._row)

    @property
    def stored_nbytes(self) -> int:
        """Bytes in the data files."""
        if self.partitioned:
            return sum(part.nbytes for part in self.slices)
        return self._record.stored.size

    @property
    def nbytes(self) -> int:
        """Bytes of the array; for strings and unknown dtypes, of the uncompressed stored data."""
        info = dtypes.info_of(self.dtype_code)
        if info and info.size:
            return self.size * info.size
        if self.partitioned:
            return sum(part.raw_nbytes for part in self.slices)
        return self._record.stored.raw_size

    @property
    def partial_reads_verified(self) -> bool:
        """True if verify="auto" verifies partial reads. Every stored value then has chunk
        checksums, or is small enough to be read whole (1 MiB), or is read whole anyway
        (strings)."""
        info = dtypes.info_of(self.dtype_code)
        if info and not info.size:
            return True
        if self.partitioned:
            return all(
                part.chunk_size or part.nbytes <= CHECKED_WHOLE_BYTES for part in self.slices
            )
        stored = self._record.stored
        return bool(stored.chunk_size) or stored.size <= CHECKED_WHOLE_BYTES

    # ---- reading

    def read(self, *, verify: Verify | None = None) -> NDArray[Any]:
        """Return the whole tensor as a new array.

        Strings and variant payloads are object arrays of bytes. For a dtype that this version does
        not know, the array has the stored bytes as uint8.

        Args:
            verify: "auto", "full" or "off"; None: as the reader was opened.

        Raises:
            CorruptError: the data is damaged, or its slices do not cover it.
            UnsupportedError: more than 64 dimensions, the limit of numpy.
            StorageError, LimitError: a data file cannot be read; the tensor exceeds a limit of the
                reader.
        """
        reader = self._reader
        mode = reader._default_mode if verify is None else reader._verify_mode(verify)
        array = reader._handle.read_small(self.raw_name, mode, dtypes.NUMPY)
        return self._read_box(None, self.shape, verify) if array is None else array

    def read_into(self, array: Any, *, verify: Verify | None = None) -> NDArray[Any]:
        """Read the whole tensor into `array` and return it as a numpy array.

        Args:
            array: writable CPU memory of exactly this shape and dtype, in any byte order: a numpy
                array, DLPack object or buffer. If it is not C-contiguous, or in another byte order
                than this machine's, it is filled from a temporary copy.
            verify: "auto", "full" or "off"; None: as the reader was opened.

        Raises:
            InvalidError: another shape or dtype, or read-only; nothing is written.
            CorruptError: the data is damaged, or its slices do not cover it; the content of the
                array is then unspecified.
            StorageError, LimitError: a data file cannot be read; the tensor exceeds a limit of the
                reader.
        """
        target = self._borrow(array)
        self._check_kind(target.array.dtype, target.array.shape)
        target.mark_written()
        place = target.array
        if place.dtype.hasobject or not (place.flags.c_contiguous and place.dtype.isnative):
            place[...] = self.read(verify=verify)
        else:
            self._fetch(None, place, verify)
        return place

    def _check_kind(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Refuse an array of another dtype or shape than this tensor."""
        expected, own = self._expected()
        if (dtype if dtype.isnative else dtype.newbyteorder("=")) != expected:
            raise self._invalid(f"cannot read dtype {expected} into an array of dtype {dtype}")
        if shape != own:
            raise self._invalid(f"cannot read shape {own} into an array of shape {shape}")

    def _borrow(self, target: Any) -> Target:
        """Return the memory of `target`, of any dtype and shape, to read into."""
        try:
            return as_target(target)
        except InvalidError as error:
            error.tensor, error.path = self.name, self._reader.prefix
            raise

    def _expected(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape of an array that this tensor can be read into."""
        if self.dtype is None:
            return np.dtype(np.uint8), (self.stored_nbytes,)
        return self.dtype, self.shape

    def map(self, *, verify: Verify | None = None) -> NDArray[Any]:
        """Return the tensor as a read-only array over the data file itself, without a copy.

        The mapping lives as long as any view of it, even if the reader is closed. If another
        process truncates the file, touching the mapping kills this process (SIGBUS): map only files
        that nothing changes. Unless `verify` is "off" the bytes are checked once, now. Where the
        tensor is not aligned in the file, neither is the array (`array.flags.aligned`): numpy
        works with it, C code that takes its pointer may not. `alignment=` of a save aligns tensors.

        Args:
            verify: "auto", "full" or "off"; None: as the reader was opened.

        Raises:
            InvalidError: a partitioned or compressed tensor, strings, or the other byte order:
                these cannot be mapped.
            CorruptError: the data is damaged.
            StorageError, LimitError: the data file cannot be read; the tensor has more bytes than
                `tensor_bytes_max`.
        """
        self._check_rank()
        raw = self._reader._handle.map(
            self._selection, self._row, self._reader._verify_mode(verify)
        )
        dtype = self.dtype
        try:
            return raw if dtype is None else np.ndarray(self.shape, dtype, raw)
        except ValueError as error:  # as in new_array
            raise self._unsupported(f"shape {self.shape}: {error}") from None

    @overload
    def __getitem__(self, key: SupportsIndex | tuple[SupportsIndex, ...]) -> Any: ...

    @overload
    def __getitem__(self, key: Any) -> NDArray[Any]: ...

    def __getitem__(self, key: Any) -> Any:
        """Return `read()[key]` as a new array, reading only the smallest box that contains it.

        Args:
            key: integers, slices with any step, and an ellipsis: basic indexing of NumPy.

        Returns:
            An array. For an int in every dimension the element: a NumPy scalar, or bytes.

        Raises:
            IndexError: an integer out of range, or more indices than dimensions.
            InvalidError: another kind of indexing (masks, arrays, None).
            CorruptError: the data is damaged, or its slices do not cover it.
            UnsupportedError: more than 64 dimensions, the limit of numpy.
            StorageError, LimitError: a data file cannot be read; the tensor exceeds a limit of the
                reader.
        """
        if self.dtype is None:
            if indexing.is_all(key, self.shape):
                return self.read()
            with contextlib.suppress(UnsupportedError):  # a better message follows
                self._fetch(np.zeros(2 * self.ndim + 1, np.int64), np.empty(0, np.uint8), None)
            raise self._unsupported(
                f"the element size of {self.dtype_name} is not known: read() returns the bytes"
            )
        box = indexing.box_of(key, self.shape)
        whole = box.shape == self.shape
        corner = None if whole else np.array([*box.start, *box.shape, 0], np.int64)
        array = self._read_box(corner, box.shape, None)
        picked = array[box.rest]
        if isinstance(picked, np.ndarray) and picked.base is not None and picked.size < array.size:
            return picked.copy()
        return picked

    def _read_box(
        self, box: NDArray[np.int64] | None, shape: tuple[int, ...], verify: Verify | None
    ) -> NDArray[Any]:
        """Return a box (starts, then lengths; None for all) with this shape as a new array."""
        self._check_rank()
        dtype = self.dtype
        if dtype is not None and dtype.hasobject:
            mode = self._reader._verify_mode(verify)
            elements = self._reader._handle.read_strings(self._selection, self._row, box, mode)
            strings = np.empty(len(elements), object)
            strings[:] = elements
            try:
                return strings.reshape(shape)
            except ValueError as error:  # an empty tensor whose other dimensions are too large
                raise self._unsupported(f"shape {shape}: {error}") from None
        array = (
            self._new_array((self.stored_nbytes,), np.dtype(np.uint8))
            if dtype is None
            else self._new_array(shape, dtype, box)
        )
        self._fetch(box, array, verify)
        return array

    def _new_array(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        box: NDArray[np.int64] | None = None,
    ) -> NDArray[Any]:
        """Return an array for a box (None: all) with this shape, a large one only if the data files
        have as many bytes as the index claims."""
        self._check_rank()
        if math.prod(shape) * dtype.itemsize > PROBED_BYTES:
            self._reader._handle.check_one(self._selection, self._row, box)
        try:
            return _core.new_array(shape, dtype, self.offset if box is None else None)
        except ValueError as error:  # empty, but the other sizes overflow in numpy
            raise self._unsupported(f"shape {shape}: {error}") from None

    def _fetch(
        self, box: NDArray[np.int64] | None, array: NDArray[Any], verify: Verify | None
    ) -> None:
        reader = self._reader
        mode = reader._default_mode if verify is None else reader._verify_mode(verify)
        reader._handle.read_one(self._selection, self._row, box, array, mode)

    def _check_rank(self) -> None:
        """Refuse a rank above the limit of numpy."""
        if len(self.shape) > _core.NUMPY_RANK_MAX:
            raise self._unsupported(
                f"{self.ndim} dimensions are more than the {_core.NUMPY_RANK_MAX} of numpy arrays"
            )

    def _unsupported(self, message: str) -> UnsupportedError:
        """Return an UnsupportedError that names this tensor."""
        return UnsupportedError(message, tensor=self.name, path=self._reader.prefix)

    def _invalid(self, message: str) -> InvalidError:
        return InvalidError(message, tensor=self.name, path=self._reader.prefix)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a TensorHandle is not in memory: conversion always makes a new array")
        array = self.read()
        return array if dtype is None or np.dtype(dtype) == array.dtype else array.astype(dtype)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a tensor without dimensions")
        return (self[row] for row in range(self.shape[0]))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<TensorHandle {self.name!r} {self.dtype_name} {self.shape}>"

    def _repr_html_(self) -> str:
        """Show what the index says of the tensor in a notebook; reads nothing."""
        from ckptfmt.bundle.notebook import table  # noqa: PLC0415 (notebooks only)

        where = "several data files" if self.shard is None else f"data file {self.shard}"
        row = (self.dtype_name, list(self.shape), f"{self.nbytes:,}", where)
        return table(self.name, ["dtype", "shape", "bytes", "where"], [row])


TensorHandle.__module__ = "ckptfmt.types"
