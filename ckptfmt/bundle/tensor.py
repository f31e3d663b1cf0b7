# SPDX-License-Identifier: Apache-2.0
"""TensorHandle: one tensor of an open checkpoint, of which nothing is read until it is asked
for."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core, dtypes
from ckptfmt.arguments import Verify
from ckptfmt.arrays import as_target
from ckptfmt.bundle import indexing
from ckptfmt.errors import InvalidError, UnsupportedError
from ckptfmt.remembering import cached_property

if TYPE_CHECKING:
    from ckptfmt.bundle.reader import Reader

__all__ = ["StoredSlice", "TensorHandle"]

# A partial read of a stored value up to this size reads and checks all of it.
CHECKED_WHOLE_BYTES = 1 << 20
# Before this much memory is taken, the data files are asked whether they hold that much.
PROBED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """One stored slice of a partitioned tensor.

    Attributes:
        start, shape: the box of the tensor that it holds.
        shard, offset, nbytes: where its bytes lie: number of the data file, first byte in it, size.
        crc32c: CRC-32C of these bytes, unmasked.
        chunk_size: bytes, uncompressed, of a chunk that has a checksum; 0 if there are none.
        raw_nbytes: bytes uncompressed; the same as `nbytes` where they are not compressed.
        compressed: whether they are.
        missing: the tensor lists the slice, but the index does not hold it.
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


