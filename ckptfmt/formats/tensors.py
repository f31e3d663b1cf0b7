# SPDX-License-Identifier: Apache-2.0
"""What the formats have in common: tensors that are read box by box, and files of bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.untrusted import open_regular
from ckptfmt.errors import CheckpointNotFoundError, CkptfmtError, CorruptError, StorageError

# One slice with start and stop for each of the first dimensions; () is all of a tensor.
Box = tuple[slice, ...]
# Returns a box of the tensor of this name.
Read = Callable[[str, Box], NDArray[Any]]

# In place of the names that are lost with a part of a file.
UNNAMED = "..."

# Of a box in rows of up to so many bytes whole rows are read, so many bytes at a time.
SPARSE_BYTES, READ_BYTES = 64 << 10, 4 << 20


class Kind(NamedTuple):
    """What a tensor is."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the array; of strings, of the references to them."""
        return math.prod(self.shape) * self.dtype.itemsize


class Tensor(Protocol):
    """A tensor of an open file."""

    @property
    def name(self) -> str:
        """Its name in the file."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what `read` returns."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        ...

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as an array, in this machine's byte order."""
        ...


class FileTensor(Tensor, Protocol):
    """A tensor of an open file of another format."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array; of strings, of the references to them."""
        ...

    def check(self, places: Places) -> int | None:
        """Check what opening the file has not, and add to `places` where the bytes are; return how
        many were compared with checksums, or None if there are none."""
        ...


class Unreadable:
    """A tensor that cannot be read, in a file whose other tensors can be.

    Attributes:
        error: why; what reads it raises this.
    """

    code, shape, nbytes = "unreadable", (), 0

    def __init__(self, name: str, error: CkptfmtError) -> None:
        self.name, self.error = name, error.with_traceback(None)
        error.__context__ = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Raises the error."""
        raise self.error

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Raises the error."""
        raise self.error

    def check(self, places: Places) -> int | None:
        """Raises the error."""
        raise self.error


class Chunk(Protocol):
    """A box of a tensor that is stored by itself."""

    @property
    def start(self) -> tuple[int, ...]:
        """Where it begins in the tensor."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        ...

    def read(self, box: Box) -> NDArray[Any]:
        """Return a box of the chunk."""
        ...


def read_chunks(
    chunks: Sequence[Chunk], shape: tuple[int, ...], dtype: np.dtype[Any], box: Box
) -> tuple[NDArray[Any], int]:
    """Return a box of a tensor of this shape from its chunks, and how many of its elements are in
    none; -1 if one is in several."""
    spread = [*box, *(slice(0, n) for n in shape[len(box) :])]
    found = np.empty([one.stop - one.start for one in spread], dtype)
    taken = np.zeros(found.shape, np.bool_)
    for chunk in chunks:
        common = [
            (max(one.start, start), min(one.stop, start + n))
            for one, start, n in zip(spread, chunk.start, chunk.shape, strict=True)
        ]
        if any(low >= high for low, high in common):
            continue
        inner = tuple(
            slice(low - start, high - start)
            for (low, high), start in zip(common, chunk.start, strict=True)
        )
        outer = tuple(
            slice(low - one.start, high - one.start)
            for (low, high), one in zip(common, spread, strict=True)
        )
        if taken[outer].any():
            return found, -1
        found[outer], taken[outer] = chunk.read(inner), True
    return found, taken.size - int(np.count_nonzero(taken))


def overlap(chunks: Sequence[Chunk]) -> bool:
    """Return whether an element is in several chunks."""
    if len(chunks) < 2:
        return False
    starts = np.array([one.start for one in chunks], np.uint64)
    ends = starts + np.array([one.shape for one in chunks], np.uint64)
    full = (ends > starts).all(axis=1)
    starts, ends = starts[full], ends[full]
    return any(
        ((starts[:at] < ends[at]) & (ends[:at] > starts[at])).all(axis=1).any()
        for at in range(len(starts))
    )


class Places:
    """The parts of files in which tensors are, to find those that overlap."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, int, int], str] = {}
        self._totals: dict[str, int] = {}

    def add(self, path: str, file_size: int, offset: int, size: int, tensor: str) -> bool:
        """Add a part of a file of this size; return False if it was added before.

        Raises:
            CorruptError: it is not inside of the file, or overlaps others.
        """
        if (path, offset, size) in self._tensors:
            return False
        self._tensors[path, offset, size] = tensor
        self._totals[path] = self._totals.get(path, 0) + size
        if offset + size > file_size:
            raise CorruptError(
                f"{size} bytes at {offset}, and the file has {file_size}",
                failure="TRUNCATED",
                path=path,
                tensor=tensor,
            )
        if self._totals[path] > file_size:  # reported early: comparing checksums takes time
            raise _overlap(path, offset, tensor)
        return True

    def check(self) -> None:
        """Raise CorruptError if two parts overlap."""
        last, end = "", 0
        for (path, offset, size), tensor in sorted(self._tensors.items()):
            if path == last and offset < end and size:
                raise _overlap(path, offset, tensor)
            last, end = path, max(offset + size, end if path == last else 0)


