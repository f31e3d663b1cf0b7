# SPDX-License-Identifier: Apache-2.0
"""Find the prefix of the checkpoint that a path means, or report what is there instead.

Paths are literal: patterns are not expanded.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from ckptfmt import names
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    UnsupportedError,
)
from ckptfmt.names import path_text
from ckptfmt.places import entries, is_directory, is_file, names_in, names_in_archive, read_ends

__all__ = ["describe_file", "explained", "locate", "locate_all"]

HEAD_BYTES = 512
TABLE_MAGIC = bytes.fromhex("57fb808b247547db")
LFS_POINTER = b"version https://git-lfs"
LISTED_MAX = 8
# What saves in progress and killed ones leave, TensorFlow's among them.
_TEMPORARY = re.compile(r".+_temp(_[0-9a-f]+)?", re.S)
_PART = re.compile(r"part-[0-9]{5,10}-of-[0-9]{5,10}")


def locate(path: str | bytes | os.PathLike[Any]) -> str:
    """Return the prefix of the checkpoint that `path` means.

    In this order: the prefix itself; its `.index` file or one of its data files; a
    directory with a `checkpoint` state file; a SavedModel; a directory with exactly one `.index`
    file; a .tar or .zip archive with exactly one, or with such a directory at its top.

    Raises:
        CheckpointNotFoundError: none of these; the message says what was found.
        UnsupportedError: a checkpoint of TensorFlow's V1 format.
        InvalidError: not a path, or a state file that names a path outside its directory.
        CorruptError, LimitError: the state file cannot be parsed.
    """
    text = path_text(path, urls=True)
    base = text.removesuffix(".index")
    if is_file(names.index_name(text)):
        return text
    if base != text and is_file(text):
        return base
    data = names.parse_data_name(text)
    if data is not None and is_file(names.index_name(data.prefix)):
        return data.prefix
    if data is not None and _data_files_near(data.prefix):
        raise _not_found(text, _missing_index(data.prefix))
    if is_directory(text):
        return _in_directory(text)
    if is_file(text):
        if text.endswith((".tar", ".zip")):
            return _in_archive(text)
        raise _refused_file(text)
    raise _not_found(text, _what_is_near(text))


def locate_all(directory: str | bytes | os.PathLike[Any]) -> Iterator[str]:
    """Yield the prefixes of all checkpoints in a directory and in those below it, in the order of
    their names. Symbolic links to directories are not followed, and unfinished saves are left out.

    An `.index` file belongs to a checkpoint if there are data files of its name, or if it ends as
    a table does, or if it is a Git LFS pointer: other programs use this extension as well.

    Raises:
        StorageError: a directory cannot be listed.
        InvalidError: not a path.
    """
    yield from _below(path_text(directory, urls=True))


def _below(directory: str) -> Iterator[str]:
    files, directories = entries(directory)
    with_data = {data.prefix for name in files if (data := names.parse_data_name(name))}
    unfinished = _TEMPORARY.fullmatch(os.path.basename(directory)) is not None
    for name in sorted(files):
        stem = name.removesuffix(".index")
        if stem == name or (unfinished and _PART.fullmatch(stem)):
            continue
        path = os.path.join(directory, name)
        if stem in with_data or _is_index(path):
            yield path.removesuffix(".index")
    for name in sorted(directories):
        yield from _below(os.path.join(directory, name))


def _is_index(path: str) -> bool:
    try:
        head, tail = read_ends(path, len(LFS_POINTER), len(TABLE_MAGIC))
    except OSError:
        return True  # opening it reports why
    return tail == TABLE_MAGIC or head == LFS_POINTER


def _not_found(path: str, message: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(message, path=path)


def _in_directory(directory: str) -> str:
    from ckptfmt.bundle.state_file import state_checkpoint  # noqa: PLC0415 (a prefix needs none)

    named = state_checkpoint(directory)
    if named is not None and is_file(names.index_name(named)):
        return named
    saved_model = os.path.join(directory, "variables", "variables")
    if is_file(names.index_name(saved_model)):
        return saved_model
    found = names_in(directory)
    prefixes = _prefixes_in(directory, found)
    if named is not None:
        message = f"its `checkpoint` file names '{os.path.basename(named)}', which is not there"
    elif len(prefixes) == 1:
        return os.path.join(directory, prefixes[0])
    elif prefixes:
        message = "a directory with several checkpoints"
    else:
        message = "a directory without a checkpoint" + (
            f"; it holds {_some(found)}" if found else ", empty"
        )
    if prefixes:
        message += f"; open one of {_some(prefixes)}"
    elif data := [name for name in found if names.parse_data_name(name)]:
        message += f"; {data[0]} has no index: its save did not finish"
    raise _not_found(directory, message)


def _in_archive(archive: str) -> str:
    found = names_in_archive(archive)
    prefixes = [name.removesuffix(".index") for name in found if name.endswith(".index")]
    if len(prefixes) == 1:
        return f"{archive}!/{prefixes[0]}"
    if not prefixes:
        raise _not_found(
            archive,
            "an archive without a checkpoint"
            + (f"; it holds {_some(found)}" if found else ", empty"),
        )
    with contextlib.suppress(CheckpointNotFoundError):
        return _in_directory(f"{archive}!/")
    raise _not_found(
        archive,
        "an archive with several checkpoints; open one of "
        + _some([f"{archive}!/{prefix}" for prefix in prefixes]),
    )


def _refused_file(path: str) -> Exception:
    kind = describe_file(path)
    if kind == _V1_TABLE:
        return UnsupportedError(
            f"{kind}; only V2 checkpoints (an .index file and data files) are read", path=path
        )
    if kind == _STATE_FILE:
        return _not_found(path, f"{kind}; open its directory, '{os.path.dirname(path) or '.'}'")
    return _not_found(path, f"{kind}, no checkpoint of this format")


def _missing_index(prefix: str) -> str:
    name = os.path.basename(prefix)
    return f"there are data files of '{name}' but no .index file: the save did not finish"


def _what_is_near(path: str) -> str:
    """Describe what is near a path that does not exist, beginning with TensorFlow's words."""
    near = _near(path)
    message = "Failed to find any matching files for this prefix"
    return f"{message}; {near}" if near else message


