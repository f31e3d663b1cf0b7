# SPDX-License-Identifier: Apache-2.0
"""`tf.train`'s functions around the state file: TensorFlow's arguments, answers and bytes.

Paths are literal, where TensorFlow takes them for patterns. A state file is replaced as a whole and
durably. Nobody checks here that a state file names checkpoints that are there, or that they lie in
its directory: that is what `ckptfmt.latest_checkpoint` does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ckptfmt import _core, names
from ckptfmt.arguments import check_choice, listed, wrong
from ckptfmt.bundle.checkpoint_state import STATE_NAME, CheckpointState, format_state
from ckptfmt.bundle.locate import read_state
from ckptfmt.errors import (
    CkptfmtWarning,
    CorruptError,
    DurabilityUnknownError,
    InvalidError,
    LimitError,
    StorageError,
    UnsupportedError,
)
from ckptfmt.names import path_text
from ckptfmt.temporary import make_file

__all__ = [
    "checkpoint_exists",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "remove_checkpoint",
    "update_checkpoint_state",
]

Path = str | bytes | os.PathLike[Any]

V2 = 2  # of SaverDef.CheckpointFormatVersion

_SHARDED = re.compile(r"-[\d?]+-of-\d+$")


def state_path(directory: str, latest_filename: Path | None) -> str:
    """Path of a directory's state file."""
    name = STATE_NAME if latest_filename is None else path_text(latest_filename)
    if not os.path.basename(name):
        raise InvalidError(f"latest_filename {name!r} names no file", failure="BAD_PATH")
    return os.path.join(directory, name)


# ---- the state file ------------------------------------------------------------------------------


def get_checkpoint_state(
    checkpoint_dir: Path, latest_filename: Path | None = None
) -> CheckpointState | None:
    """What a directory's state file says, relative paths joined to the directory.

    Args:
        checkpoint_dir: the directory.
        latest_filename: name of the state file in it; default "checkpoint".

    Returns:
        The state; None if there is no such file, or (with a CkptfmtWarning) it cannot be read.

    Raises:
        InvalidError: the state names no newest checkpoint.
    """
    directory = path_text(checkpoint_dir)
    path = state_path(directory, latest_filename)
    if not os.path.exists(path):
        return None
    try:
        state = read_state_file(path)
    except (CorruptError, LimitError, StorageError) as error:
        if error.errno != errno.ENOENT:  # else it went between two looks
            warnings.warn(f"{error}; the state file is ignored", CkptfmtWarning, stacklevel=2)
        return None
    if not state.model_checkpoint_path:
        raise InvalidError(f"Invalid checkpoint state loaded from {directory}", path=path)
    return replace(
        state,
        model_checkpoint_path=os.path.join(directory, state.model_checkpoint_path),
        all_model_checkpoint_paths=tuple(
            os.path.join(directory, named) for named in state.all_model_checkpoint_paths
        ),
    )


