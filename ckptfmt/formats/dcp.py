# SPDX-License-Identifier: Apache-2.0
"""Directories that torch.distributed.checkpoint writes, read without torch.

`.metadata` is a pickle that says which chunks each tensor has and where they are; each chunk is a
zip archive, as torch.save makes it, inside of a data file: a pickle that describes a tensor, and
its bytes. These pickles are the only ones that this library reads: the names that they may use are
listed here and lead to plain records, so that no code of theirs, and nothing of torch, is run.

Values that are not tensors become arrays: numbers, text, bytes, paths and devices of no dimensions,
NumPy's arrays and scalars themselves, and lists, tuples, sets, deques and dicts of such values JSON
text. Any other is listed by the name of its class, and not read.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import math
import os
import pathlib
import pickle
import re
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.names import printable
from ckptfmt._base.untrusted import Window, check_pickle, checked_shape
from ckptfmt._core import NUMPY_RANK_MAX
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.meanings import E8M0
from ckptfmt.bundle.state_tree import KEY, WHOLE
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    InvalidError,
    LimitError,
    UnsupportedError,
)
from ckptfmt.formats.tensors import Box, ByteFile, Places, Unreadable, overlap, read_chunks

METADATA = ".metadata"
# Bytes of the pickles, which are small beside the tensors that they describe.
# A million tensors need 245 MB of them.
METADATA_MAX, DESCRIPTION_MAX = 256 << 20, 64 << 20
STEP_BYTES = 4 << 20
# What a pickle may give to a call: more than a tensor, and than most paths have.
ARGUMENTS_MAX = 32
# Of an integer.
INT_BITS_MAX = 2048
# Characters of the name of a class.
KIND_MAX = 200
# Values of a pickle that are stored as JSON, at most so many for each of its bytes: one list may be
# in another many times.
VALUES_PER_BYTE, VALUES_FLOOR = 8, 1 << 18
# Chunks of a tensor that `verify` compares with each other, which a read of it does in any case.
COMPARED_MAX = 4096
# Of a path in the state dict.
DEPTH_MAX = 100
# What the zipfile module raises for damaged archives; OSError for positions outside of the place.
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, LookupError),
    *(RuntimeError, NotImplementedError),
)

# Names of the dtypes of torch, and those that a checkpoint can have, which are NumPy's as well.
_DTYPE = re.compile(r"bool|q?u?int\d+(x\d+)?|bits\d+(x\d+)?|b?float\d+(_\w+)?|complex\d+", re.ASCII)
_NAMES = frozenset(
    (
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
)
# The dtypes of NumPy's arrays, by their names in pickles.
_ARRAYS = ("b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)))
_ARRAYS += ("f2", "f4", "f8", "c8", "c16")
_STORAGES = {
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "BoolStorage": "bool",
    "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}


# ---- pickles -------------------------------------------------------------------------------------


class _Torch(str):
    """The name of a dtype or storage class of torch."""


class _UnlistedError(Exception):
    """A pickle has something that is not listed here; the argument is the name of its class."""


class _Call:
    """A call of what a pickle names, which is made when its value is read: a pickle can give many
    calls one argument, and each would copy it.

    Attributes:
        kind: what is called.
        arguments, items, state: what it is given, what is added to it, and its state.
    """

    __slots__ = ("arguments", "items", "kind", "state")

    def __init__(self, kind: str, arguments: tuple[Any, ...]) -> None:
        self.kind, self.arguments = kind, arguments
        self.items: list[Any] | None = None
        self.state: Any = None

    def extend(self, items: list[Any]) -> None:
        """Add items, as to a deque."""
        self.items = self.items or []
        self.items += items

    def __setstate__(self, state: Any) -> None:
        self.state = state


# What values are made of: kinds of _Call.
_CALLS = {
    ("_codecs", "encode"): "bytes",
    ("__builtin__", "bytes"): "bytes",
    **{("__builtin__", name): name for name in ("bytearray", "set", "frozenset", "complex")},
    **{("collections", name): name for name in ("Counter", "deque")},
    **{("pathlib", name): "path" for name in ("PosixPath", "WindowsPath")},
    **{("pathlib._local", name): "path" for name in ("PosixPath", "WindowsPath")},
    ("torch", "device"): "device",
    **{("torch._utils", f"_rebuild_tensor_v{n}"): "torch.Tensor" for n in (2, 3)},
    **{("numpy", name): f"numpy.{name}" for name in ("dtype", "ndarray")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "ndarray" for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): "scalar" for core in ("core", "_core")},
}


def _names() -> dict[tuple[str, str], Any]:
    """Return what a pickle may name. Made anew for each, because a pickle can change it."""

    class Record:
        """An object of a data class of torch.distributed.checkpoint: its fields."""

        __slots__ = ("state",)

        def __setstate__(self, state: Any) -> None:
            self.state = state

    # A call copies the references to its arguments, and a pickle can make one call for each five of
    # its bytes: no value is made of more.
    def called(kind: str) -> Callable[..., _Call]:
        def call(*arguments: Any) -> _Call:
            count = len(arguments)
            is_many = count > ARGUMENTS_MAX
            return _Call(f"{kind} of {count} parts", ()) if is_many else _Call(kind, arguments)

        return call

    def nothing(_: Any = None) -> None:
        return None

    def sizes(given: Any = ()) -> tuple[Any, ...]:
        if not isinstance(given, (list, tuple)) or len(given) > NUMPY_RANK_MAX:
            raise UnsupportedError(f"a torch.Size of more than {NUMPY_RANK_MAX} sizes")
        return tuple(given)

    def ordered() -> dict[Any, Any]:
        return {}

    checkpoint = "torch.distributed.checkpoint."
    records = (
        *("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata"),
        *("BytesStorageMetadata", "MetadataIndex", "StorageMeta"),
    )
    found: dict[tuple[str, str], Any] = {
        (f"{checkpoint}metadata", name): type(name, (Record,), {"__slots__": ()})
        for name in records
    }
    found |= {
        (f"{checkpoint}filesystem", name): type(name, (Record,), {"__slots__": ()})
        for name in ("_StorageInfo", "_StoragePrefix")
    }
    found |= {("torch", name): _Torch(name) for name in _STORAGES}
    found |= {named: called(kind) for named, kind in _CALLS.items()}
    return found | {
        (f"{checkpoint}metadata", "_MEM_FORMAT_ENCODING"): nothing,
        ("torch.serialization", "_get_layout"): nothing,
        ("torch", "Size"): sizes,
        ("torch.storage", "UntypedStorage"): _Torch("UntypedStorage"),
        ("collections", "OrderedDict"): ordered,
    }


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._names = _names()

    def find_class(self, module: str, name: str) -> Any:
        found = self._names.get((module, name))
        if found is None and module == "torch" and _DTYPE.fullmatch(name):
            found = _Torch(name)
        if found is None:
            raise _UnlistedError(printable(f"{module}.{name}"[:KIND_MAX]))
        return found

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _unpickled(data: bytes, where: Callable[[str], CkptfmtError]) -> Any:
    """Return what a pickle holds, as records, plain values and calls. Raises _UnlistedError."""
    check_pickle(data, where)
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except (CkptfmtError, _UnlistedError):
        raise
    except MemoryError:
        raise LimitError("the pickle needs more memory than there is") from None
    except Exception as error:  # anything can be raised for a forged pickle
        raise where(f"the pickle cannot be read: {type(error).__name__}: {error}") from None


def _fields(record: Any, kind: str, *names: str) -> list[Any]:
    """Return fields of a record of this class, None for one that it leaves out. Raises
    ValueError."""
    if type(record).__name__ != kind or not isinstance(getattr(record, "state", None), dict):
        raise ValueError(f"expected a {kind}, not {type(record).__name__}")
    return [record.state.get(name) for name in names]


def _sizes(value: Any, itemsize: int = 0) -> tuple[int, ...]:
    """Return sizes, positions or strides; sizes of a tensor with the size of its elements."""
    return checked_shape(value, _not_torch, UnsupportedError, itemsize)


def _not_torch(message: str) -> CorruptError:
    return CorruptError(message, failure="BAD_HEADER")


# ---- what is in the directory --------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A part of a data file."""

    file: ByteFile
    offset: int
    length: int
    tensor: str

    def damaged(self, message: str, failure: str = "BAD_ENTRY") -> CorruptError:
        return CorruptError(
            message,
            failure=failure,
            path=self.file.path,
            offset=self.offset,
            tensor=self.tensor,
        )

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Add the place to errors, and turn what zip files raise into CorruptError."""
        try:
            yield
        except CkptfmtError as error:
            error.path = error.path or self.file.path
            error.tensor = error.tensor or self.tensor
            raise
        except _UnlistedError as error:
            raise UnsupportedError(
                f"{error} cannot be read: only tensors, NumPy arrays, and lists, tuples, sets and "
                "dicts of numbers and text can",
                path=self.file.path,
                tensor=self.tensor,
            ) from None
        except _ZIP_ERRORS as error:
            raise self.damaged(f"not what torch.save writes: {error}") from None


class _Part(Window):
    """The bytes of a place as a file."""

    def __init__(self, place: _Place) -> None:
        super().__init__(place.length)
        self._place = place

    def readinto(self, buffer: Any) -> int:
        size = max(min(len(buffer), self._size - self._at), 0)
        buffer[:size] = self._place.file.read(size, self._place.offset + self._at)
        self._at += size
        return size


@contextlib.contextmanager
def _archive(place: _Place) -> Iterator[tuple[zipfile.ZipFile, str]]:
    """Open the zip archive at a place; gives it and the name of its folder."""
    with place.errors(), zipfile.ZipFile(io.BufferedReader(_Part(place))) as archive:
        found = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(found) != 1:
            raise place.damaged("not what torch.save writes: there is no data.pkl")
        yield archive, found[0].removesuffix("/data.pkl")


def _described(archive: zipfile.ZipFile, folder: str, place: _Place) -> Any:
    info = archive.getinfo(f"{folder}/data.pkl")
    if info.file_size > DESCRIPTION_MAX or info.compress_type != zipfile.ZIP_STORED:
        raise LimitError(f"a pickle of {info.file_size} bytes, or compressed")
    return _unpickled(_read_member(info, place), place.damaged)


def _read_member(info: zipfile.ZipInfo, place: _Place) -> bytes:
    return place.file.read(info.file_size, place.offset + _checked_member(info, place))


def _checked_member(info: zipfile.ZipInfo, place: _Place) -> int:
    """Return where a member's bytes are in the archive, after comparing them with its checksum,
    which torch can leave out (`torch.serialization.set_crc32_options`); zipfile refuses that."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise UnsupportedError("the chunk is compressed")
    if info.header_offset < 0:
        raise place.damaged("the chunk is outside of its archive")
    header = place.file.read(30, place.offset + info.header_offset)
    lengths = sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    begin = info.header_offset + 30 + lengths
    if begin + info.file_size > place.length:
        raise place.damaged("the chunk is outside of its archive", "TRUNCATED")
    crc = 0
    for at in range(begin, begin + info.file_size, STEP_BYTES):
        size = min(STEP_BYTES, begin + info.file_size - at)
        crc = zlib.crc32(place.file.read(size, place.offset + at), crc)
    if info.CRC not in (0, crc):
        raise place.damaged("Checksum does not match", "CHECKSUM")
    return begin


