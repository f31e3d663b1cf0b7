# SPDX-License-Identifier: Apache-2.0
"""The datasets of HDF5 files, such as Keras's `.weights.h5`, read and written through h5py.

A dataset is named by its path in the file ("layers/dense/vars/0"). Types that HDF5 lacks (bfloat16,
float8, ...) are opaque there, and named by the attribute `dtype`, as Keras does for bfloat16.

Links to other places, and datasets whose values are in other files, are refused: a file must not
make its reader open another one.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import Durability, check_choice
from ckptfmt._base.arrays import refuse_masked
from ckptfmt._base.names import path_text
from ckptfmt._base.untrusted import Window, memory_most, open_regular, output_most
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    InvalidError,
    LimitError,
    StorageError,
    UnsupportedError,
    about,
)
from ckptfmt.files.temporary import open_directory, replacing_file
from ckptfmt.formats.tensors import UNNAMED, Places, Unreadable

try:
    import h5py
except ImportError as error:
    raise ImportError(f"HDF5 files need h5py (pip install h5py): {error}") from error


Path = str | bytes | os.PathLike[Any]

DTYPE = "dtype"
# Bytes that a file has for each string. Those that were never written take memory and time as well:
# any file may have so many.
STRING_BYTES, STRINGS_FLOOR = 16, 1 << 19
# A file of which less than one in so many bytes is left is not read as one that is cut short.
CUT_FACTOR = 1000
# Parts of a path: HDF5 takes memory for all parents of each.
PARTS_MAX = 256
# Room for what HDF5 itself writes, and for that of each dataset.
SPARE_BYTES, OWN_BYTES = 1 << 20, 1 << 10
# How HDF5 reports what the system says of a file.
_ERRNO = re.compile(r"\berrno = ([0-9]+)")
_VARIABLE_NAME = re.compile(r"(^|/)vars/[^/]+$")


def is_variable_name(name: str) -> bool:
    """Return whether this is the name of a variable in Keras's `.weights.h5` files, such as
    "layers/dense/vars/0"."""
    return _VARIABLE_NAME.search(name) is not None


@dataclass(frozen=True)
class Dataset:
    """A dataset of an open file.

    Attributes:
        name: its path in the file.
        dtype, shape: of the array that `read` returns.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    _file: Any
    _path: str

    @property
    def _stored(self) -> Any:
        # Each time anew: HDF5 takes kilobytes for an open one, and a name has some bytes.
        return self._file[self.name]

    @property
    def nbytes(self) -> int:
        """Bytes of the array; of strings, of the references to them."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, box: tuple[slice, ...] = ()) -> NDArray[Any]:
        """Return the dataset, or a box of it, as a new array; strings as bytes objects.

        Raises:
            CorruptError: the values cannot be read.
            LimitError: the whole is far larger than the file.
        """
        if not box and self.nbytes > output_most(self._file.id.get_filesize()):
            raise LimitError(
                f"the dataset declares {self.nbytes} bytes, far more than are stored",
                path=self._path,
                tensor=self.name,
            )
        try:
            array = np.asarray(self._stored[box], object if self.dtype.kind == "O" else None)
        except (OSError, ValueError, RuntimeError) as error:
            raise CorruptError(
                f"the dataset cannot be read: {error}",
                path=self._path,
                tensor=self.name,
            ) from None
        return (
            array.view(self.dtype)
            if array.dtype.kind == "V"
            else array.astype(self.dtype, copy=False)
        )

    def check(self, places: Places) -> int | None:
        """Check that the stored bytes are in the file, and compare those that have checksums
        (fletcher32); return how many bytes, or None if the dataset has no checksums.

        Raises:
            CorruptError: they are outside of the file, overlap others, or differ.
        """
        stored, compared = self._stored, 0 if self._stored.fletcher32 else None
        chunks: list[Any] = []
        try:
            end = stored.file.id.get_filesize()
            address = h5py.h5o.get_info(stored.id).addr
            if not places.add(self._path, end, address, 0, self.name):
                return compared  # a hard link to one that was checked
            if stored.chunks is None:
                offset = stored.id.get_offset()  # None: nothing is stored, or in the header
                if offset is not None:
                    places.add(self._path, end, offset, stored.id.get_storage_size(), self.name)
                return None
            stored.id.chunk_iter(chunks.append)
        except (OSError, ValueError, RuntimeError) as error:
            raise CorruptError(
                f"the dataset cannot be read: {error}", path=self._path, tensor=self.name
            ) from None
        for chunk in chunks:
            places.add(self._path, end, chunk.byte_offset, chunk.size, self.name)
            if compared is not None:
                spans = zip(chunk.chunk_offset, stored.chunks, self.shape, strict=True)
                box = tuple(slice(at, min(at + n, most)) for at, n, most in spans)
                compared += self.read(box).nbytes
        return compared


Dataset.__module__ = "ckptfmt.hdf5"


class Found(dict[str, "Dataset | Unreadable"]):
    """The datasets of a file by name.

    Attributes:
        has_attributes: whether groups or datasets have attributes, which arrays lack: others than
            those of `write_datasets`, and the names that Keras gives its variables' groups.
        group_names: these names, by group.
    """

    def __init__(self) -> None:
        self.has_attributes = False
        self.group_names: dict[str, str] = {}


class _Cut(Window):
    """A file that is cut short, with zeros up to the end that its superblock says, from the heap of
    texts on in which the cut is: of zeros in one, HDF5 looks for the end forever.

    Raises:
        CorruptError: its superblock does not say it, or the file is far shorter.
        UnsupportedError: what HDF5 would make of zeros can end the process.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self.held = os.fstat(descriptor).st_size
        start = os.pread(descriptor, 52, 0)
        if not start.startswith(b"\x89HDF\r\n\x1a\n") or len(start) < 52:
            raise CorruptError("not an HDF5 file", path=path)
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            is_newer = start[8] > 1 or content.find(b"FRHP\0") >= 0
            for heap in re.finditer(rb"GCOL\x01\0\0\0(.{0,8})", content, re.DOTALL):
                if heap.start() + int.from_bytes(heap[1], "little") > self.held:
                    self.held = heap.start()
                    break
        if is_newer or start[13:15] != b"\x08\x08":
            raise UnsupportedError("a cut file of HDF5's newer format cannot be rescued", path=path)
        super().__init__(int.from_bytes(start[40 + 4 * start[8] :][:8], "little"))
        if self._size > CUT_FACTOR * self.held:
            raise CorruptError("nearly all of the file is cut off", failure="TRUNCATED", path=path)
        self._descriptor = os.dup(descriptor)

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer."""
        raw = memoryview(buffer).cast("B")
        wanted = max(0, min(len(raw), self._size - self._at))
        got = os.pread(self._descriptor, min(wanted, max(0, self.held - self._at)), self._at)
        raw[:wanted] = got + bytes(wanted - len(got))
        self._at += wanted
        return wanted

    def close(self) -> None:
        """Close the descriptor."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()


