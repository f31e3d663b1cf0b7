# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints of a directory the paths of its state file name."""

from __future__ import annotations

import functools
import ntpath
import os
import re
from collections import Counter
from collections.abc import Collection

from ckptfmt._base.names import index_name
from ckptfmt.errors import CorruptError, InvalidError, warn
from ckptfmt.files.folder import folder_of
from ckptfmt.files.places import is_file
from ckptfmt.files.state_file import STATE_NAME, CheckpointState, read_state_file

_NO_NAMES = ("", ".", "..")
# All other paths are names right in the directory.
_SPECIAL = re.compile(r"[/\\!\0]")
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\|[^/\\]*\\[^/]*$")


class StatePaths:
    """The paths of a state file.

    A path that leads into the directory, after symbolic links (in a store: one below the
    directory's URL), names the checkpoint there, however it is written. Any other path, such as
    that of a directory that was moved or copied from another computer, names the checkpoint of its
    last component, if the directory has that one and no other path ends in it. Nothing outside of
    the directory is opened, and of a URL in the state file of a local directory only its last
    component counts.

    Args:
        directory: the directory, or a URL of one.
        state: the content of its state file.
    """

    def __init__(self, directory: str, state: CheckpointState) -> None:
        self._directory, self._state = directory, state
        self._folder = folder_of(directory)
        self._folders: dict[str, str | None] = {}

    def name(self, path: str, there: Collection[str] | None = None) -> str | None:
        """Return the checkpoint that a path names, relative to the directory; None if it names none
        there. A checkpoint that is named by where it is may be missing.

        Args:
            path: as the state file has it.
            there: the checkpoints right in the directory; None looks for the one that counts.

        Raises:
            StorageError: it cannot be looked for now.
        """
        name = self._inside(path, there)
        if name is None and self._lasts[last := ntpath.basename(path)] == 1:
            usable = last not in _NO_NAMES and "\0" not in last
            name = last if usable and self._has(last, there) else None
        return name

    def is_moved(self, path: str) -> bool:
        """Return whether a path leads outside, so that at most its last component counts."""
        return self._inside(path, None) is None

    @functools.cached_property
    def share_folder(self) -> bool:
        """Whether all paths are in one folder, as those of a directory that was moved are."""
        return len({ntpath.dirname(path) for path in self._all()}) == 1

    @functools.cached_property
    def _lasts(self) -> Counter[str]:
        return Counter(map(ntpath.basename, self._all()))

    def _all(self) -> set[str]:
        state = self._state
        return {*state.all_model_checkpoint_paths, state.model_checkpoint_path} - {""}

    def _has(self, name: str, there: Collection[str] | None) -> bool:
        if there is not None:
            return name in there
        return is_file(index_name(os.path.join(self._directory, name)))

    def _inside(self, path: str, there: Collection[str] | None) -> str | None:
        """Return the name of a path that leads into the directory, else None."""
        if _SPECIAL.search(path) is None:
            return None if path in _NO_NAMES else path
        name = os.path.basename(path)
        parent = path[: len(path) - len(name)]  # of "memory://name" it is "memory://"
        if "\0" in path or name in _NO_NAMES:
            return None
        if _WINDOWS.match(path) and ("/" in path or not self._has(path, there)):
            return None
        if parent not in self._folders:
            self._folders[parent] = self._folder.inside(parent)
        found = self._folders[parent]
        return None if found is None else os.path.normpath(os.path.join(found, name))


def state_checkpoint(directory: str, *, quiet: bool = False) -> str | None:
    """Return the newest prefix that a directory's `checkpoint` file names; None without that file.

    One that is found by the last component of its path causes a CkptfmtWarning, unless `quiet`.

    Raises:
        InvalidError: the file names none in the directory (failure BAD_PATH).
        CorruptError, LimitError: the file is not a state file.
        StorageError: it cannot be read now.
    """
    path = os.path.join(directory, STATE_NAME)
    if not is_file(path):
        return None
    state = read_state_file(path)
    newest = state.model_checkpoint_path
    if not newest:
        raise CorruptError("model_checkpoint_path is missing", failure="BAD_PROTO", path=path)
    paths = StatePaths(directory, state)
    name = paths.name(newest)
    problem = f"model_checkpoint_path '{newest}' leads outside the directory"
    if name is None:
        raise InvalidError(problem, failure="BAD_PATH", path=path)
    prefix = os.path.join(directory, name)
    if paths.is_moved(newest) and not quiet:
        warn(f"{path}: {problem}; '{prefix}' is taken")
    return prefix
