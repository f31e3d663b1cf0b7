# SPDX-License-Identifier: Apache-2.0
"""The state file of a directory, named `checkpoint`, and TensorFlow's functions around it.

The functions take TensorFlow's arguments and give its answers and bytes. Paths are literal, where
TensorFlow expands patterns. A state file is replaced as a whole and durably. None of the functions
here checks that the checkpoints that a state file names exist or are in its directory;
`ckptfmt.latest_checkpoint` does.

The content is a CheckpointState message in protobuf's text format, one `field: value` a line, as
TensorFlow writes it. Edited by hand, it may also have blank lines, `#` comments, spaces and single
quotes, and a byte order mark; a single field that repeats has its last value. Other forms of
protobuf's text format are refused as damaged. A path that is not UTF-8, which protobuf cannot
represent, is written with octal escapes and read back from them; TensorFlow refuses a state file
with such a path.

    state  = { [ field ":" value ] [ comment ] newline }
    value  = string | decimal | "inf" | "-inf" | "nan"
    string = quote { character | escape } quote
    escape = "\\" ( one of abfnrtv"'\\ | 1 to 3 octal digits | "x" 2 hexadecimal digits )
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ckptfmt import _core
from ckptfmt._base import names
from ckptfmt._base.arguments import Durability, check_choice, check_switch, invalid, listed, wrong
from ckptfmt._base.names import path_text
from ckptfmt.errors import (
    CkptfmtWarning,
    CorruptError,
    InvalidError,
    LimitError,
    StorageError,
    UnsupportedError,
    storage_errors,
)
from ckptfmt.files.folder import split
from ckptfmt.files.places import is_directory, is_there, modified, read_file

Path = str | bytes | os.PathLike[Any]

STATE_NAME = "checkpoint"
STATE_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class CheckpointState:
    """The checkpoints of a directory.

    Attributes:
        model_checkpoint_path: prefix of the newest one; empty if none is named.
        all_model_checkpoint_paths: prefixes of those not yet deleted, oldest first.
        all_model_checkpoint_timestamps: when each was made, seconds since 1970; may be empty.
        last_preserved_timestamp: when the last one that is kept permanently was made; None if the
            file does not say.
    """

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: tuple[str, ...] = ()
    all_model_checkpoint_timestamps: tuple[float, ...] = ()
    last_preserved_timestamp: float | None = None


CheckpointState.__module__ = "ckptfmt.tf"


V2 = 2  # of SaverDef.CheckpointFormatVersion

_SHARDED = re.compile(r"-[\d?]+-of-\d+$")


def state_path(directory: str, latest_filename: Path | None) -> str:
    """Return the path of a directory's state file."""
    name = STATE_NAME if latest_filename is None else path_text(latest_filename, "latest_filename")
    if not os.path.basename(name):
        raise invalid(
            "latest_filename", f"latest_filename {name!r} has no file name", failure="BAD_PATH"
        )
    return os.path.join(directory, name)


# ---- the state file ------------------------------------------------------------------------------


def get_checkpoint_state(
    checkpoint_dir: Path, latest_filename: Path | None = None
) -> CheckpointState | None:
    """Read a directory's state file, with relative paths joined to the directory.

    Args:
        checkpoint_dir: the directory.
        latest_filename: name of the state file in it; default "checkpoint".

    Returns:
        The state; None if there is no such file, or (with a CkptfmtWarning) if it cannot be read.

    Raises:
        InvalidError: the state does not name a newest checkpoint.
    """
    directory = path_text(checkpoint_dir, "checkpoint_dir", urls=True)
    path = state_path(directory, latest_filename)
    try:
        state = read_state_file(path)
    except (CorruptError, LimitError, StorageError) as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            warnings.warn(f"{error}; the state file is ignored", CkptfmtWarning, stacklevel=2)
        return None
    if not state.model_checkpoint_path:
        raise InvalidError(f"Invalid checkpoint state loaded from {directory}", path=path)

    def joined(path: str) -> str:
        return path if names.is_url(path) else os.path.join(directory, path)

    return replace(
        state,
        model_checkpoint_path=joined(state.model_checkpoint_path),
        all_model_checkpoint_paths=tuple(map(joined, state.all_model_checkpoint_paths)),
    )