@contextlib.contextmanager
def open_datasets(path: Path, *, _damaged: bool = False) -> Iterator[Found]:
    """Open a file for the time of a `with` block, and give its datasets by name, in the order of
    their names. A link, a dataset in another file, one of a dtype that NumPy lacks, or one that is
    damaged, raises UnsupportedError or CorruptError when its dtype is asked for or it is read.

    Raises:
        CheckpointNotFoundError, StorageError: the file cannot be opened.
        CorruptError: it is not HDF5, or damaged.
        LimitError: far more strings than the file can store, or names of more than 256 parts, or
            that together are far larger than the file.
    """
    text = path_text(path)
    try:
        descriptor = open_regular(text)
    except FileNotFoundError:
        raise CheckpointNotFoundError("there is no such file", path=text) from None
    except OSError as error:
        raise StorageError(error.strerror or "", path=text, errno=error.errno) from None
    try:
        cut = None
        # HDF5 opens names only: where there is /proc, this one is of what was looked at.
        name = f"/proc/self/fd/{descriptor}"
        try:
            file = h5py.File(name if os.path.exists(name) else text, "r", locking=False)
        except OSError:
            if not _damaged:
                raise
            cut = _Cut(descriptor, text)
            file = h5py.File(cut, "r")
    except (OSError, ValueError, RuntimeError) as error:
        raise CorruptError(f"not an HDF5 file: {error}", path=text) from None
    finally:
        os.close(descriptor)
    with file, contextlib.closing(cut) if cut is not None else contextlib.nullcontext():
        try:
            found = Found()
            every = sorted(
                _datasets(file, text, found, None if cut is None else cut.held), key=_name_of
            )
            found.update((one.name, one) for one in every)
            if cut is not None:  # of zeros a group can look empty
                why = f"names after byte {cut.held}, where the file is cut short, are not known"
                lost = CorruptError(why, failure="TRUNCATED", path=text)
                found[UNNAMED] = Unreadable(UNNAMED, lost)
        except (CkptfmtError, MemoryError):
            raise
        except Exception as error:  # h5py raises errors of all kinds for damaged files
            raise CorruptError(f"a damaged HDF5 file: {error}", path=text) from None
        yield found