def _overlap(path: str, offset: int, tensor: str) -> CorruptError:
    return CorruptError(
        "the bytes overlap those of another tensor",
        failure="BAD_ENTRY",
        path=path,
        offset=offset,
        tensor=tensor,
    )


class ByteFile:
    """A file that is read at positions.

    Raises:
        CheckpointNotFoundError, StorageError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = open_regular(path)
            self.size = os.fstat(self._fd).st_size
        except FileNotFoundError:
            raise CheckpointNotFoundError("there is no such file", path=path) from None
        except OSError as error:
            raise StorageError(error.strerror or "", path=path, errno=error.errno) from None

    def read_into(self, target: NDArray[Any], offset: int) -> None:
        """Fill a contiguous array with the bytes from `offset` on.

        Raises:
            StorageError: they cannot be read.
            CorruptError: the file has become shorter.
        """
        left = target.reshape(-1).view(np.uint8).data
        while left:
            try:
                got = os.preadv(self._fd, [left[: 1 << 30]], offset)
            except OSError as error:
                raise StorageError(
                    error.strerror or "", path=self.path, offset=offset, errno=error.errno
                ) from None
            if got == 0:
                raise CorruptError(
                    "the file ended while it was read",
                    failure="TRUNCATED",
                    path=self.path,
                    offset=offset,
                )
            left, offset = left[got:], offset + got

    def read(self, size: int, offset: int) -> bytes:
        """Return bytes; errors as `read_into`."""
        found = np.empty(size, np.uint8)
        self.read_into(found, offset)
        return found.tobytes()

    def read_box(
        self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], box: Box
    ) -> NDArray[Any]:
        """Return a box of the row-major array of this shape that is stored at `offset`, reading
        little more than it; errors as `read_into`."""
        lengths = [one.stop - one.start for one in box]
        found = np.empty((*lengths, *shape[len(box) :]), dtype)
        if found.size:
            self._fill(found, shape, box, offset)
        return found

    def _fill(self, to: NDArray[Any], shape: tuple[int, ...], box: Box, offset: int) -> None:
        while box and box[-1] == slice(0, shape[len(box) - 1]):
            box = box[:-1]
        row_bytes = math.prod(shape[1:]) * to.itemsize
        if len(box) <= 1:
            self.read_into(to, offset + (box[0].start if box else 0) * row_bytes)
            return
        rows, rest = box[0], box[1:]
        if row_bytes > SPARSE_BYTES:
            for at, row in enumerate(range(rows.start, rows.stop)):
                self._fill(to[at], shape[1:], rest, offset + row * row_bytes)
            return
        # Reading whole rows takes less time than a system call for each.
        step = max(READ_BYTES // row_bytes, 1)
        for row in range(rows.start, rows.stop, step):
            part = np.empty((min(step, rows.stop - row), *shape[1:]), to.dtype)
            self.read_into(part, offset + row * row_bytes)
            to[row - rows.start : row - rows.start + len(part)] = part[(slice(None), *rest)]

    def close(self) -> None:
        """Close it. What is open in a `with` block of the file is closed at its end."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