class TensorHandle:
    """One tensor. Making a handle reads nothing but the index; it keeps its reader alive.

    Attributes:
        name: str; bytes that are not UTF-8 are surrogate escapes. `raw_name` is the same as bytes.
        shape: tuple of int.
        dtype: numpy dtype; None for a dtype that numpy cannot hold. Strings are `object` (arrays of
            bytes).
        dtype_code, dtype_name: TensorFlow's number and name of the dtype.
        nbytes: bytes of the array; of strings and unknown dtypes those that uncompressed data files
            would hold.
    """

    def __init__(self, reader: Reader, selection: _core.Selection, row: int, name: str) -> None:
        self._reader = reader
        self._selection = selection
        self._row = row
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: the tensor may be elsewhere when its checkpoint is opened again.
        return operator.getitem, (self._reader, self.raw_name)

    def __copy__(self) -> TensorHandle:
        return self  # nothing of it changes

    # ---- what the index says

    @cached_property
    def _record(self) -> _core.Record:
        return self._selection.record(self._row)

    @property
    def raw_name(self) -> bytes:
        """The name as it is stored."""
        return self.name.encode("utf-8", "surrogateescape")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return self._record.shape

    @property
    def dtype_code(self) -> int:
        """TensorFlow's number of the dtype."""
        return self._record.dtype

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy dtype; None for one that numpy cannot hold."""
        return dtypes.numpy_dtype(self._record.dtype)

    @property
    def dtype_name(self) -> str:
        """TensorFlow's name of the dtype."""
        return dtypes.name_of(self._record.dtype)

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
        """Bytes that a chunk checksum covers, 0: there are none; None for a partitioned tensor."""
        return None if self.partitioned else self._record.stored.chunk_size

    @property
    def compressed(self) -> bool:
        """True if it is compressed, or one of its slices is."""
        return self._selection.is_compressed(self._row)

    @property
    def stored_nbytes(self) -> int:
        """Bytes in the data files."""
        if self.partitioned:
            return sum(part.nbytes for part in self.slices)
        return self._record.stored.size

    @property
    def nbytes(self) -> int:
        """Bytes of the array; of strings and unknown dtypes those that uncompressed data files
        would hold."""
        info = dtypes.info_of(self.dtype_code)
        if info and info.size:
            return self.size * info.size
        if self.partitioned:
            return sum(part.raw_nbytes for part in self.slices)
        return self._record.stored.raw_size

    @property
    def partial_reads_verified(self) -> bool:
        """True if a read of any part of it is checked under verify="auto".

        That is so where every stored value has checksums of its chunks, or is small enough to be
        read whole (1 MiB).
        """
        if self.partitioned:
            return all(
                part.chunk_size or part.nbytes <= CHECKED_WHOLE_BYTES for part in self.slices
            )
        stored = self._record.stored
        return bool(stored.chunk_size) or stored.size <= CHECKED_WHOLE_BYTES

    # ---- reading

    def read(self, *, verify: Verify | None = None) -> NDArray[Any]:
        """The whole tensor as a new array.

        Strings and variant payloads are object arrays of bytes. A dtype that this version does not
        know gives the stored bytes as a vector of uint8. `verify` overrides that of the reader.

        Raises:
            CorruptError: the data is damaged, or its slices leave a hole.
            UnsupportedError: rank above 64, which numpy cannot hold.
            StorageError, LimitError.
        """
        mode = self._reader._verify_mode(verify)
        array = self._reader._handle.read_small(self.raw_name, mode, dtypes.NUMPY)
        return self.read_box(None, self.shape, verify) if array is None else array

    def read_into(self, array: Any, *, verify: Verify | None = None) -> NDArray[Any]:
        """Reads the whole tensor into memory of the caller and returns it as an array.

        Args:
            array: a writable numpy array (or object with the buffer protocol) of exactly this shape
                and dtype. One that is not C-contiguous is filled through a temporary copy.
            verify: overrides that of the reader.

        Raises:
            InvalidError: another shape or dtype, or read-only; nothing was written.
            CorruptError, StorageError, LimitError: as in `read`; the contents of the array are then
                unspecified.
        """
        target = self.check_target(array)
        if self.dtype == np.dtype(object) or not target.flags.c_contiguous:
            target[...] = self.read(verify=verify)
        else:
            self._fetch(None, target, verify)
        return target

    def check_target(self, target: Any) -> NDArray[Any]:
        """`target` as a numpy array that this tensor can be read into; InvalidError if it is
        none."""
        array = self.borrow(target)
        expected, shape = self.expected()
        if array.dtype != expected:
            raise self._invalid(
                f"cannot read dtype {expected} into an array of dtype {array.dtype}"
            )
        if array.shape != shape:
            raise self._invalid(f"cannot read shape {shape} into an array of shape {array.shape}")
        return array

    def borrow(self, target: Any) -> NDArray[Any]:
        """`target` as a writable numpy array of any dtype and shape; InvalidError if it is none."""
        try:
            return as_target(target)
        except InvalidError as error:
            raise self._invalid(error.message) from None

    def expected(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and shape of an array that this tensor can be read into."""
        if self.dtype is None:
            return np.dtype(np.uint8), (self.stored_nbytes,)
        return self.dtype, self.shape

    def map(self, *, verify: Verify | None = None) -> NDArray[Any]:
        """Return the tensor as a read-only array over the data file itself, without a copy.

        The mapping lives as long as any view of it, whatever happens to the reader. If another
        process truncates the file, touching the mapping kills this process (SIGBUS): map only files
        that nothing changes. Unless `verify` is "off" the bytes are checked once, now. Where the
        tensor is not aligned in the file, neither is the array (`array.flags.aligned`): numpy
        works with it, C code that takes its pointer may not. `alignment=` of a save aligns tensors.

        Raises:
            InvalidError: a partitioned or compressed tensor, strings, or the other byte order:
                these cannot be mapped.
            CorruptError, StorageError.
        """
        self.check_rank()
        raw = self._reader._handle.map(
            self._selection, self._row, self._reader._verify_mode(verify)
        )
        dtype = self.dtype
        try:
            return raw if dtype is None else np.ndarray(self.shape, dtype, raw)
        except ValueError as error:  # as in new_array
            raise self.unsupported(f"shape {self.shape}: {error}") from None

    def __getitem__(self, key: Any) -> Any:
        """What `read()[key]` gives, for basic indexing, reading only the smallest box around it.

        Integers, slices of any step and an ellipsis. Raises IndexError as numpy does, InvalidError
        for other kinds of indexing (masks, arrays, None), and what `read` raises.
        """
        if self.dtype is None:
            if indexing.is_all(key, self.shape):
                return self.read()
            with contextlib.suppress(UnsupportedError):  # which there is more to say of below
                self._fetch(np.zeros(2 * self.ndim + 1, np.int64), np.empty(0, np.uint8), None)
            raise self.unsupported(
                f"elements of {self.dtype_name} are not known; read() gives the bytes"
            )
        box = indexing.box_of(key, self.shape)
        whole = box.shape == self.shape
        corner = None if whole else np.array([*box.start, *box.shape, 0], np.int64)
        array = self.read_box(corner, box.shape, None)
        picked = array[box.rest]
        if isinstance(picked, np.ndarray) and picked.base is not None and picked.size < array.size:
            return picked.copy()
        return picked

    def read_box(
        self, box: NDArray[np.int64] | None, shape: tuple[int, ...], verify: Verify | None
    ) -> NDArray[Any]:
        """A box (starts, then lengths; None for all) of this shape, as a new array."""
        self.check_rank()
        dtype = self.dtype
        if dtype is not None and dtype.hasobject:
            mode = self._reader._verify_mode(verify)
            elements = self._reader._handle.read_strings(self._selection, self._row, box, mode)
            strings = np.empty(len(elements), object)
            strings[:] = elements
            return strings.reshape(shape)
        array = (
            self.new_array((self.stored_nbytes,), np.dtype(np.uint8))
            if dtype is None
            else self.new_array(shape, dtype, box)
        )
        self._fetch(box, array, verify)
        return array

    def new_array(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        box: NDArray[np.int64] | None = None,
    ) -> NDArray[Any]:
        """Memory for a box (None: all) of this shape, taken only where the data files hold what the
        index claims."""
        self.check_rank()
        if math.prod(shape) * dtype.itemsize > PROBED_BYTES:
            self._reader._handle.check_one(self._selection, self._row, box)
        try:
            return _core.new_array(shape, dtype, self.offset if box is None else None)
        except ValueError as error:  # an empty array with sizes whose product numpy cannot hold
            raise self.unsupported(f"shape {shape}: {error}") from None

    def _fetch(
        self, box: NDArray[np.int64] | None, array: NDArray[Any], verify: Verify | None
    ) -> None:
        handle, mode = self._reader._handle, self._reader._verify_mode(verify)
        handle.read_one(self._selection, self._row, box, array, mode)

    def check_rank(self) -> None:
        """Refuses a rank that numpy cannot hold."""
        if len(self.shape) > _core.NUMPY_RANK_MAX:
            raise self.unsupported(
                f"rank {self.ndim} is more than the {_core.NUMPY_RANK_MAX} dimensions of numpy"
            )

    def unsupported(self, message: str) -> UnsupportedError:
        """The error for what this version cannot do with this tensor."""
        return UnsupportedError(message, tensor=self.name, path=self._reader.prefix)

    def _invalid(self, message: str) -> InvalidError:
        return InvalidError(message, tensor=self.name, path=self._reader.prefix)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "a TensorHandle is not in memory: converting it always makes a new array"
            )
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
