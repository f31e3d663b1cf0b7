# SPDX-License-Identifier: Apache-2.0
"""NumPy's `.npz` files: zip archives of `.npy` files. Object arrays, which need pickle, are
refused."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ckptfmt._base.untrusted import checked_shape, memory_most, open_regular
from ckptfmt.bundle.comparing import pieces
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    InvalidError,
    LimitError,
    StorageError,
    UnsupportedError,
)
from ckptfmt.formats.tensors import UNNAMED, Box, Kind, Places, Read, Unreadable

_END = ".npy"
_SKIPPED = 1 << 20
# The header of a member: magic, version, flags, method, (time, date,) CRC, sizes, name, extra.
_LOCAL = struct.Struct("<4sHHH4xIIIHH")
_SIZES_FOLLOW, _UTF8 = 0x8, 0x800
_NO_MEMBERS = b"PK\5\6" + bytes(18)
# Bytes of a text in memory, beside its characters.
_TEXT_BYTES = 50
# Bytes of a name in a zip archive.
_NAME_MAX = (1 << 16) - 1


def holds(dtype: np.dtype[Any]) -> bool:
    """Return whether a tensor of this dtype can be written: those of ml_dtypes would come back as
    bytes."""
    return dtype.isbuiltin != 2 and dtype.kind in "biufc"


class _Member:
    """An array of an open archive."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self.name = info.filename.removesuffix(_END)
        self._archive, self._info = archive, info
        if not info.filename.endswith(_END):
            raise UnsupportedError(
                "the archive has a file that is not an array, and a checkpoint has only arrays",
                path=archive.filename,
                tensor=self.name,
            )
        with _sound(archive, self.name), archive.open(info) as stream:
            shape, self._by_columns, self._stored = _header(stream)
            self._begin = stream.tell()
        error = functools.partial(_error, path=archive.filename, tensor=self.name)
        damaged = functools.partial(error, CorruptError, failure="BAD_HEADER")
        unsupported = functools.partial(error, UnsupportedError)
        self.shape = checked_shape(shape, damaged, unsupported, self._stored.itemsize)
        if self._stored.hasobject:
            raise unsupported("an object array, which only pickle could read")
        is_text = self._stored.kind in "US"
        self.dtype = np.dtype(object) if is_text else self._stored.newbyteorder("=")
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        size = math.prod(self.shape) * self._stored.itemsize
        if self._begin + size != info.file_size:
            raise damaged(
                f"the array takes {size} bytes, and the archive has {info.file_size - self._begin}"
            )
        # What is not read in pieces.
        held = size if self._by_columns else 0
        held += size + _TEXT_BYTES * math.prod(self.shape) if is_text else 0
        if held > memory_most(_size(archive)):
            raise error(LimitError, f"reading it takes {held} bytes, far more than are stored")
        self._stream: IO[bytes] | None = None
        self._at = 0

    def read(self, box: Box = ()) -> NDArray[Any]:
        """Return a box as a new array; texts as bytes objects.

        Raises:
            CorruptError: the bytes are damaged, or missing, or no text.
        """
        if self._by_columns and len(self.shape) > 1:
            whole = self._bytes(0, math.prod(self.shape)).reshape(self.shape, order="F")
            return np.array(self._values(whole[box]), order="C")
        # A box of `pieces` is one run of elements.
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        start = sum(one.start * stride for one, stride in zip(box, strides, strict=False))
        lengths = [one.stop - one.start for one in box]
        shape = (*lengths, *self.shape[len(box) :])
        found = self._bytes(start, math.prod(shape))
        return self._values(found.reshape(shape))

    def _values(self, found: NDArray[Any]) -> NDArray[Any]:
        if self._stored.kind not in "US":
            return found.astype(self.dtype, copy=False)
        texts = np.empty(found.shape, object)
        try:
            for at, text in np.ndenumerate(found):
                encoded = text if isinstance(text, bytes) else text.encode()
                if not isinstance(text, bytes):
                    encoded.decode()  # NumPy takes numbers that are no characters
                texts[at] = encoded
        except ValueError as error:
            message = f"an element is no text: {error}"
            about: dict[str, Any] = {"path": self._archive.filename, "tensor": self.name}
            raise CorruptError(message, failure="BAD_ENTRY", **about) from None
        return texts

    def _bytes(self, start: int, count: int) -> NDArray[Any]:
        """Return elements in the order of the file. Reading on from the last ones is fast."""
        offset, size = self._begin + start * self._stored.itemsize, count * self._stored.itemsize
        with _sound(self._archive, self.name):
            if self._stream is None or offset < self._at:
                self.close()
                self._stream, self._at = self._archive.open(self._info), 0
            while self._at < offset:
                self._at += len(self._stream.read(min(offset - self._at, _SKIPPED))) or offset
            data = self._stream.read(size)
            self._at += len(data)
            if self._at == self._info.file_size:
                self._stream.read(1)  # the checksum is compared at the end
        if len(data) != size:
            raise self._ends_early()
        return np.frombuffer(data, self._stored)

    def check(self, places: Places) -> int | None:
        """Compare all bytes with the checksum; return how many."""
        left = self._info.file_size
        with _sound(self._archive, self.name), self._archive.open(self._info) as stream:
            while data := stream.read(_SKIPPED):
                left -= len(data)
        if left:
            raise self._ends_early()
        return self._info.file_size - self._begin

    def _ends_early(self) -> CorruptError:
        return CorruptError(
            "the array ends early",
            failure="TRUNCATED",
            path=self._archive.filename,
            tensor=self.name,
        )

    def close(self) -> None:
        """Close the stream."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _size(archive: zipfile.ZipFile) -> int:
    assert archive.fp is not None
    return os.fstat(archive.fp.fileno()).st_size


def _error(kind: type[CkptfmtError], message: str, **about: Any) -> CkptfmtError:
    return kind(message, **about)


def _header(stream: IO[bytes]) -> tuple[Any, bool, np.dtype[Any]]:
    """Return shape, whether the order is that of columns, and dtype. Raises ValueError."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the .npy format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        return read(stream)
    except OSError:
        raise
    # Of all kinds, for what is not a literal of Python. It has at most 10,000 bytes: a MemoryError
    # is the parser's own.
    except (Exception, MemoryError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


@contextlib.contextmanager
def _sound(archive: zipfile.ZipFile, name: str) -> Iterator[None]:
    """Turn what a damaged archive raises into CorruptError."""
    try:
        yield
    except NotImplementedError as error:
        raise UnsupportedError(str(error), path=archive.filename, tensor=name) from None
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, LookupError),
        RuntimeError,
    ) as error:
        raise CorruptError(
            f"the archive is damaged: {error}",
            failure="CHECKSUM",
            path=archive.filename,
            tensor=name,
        ) from None
    except OSError as error:
        raise _unread(error, archive.filename, name) from None


