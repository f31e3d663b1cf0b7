# SPDX-License-Identifier: Apache-2.0
"""Plain files that are written beside checkpoints, such as reports and arrays. They only replace
files of their own kind, never a file of a checkpoint."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from ckptfmt._base import foreign
from ckptfmt._base.names import parse_data_name, path_text
from ckptfmt.errors import InvalidError, storage_errors
from ckptfmt.files.folder import split
from ckptfmt.files.locate import kind_of_file
from ckptfmt.files.orphans import METRICS_NAME
from ckptfmt.files.state_file import STATE_NAME
from ckptfmt.files.temporary import open_directory, replacing_file

# By kind of output, what an existing file must be to be replaced, by its first bytes.
_REPLACED = {"html": ("an HTML file", foreign.HTML), "npy": ("a .npy file", foreign.NPY)}

# Names of open files: to rename a file to one of them would replace the name.
_DESCRIPTORS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


def checkpoint_files(prefix: str) -> Iterator[str]:
    """Yield the paths of the files of a checkpoint: its index and data files. A checkpoint of an
    object store has none."""
    folder, name = split(prefix)
    return folder.local_files(name)


def output_path(
    path: str | bytes | os.PathLike[Any],
    reading: Iterable[str] = (),
    *,
    kind: Literal["html", "npy"] | None = None,
    regular: bool = False,
) -> str:
    """Return the path of a plain file that is to be written, as `path_text`.

    Args:
        path: as the caller gave it.
        reading: the files that are read to make it.
        kind: what is written. An existing file must be of this kind, or empty; None: any file is
            replaced.
        regular: whether a FIFO or a device is refused.

    Raises:
        InvalidError: `path_text` refuses it; it has no file name or is a directory; it has the name
            of a checkpoint's file, or is a link to such a name; it is one of the files in `reading`
            under any name; it is a file of another kind.
    """
    text = path_text(path)
    if not os.path.basename(text):
        raise _refused(text, "has no file name")
    if any(map(_is_checkpoint_name, (text, os.path.realpath(text)))):
        why = "is the name of a checkpoint's file, or a link to one: choose another name"
        raise _refused(text, why)
    try:
        found = os.stat(text)
    except OSError:
        return text  # a new file; writing it reports any other error
    if stat.S_ISDIR(found.st_mode):
        raise _refused(text, "is a directory: add a file name")
    if regular and not stat.S_ISREG(found.st_mode):
        raise _refused(text, "must be a regular file")
    for file in reading:
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.stat(file)):
                why = f"is a file that is being read, {file!r}: choose another name"
                raise _refused(text, why)
    if kind is not None and found.st_size and not _is_stream(text):
        ours, replaced = _REPLACED[kind]
        existing = kind_of_file(text)
        if existing != replaced:
            why = f"exists and is {existing.what}; only {ours} is replaced"
            raise _refused(text, f"{why}: choose another name, or remove the file first")
    return text


def _refused(path: str, why: str) -> InvalidError:
    return InvalidError(f"output {path!r} {why}", failure="BAD_PATH")


def _is_checkpoint_name(path: str) -> bool:
    name = os.path.basename(path)
    return (
        name.endswith(".index")
        or parse_data_name(name) is not None
        or name in (STATE_NAME, METRICS_NAME)
    )


@contextlib.contextmanager
def writing_file(path: str) -> Iterator[Callable[[bytes], object]]:
    """Write a plain file in the `with` block; yields a function that appends bytes.

    A regular file appears, or is replaced, by rename when the block ends; an exception leaves the
    old one. A FIFO or a device is written directly.

    Args:
        path: as `output_path` returned it.

    Raises:
        StorageError: the file cannot be written.
    """
    if not _is_stream(path):
        with (
            open_directory(os.path.dirname(path)) as directory,
            replacing_file(directory, path, "none") as (_, fd),
            open(fd, "wb", closefd=False) as file,
        ):
            yield file.write
        return
    with storage_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY)
        with open(descriptor, "wb") as file:
            yield file.write


def _is_stream(path: str) -> bool:
    if os.path.abspath(path).startswith(_DESCRIPTORS):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
