# SPDX-License-Identifier: Apache-2.0
"""Members of tar and zip archives, read in place: `models.zip!/run/model` is `run/model` inside of
models.zip, which is a file or an object of a store. Nothing is extracted, nothing is written.

Names of members are looked up, never used as paths of the file system.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from ckptfmt._base.untrusted import Window, open_regular
from ckptfmt._core import ObjectInfo, Read
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    GenerationGoneError,
    LimitError,
    UnsupportedError,
)

# What may be read to list the members of a tar archive, or of a zip archive, whose table is parsed
# at once; and how many there may be.
TAR_BYTES_MAX, ZIP_BYTES_MAX, MEMBERS_MAX = 64 << 20, 16 << 20, 100_000
# Characters of a member's name, and its parts: a table has the path of each directory above.
NAME_MAX, PARTS_MAX = 4096, 256
# What is read at once of a tar archive: tarfile takes time that grows with the square of the size
# of an extended header before Python 3.11.10 and 3.12.6.
TAR_HEADER_MAX = 64 << 10
# Read around a header, as the next one is often near; and of a zip archive, from its end.
NEAR_BYTES, TAIL_BYTES = 16 << 10, 256 << 10
# Tables of the archives that were used last.
TABLES_MAX = 8

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "Zstandard"}
# The signature of a zip member's own header, and the lengths of its name and extra field.
_ZIP_HEADER = struct.Struct("<4s22xHH")

_tables: dict[str, tuple[ObjectInfo, _Table]] = {}
_lock = threading.Lock()


class _Member(NamedTuple):
    """`start` is where the data begin, or, in a zip archive, the member's own header. `end` is
    where the next member begins. `problem`: why it cannot be read."""

    start: int
    end: int
    size: int
    problem: str = ""


@dataclass
class _Table:
    """The members of an archive by their names, and those of each directory."""

    is_zip: bool
    members: dict[str, _Member] = field(default_factory=dict)
    directories: dict[str, set[str]] = field(default_factory=dict)

    def add(self, name: str, member: _Member) -> None:
        """Add a member; a later one of the same name replaces it, as when it is extracted.

        Raises:
            LimitError: a name whose directories would take far more memory than it.
        """
        if len(name) > NAME_MAX or name.count("/") > PARTS_MAX:
            raise LimitError(
                f"the name of a member has more than {NAME_MAX} characters or {PARTS_MAX} parts"
            )
        name = posixpath.normpath(name)
        if name.startswith(("/", "../")) or name in (".", ".."):
            return
        self.members[name] = member
        while name:
            directory, _, last = name.rpartition("/")
            names = self.directories.setdefault(directory, set())
            if last in names:
                return
            names.add(last)
            name = directory


class _Opened(NamedTuple):
    """A member that is read: `size` bytes from `start` on of the base's object."""

    base: Any
    start: int
    info: ObjectInfo