def read_state_file(path: str) -> CheckpointState:
    """`read_state` for what may be no regular file: opening a pipe would wait for a writer."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise StorageError("no regular file", path=path, errno=errno.EINVAL)
    return read_state(path)


def update_checkpoint_state(
    save_dir: Path,
    model_checkpoint_path: Path,
    all_model_checkpoint_paths: Iterable[Path] | None = None,
    latest_filename: Path | None = None,
    all_model_checkpoint_timestamps: Iterable[float] | None = None,
    last_preserved_timestamp: float | None = None,
    *,
    save_relative_paths: bool = False,
    durability: str = "full",
) -> None:
    """Replaces a directory's state file.

    Args:
        save_dir: the directory. If it is a relative path, relative paths below are from the working
            directory as it is, and written as seen from `save_dir`.
        model_checkpoint_path: the newest checkpoint's prefix.
        all_model_checkpoint_paths: the prefixes of all, oldest first; the newest is added if it is
            not the last.
        latest_filename: name of the state file; default "checkpoint".
        all_model_checkpoint_timestamps: when each was made, seconds since 1970.
        last_preserved_timestamp: when the last one that is kept forever was made.
        save_relative_paths: write absolute paths as seen from `save_dir` too, so that the directory
            can be moved.
        durability: "full" (synced), "rename" (atomic for other processes) or "none" (as "rename").

    Raises:
        InvalidError: an empty path; another number of timestamps than of paths; the newest is the
            state file itself.
        LimitError: more than a state file may hold.
        StorageError: it could not be written; the one that was there is untouched.
        DurabilityUnknownError: it is in place, but a power cut may bring the old one back.
    """
    check_choice("durability", durability, _core.DURABILITY)
    directory = path_text(save_dir)
    path = state_path(directory, latest_filename)
    newest = path_text(model_checkpoint_path)
    given = (
        []
        if all_model_checkpoint_paths is None
        else listed("all_model_checkpoint_paths", all_model_checkpoint_paths, "paths")
    )
    if not newest or not all(given):
        raise InvalidError("the path of a checkpoint is empty", failure="BAD_PATH")
    if os.path.abspath(newest) == os.path.abspath(path):
        raise InvalidError(
            f"Save path '{newest}' conflicts with path used for checkpoint state.  Please use a "
            "different save path.",
            failure="BAD_PATH",
        )
    newest = _as_written(newest, directory, save_relative_paths)
    paths = [_as_written(path_text(one), directory, save_relative_paths) for one in given]
    if not paths or paths[-1] != newest:
        paths.append(newest)
    timestamps = _timestamps(all_model_checkpoint_timestamps)
    if timestamps and len(timestamps) != len(paths):
        raise InvalidError(
            "Checkpoint timestamps, if provided, must match checkpoint paths (got paths "
            f"{_some(paths)} and timestamps {_some(timestamps)})"
        )
    preserved = None if last_preserved_timestamp is None else _timestamp(last_preserved_timestamp)
    content = format_state(CheckpointState(newest, tuple(paths), timestamps, preserved))
    with open_directory(os.path.dirname(path)) as directory_fd:
        replace_file(directory_fd, path, content, durability)


def _as_written(path: str, directory: str, relative: bool) -> str:
    if os.path.isabs(path):
        return os.path.relpath(path, directory) if relative else path
    return path if os.path.isabs(directory) else os.path.relpath(path, directory or ".")


def _timestamps(given: Iterable[float] | None) -> tuple[float, ...]:
    if given is None:
        return ()
    return tuple(map(_timestamp, listed("all_model_checkpoint_timestamps", given, "numbers")))


def _timestamp(value: Any) -> float:
    if not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise wrong("a timestamp", "a number of seconds", value)


def _some(values: Sequence[Any]) -> str:
    shown = ", ".join(map(repr, values[:8]))
    return f"[{shown}]" if len(values) <= 8 else f"[{shown}, ... {len(values)}]"


# ---- files ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_directory(directory: str) -> Iterator[int]:
    """A descriptor of a directory ("" is the working directory) for as long as the block runs."""
    try:
        descriptor = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise_storage(error, directory or ".")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def replace_file(directory_fd: int, path: str, content: bytes, durability: str) -> None:
    """Puts a small file in place of the one of the last name of `path`, which lies in the directory
    of this descriptor. Others see the old one or the new one, whole.

    Raises:
        StorageError: it is not in place.
        DurabilityUnknownError: it is, but a power cut may bring the old one back.
    """
    name = os.path.basename(path)
    try:
        temporary, descriptor = make_file(name, directory_fd)
        held = os.dup(descriptor)  # its lock, until it has its name
        try:
            with open(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                if durability == "full":
                    os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory_fd)
            raise
        finally:
            os.close(held)
    except OSError as error:
        raise_storage(error, path)
    if durability == "full":
        try:
            os.fsync(directory_fd)
        except OSError as error:
            raise DurabilityUnknownError(
                "the new file is in place, but a power cut may still bring the old one back: "
                f"{error.strerror}",
                path=path,
                errno=error.errno,
            ) from None


def raise_storage(error: OSError, path: str) -> NoReturn:
    """Raises the StorageError for what the operating system answered about `path`."""
    raise StorageError(
        error.strerror or "the operating system refused", path=path, errno=error.errno
    ) from None


# ---- checkpoints ---------------------------------------------------------------------------------


def checkpoint_exists(checkpoint_prefix: Path) -> bool:
    """True if `<prefix>.index` exists, or, as for TensorFlow, anything at the prefix itself."""
    prefix = path_text(checkpoint_prefix)
    return os.path.exists(names.index_name(prefix)) or os.path.exists(prefix)


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[Path]) -> list[float]:
    """When checkpoints were written: the times of their index files (of the prefix itself where
    there is no index), seconds since 1970.

    Checkpoints that do not exist are left out: the list may be shorter than that of the prefixes.
    """
    found = []
    for prefix in map(path_text, listed("checkpoint_prefixes", checkpoint_prefixes, "prefixes")):
        for path in (names.index_name(prefix), prefix):
            with contextlib.suppress(OSError):
                found.append(os.stat(path).st_mtime)
                break
    return found


def remove_checkpoint(
    checkpoint_prefix: Path,
    checkpoint_format_version: int = V2,
    meta_graph_suffix: str = "meta",
) -> None:
    """Removes the files of one checkpoint: the index, then the data files, then the file of the
    graph that TensorFlow 1 wrote beside them.

    Only files of exactly these names go, as they stand in the directory; links are removed, not
    what they lead to. What is not there is no error.

    Args:
        checkpoint_prefix: the checkpoint.
        checkpoint_format_version: 2, `SaverDef.V2`.
        meta_graph_suffix: what the name of the graph's file ends with.

    Raises:
        UnsupportedError: another format.
        InvalidError: a prefix or suffix that names no file.
        StorageError: a file could not be removed; those after it are still there.
    """
    prefix = path_text(checkpoint_prefix)
    if checkpoint_format_version != V2:
        raise UnsupportedError(
            f"format version {checkpoint_format_version!r}; only V2 checkpoints ({V2}) are removed"
        )
    directory, base = os.path.split(prefix)
    if not base:
        raise InvalidError(f"prefix {prefix!r} names no file", failure="BAD_PATH")
    if not isinstance(meta_graph_suffix, str) or not re.fullmatch(r"[^/\0]+", meta_graph_suffix):
        raise InvalidError(f"meta_graph_suffix {meta_graph_suffix!r} is no end of a file's name")
    if not os.path.isdir(directory or "."):
        return
    with open_directory(directory) as directory_fd:
        found = sorted(
            name
            for name in os.listdir(directory_fd)
            if (data := names.parse_data_name(name)) is not None and data.prefix == base
        )
        if _removed(directory_fd, directory, names.index_name(base)) and found:
            # A power cut must not leave an index whose data files are gone.
            try:
                os.fsync(directory_fd)
            except OSError as error:
                raise_storage(error, directory or ".")
        for name in (*found, f"{_SHARDED.sub('', base)}.{meta_graph_suffix}"):
            _removed(directory_fd, directory, name)


def _removed(directory_fd: int, directory: str, name: str) -> bool:
    """Whether there was such a file to remove."""
    try:
        os.unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise_storage(error, os.path.join(directory, name))
    return True