def read_state_file(path: str) -> CheckpointState:
    """Read and parse the state file at `path`.

    Raises:
        StorageError: it cannot be read, or is not a regular file: to open a pipe would block.
        CorruptError, LimitError: it is not a state file.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise StorageError("not a regular file", path=path, errno=errno.EINVAL)
    with storage_errors(path):
        content = read_file(path, STATE_BYTES_MAX + 1)
    return parse_state(content, path)


def update_checkpoint_state(
    save_dir: Path,
    model_checkpoint_path: Path,
    all_model_checkpoint_paths: Iterable[Path] | None = None,
    latest_filename: Path | None = None,
    all_model_checkpoint_timestamps: Iterable[float] | None = None,
    last_preserved_timestamp: float | None = None,
    *,
    save_relative_paths: bool = False,
    durability: Durability = "full",
) -> None:
    """Replace a directory's state file.

    Args:
        save_dir: the directory. If it is a relative path, the relative paths below are taken from
            the working directory, and written relative to `save_dir`.
        model_checkpoint_path: prefix of the newest checkpoint.
        all_model_checkpoint_paths: prefixes of all checkpoints, oldest first; the newest is
            appended if it is not the last.
        latest_filename: name of the state file; default "checkpoint".
        all_model_checkpoint_timestamps: when each was made, seconds since 1970.
        last_preserved_timestamp: when the last one that is kept permanently was made.
        save_relative_paths: write absolute paths relative to `save_dir` too, so that the directory
            can be moved.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back. A
            state file is not, so that "none" is as "rename".

    Raises:
        InvalidError: an empty path; numbers of timestamps and paths that differ; the newest path,
            as written, is that of the state file.
        LimitError: more than a state file may contain.
        StorageError: it could not be written; the old one is unchanged.
        DurabilityUnknownError: it is in place, but a power cut may bring the old one back.
    """
    check_choice("durability", durability, _core.DURABILITY)
    check_switch("save_relative_paths", save_relative_paths)
    directory = path_text(save_dir, "save_dir", urls=True)
    path = state_path(directory, latest_filename)
    newest = path_text(model_checkpoint_path, "model_checkpoint_path", urls=True)
    given = (
        []
        if all_model_checkpoint_paths is None
        else listed("all_model_checkpoint_paths", all_model_checkpoint_paths, "paths")
    )
    if not newest or not all(given):
        raise InvalidError("the path of a checkpoint is empty", failure="BAD_PATH")
    newest = _as_written(newest, directory, save_relative_paths)
    if newest == path:
        raise InvalidError(
            f"Save path '{newest}' conflicts with path used for checkpoint state.  Please use a "
            "different save path.",
            failure="BAD_PATH",
        )
    texts = [path_text(one, "all_model_checkpoint_paths", urls=True) for one in given]
    paths = [_as_written(text, directory, save_relative_paths) for text in texts]
    if not paths or paths[-1] != newest:
        paths.append(newest)
    timestamps = _timestamps(all_model_checkpoint_timestamps)
    if timestamps and len(timestamps) != len(paths):
        raise invalid(
            "all_model_checkpoint_timestamps",
            "Checkpoint timestamps, if provided, must match checkpoint paths (got paths "
            f"{_some(paths)} and timestamps {_some(timestamps)})",
        )
    preserved = last_preserved_timestamp
    if preserved is not None:
        preserved = _timestamp(preserved, "last_preserved_timestamp")
    content = format_state(CheckpointState(newest, tuple(paths), timestamps, preserved))
    folder, name = split(path, durability=durability)
    with folder.opened() as place:
        place.write_state(name, content)


def _as_written(path: str, directory: str, relative: bool) -> str:
    if names.is_url(path):
        return path.removeprefix(os.path.join(directory, ""))
    if names.is_url(directory):
        return path
    if os.path.isabs(path):
        return os.path.relpath(path, directory) if relative else path
    return path if os.path.isabs(directory) else os.path.relpath(path, directory or ".")


def _timestamps(given: Iterable[float] | None) -> tuple[float, ...]:
    if given is None:
        return ()
    what = "all_model_checkpoint_timestamps"
    return tuple(_timestamp(one, what) for one in listed(what, given, "numbers"))


def _timestamp(value: Any, argument: str) -> float:
    if not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise wrong("a timestamp", "a number of seconds", value, argument)


def _some(values: Sequence[Any]) -> str:
    shown = ", ".join(map(repr, values[:8]))
    return f"[{shown}]" if len(values) <= 8 else f"[{shown}, ... {len(values)}]"


# ---- checkpoints ---------------------------------------------------------------------------------


def checkpoint_exists(checkpoint_prefix: Path) -> bool:
    """Return whether `<prefix>.index` exists, or, as in TensorFlow, anything at the prefix.

    Raises:
        StorageError: it cannot be looked up now.
    """
    prefix = path_text(checkpoint_prefix, "checkpoint_prefix", urls=True)
    return is_there(names.index_name(prefix)) or is_there(prefix)


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[Path]) -> list[float]:
    """Return the modification times of index files (without one, of the prefix itself).

    The times are whole seconds since 1970, as TensorFlow's. Checkpoints that do not exist are left
    out: the list may be shorter than `checkpoint_prefixes`.

    Raises:
        StorageError: one cannot be looked up now.
        UnsupportedError: its store does not say when it was written.
    """
    found = []
    for given in listed("checkpoint_prefixes", checkpoint_prefixes, "prefixes"):
        prefix = path_text(given, "checkpoint_prefixes", urls=True)
        for path in (names.index_name(prefix), prefix):
            if is_there(path):
                found.append(float(modified(path)))
                break
    return found


def remove_checkpoint(
    checkpoint_prefix: Path,
    checkpoint_format_version: int = V2,
    meta_graph_suffix: str = "meta",
) -> None:
    """Remove the files of one checkpoint: the index, then the data files, then the graph file that
    TensorFlow 1 wrote beside them and the intent of a merge.

    Only files of exactly these names are removed; of a link, the link. A file that does not exist
    is not an error.

    Args:
        checkpoint_prefix: the checkpoint.
        checkpoint_format_version: must be 2, `SaverDef.V2`.
        meta_graph_suffix: suffix of the graph file.

    Raises:
        UnsupportedError: another format version.
        InvalidError: a prefix or suffix without a file name.
        StorageError: a file could not be removed. The checkpoint is gone if its index is; another
            call removes the rest.
        BusyError: another process holds the directory's lock.
    """
    prefix = path_text(checkpoint_prefix, "checkpoint_prefix", urls=True)
    if checkpoint_format_version != V2:
        raise UnsupportedError(
            f"format version {checkpoint_format_version!r}; only V2 checkpoints ({V2}) are removed",
            argument="checkpoint_format_version",
        )
    folder, base = split(prefix)
    if not base:
        raise invalid(
            "checkpoint_prefix", f"prefix {prefix!r} has no file name", failure="BAD_PATH"
        )
    if not isinstance(meta_graph_suffix, str) or not re.fullmatch(r"[^/\0]+", meta_graph_suffix):
        raise invalid(
            "meta_graph_suffix",
            f"meta_graph_suffix must be the suffix of a file name, not {meta_graph_suffix!r}",
        )
    if not names.is_url(prefix) and not is_directory(folder.path or "."):
        return
    with folder.opened() as place:
        for error in place.remove_all([base]).values():
            raise error
        place.remove_file(f"{_SHARDED.sub('', base)}.{meta_graph_suffix}")
    folder.sweep_before_save(base)  # what a removal that failed left


# ---- reading -------------------------------------------------------------------------------------

_PATH, _PATHS = "model_checkpoint_path", "all_model_checkpoint_paths"
_NUMBER, _NUMBERS = "last_preserved_timestamp", "all_model_checkpoint_timestamps"
_ESCAPE = r"""\\(?:[abfnrtv"'\\]|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])|x[0-9a-fA-F]{2})"""
_STRING = "|".join(rf"{quote}(?:[^{quote}\\\n]++|{_ESCAPE})*+{quote}" for quote in "\"'")
_DECIMAL = r"-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|inf|nan)"
_SPACE = r"[ \t\r]*+"
_MARK = "\ufeff"  # a byte order mark
_VALUES = {_PATH: _STRING, _PATHS: _STRING, _NUMBER: _DECIMAL, _NUMBERS: _DECIMAL}
_FIELD = "|".join(rf"{n}{_SPACE}:{_SPACE}(?P<{n}>{value})" for n, value in _VALUES.items())
# Matches at every position of a file, so that `finditer` skips no byte. Blank lines and comments
# are matched together with the next field, so that their number does not add to the time.
_LINE = re.compile(
    rf"(?:\A{_MARK})?(?:[ \t\r\n]++|#[^\n]*+)*+"
    rf"(?:\Z|(?:{_FIELD}){_SPACE}(?:#[^\n]*+)?+(?:\n|\Z)|(?P<damaged>[^\n]{{1,40}}))".encode()
)


def parse_state(content: bytes, path: str | None = None) -> CheckpointState:
    """Parse the content of a state file.

    Args:
        content: the bytes.
        path: the file, for errors.

    Raises:
        CorruptError: not UTF-8, or a line that is not `field: value` of a CheckpointState.
        LimitError: more than `STATE_BYTES_MAX` bytes.
    """
    if len(content) > STATE_BYTES_MAX:
        raise LimitError(f"more than {STATE_BYTES_MAX} bytes", path=path)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise _damaged("not UTF-8", path, error.start) from None
    found: dict[str, list[bytes]] = {name: [] for name in _VALUES}
    for match in _LINE.finditer(content):
        field = match.lastgroup
        if field == "damaged":
            line = match[field].decode(errors="ignore")
            message = f"expected a line 'field: value' of a CheckpointState, found {line!r}"
            raise _damaged(message, path, match.start(field))
        if field:
            found[field].append(match[field])
    return CheckpointState(
        next(map(_unquoted, found[_PATH][-1:]), ""),
        tuple(map(_unquoted, found[_PATHS])),
        tuple(map(float, found[_NUMBERS])),
        next(map(float, found[_NUMBER][-1:]), None),
    )


def _damaged(message: str, path: str | None, offset: int) -> CorruptError:
    return CorruptError(message, failure="BAD_PROTO", path=path, offset=offset)


def _unquoted(quoted: bytes) -> str:
    text = quoted[1:-1]
    if b"\\" in text:
        text = text.decode("unicode_escape").encode("latin-1")
    return text.decode("utf-8", "surrogateescape")


# ---- writing -------------------------------------------------------------------------------------

_TO_ESCAPES = {
    **{code: f"\\{code:03o}" for code in (*range(32), 127)},
    **{code: f"\\{letter}" for code, letter in zip(b"\t\n\r\"'\\", "tnr\"'\\", strict=True)},
    # Surrogate escapes: bytes that are not UTF-8.
    **{0xDC00 + byte: f"\\{byte:03o}" for byte in range(128, 256)},
}
_PLAIN = re.compile(r"[\w./ -]*+", re.ASCII)


def format_state(state: CheckpointState) -> bytes:
    """Return the content of a state file, as TensorFlow writes it.

    Raises:
        InvalidError: a path with half of a surrogate pair, which no file can have.
        LimitError: more than `STATE_BYTES_MAX` bytes, which could not be read back.
    """
    lines = [_path_line(_PATH, state.model_checkpoint_path)] if state.model_checkpoint_path else []
    lines += [_path_line(_PATHS, path) for path in state.all_model_checkpoint_paths]
    lines += [f"{_NUMBERS}: {float(value)!r}\n" for value in state.all_model_checkpoint_timestamps]
    preserved = state.last_preserved_timestamp
    # protobuf omits a field of value 0, but not of -0.0.
    if preserved is not None and str(float(preserved)) != "0.0":
        lines.append(f"{_NUMBER}: {float(preserved)!r}\n")
    try:
        content = "".join(lines).encode()
    except UnicodeEncodeError as error:
        raise InvalidError(
            f"a path contains {error.object[error.start]!r}, which is not a character",
            failure="BAD_PATH",
        ) from None
    if len(content) > STATE_BYTES_MAX:
        raise LimitError(f"more than {STATE_BYTES_MAX} bytes")
    return content


def _path_line(name: str, path: str) -> str:
    text = path if _PLAIN.fullmatch(path) else path.translate(_TO_ESCAPES)
    return f'{name}: "{text}"\n'
