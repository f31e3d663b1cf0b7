# SPDX-License-Identifier: Apache-2.0
"""Spares: data files of checkpoints that were removed, for the next save to write over (CMT-22 and
CMT-23). Whether a file may be had at all is decided in C, at `ckptfmt_spare_take`."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Iterable

from ckptfmt import _core
from ckptfmt.errors import CkptfmtError

__all__ = ["Spares"]

# Only files that would go past the page cache are worth it: `CF_FILE_WRITER_DIRECT_MIN`.
BYTES_MIN = 64 << 20

_made: weakref.WeakSet[Spares] = weakref.WeakSet()


class Spares:
    """The files that one manager keeps between two saves. Threads may share it; a forked child has
    none of its parent's."""

    def __init__(self) -> None:
        self._reset()
        _made.add(self)

    def _reset(self) -> None:
        # A handler of signals may save.
        self._lock = threading.RLock()
        self._files: list[_core.SpareHandle] = []
        self._wanted: list[os.stat_result] = []
        self._taken = False  # whether a save took one since the last was done
        self._used = True  # whether saves take what there is

    def __repr__(self) -> str:
        return f"<ckptfmt Spares of {len(self._files)} files>"

    def __deepcopy__(self, _memo: object) -> Spares:
        # With the options of a save, which a manager's `checkpoint` may copy: the files are these.
        return self

    def want(self, made: Iterable[os.stat_result]) -> None:
        """After a save whose data files these are: the next one can use files like them, each in
        the place of one. What this save left goes; if it left all, no more are kept, which only
        filled the disk."""
        with self._lock:
            self._used = self._used and (self._taken or not self._files)
            self._taken = False
            self.clear()
            if not self._used:
                return
            # A file of several names was not written by that save.
            self._wanted = [one for one in made if _is_worth_it(one)]

    def keep(self, path: str, info: os.stat_result) -> bool:
        """Takes a data file of a checkpoint that is being removed, if the next save can use it. If
        not, it is to be removed."""
        with self._lock:
            like = [one for one in self._wanted if _is_worth_it(info) and _kind(one) == _kind(info)]
            if not like or _has_attributes(path):
                return False
            place = min(like, key=lambda one: abs(one.st_size - info.st_size))
            # First: a handler of signals may save meanwhile, and want others.
            self._wanted.remove(place)
            with contextlib.suppress(CkptfmtError, MemoryError):
                spare = _core.SpareHandle.take(path, info.st_size, place.st_size * 9 // 8)
                if spare is not None:
                    self._files.append(spare)
                    return True
            self._wanted.append(place)
            return False

    def take(self, size: int) -> _core.SpareHandle | None:
        """The file that fits a data file of so many bytes best; None if there is none, or the data
        file is too small."""
        with self._lock:
            if size < BYTES_MIN or not self._files:
                return None
            # In one step: the save of a handler of signals must not find the same.
            files, self._files = self._files, []
            files.sort(key=lambda one: abs(one.size - size), reverse=True)
            found = files.pop()
            self._files += files
            self._taken = True
            return found

    def clear(self) -> None:
        """Removes all files."""
        with self._lock:
            self._wanted = []
            while self._files:
                self._files.pop().close()

    def close(self) -> None:
        """Removes all files, and keeps none from now on: a handler of exits may save after it."""
        with self._lock:
            self._used = False
            self.clear()

    def _forget(self) -> None:
        files = self._files
        self._reset()
        for one in files:
            one.forget()


def _forget_all() -> None:
    for one in list(_made):
        one._forget()


os.register_at_fork(after_in_child=_forget_all)


def _is_worth_it(info: os.stat_result) -> bool:
    return info.st_nlink == 1 and info.st_size >= BYTES_MIN


def _has_attributes(path: str) -> bool:
    """Whether somebody noted something of the old bytes that would be said of the new ones as well:
    an access list, say, or that they have been archived."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        return error.errno != errno.ENOTSUP
    return not all(name.startswith("security.") for name in names)


def _kind(info: os.stat_result) -> tuple[int, ...]:
    """What a file written over has as it was, and must have as a new one would."""
    return info.st_dev, info.st_mode, info.st_uid, info.st_gid