class _Chunk:
    """A chunk of a tensor: a box of it in a zip archive."""

    def __init__(
        self, place: _Place, start: tuple[int, ...], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.place, self.start, self.shape, self.dtype = place, start, shape, dtype
        self.compared: int | None = None

    def check(self, places: Places) -> int | None:
        """Return how many bytes were compared with a checksum, None if it has none. Raises
        CorruptError, StorageError, UnsupportedError."""
        place, file = self.place, self.place.file
        if places.add(file.path, file.size, place.offset, place.length, place.tensor):
            _ = self._stored
        return self.compared

    def read(self, box: Box) -> NDArray[Any]:
        """Return a box of the chunk. Raises CorruptError, StorageError, UnsupportedError."""
        offset, strides = self._stored
        rows = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        if math.prod(self.shape) == 0 or all(
            size == 1 or stride == row
            for size, stride, row in zip(self.shape, strides, rows, strict=True)
        ):
            return self.place.file.read_box(offset, self.dtype, self.shape, box)
        # Other strides are rare: the elements between the first and the last are read.
        span = 1 + sum((n - 1) * step for n, step in zip(self.shape, strides, strict=True))
        flat = self.place.file.read_box(offset, self.dtype, (span,), ())
        steps = [step * self.dtype.itemsize for step in strides]
        whole = np.lib.stride_tricks.as_strided(flat, self.shape, steps, writeable=False)
        return np.array(whole[box], order="C")

    @functools.cached_property
    def _stored(self) -> tuple[int, tuple[int, ...]]:
        """Where the elements are in the file, and their strides. The bytes have been compared with
        the checksum."""
        place = self.place
        with _archive(place) as (archive, folder):
            description = _described(archive, folder, place)
            try:
                key, first, shape, strides = _rebuilt(description, self.dtype)
                if shape != self.shape:
                    raise ValueError(f"its shape is {list(shape)}, not {list(self.shape)}")
                order = f"{folder}/byteorder"
                if order in archive.namelist() and (
                    _read_member(archive.getinfo(order), place) != b"little"
                ):
                    raise UnsupportedError("the bytes are big-endian")
                info = archive.getinfo(f"{folder}/data/{key}")
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise place.damaged(f"the description of the chunk is wrong: {error}") from None
            begin = place.offset + _checked_member(info, place)
            self.compared = info.file_size if info.CRC or not info.file_size else None
            last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
            if math.prod(shape) and (last + 1) * self.dtype.itemsize > info.file_size:
                raise place.damaged("the chunk has elements past the end of its storage")
        return begin + first * self.dtype.itemsize, strides


def _rebuilt(
    description: Any, dtype: np.dtype[Any]
) -> tuple[str, int, tuple[int, ...], tuple[int, ...]]:
    """Return the key of the storage, and the first element, shape and strides in it. Raises
    ValueError and the like."""
    if not isinstance(description, _Call) or description.kind != "torch.Tensor":
        raise ValueError("it is not a tensor")
    is_third = str(description.arguments[0][1]) == "UntypedStorage"
    if len(description.arguments) > 6 + is_third and description.arguments[6 + is_third]:
        raise UnsupportedError("a lazy conjugate or negative: save tensor.resolve_conj()")
    storage, first, shape, strides = description.arguments[:4]
    kind, name, key = storage[:3]
    given = _STORAGES.get(str(name), "")
    if str(name) == "UntypedStorage":
        # _rebuild_tensor_v3: the dtype follows requires_grad and the hooks.
        given = str(description.arguments[6])
    if kind != "storage" or given != dtype.name:
        raise ValueError(f"its dtype is {given or name}, not {dtype}")
    if type(first) is not int or first < 0 or type(key) is not str:
        raise ValueError("it has no place")
    shape, strides = _sizes(shape), _sizes(strides)
    if len(shape) != len(strides):
        raise ValueError("shape and strides differ in length")
    span = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= span:
            raise UnsupportedError("an element is stored once for several: save tensor.clone()")
        span += (size - 1) * stride
    return key, first, shape, strides


class _Tensor:
    """A tensor, in chunks that together cover it."""

    def __init__(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], chunks: list[_Chunk]
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.chunks = chunks

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as a new array.

        Raises:
            CorruptError: a chunk is damaged, or chunks are missing.
            StorageError, UnsupportedError.
        """
        found, left = read_chunks(self.chunks, self.shape, self.dtype, box)
        self._check_covered(left)
        return found

    def check(self, places: Places) -> int | None:
        """Compare the bytes of all chunks that have a checksum; return how many bytes, None if a
        chunk has none. Errors as `read`."""
        left = math.prod(self.shape) - sum(math.prod(one.shape) for one in self.chunks)
        if len(self.chunks) <= COMPARED_MAX and overlap(self.chunks):
            left = -1
        self._check_covered(left)
        compared = [one.check(places) for one in self.chunks]
        return None if None in compared else sum(filter(None, compared))

    def _check_covered(self, left: int) -> None:
        """Raise CorruptError if chunks leave elements out, or have some twice."""
        if left:
            raise CorruptError(
                "its chunks do not cover it" if left > 0 else "its chunks overlap",
                failure="BAD_SLICE",
                tensor=self.name,
            )


class _Unread:
    """A tensor of a dtype that cannot be read.

    Attributes:
        left_out: the name of the dtype; `code` as well.
    """

    def __init__(self, name: str, code: str, shape: tuple[int, ...], places: list[_Place]) -> None:
        self.name, self.shape, self._places = name, shape, places
        self.code = self.left_out = printable(code)
        self.nbytes = sum(place.length for place in places)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Raises UnsupportedError."""
        raise UnsupportedError(f"dtype {self.code} cannot be read", tensor=self.name)

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Raises UnsupportedError."""
        return np.empty(self.shape, self.dtype)

    def check(self, places: Places) -> int | None:
        """Add its places; nothing is compared."""
        for one in self._places:
            places.add(one.file.path, one.file.size, one.offset, one.length, self.name)
        return None


class _Value:
    """A value that is not a tensor, as an array. It is read when something of it is asked for, so
    that one that cannot be read can be left out."""

    def __init__(self, place: _Place) -> None:
        self.name, self._place = place.tensor, place
        self._held: NDArray[Any] | None = None

    def _found(self) -> NDArray[Any] | str:
        """Return the array, or the name of the class of what cannot be read."""
        place = self._place
        with _archive(place) as (archive, folder):
            try:
                value = _described(archive, folder, place)
                most = max(VALUES_PER_BYTE * place.length, VALUES_FLOOR)
                _check_values(value, most, place)
                return _array_of(value)
            except _UnlistedError as error:
                return str(error)
            except (TypeError, AttributeError) as error:  # of a forged pickle
                raise place.damaged(f"the pickle cannot be read: {error}") from None

    @functools.cached_property
    def _about(self) -> tuple[np.dtype[Any], tuple[int, ...], int] | str:
        """dtype, shape and bytes. The array is held unless it is far larger than its place."""
        found = self._found()
        if isinstance(found, str):
            return found
        nbytes = len(found[()]) if found.dtype.kind == "O" else found.nbytes
        if nbytes <= VALUES_PER_BYTE * self._place.length:
            self._held = found
        return found.dtype, found.shape, nbytes

    @property
    def left_out(self) -> str | None:
        """The name of the class of a value that cannot be read; of others None."""
        return self._about if isinstance(self._about, str) else None

    @property
    def code(self) -> str:
        """What a listing has as the dtype of a value that cannot be read."""
        return str(self.left_out)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        if isinstance(self._about, str):
            return self.read().dtype  # raises
        return self._about[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the array, () of what cannot be read."""
        return () if isinstance(self._about, str) else self._about[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the array, or of the text, or of what cannot be read in its file."""
        return self._place.length if isinstance(self._about, str) else self._about[2]

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box of the value."""
        with self._place.errors():
            found = self._about if isinstance(self._about, str) else self._held
            found = self._found() if found is None else found
            if isinstance(found, str):
                raise _UnlistedError(found)
            return found[box] if box else found

    def check(self, places: Places) -> int | None:
        """Return the bytes of the value, which were compared when it was read; None if it has no
        checksum."""
        place, file = self._place, self._place.file
        places.add(file.path, file.size, place.offset, place.length, self.name)
        with _archive(place) as (archive, folder):
            has_checksum = archive.getinfo(f"{folder}/data.pkl").CRC != 0
        return self.nbytes if has_checksum else None

    def node(self, most: int) -> tuple[Any, dict[str, _Array], int]:
        """Return the value in the grammar of states, the arrays in it, by their paths, and how many
        of at most so many parts are left for others."""
        place, arrays = self._place, dict[str, _Array]()
        with place.errors(), _archive(place) as (archive, folder):
            value = _described(archive, folder, place)
            left = _check_values(value, most + VALUES_PER_BYTE * place.length, place)
            return _node(value, self.name, arrays), arrays, left


class _Array:
    """An array in a value."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        self.name, self.dtype, self.shape, self._array = name, array.dtype, array.shape, array
        self.nbytes = array.nbytes

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box of the array."""
        return self._array[box] if box else self._array


def _check_values(value: Any, most: int, place: _Place) -> int:
    """Return how many parts are left. Refuse a value that has, with what it contains several times,
    more parts than that, where a byte or character of a text is a part; or with what JSON text
    cannot have."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        most -= 1 + (len(one) if isinstance(one, (str, bytes, bytearray)) else 0)
        if most < 0:
            raise LimitError(
                "the value is far larger than its pickle", path=place.file.path, tensor=place.tensor
            )
        if isinstance(one, int) and one.bit_length() > INT_BITS_MAX:
            raise _UnlistedError(f"int of {one.bit_length()} bits")
        if isinstance(one, (list, tuple)):
            waiting += itertools.islice(one, most + 1)
        elif isinstance(one, dict):
            if {*map(type, one)} not in ({str}, {int}, set()):  # JSON would make 1 and "1" one key
                raise _UnlistedError("dict with keys that JSON lacks")
            waiting += itertools.islice(itertools.chain(one, one.values()), most + 1)
        elif isinstance(one, _Call):
            waiting += (*one.arguments, *(one.items or ()), one.state)
    return most


def _array_of(value: Any) -> NDArray[Any]:
    """Return a value as an array. Raises _UnlistedError, and for a forged pickle ValueError and the
    like."""
    if isinstance(value, _Call):
        value = _made(value)
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (bool, int, float, complex)):
        try:
            kind = {bool: np.bool_, int: np.int64, complex: np.complex128}
            return np.array(value, kind.get(type(value), np.float64))
        except OverflowError:
            pass
    array = np.empty((), object)
    if not isinstance(value, (str, bytes)):
        try:
            value = json.dumps(value, default=_jsonable)
        except (TypeError, RecursionError):
            raise _UnlistedError(type(value).__name__) from None
    array[()] = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return array


def _jsonable(value: Any) -> Any:
    """Return what JSON has instead: a list for sets, complex numbers and arrays, and for bytes a
    text with one character for each."""
    found = _made(value) if isinstance(value, _Call) else value
    if isinstance(found, complex):
        return [found.real, found.imag]
    if isinstance(found, np.ndarray):
        return found.tolist()
    if isinstance(found, bytes):
        return found.decode("latin-1")
    if found is value:
        raise TypeError
    return found


def _made(call: _Call) -> Any:
    """Return what a call makes: bytes, text, a complex number, an array, a list or a dict."""
    kind, arguments = call.kind, call.arguments
    if kind == "bytes":
        return _bytes(call)
    if kind == "bytearray":
        return _bytes(*arguments)
    if kind == "complex":
        return complex(*map(float, arguments))
    if kind in ("set", "frozenset"):
        (found,) = arguments
        return list(found)
    if kind == "deque":
        return call.items or []
    if kind == "Counter":
        return dict(*arguments)
    if kind == "path":
        return str(pathlib.PurePosixPath(*arguments))
    if kind == "device" and all(type(one) in (str, int) for one in arguments):
        return ":".join(map(str, arguments))
    if kind == "ndarray":
        _, shape, dtype, is_fortran, content = call.state
        return _array(dtype, _sizes(shape), content, "F" if is_fortran else "C")
    if kind == "scalar":
        dtype, content = arguments
        return _array(dtype, (), content)
    raise _UnlistedError(kind)


def _node(value: Any, path: str, arrays: dict[str, _Array]) -> Any:
    """Return a value in the grammar of states, and add the arrays in it. Raises as `_array_of`."""

    def below(values: Any) -> list[Any]:
        return [_node(one, f"{path}.{at}", arrays) for at, one in enumerate(values)]

    def pairs(values: dict[Any, Any]) -> list[Any]:
        return [[key, _node(one, f"{path}.{key}", arrays)] for key, one in values.items()]

    kind = value.kind if isinstance(value, _Call) else type(value).__name__
    if isinstance(value, _Torch):
        return {"$dtype": str(value)}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, list):
        return below(value)
    if isinstance(value, dict):
        return state_tree.dict_node(pairs(value))
    if isinstance(value, tuple):
        return {"$tuple": below(value)}
    made: Any = value if isinstance(value, bytes) else _made(value)
    if kind in ("ndarray", "scalar"):
        arrays[path] = _Array(path, made)
        return {"$array" if kind == "ndarray" else "$scalar": True}
    if kind in ("set", "frozenset"):
        return {f"${kind}": below(made)}
    if kind == "deque":
        _, maxlen = value.arguments or ((), None)
        return {"$deque": below(made), "maxlen": maxlen}
    if kind == "Counter":
        return {"$counter": pairs(made)}
    tag = f"${kind}" if kind in ("complex", "path", "device") else "$bytes"
    return {tag: state_tree.TAGS[tag].write(made)}


def _bytes(given: Any = b"") -> bytes:
    """Return the bytes that a pickle gives as such, or as a text of such characters."""
    if isinstance(given, _Call) and given.kind == "bytes":
        text = given.arguments[0] if given.arguments else ""
        if isinstance(text, str) and given.arguments[1:] in ((), ("latin1",)):
            return text.encode("latin-1")
    if not isinstance(given, bytes):
        raise ValueError("expected bytes")
    return given


def _array(
    dtype: Any, shape: tuple[int, ...], content: Any, order: Literal["C", "F"] = "C"
) -> NDArray[Any]:
    """Return an array of NumPy from the parts of its pickle."""
    code = dtype.arguments[0]
    if code not in _ARRAYS:
        raise _UnlistedError(printable(f"numpy.ndarray of {code}"[:KIND_MAX]))
    stored = np.dtype(code).newbyteorder(">" if dtype.state[1] == ">" else "<")
    found = np.frombuffer(_bytes(content), stored).reshape(shape, order=order)
    return found.astype(stored.newbyteorder("="), order="C")


# ---- the state dict --------------------------------------------------------------------------


class Tensors(dict[str, Any]):
    """What is in a directory, by name.

    Attributes:
        paths: of each name the keys of dicts and the positions in lists that lead to it in the
            state dict; None if the directory does not say.
    """

    paths: dict[Any, Any] | None = None


def take_state(tensors: Tensors) -> dict[str, Any]:
    """Return the metadata that ckptfmt.torch stores of such a state dict: its nesting, and its
    values, which are removed. Those that cannot be read stay, and are not in it. None of a state
    dict of tensors alone, or whose names are not its keys joined by dots."""
    paths = {name: (name,) for name in tensors} if tensors.paths is None else tensors.paths
    values = {name: one for name, one in tensors.items() if isinstance(one, _Value)}
    if not tensors.keys() <= paths.keys() or not all(map(_is_path, paths, paths.values())):
        return {}
    if not values and all(len(path) == 1 for path in paths.values()):
        return {}
    state: dict[Any, Any] = {}
    taken: dict[str, dict[str, _Array]] = {}
    left = VALUES_FLOOR
    for name in sorted(tensors, key={name: at for at, name in enumerate(paths)}.__getitem__):
        node: Any = {"$tensor": True}
        if isinstance(tensors[name], _Unread):
            continue
        if name in values:
            try:
                node, taken[name], left = values[name].node(left)
            except UnsupportedError:
                continue
        if not _put(state, paths[name], _Node(node)):
            return {}
    if not state:
        return {}
    for name, arrays in taken.items():
        del tensors[name]
        if not arrays.keys().isdisjoint(tensors):
            raise InvalidError("a part of the value has the name of another", tensor=name)
        tensors.update(arrays)
    text = state_tree.text_of(state=_nested(state))
    return {KEY: text} if tensors.paths is not None else {KEY: text, WHOLE: True}


def _is_path(name: Any, path: Any) -> bool:
    return (
        isinstance(path, tuple)
        and 0 < len(path) <= DEPTH_MAX
        and all(type(key) in (str, int) for key in path)
        and ".".join(map(str, path)) == name
    )


class _Node(NamedTuple):
    json: Any


def _put(state: dict[Any, Any], path: tuple[Any, ...], node: _Node) -> bool:
    """Put a node at a path; False where another one is there or above."""
    for key in path[:-1]:
        state = state.setdefault(key, {})
        if not isinstance(state, dict):
            return False
    return state.setdefault(path[-1], node) is node


def _nested(found: Any, numbers: Mapping[Any, int] | None = None) -> Any:
    """Return the JSON of what was put: positions are those of a list, in which what is missing is
    None. `numbers` are keys that DCP made text."""
    if isinstance(found, _Node):
        return found.json
    is_list = not numbers and {*map(type, found)} == {int} and min(found) >= 0
    if is_list and max(found) < 2 * len(found) + 8:
        return [_nested(found[at]) if at in found else None for at in range(max(found) + 1)]
    more = {"state": _parameters(found.get("param_groups"))}
    pairs = [[(numbers or {}).get(key, key), _nested(found[key], more.get(key))] for key in found]
    return state_tree.dict_node(pairs)


def _parameters(groups: Any) -> dict[Any, int]:
    """Return the parameters that the groups of an optimizer number, by the text of the number."""
    each = groups.values() if isinstance(groups, dict) else ()
    lists = [one.get("params") for one in each if isinstance(one, dict)]
    nodes = [one.json for one in lists if isinstance(one, _Node) and isinstance(one.json, list)]
    return {str(one): one for node in nodes for one in node if type(one) is int}


# ---- opening -------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_tensors(path: str, *, damaged: bool = False) -> Iterator[tuple[Tensors, dict[str, str]]]:
    """Open a directory, or its `.metadata`, for the time of a `with` block. Of what is `damaged`,
    tensors and values that data files which are cut short or missing do not have are `Unreadable`.

    Raises:
        CheckpointNotFoundError, StorageError: a file cannot be opened.
        CorruptError: what torch would not write.
        UnsupportedError: a dtype, layout or value that a checkpoint of ours cannot have.
        InvalidError: a data file outside of the directory.
        LimitError: `.metadata` is very large.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(ByteFile(os.path.join(folder, METADATA))))
        if file.size > METADATA_MAX:
            raise LimitError(f"the file has {file.size} bytes", path=file.path)

        @functools.cache
        def data_file(name: str) -> ByteFile:
            parts = name.split("/")
            if name.startswith("/") or ".." in parts or "\0" in name:
                raise InvalidError(f"it names the data file {name!r}", path=file.path)
            return stack.enter_context(contextlib.closing(ByteFile(os.path.join(folder, *parts))))

        yield _tensors(file, data_file, damaged), {}


def _tensors(file: ByteFile, data_file: Callable[[str], ByteFile], is_damaged: bool) -> Tensors:
    def damaged(message: str) -> CorruptError:
        return CorruptError(message, failure="BAD_HEADER", path=file.path)

    found = Tensors()
    chunks, values = 0, Places()
    try:
        metadata = _unpickled(file.read(file.size, 0), damaged)
        described, stored, planner_data = _fields(
            metadata, "Metadata", "state_dict_metadata", "storage_data", "planner_data"
        )
        places = {
            tuple(_fields(index, "MetadataIndex", "fqn", "offset")): info
            for index, info in stored.items()
        }
        found.paths = planner_data if isinstance(planner_data, dict) else None
        for name, about in described.items():
            if type(name) is not str or not name:
                raise ValueError(f"{reprlib.repr(name)} is not a name")
            try:
                if type(about).__name__ == "BytesStorageMetadata":
                    found[name] = _value(places[name, None], name, data_file, values)
                else:
                    found[name], count = _tensor(name, about, places, data_file)
                    chunks += count
            except (CheckpointNotFoundError, CorruptError) as error:
                if not is_damaged:
                    raise
                found[name] = Unreadable(name, error)
            if chunks > file.size:  # one list of chunks, for many tensors
                raise LimitError("the tensors have more chunks than the file has bytes")
    except CkptfmtError as error:
        error.path = error.path or file.path
        raise
    except _UnlistedError as error:
        raise UnsupportedError(f"the pickle names {error}", path=file.path) from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise damaged(f"not what torch writes: {type(error).__name__}: {error}") from None
    return found


def _value(info: Any, name: str, data_file: Callable[[str], ByteFile], values: Places) -> _Value:
    place = _place(info, name, data_file)
    # Values are held, and each is as large as its place.
    if not values.add(place.file.path, place.file.size, place.offset, place.length, name):
        raise ValueError(f"{reprlib.repr(name)} is stored where another value is")
    return _Value(place)


def _tensor(
    name: str, about: Any, places: Mapping[Any, Any], data_file: Callable[[str], ByteFile]
) -> tuple[_Tensor | _Unread, int]:
    """Return a tensor, and how many chunks it has."""
    properties, size, parts = _fields(
        about, "TensorStorageMetadata", "properties", "size", "chunks"
    )
    state = getattr(properties, "state", None)
    given = state[0] if isinstance(state, tuple) else state["dtype"]  # type: ignore[index]
    is_read = given in _NAMES or given == E8M0
    dtype: np.dtype[Any] | None = np.dtype(np.uint8)
    if given == E8M0:
        dtype = dtypes.narrow_dtype(E8M0)
    elif is_read:
        dtype = dtypes.numpy_dtype(dtypes.code_of(str(given)))
    assert dtype is not None
    shape = _sizes(size, dtype.itemsize)
    chunks = []
    for part in parts:
        start, lengths = map(_sizes, _fields(part, "ChunkStorageMetadata", "offsets", "sizes"))
        if not len(start) == len(lengths) == len(shape) or any(
            first + n > end for first, n, end in zip(start, lengths, shape, strict=True)
        ):
            raise ValueError(f"a chunk of {name} is outside of the tensor")
        place = _place(places[name, start], name, data_file)
        chunks.append(_Chunk(place, start, lengths, dtype))
    if not is_read:
        return _Unread(name, f"torch.{given}", shape, [one.place for one in chunks]), len(chunks)
    return _Tensor(name, dtype, shape, chunks), len(chunks)


def _place(info: Any, name: str, data_file: Callable[[str], ByteFile]) -> _Place:
    path, offset, length = _fields(info, "_StorageInfo", "relative_path", "offset", "length")
    if info.state.get("transform_descriptors"):
        raise UnsupportedError("the data went through an extension of torch", tensor=name)
    if type(offset) is not int or type(length) is not int or type(path) is not str:
        raise ValueError(f"{name} has no place")
    file = data_file(path)
    if offset < 0 or length < 0 or offset + length > file.size:
        raise CorruptError(
            f"{length} bytes at {offset}, and the file has {file.size}",
            failure="TRUNCATED",
            path=file.path,
            tensor=name,
        )
    return _Place(file, offset, length, name)