def _near(path: str) -> str:
    directory, name = os.path.split(path)
    if not is_directory(directory or "."):
        return f"there is no directory '{directory}'"
    found = names_in(directory or ".")
    stem = name.removesuffix(".index")
    if _data_files_near(os.path.join(directory, stem)):
        return _missing_index(stem)
    prefixes = _prefixes_in(directory, found)
    if prefixes:
        return f"the directory holds {_some(prefixes)}"
    return ""


def _data_files_near(prefix: str) -> bool:
    directory, stem = os.path.split(prefix)
    directory = directory or "."
    return any(
        data is not None and data.prefix == stem and is_file(os.path.join(directory, name))
        for name in names_in(directory)
        for data in (names.parse_data_name(name),)
    )


def _prefixes_in(directory: str, found: list[str]) -> list[str]:
    return [
        name.removesuffix(".index")
        for name in found
        if name.endswith(".index") and is_file(os.path.join(directory, name))
    ]


def _some(values: list[str]) -> str:
    shown = ", ".join(f"'{value or '.index'}'" for value in values[:LISTED_MAX])
    return shown + (f" and {len(values) - LISTED_MAX} more" if len(values) > LISTED_MAX else "")


# ---- what a file is ------------------------------------------------------------------------------

_V1_TABLE = (
    "a table file: a checkpoint of TensorFlow's V1 format, or an .index file under another name"
)
_STATE_FILE = "the text file that names a directory's checkpoints"


def _is_html(head: bytes) -> bool:
    return head.lstrip().lower().startswith((b"<!doctype html", b"<html", b"<?xml"))


def _is_safetensors(head: bytes) -> bool:
    return (
        len(head) > 9
        and head[8:10] in (b'{"', b"{ ", b"{}")
        and int.from_bytes(head[:8], "little") < 1 << 40
    )


_KINDS: list[tuple[str, Callable[[bytes], bool]]] = [
    ("an empty file", lambda head: not head),
    (
        "a Git LFS pointer: the file itself was never fetched (`git lfs pull`)",
        lambda head: head.startswith(LFS_POINTER),
    ),
    ("an HTML page, as a download that failed leaves behind", _is_html),
    (
        _STATE_FILE,
        lambda head: re.match(rb"\s*(#[^\n]*\n\s*)*(all_)?model_checkpoint_path", head) is not None,
    ),
    ("an HDF5 file (Keras .h5 weights?)", lambda head: head.startswith(b"\x89HDF\r\n\x1a\n")),
    (
        "a zip archive (PyTorch, .keras or .npz?)",
        lambda head: head.startswith((b"PK\x03\x04", b"PK\x05\x06")),
    ),
    ("a gzip file", lambda head: head.startswith(b"\x1f\x8b")),
    ("a Zstandard file", lambda head: head.startswith(b"\x28\xb5\x2f\xfd")),
    ("a numpy .npy file", lambda head: head.startswith(b"\x93NUMPY")),
    ("a GGUF model", lambda head: head.startswith(b"GGUF")),
    ("a safetensors file", _is_safetensors),
    ("a Python pickle", lambda head: len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5),
]


def describe_file(path: str) -> str:
    """Guess what a file is from its first bytes, and from the magic number at its end."""
    try:
        head, tail = read_ends(path, HEAD_BYTES, len(TABLE_MAGIC))
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})"
    if tail == TABLE_MAGIC:
        return _V1_TABLE
    return next((kind for kind, matches in _KINDS if matches(head)), "a file of an unknown kind")


def explained(error: CkptfmtError) -> CkptfmtError:
    """Return the error, and what the index file seems to be instead where that is plain to see."""
    path = error.path or ""
    if error.failure in ("BAD_MAGIC", "TRUNCATED") and path.endswith(".index"):
        kind = describe_file(path)
        if not kind.startswith(("a table", "a file")):
            return CorruptError(
                f"{error.message} (it looks like {kind})",
                failure=error.failure,
                path=path,
                offset=error.offset,
            )
    return error