class Archive:
    """A `_core.Store` of the members of one archive.

    Args:
        path: of the archive.
        base: the store that it is in; None: the file system.
        follow_symlinks: False refuses an archive that is a symbolic link.
    """

    def __init__(self, path: str, base: Any | None, *, follow_symlinks: bool = True) -> None:
        self._path = path
        self._base: Any = _Files(follow_symlinks) if base is None else base
        # Only an archive in a store has waits to cancel.
        self.cancel = getattr(self._base, "cancel", None)
        self.resume = getattr(self._base, "resume", None)
        self._found: tuple[ObjectInfo, _Table] | None = None

    def names(self) -> list[str]:
        """Return the paths of all members."""
        return sorted(self._table().members)

    def entries(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of the files right below a directory, and of the directories there."""
        table, inside = self._table(), self._inside(directory)
        below = sorted(table.directories.get(inside, ()))
        files = [name for name in below if posixpath.join(inside, name) in table.members]
        known = set(files)
        return files, [name for name in below if name not in known]

    # ---- Store

    def info(self, path: str) -> ObjectInfo | None:
        member = self._table().members.get(self._inside(path))
        return None if member is None else self._info(member)

    def list(self, directory: str) -> Iterable[str]:
        return self.entries(directory)[0]

    def open(self, path: str) -> tuple[_Opened, ObjectInfo] | None:
        table, name = self._table(), self._inside(path)
        member = table.members.get(name)
        if member is None:
            return None
        if member.problem:
            raise UnsupportedError(
                f"member {name!r} is {member.problem}; only stored members can be read in place",
                path=self._path,
            )
        base, info = self._open_base()
        if self._found is None or info != self._found[0]:
            self._base.close(base)
            raise GenerationGoneError(
                "the archive was replaced after it was opened", path=self._path
            )
        try:
            start = self._data_start(base, member, name) if table.is_zip else member.start
            if start + member.size > min(member.end, info.size):
                raise CorruptError(
                    f"member {name!r} has {member.size} bytes, more than there are before the next",
                    failure="TRUNCATED",
                    path=self._path,
                    offset=start,
                )
        except BaseException:
            self._base.close(base)
            raise
        opened = _Opened(base, start, self._info(member))
        return opened, opened.info

    def read_batch(self, reads: Sequence[Read]) -> Sequence[int]:
        sizes = [
            max(min(len(read.memory), read.object.info.size - read.offset), 0) for read in reads
        ]
        self._base.read_batch(
            [
                Read(read.object.base, read.object.start + read.offset, read.memory[:size])
                for read, size in zip(reads, sizes, strict=True)
                if size
            ]
        )
        return sizes

    def object_info(self, opened: _Opened) -> ObjectInfo:
        return opened.info

    def close(self, opened: _Opened) -> None:
        self._base.close(opened.base)

    def _refuse(self, *_given: Any, **_named: Any) -> NoReturn:
        """Refuse what writes."""
        raise OSError(errno.EROFS, "archives are only read", self._path)

    create = append = finish = adopt = publish = replace = remove = _refuse

    # ---- the archive

    def _inside(self, path: str) -> str:
        archive, _, inside = path.partition(f"{self._path}!")
        if archive:
            raise OSError(errno.EXDEV, f"not in the archive {self._path}", path)
        return inside.strip("/")

    def _open_base(self, tail_bytes: int = 0) -> tuple[Any, ObjectInfo]:
        found: tuple[Any, ObjectInfo] | None = self._base.open(self._path, tail_bytes)
        if found is None:
            raise CheckpointNotFoundError("there is no such archive", path=self._path)
        return found

    def _info(self, member: _Member) -> ObjectInfo:
        assert self._found is not None
        return ObjectInfo(member.size, f"{self._found[0].identity}+{member.start}")

    def _table(self) -> _Table:
        if self._found is None:
            is_zip = self._path.endswith(".zip")
            base, info = self._open_base(TAIL_BYTES if is_zip else 0)
            try:
                self._found = info, self._listed(base, info, is_zip)
            finally:
                self._base.close(base)
        return self._found[1]

    def _listed(self, base: Any, info: ObjectInfo, is_zip: bool) -> _Table:
        with _lock:
            known, table = _tables.get(self._path, (None, None))
        if table is None or known != info or not info.identity:
            limit = ZIP_BYTES_MAX if is_zip else TAR_BYTES_MAX
            once = ZIP_BYTES_MAX if is_zip else TAR_HEADER_MAX
            file = _RangeFile(self._read_base, base, info.size, limit, once)
            table = self._read_table(file, is_zip)
        with _lock:
            _tables.pop(self._path, None)
            _tables[self._path] = info, table
            while len(_tables) > TABLES_MAX:
                del _tables[next(iter(_tables))]
        return table

    def _read_base(self, base: Any, offset: int, size: int) -> bytearray:
        content = bytearray(size)
        self._base.read_batch([Read(base, offset, memoryview(content))])
        return content

    def _read_table(self, file: _RangeFile, is_zip: bool) -> _Table:
        table = _Table(is_zip)
        head = file.read(2)
        if not is_zip and head in _COMPRESSED:
            raise UnsupportedError(
                f"the archive is compressed ({_COMPRESSED[head]}): only plain tar archives can be "
                "read in place",
                path=self._path,
            )
        file.seek(0)
        try:
            (_list_zip if is_zip else _list_tar)(file, table)
        except CkptfmtError as error:
            error.path = error.path or self._path
            raise
        except MemoryError:
            raise
        except Exception as error:  # of all kinds: both modules trust what they parse
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            kind = "zip" if is_zip else "tar"
            raise CorruptError(
                f"not a sound {kind} archive: {str(error) or type(error).__name__}",
                failure="BAD_HEADER",
                path=self._path,
            ) from None
        return table

    def _data_start(self, base: Any, member: _Member, name: str) -> int:
        """Return where the data of a zip member begin: its own header says so."""
        header = b""
        if member.start + _ZIP_HEADER.size <= member.end:
            header = bytes(self._read_base(base, member.start, _ZIP_HEADER.size))
        if header[:4] != b"PK\x03\x04":
            raise CorruptError(
                f"member {name!r} has no header where the directory says",
                failure="BAD_HEADER",
                path=self._path,
                offset=member.start,
            )
        _, name_size, extra_size = _ZIP_HEADER.unpack(header)
        return member.start + _ZIP_HEADER.size + int(name_size) + int(extra_size)


def _list_tar(file: _RangeFile, table: _Table) -> None:
    # PAX headers are UTF-8; other names are bytes.
    with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        last = -1
        count = 0
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]
            count += 1
            if count > MEMBERS_MAX:
                raise LimitError(f"the archive has more than {MEMBERS_MAX} members")
            if info.size < 0 or info.offset_data <= last:
                raise tarfile.ReadError(f"member {info.name!r} has a size of {info.size}")
            last = info.offset_data
            if info.isdir():
                continue
            member = _Member(info.offset_data, info.offset_data + info.size, info.size)
            if info.islnk():
                linked = table.members.get(posixpath.normpath(info.linkname))
                member = linked or member._replace(problem="a link to what is not there")
            elif info.issparse():
                member = member._replace(problem="sparse")
            elif not info.isreg():
                member = member._replace(problem="not a regular file")
            table.add(info.name, member)


def _list_zip(file: _RangeFile, table: _Table) -> None:
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        if len(infos) > MEMBERS_MAX:
            raise LimitError(f"the archive has more than {MEMBERS_MAX} members")
        starts = sorted({info.header_offset for info in infos})
        if len(starts) < len(infos):
            raise zipfile.BadZipFile("members overlap")
        ends = dict(itertools.pairwise([*starts, archive.start_dir]))
        for info in infos:
            if info.is_dir():
                continue
            start, end = info.header_offset, ends[info.header_offset]
            if not 0 <= start < end:
                raise zipfile.BadZipFile(f"member {info.filename!r} is outside of the archive")
            problem = ""
            if info.flag_bits & 1:
                problem = "encrypted"
            elif info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                problem = "compressed"
            table.add(info.filename, _Member(start, end, info.file_size, problem))


class _RangeFile(Window):
    """The archive for the standard library, which reads its headers."""

    def __init__(
        self,
        read: Callable[[Any, int, int], bytearray],
        base: Any,
        size: int,
        limit: int,
        once: int,
    ) -> None:
        super().__init__(size)
        self._read, self._base, self._limit = read, base, limit
        self._once = once
        self._served = 0
        self._near: tuple[int, bytearray] = 0, bytearray()

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._at, 0)
        size = left if size is None or size < 0 else min(size, left)
        if size > self._once:
            raise LimitError(f"a header of the archive has more than {self._once} bytes")
        # One byte more for each call: what reads nothing again and again ends as well.
        self._served += size + 1
        if self._served > self._limit:
            raise LimitError(f"the archive's list of members has more than {self._limit} bytes")
        start, content = self._near
        if self._at < start or self._at + size > start + len(content):
            start = self._at
            content = self._read(self._base, start, min(max(size, NEAR_BYTES), left))
            self._near = start, content
        first = self._at - start
        self._at += size
        return bytes(memoryview(content)[first : first + size])


class _Files:
    """The part of a store that an archive needs, over the file system."""

    def __init__(self, follow_symlinks: bool) -> None:
        self._follow_symlinks = follow_symlinks

    def open(self, path: str, _tail_bytes: int) -> tuple[int, ObjectInfo] | None:
        try:
            descriptor = open_regular(path, follow_symlinks=self._follow_symlinks)
        except FileNotFoundError:
            return None
        found = os.fstat(descriptor)
        identity = f"{found.st_dev}-{found.st_ino}-{found.st_mtime_ns}"
        return descriptor, ObjectInfo(found.st_size, identity)

    def read_batch(self, reads: Sequence[Read]) -> None:
        for read in reads:
            offset, memory = read.offset, read.memory
            while memory:
                got = os.preadv(read.object, [memory], offset)
                if not got:
                    raise OSError(errno.EIO, "the archive ends before the member does")
                offset, memory = offset + got, memory[got:]

    def close(self, descriptor: int) -> None:
        os.close(descriptor)
