# SPDX-License-Identifier: Apache-2.0
"""Find the prefix of the checkpoint that a path means, or report what is there instead.

Paths are literal: patterns are not expanded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ckptfmt._base import foreign, names
from ckptfmt._base.foreign import LFS_POINTER, TABLE_MAGIC, Foreign
from ckptfmt._base.hints import some
from ckptfmt._base.names import path_text
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    InvalidError,
    LimitError,
    UnsupportedError,
    masked,
)
from ckptfmt.files.places import (
    entries,
    is_directory,
    is_file,
    names_in,
    read_ends,
)

HEAD_BYTES = 512
# What saves in progress and killed ones leave, TensorFlow's among them.
_TEMPORARY = re.compile(r".+_temp(_[0-9a-f]+)?", re.S)
# For a path in a text that is formatted.
_BRACES = str.maketrans({"{": "{{", "}": "}}"})


def locate(path: str | bytes | os.PathLike[Any], argument: str = "path") -> str:
    """Return the prefix of the checkpoint that `path` means.

    In this order: the prefix itself; its `.index` file or one of its data files; a
    directory with a `checkpoint` state file; a SavedModel; a directory with exactly one `.index`
    file.

    Raises:
        CheckpointNotFoundError: none of these; the message says what was found.
        UnsupportedError: a checkpoint of TensorFlow's V1 format, an archive, or a member of one.
        InvalidError: not a path, or a state file that names a path outside its directory.
        CorruptError, LimitError: the state file cannot be parsed.
    """
    return located(path_text(path, argument, urls=True))


def located(text: str) -> str:
    """As `locate`, of a path that `path_text` returned."""
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
        raise _refused_file(text)
    raise _not_found(text, _what_is_near(text))


def locate_all(directory: str | bytes | os.PathLike[Any]) -> Iterator[str]:
    """Yield the prefixes of all checkpoints in a directory and in those below it, in the order of
    their names, and then the one that a state file names and that is not there. Symbolic links to
    directories are not followed, and unfinished saves are left out.

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
        if stem == name or (unfinished and names.PART.fullmatch(stem)):
            continue
        path = os.path.join(directory, name)
        if stem in with_data or _is_index(path):
            yield path.removesuffix(".index")
    yield from _lost(directory)
    for name in sorted(directories):
        yield from _below(os.path.join(directory, name))


def _lost(directory: str) -> Iterator[str]:
    """Yield the checkpoint that a state file names and that is not there; or the directory itself,
    whose state file cannot be read."""
    from ckptfmt.files.state_paths import state_checkpoint  # noqa: PLC0415 (a prefix needs none)

    try:
        named = state_checkpoint(directory, quiet=True)
    except (CorruptError, LimitError):
        yield directory
    except InvalidError:  # it names nothing here
        return
    else:
        if named is not None and not is_file(names.index_name(named)):
            yield named


def _is_index(path: str) -> bool:
    try:
        head, tail = read_ends(path, len(LFS_POINTER), len(TABLE_MAGIC))
    except OSError:
        return True  # opening it reports why
    return tail == TABLE_MAGIC or head == LFS_POINTER