def _unread(error: OSError, path: str | None, name: str | None = None) -> CkptfmtError:
    """Return the error for a file that cannot be read, or whose parts are before its beginning."""
    if error.errno != errno.EINVAL or error.filename is not None:
        return StorageError(error.strerror or "", path=path, tensor=name, errno=error.errno)
    return CorruptError(
        "the archive is damaged: a part of it is outside of it",
        failure="BAD_HEADER",
        path=path,
        tensor=name,
    )


def _by_headers(file: IO[bytes]) -> tuple[zipfile.ZipFile, bool]:
    """Return an archive by the headers before its members, and whether they end at its directory,
    so that none is lost."""
    archive = zipfile.ZipFile(io.BytesIO(_NO_MEMBERS))
    archive.fp, size, at, magic = file, os.fstat(file.fileno()).st_size, 0, b""
    while size - at >= _LOCAL.size:
        file.seek(at)
        head = _LOCAL.unpack(file.read(_LOCAL.size))
        magic, version, flags, method, crc, packed, unpacked, name_size, extra_size = head
        name, extra = file.read(name_size), file.read(extra_size)
        if magic != b"PK\3\4" or flags & _SIZES_FOLLOW or len(extra) < extra_size:
            break
        encoding = "utf-8" if flags & _UTF8 else "cp437"
        info = zipfile.ZipInfo(name.decode(encoding, "surrogateescape"))
        if extra[:2] == b"\1\0" and len(extra) >= 20:
            unpacked, packed = struct.unpack_from("<QQ", extra, 4)
        info.header_offset, info.flag_bits, info.compress_type, info.CRC = at, flags, method, crc
        info.compress_size, info.file_size, info.extract_version = packed, unpacked, version
        archive.filelist.append(info)
        at += _LOCAL.size + name_size + extra_size + packed
    return archive, magic == b"PK\1\2"