def _name_of(dataset: Dataset | Unreadable) -> str:
    return dataset.name


def _datasets(
    file: Any, path: str, found: Found, held: int | None
) -> Iterator[Dataset | Unreadable]:
    # Groups are opened one at a time: HDF5 takes kilobytes, and the whole path, for an open one.
    size = file.id.get_filesize() if held is None else held
    waiting, seen = [""], set()
    names_left, strings_left = memory_most(size), max(STRINGS_FLOOR, size // STRING_BYTES)
    for base in waiting:
        group, keys, damaged = _group(file, base, path, found, held)
        yield from damaged
        for key in keys:
            name = f"{base}{key}"
            names_left -= 2 * len(name)
            if names_left < 0 or base.count("/") >= PARTS_MAX:
                raise LimitError("names of too many parts or characters", path=path)
            try:
                item = _member(group, key)
                if isinstance(item, h5py.Dataset):
                    found.has_attributes |= bool(set(item.attrs) - {DTYPE})
                    made = _dataset(name, item, file, path, held)
                    strings_left -= math.prod(made.shape) if made.dtype.kind == "O" else 0
                    if strings_left < 0:
                        raise LimitError("far more strings than are stored")
                    yield made
                elif isinstance(item, h5py.Group):
                    # A hard link can lead back to a group above.
                    address = h5py.h5o.get_info(item.id).addr
                    if address not in seen:
                        seen.add(address)
                        waiting.append(f"{name}/")
            except UnsupportedError as error:
                yield Unreadable(name, UnsupportedError(error.message, path=path, tensor=name))
            except LimitError as error:
                raise LimitError(error.message, path=path, tensor=name) from None
            except MemoryError:
                raise
            except Exception as error:  # h5py raises errors of all kinds for damaged files
                message = f"the dataset cannot be read: {error}"
                yield Unreadable(name, CorruptError(message, path=path, tensor=name))


def _group(
    file: Any, base: str, path: str, found: Found, held: int | None
) -> tuple[Any, list[str], list[Unreadable]]:
    """Return a group, the names in it, and what stands for those of a damaged one in a file that is
    cut short; note what its attributes say."""
    try:
        group = file[base or "/"]
        own = {"name"} if base.endswith("vars/") else set()
        found.has_attributes |= bool(set(group.attrs) - own)
        if own and isinstance(name := group.attrs.get("name"), str):
            found.group_names[base[:-1]] = name
        return group, list(group), []
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if held is None:
            raise
        damaged = CorruptError(f"the group is damaged: {error}", path=path)
        return None, [], [Unreadable(base + UNNAMED, damaged)]


def _check_held(stored: Any, held: int) -> None:
    """Refuse a dataset of a file that is cut short, unless it is contiguous and before the cut."""
    offset, header = stored.id.get_offset(), h5py.h5o.get_info(stored.id)
    end = max(header.addr + header.hdr.space.total, (offset or 0) + stored.id.get_storage_size())
    if end > held or stored.chunks is not None or stored.dtype.kind == "O":
        raise ValueError("what it needs may be past the end of the file, which is cut short")


def _member(group: Any, key: str) -> Any:
    kind = type(group.get(key, getlink=True))
    if kind is not h5py.HardLink:
        raise UnsupportedError(f"the file has a {kind.__name__} there, which is not followed")
    return group[key]


def _dataset(name: str, stored: Any, file: Any, path: str, held: int | None) -> Dataset:
    if stored.is_virtual or stored.external:
        raise UnsupportedError("the values are in another file")
    if stored.shape is None:
        raise UnsupportedError("a dataset without a shape")
    own, dtype = stored.attrs.get(DTYPE), stored.dtype.newbyteorder("=")
    if isinstance(own, str) and dtype.kind == "V":
        with contextlib.suppress(InvalidError):
            named = dtypes.numpy_dtype(dtypes.code_of(own))
            dtype = named if named is not None and named.itemsize == dtype.itemsize else dtype
    if dtype.kind != "O" and dtypes.code_of_array(dtype) is None:
        raise UnsupportedError(f"the dtype {dtype} cannot be read")
    if held is not None:
        _check_held(stored, held)
    return Dataset(name, dtype, stored.shape, file, path)


# ---- writing -------------------------------------------------------------------------------------


class Datasets:
    """Writes the datasets of a new file; made by `write_datasets`."""

    def __init__(self, file: Any, directory: int, path: str) -> None:
        self._file, self._directory, self._path = file, directory, path
        self._count = 0

    def _check_space(self, name: str, size: int) -> None:
        """Refuse a dataset for which the device has no room: after a write that fails, HDF5 may end
        the process when it closes the file."""
        self._count += 1
        found = os.fstatvfs(self._directory)
        needed = size + SPARE_BYTES + self._count * OWN_BYTES
        if found.f_blocks and found.f_bavail * found.f_frsize < needed:
            raise _unwritten(errno.ENOSPC, self._path, name)

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Write a dataset.

        Raises:
            InvalidError: as `create`, or a string with a NUL, which HDF5 would cut.
        """
        with about(name):
            refuse_masked(array)
        fill = self.create(name, array.dtype, array.shape)
        if array.size:
            fill((), array)

    def create(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> Callable[[tuple[slice, ...], NDArray[Any]], None]:
        """Create a dataset; return a function that writes a box of it: `write(box, array)`.

        Raises:
            InvalidError: a name that a path in a file cannot be, or of more than 256 parts, or that
                is also the beginning of another one; a dtype that HDF5 cannot hold.
        """
        parts = name.split("/", PARTS_MAX)
        if len(parts) > PARTS_MAX or "\0" in name or {"", ".", ".."} & {*parts}:
            raise InvalidError("the name cannot be a path in an HDF5 file", tensor=name)
        # A dtype that NumPy does not have itself.
        is_opaque = dtype.isbuiltin == 2
        kind: Any = np.dtype(f"V{dtype.itemsize}") if is_opaque else dtype
        if dtype.kind in "OSU":
            kind = h5py.string_dtype()
        self._check_space(name, math.prod(shape) * dtype.itemsize)
        try:
            stored = self._file.create_dataset(name, shape, kind)
        except (ValueError, TypeError, OSError) as error:
            raise self._failed(name, error) from None
        if is_opaque:
            stored.attrs[DTYPE] = dtypes.name_of(dtypes.CODES[dtype])

        def write(box: tuple[slice, ...], array: NDArray[Any]) -> None:
            if array.dtype.kind == "O":
                self._check_space(name, sum(map(len, array.flat)))
            try:
                stored[box] = array.view(kind) if is_opaque else array
            except ValueError as error:
                raise self._failed(name, error) from None

        return write

    def _failed(self, name: str, error: Exception) -> CkptfmtError:
        system = _ERRNO.search(str(error))
        if system is not None:
            return _unwritten(int(system[1]), self._path, name)
        return InvalidError(f"HDF5 cannot hold it: {error}", tensor=name)

    def set_attributes(self, group: str, attributes: Mapping[str, Any]) -> None:
        """Set attributes of a group, which is created if it does not exist."""
        self._file.require_group(group).attrs.update(attributes)


Datasets.__module__ = "ckptfmt.hdf5"


@contextlib.contextmanager
def write_datasets(path: Path, *, durability: Durability = "full") -> Iterator[Datasets]:
    """Write a file, all or nothing: it is in place when the `with` block ends without an exception.

    Args:
        path: the file, which is replaced if it exists.
        durability: as in `ckptfmt.save`.

    Raises:
        StorageError, DurabilityUnknownError: the file cannot be written, or not synced.
    """
    check_choice("durability", durability, get_args(Durability))
    text = path_text(path)
    with (
        open_directory(os.path.dirname(text)) as directory,
        replacing_file(directory, text, durability) as (temporary, _),
        _created(temporary, text) as file,
    ):
        yield Datasets(file, directory, text)


def _unwritten(number: int, path: str, name: str) -> StorageError:
    message = f"the file cannot be written: {os.strerror(number)}"
    return StorageError(message, path=path, tensor=name, errno=number)


@contextlib.contextmanager
def _created(temporary: str, path: str) -> Iterator[Any]:
    file = h5py.File(temporary, "w", locking=False)  # our own descriptor has a lock already
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError, RuntimeError):
            file.close()
        raise
    try:
        file.close()
    except (OSError, RuntimeError) as error:  # RuntimeError where the device is full
        raise StorageError(f"HDF5 cannot write the file: {error}", path=path) from None