def _not_found(path: str, message: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(message, path=path)


def _in_directory(directory: str) -> str:
    from ckptfmt.files.state_paths import state_checkpoint  # noqa: PLC0415 (a prefix needs none)

    named = state_checkpoint(directory)
    if named is not None and is_file(names.index_name(named)):
        return named
    saved_model = os.path.join(directory, "variables", "variables")
    if is_file(names.index_name(saved_model)):
        return saved_model
    found = names_in(directory)
    prefixes = _prefixes_in(directory, found)
    if named is not None and is_file(named):
        raise _refused_file(named, prefixes)
    if named is not None:
        name = named.removeprefix(os.path.join(directory, ""))
        message = f"its `checkpoint` file names '{name}', which is not there"
    elif len(prefixes) == 1:
        return os.path.join(directory, prefixes[0])
    elif prefixes:
        message = "a directory with several checkpoints"
    elif kind := _kind_of_directory(directory, found):
        message = _refusal(kind, directory)
    else:
        message = "a directory without a checkpoint" + (
            f"; it holds {_some(found)}" if found else ", empty"
        )
    if prefixes:
        message += f"; open one of {_some(prefixes)}"
    elif data := list(filter(None, map(names.parse_data_name, found))):
        message += f"; {_missing_index(os.path.join(directory, data[0].prefix))}"
    raise _not_found(directory, message)


def _kind_of_directory(directory: str, found: list[str]) -> Foreign | None:
    """Return what a directory without a checkpoint is, by its names or those in its last step."""
    kind = _listed(directory, found)
    steps = [name for name in found if name[-1:].isdecimal()]
    if kind is None and steps:
        last = max(steps, key=lambda name: (len(name), name))
        step = os.path.join(directory, last)
        kind = _listed(step, names_in(step))
        if kind is not None:
            return kind._replace(what=f"a directory with '{last}', {kind.what}")
    return kind


def _listed(directory: str, found: list[str]) -> Foreign | None:
    """Return what a directory without a checkpoint is, by its names."""
    kind = foreign.by_listing(found)
    items = [os.path.join(directory, name) for name in found] if kind is foreign.ORBAX else []
    if ours := [item for item in items if is_file(os.path.join(item, "checkpoint.index"))]:
        return foreign.OUR_ORBAX._replace(instead=f"open {_some(ours)}".translate(_BRACES))
    return kind


def _refused_file(path: str, beside: Sequence[str] = ()) -> Exception:
    """Return the error about a file that is not a checkpoint, with the checkpoints beside it."""
    kind = kind_of_file(path)
    others = ""
    if beside:
        others = f"; the directory also holds V2 checkpoints, open one of {_some(beside)}"
    if kind is foreign.V1:
        return UnsupportedError(f"{kind.what}. {kind.reading}{others}", path=path)
    packed = kind in (foreign.TAR, foreign.ZIP)
    error = UnsupportedError if packed else CheckpointNotFoundError
    return error(_refusal(kind, path) + others, path=path)


def _refusal(kind: Foreign, path: str) -> str:
    """Return why this is not opened, and what reads it where it is."""
    elsewhere = kind.reading and names.is_url(path)
    return kind.refusal(path) + (". Download it first: that reads paths only" if elsewhere else "")


def _missing_index(prefix: str) -> str:
    index = names.index_name(prefix)
    other = _other_name(index)
    why = f": {other}" if other else ". It was not copied, or the save did not finish"
    return f"there are data files of '{os.path.basename(prefix)}' but no .index file{why}"


def _other_name(path: str) -> str:
    """Describe a file that is there instead of one that does not exist; "" if there is none."""
    directory, name = os.path.split(path)
    found = foreign.beside(name, names_in(directory or "."))
    if found is None:
        return ""
    other, kind = found
    return f"'{other}' is {kind.refusal(os.path.join(directory, other))}"


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
        return _missing_index(os.path.join(directory, stem))
    prefixes = _prefixes_in(directory, found)
    if prefixes:
        return f"the directory holds {_some(prefixes)}"
    return _other_name(names.index_name(os.path.join(directory, stem))) or _other_name(path)


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


def _some(values: Sequence[str]) -> str:
    return some([value or ".index" for value in values])


# ---- what a file is ------------------------------------------------------------------------------


def recognised(path: str) -> Foreign | None:
    """Return the other format of a file or directory, a URL included; None for a checkpoint, for
    what is not known, and for what does not exist.

    Raises:
        StorageError: it cannot be looked up now.
    """
    if is_file(names.index_name(path)):
        return None
    if is_file(path):
        try:
            kind = _kind_of_file(path)
        except OSError:
            return None  # opening it reports why
        return None if kind in (foreign.UNKNOWN, foreign.EMPTY) else kind
    if not is_directory(path):
        return None
    found = names_in(path)
    listed = foreign.by_listing(found)
    return None if holds_checkpoints(found) and listed is not foreign.DCP else listed


def holds_checkpoints(found: list[str]) -> bool:
    """Return whether a directory with these names is one of checkpoints."""
    return any(name == "checkpoint" or name.endswith(".index") for name in found)


def kind_of_file(path: str) -> Foreign:
    """Return what a file is, by its first bytes and its last ones."""
    try:
        return _kind_of_file(path)
    except OSError as error:
        return Foreign(f"a file that cannot be read ({error.strerror})")


def _kind_of_file(path: str) -> Foreign:
    head, tail = read_ends(path, HEAD_BYTES, len(TABLE_MAGIC))
    return foreign.by_head(path, head, tail)


def explained(error: CkptfmtError, prefix: str) -> CkptfmtError:
    """Return the error about a file of the checkpoint at `prefix`, and what the index file seems to
    be instead if its bytes show that."""
    path = unmasked(error.path or "", prefix)
    if error.failure in ("BAD_MAGIC", "TRUNCATED") and path is not None and path.endswith(".index"):
        try:
            kind = _kind_of_file(path)
        except OSError:
            return error
        if kind not in (foreign.V1, foreign.UNKNOWN):
            error.hint(f" ({kind.seems})")
    return error


def unmasked(shown: str, prefix: str) -> str | None:
    """Return the path of a file of the checkpoint at `prefix` that an error shows, which masks the
    credentials of URLs; None if that is not known."""
    path = prefix + shown.removeprefix(masked(prefix))
    if shown.startswith(masked(prefix)) and masked(path) == shown:
        return path
    return shown if masked(prefix) == prefix else None