def _damaged(file: IO[bytes]) -> tuple[zipfile.ZipFile, dict[str, str]]:
    """Return an archive by its directory or by the headers before its members, whichever is whole,
    and what is lost: arrays that have different names in the two.

    Raises:
        BadZipFile: it does not begin with a member, and has no directory.
    """
    archive, is_whole = _by_headers(file)
    try:
        listed = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError):
        if not archive.filelist:
            raise zipfile.BadZipFile("it does not begin with a member") from None
        end = "the directory of the archive is lost, and with it what came after its last array"
        return archive, {} if is_whole else {UNNAMED: end}
    if not is_whole:
        return listed, {}
    names = {info.header_offset: info.filename for info in listed.filelist}
    other = {
        info.filename: names[info.header_offset]
        for info in archive.filelist
        if names.get(info.header_offset, info.filename) != info.filename
    }
    archive.filelist = [info for info in archive.filelist if info.filename not in other]
    why = "the archive's directory and the header before the array have different names"
    return archive, {name.removesuffix(_END): why for name in [*other, *other.values()]}


@contextlib.contextmanager
def open_tensors(
    path: str, *, damaged: bool = False
) -> Iterator[tuple[dict[str, _Member | Unreadable], dict[str, str]]]:
    """Open a file for the time of a `with` block. Object arrays, damaged ones, and those that are
    compressed in a way that Python lacks, are `Unreadable`. Of what is `damaged`, the directory at
    the end may be lost or wrong: the arrays before are found by their own headers.

    Raises:
        CheckpointNotFoundError, StorageError: it cannot be opened.
        CorruptError, UnsupportedError: it is not a zip archive, or damaged, or divided.
        LimitError: texts, or an array in the order of columns, far larger than the file.
    """
    lost: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(open_regular(path), "rb"))
            if damaged:
                archive, lost = _damaged(file)
            else:
                archive = zipfile.ZipFile(file)
        except FileNotFoundError:
            raise CheckpointNotFoundError("there is no such file", path=path) from None
        except OSError as error:
            raise _unread(error, path) from None
        except (zipfile.BadZipFile, struct.error, ValueError) as error:
            raise CorruptError(
                f"not a zip archive: {error}", failure="BAD_MAGIC", path=path
            ) from None
        except NotImplementedError as error:
            raise UnsupportedError(str(error), path=path) from None
        archive.filename = path
        stack.enter_context(archive)
        found: dict[str, _Member | Unreadable] = {
            name: Unreadable(name, CorruptError(why, failure="BAD_HEADER", path=path))
            for name, why in lost.items()
        }
        packed = sum(info.compress_size for info in archive.infolist())
        if UNNAMED not in lost and packed > _size(archive):
            raise CorruptError("the members overlap", failure="BAD_HEADER", path=path)
        for info in archive.infolist():
            member: _Member | Unreadable
            try:
                member = _Member(archive, info)
                stack.callback(member.close)
            except (UnsupportedError, CorruptError) as error:
                member = Unreadable(info.filename.removesuffix(_END), error)
            if member.name in found:
                double = CorruptError(
                    "two arrays have this name", failure="BAD_HEADER", path=path, tensor=member.name
                )
                if not damaged:
                    raise double
                member = Unreadable(member.name, double)
            found[member.name] = member
        yield found, {}


def write(path: str, kinds: Sequence[Kind], metadata: Mapping[str, str], read: Read) -> None:
    """Write a file. There is no place for metadata.

    Raises:
        InvalidError: a name that a zip archive cannot hold.
        OSError: the file cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for kind in kinds:
            size = len(kind.name.encode(errors="replace")) + len(_END)
            if not kind.name.isprintable() or "\0" in kind.name or size > _NAME_MAX:
                raise InvalidError("the name cannot be a file name in an archive", tensor=kind.name)
            with archive.open(zipfile.ZipInfo(kind.name + _END), "w", force_zip64=True) as stream:
                header = {
                    "descr": npy.dtype_to_descr(kind.dtype),
                    "fortran_order": False,
                    "shape": kind.shape,
                }
                npy.write_array_header_2_0(stream, header)
                for box in pieces(kind.shape, kind.dtype.itemsize):
                    array = np.ascontiguousarray(read(kind.name, box))
                    stream.write(array.reshape(-1).view(np.uint8).data)
