# SPDX-License-Identifier: Apache-2.0
"""What killed writers left in a directory of a store. There are no locks: an object belongs to a
dead writer if it is older than any save takes.

A writer leaves data files that no index names, reservations among them, objects under temporary
names, the intent of a merge without an index, and the parts of a save in `<prefix>_temp_<hex>/`.
The objects of one writer are a group: data files of the same prefix and number, or one such
directory. A group stays while one of its objects is young.
"""

from __future__ import annotations

import collections
import errno
import re
import time
from typing import NamedTuple

from ckptfmt._base.arguments import invalid
from ckptfmt._base.names import INTENT, PART, parse_data_name
from ckptfmt._core import ReaderHandle
from ckptfmt.errors import (
    BusyError,
    CheckpointNotFoundError,
    CkptfmtError,
    StorageError,
    UnsupportedError,
    storage_errors,
)
from ckptfmt.stores import store_for
from ckptfmt.stores.objects import TEMPORARY

_DIRECTORY = re.compile(r".+_temp_[0-9a-f]{16}", re.S)
# What TensorFlow writes beside a checkpoint that it saves: a directory and temporary files. It
# gives its data files the names that ours have.
_OF_TENSORFLOW = re.compile(
    r"(.+)(?:_temp|(?:\.index|\.data-\d{5,}-of-\d{5,})\.tempstate[0-9]{1,20})", re.S
)


class Leftover(NamedTuple):
    """An object of a killed writer.

    Attributes:
        url: of the object.
        problem: why it stays, or why nothing says whether it is one; None if it does not.
    """

    url: str
    problem: CkptfmtError | None = None


class _Group(NamedTuple):
    """Objects of one writer: names below the directory that is searched, with their times.

    Attributes:
        prefix: that their names begin with; of a directory, its own name.
        shards: how many data files the names say that there are; 0 for other objects.
        is_directory: whether they are in a directory of their own.
    """

    prefix: str
    shards: int
    is_directory: bool
    times: dict[str, float | None]


def _owner(name: str) -> tuple[str, int] | None:
    """Return the prefix of a file that a writer makes beside an index, and how many data files its
    name says that there are (0: it is none); None of other names."""
    temporary = TEMPORARY.fullmatch(name)
    final = temporary[1] if temporary else name
    data = parse_data_name(final)
    if data is not None and data.shard < data.num_shards:
        owner = data.prefix, data.num_shards
    elif temporary or final.endswith(INTENT):
        owner = final.removesuffix(".index").removesuffix(INTENT), 0
    else:
        return None
    return owner if owner[0] else None


def _is_part(name: str) -> bool:
    owner = _owner(name)
    prefix = name.removesuffix(".index") if owner is None else owner[0]
    return prefix != name and PART.fullmatch(prefix) is not None


def leftovers(url: str, older_than: float) -> list[Leftover]:
    """Return what killed writers left right below the directory at `url`.

    Args:
        url: of a directory of a store.
        older_than: the least age in seconds. It must be more than any save takes.

    Raises:
        StorageError: the store cannot list the directory, or nothing is in it.
        UnsupportedError: it does not say when an object was written.
    """
    search = _Search(url, older_than)
    return [left for group in search.groups() for left in search.judged(group)]


def remove_leftovers(url: str, older_than: float) -> list[Leftover]:
    """Remove what `leftovers` returns, and return it. Each group is looked at once more before.

    Args and errors are those of `leftovers`.
    """
    search = _Search(url, older_than)
    found: list[Leftover] = []
    for group in search.groups():
        left = search.judged(group)
        found += search.removed(group) if any(one.problem is None for one in left) else left
    return found


class _Search:
    """The search of one directory."""

    def __init__(self, url: str, older_than: float) -> None:
        if not older_than > 0:
            raise invalid("older_than", "must be a positive number")
        self._store = store_for(url)
        self._url = url if url.endswith("://") else f"{url.rstrip('/')}/"
        # The answers of stores do not tell the server's time.
        self._newest = time.time() - older_than

    def groups(self) -> list[_Group]:
        """Return the groups without a young object."""
        directories, groups = self._groups()
        groups += [self._group_in(name) for name in directories if _DIRECTORY.fullmatch(name)]
        return [group for group in groups if self._is_old(group)]

    def _groups(self) -> tuple[list[str], list[_Group]]:
        """Return the names of the directories, and the groups of the objects beside them."""
        files, directories = self._listing("")
        if not files and not directories:
            raise StorageError("there are no objects below", path=self._url, errno=errno.ENOENT)
        tensorflow = {
            match[1] for match in map(_OF_TENSORFLOW.fullmatch, [*files, *directories]) if match
        }
        found: dict[tuple[str, int], dict[str, float | None]] = collections.defaultdict(dict)
        for name, written_at in files.items():
            owner = _owner(name)
            if owner is not None and owner[0] not in tensorflow:
                found[owner][name] = written_at
        return directories, [_Group(*key, False, times) for key, times in found.items()]

    def _group_in(self, directory: str) -> _Group:
        """Return the group of a temporary directory; empty if a name in it is not a writer's."""
        files, directories = self._listing(directory)
        is_ours = not directories and all(map(_is_part, files))
        times = {f"{directory}/{name}": written_at for name, written_at in files.items() if is_ours}
        return _Group(directory, 0, True, times)

    def _listing(self, directory: str) -> tuple[dict[str, float | None], list[str]]:
        url = self._url + directory
        with storage_errors(url):
            return self._store.listing(url)

    def _is_old(self, group: _Group) -> bool:
        for name, written_at in group.times.items():
            if written_at is None:
                raise UnsupportedError(
                    "the store does not say when this object was written, and nothing else shows "
                    "whether its writer is alive",
                    path=self._url + name,
                )
        return all(at is not None and at <= self._newest for at in group.times.values())

    def judged(self, group: _Group) -> list[Leftover]:
        """Return what of an old group is left, after a look at the index in force."""
        left: list[Leftover] = []
        named: list[Leftover] = []
        for name in group.times:
            is_temporary = group.is_directory or TEMPORARY.fullmatch(name)
            (left if is_temporary else named).append(Leftover(self._url + name))
        if named:
            try:
                in_force = self._count_in_force(group.prefix)
            except CkptfmtError as error:
                return left + [one._replace(problem=error) for one in named]
            if in_force is None or group.shards not in (0, in_force):
                left += named
        return left

    def _count_in_force(self, prefix: str) -> int | None:
        """Return the number of data files that the index of a prefix names; None without one."""
        try:
            index = ReaderHandle(self._url + prefix, None, False, store=self._store)
        except CheckpointNotFoundError:
            return None
        try:
            return index.header()["num_shards"]
        finally:
            index.close()

    def removed(self, group: _Group) -> list[Leftover]:
        """Remove what of a group is left. Nothing is removed if it has changed."""
        try:
            again = [self._group_in(group.prefix)] if group.is_directory else self._groups()[1]
        except StorageError as error:
            return [Leftover(self._url + name, error) for name in group.times]
        if group not in again:
            changed = BusyError("another process has changed or removed objects of this writer")
            return [Leftover(self._url + name, changed) for name in group.times]
        return [
            Leftover(one.url, one.problem or self._remove(one.url)) for one in self.judged(group)
        ]

    def _remove(self, url: str) -> StorageError | None:
        try:
            with storage_errors(url):
                self._store.remove(url)
        except StorageError as error:
            return error
        return None
