# SPDX-License-Identifier: Apache-2.0
"""The exceptions of ckptfmt: one base class, and one class for each C status.

Each class names its C status and its failures; `ckptfmt._core` builds its tables from these names.
Lack of memory raises the builtin MemoryError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

__all__ = [
    "BusyError",
    "CheckpointNotFoundError",
    "CkptfmtError",
    "CkptfmtWarning",
    "CorruptError",
    "DurabilityUnknownError",
    "GenerationGoneError",
    "InvalidError",
    "LimitError",
    "MatchError",
    "MergeConflictError",
    "ShardMissingError",
    "ShardingError",
    "StorageError",
    "TensorNotFoundError",
    "UnsupportedError",
]


def __dir__() -> list[str]:
    return __all__


_RULE = re.compile(r"([A-Z]{3}-[0-9]+): ")
# The end of the stored names of variables of an object graph, which messages leave out.
VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
# Characters of a text from a file in a message, such as a tensor's name, and of a message.
NAME_SHOWN_MAX, MESSAGE_SHOWN_MAX = 200, 10_000


RESCUE = "`ckptfmt rescue`, ckptfmt.editing.rescue: write what is sound as a new checkpoint"


class CkptfmtError(Exception):
    """Base of all errors of this package.

    >>> try:
    ...     ckptfmt.open("nowhere")
    ... except ckptfmt.CkptfmtError as error:
    ...     print(type(error).__name__, error.status, error.failure, error.path)
    CheckpointNotFoundError NOT_FOUND CHECKPOINT_NOT_FOUND nowhere

    Attributes:
        message: one sentence, without file, tensor and offset. For a damaged file it starts with
            the rule of `spec/format.md` that is broken.
        status: who must act: "INVALID", "IO", "CORRUPT", "UNSUPPORTED", "NOT_FOUND", "LIMIT",
            "CONFLICT", "BUSY".
        failure: what exactly was wrong: "CHECKSUM", "TRUNCATED", "BAD_PATH", ...
        path: the file or prefix concerned, or None. Credentials of a URL are masked.
        offset: bytes from the start of that file, or None.
        tensor: name of the tensor concerned (bytes that are not UTF-8 as surrogate escapes), or
            None.
        errno: what the operating system answered, or None.
        argument: the name of the Python argument concerned, or None.
        report: the MatchReport, where `load_into` found that not everything matches; else None.
    """

    default_status: ClassVar[str] = ""
    failures: ClassVar[tuple[str, ...]] = ()
    # A note that every error of the class has.
    way_out: ClassVar[str | None] = None
    report: Any = None

    def __init__(
        self,
        message: str,
        *,
        failure: str | None = None,
        path: str | bytes | os.PathLike[Any] | None = None,
        offset: int | None = None,
        tensor: str | None = None,
        errno: int | None = None,
        argument: str | None = None,
    ) -> None:
        self._message = _told(message)
        super().__init__(self._message)
        self.status = self.default_status
        self.failure = failure or (self.failures[0] if self.failures else self.default_status)
        self.path = None if path is None else os.fsdecode(path)
        self.offset = offset
        self.tensor = tensor
        self.errno = errno
        self.argument = argument
        if self.way_out is not None:
            self.add_note(self.way_out)

    @property
    def message(self) -> str:
        """The sentence, with the credentials of URLs masked; `args` has it as well."""
        return self._message

    @property
    def rule(self) -> str | None:
        """The rule of `spec/format.md` that is broken, such as "BLK-4", or None."""
        found = _RULE.match(self._message)
        return found and found[1]

    def hint(self, text: str) -> None:
        """Append a hint to the message."""
        self._message += _told(text)
        self.args = (self._message,)

    def details(self) -> dict[str, Any]:
        """Return the keyword arguments that construct an error like this one."""
        names = ("failure", "path", "offset", "tensor", "errno", "argument")
        return {name: getattr(self, name) for name in names}

    @property
    def path(self) -> str | None:
        """The file or prefix concerned, with the credentials of a URL masked."""
        return self._path

    @path.setter
    def path(self, path: str | None) -> None:
        self._path = None if path is None else masked(path)

    def __str__(self) -> str:
        # For a caller's mistake, the class and the message say it all; "NONE" is that of a note.
        silent = self.status in ("INVALID", "NOT_FOUND") or self.failure == "NONE"
        head = "" if silent else self.failure
        if self.path:
            head += f" in {self.path}"
        if self.offset is not None:
            head += f" at offset {self.offset}"
        if self.tensor is not None:
            name = self.tensor.removesuffix(VALUE_SUFFIX) or self.tensor
            head += f", tensor '{shortened(name)}'"
        head = head.removeprefix(",").strip()
        return printable(f"{head}: {self.message}" if head else self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        state: dict[str, Any] = {}
        if hasattr(self, "__notes__"):
            state["__notes__"] = list(self.__notes__)
        if self.report is not None:
            state["report"] = self.report
        return _rebuild, (type(self), self.message, self.details()), state or None


class CkptfmtWarning(UserWarning):
    """A recoverable problem: the call succeeded, but the caller should know.

    >>> import warnings
    >>> ckptfmt.save("model", {"w": np.array([1e9])})
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
    ...     half = ckptfmt.load("model", cast="float16", allow_loss=True)
    """


@contextlib.contextmanager
def about(tensor: str | None = None, *, argument: str | None = None) -> Iterator[None]:
    """Add the names of the tensor and the argument to an error that is raised inside without."""
    try:
        yield
    except CkptfmtError as error:
        error.tensor = tensor if error.tensor is None else error.tensor
        if isinstance(error, InvalidError):
            error.argument = error.argument or argument
        raise


@contextlib.contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Raise an OSError about `path` as a StorageError."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.strerror or str(error), path=path, errno=error.errno) from None


def _rebuild(kind: type[CkptfmtError], message: str, details: dict[str, Any]) -> CkptfmtError:
    return kind(message, **details)


def shortened(text: str, most: int = NAME_SHOWN_MAX) -> str:
    """Return a text from a file for a message: its beginning and end if it is long, as a damaged
    one can be."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


# What a URL carries before its host, and the values of a query that sign it (S3, Azure, Google).
# The C library writes one slash where a URL has two.
# A password may contain slashes; a port does not.
# Of a text without the last "@" nothing that can be one is tried again: the time is linear.
_USER = re.compile(
    r"(?<=:/)(/?)(?:[^/?#\s\"<>]*@|[^/?#\s\"<>@:]*:(?![0-9]+/)[^?#\s\"<>@]*+(?:@|(?P<none>)))"
)
_SIGNED = re.compile(
    r"(?i)((?:[?&]|%3f|%26)(?:x-amz-(?:credential|signature|security-token)"
    r"|x-goog-(?:credential|signature)"
    r"|signature|sig|token|access_token|auth|key|api_?key|password))=[^&#\s]+"
)


def masked(text: str) -> str:
    """Return the text with the credentials of URLs masked, for messages, logs and listings."""
    if ":/" not in text:
        return text
    users = _USER.sub(lambda m: f"{m[1]}***@" if m["none"] is None else m[0], text)
    return _SIGNED.sub(r"\1=***", users)


def _told(message: str) -> str:
    # Masked before it is cut: the rest of a password is not known for one.
    return shortened(masked(message), MESSAGE_SHOWN_MAX)


def warn(message: str) -> None:
    """Warn at the line of the caller that called into this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ckptfmt."):
        level, frame = level + 1, frame.f_back
    warnings.warn(_told(message), CkptfmtWarning, stacklevel=level)


def masked_repr(result: Any) -> str:
    """Return the `repr` of a dataclass with a path, which may be a URL with credentials."""
    shown = [f"{one.name}={getattr(result, one.name)!r}" for one in dataclasses.fields(result)]
    return masked(f"{type(result).__qualname__}({', '.join(shown)})")


def printable(text: str) -> str:
    """Return the text with everything escaped that could drive a terminal or break a log line or
    its encoding."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class CorruptError(CkptfmtError):
    """A file breaks a rule of the format: it is damaged, cut short, forged or not all merged.

    >>> ckptfmt.save("model", {"w": np.ones(3)})
    >>> with open("model.data-00000-of-00001", "r+b") as file:
    ...     _ = file.write(b"?")
    >>> try:
    ...     ckptfmt.load("model")
    ... except ckptfmt.CorruptError as error:
    ...     print(error.failure, error.tensor)
    CHECKSUM w
    """

    way_out = RESCUE
    default_status = "CORRUPT"
    failures = (
        "BAD_MAGIC",
        "TRUNCATED",
        "CHECKSUM",
        "BAD_BLOCK",
        "BAD_ORDER",
        "BAD_PROTO",
        "BAD_HEADER",
        "BAD_DTYPE",
        "BAD_SHAPE",
        "BAD_SLICE",
        "BAD_ENTRY",
        "BAD_CHUNK",
    )


class UnsupportedError(CkptfmtError):
    """Well formed, but of a version or kind that this release does not read or write.

    >>> import tarfile
    >>> tarfile.open("model.tar", "w").close()
    >>> try:
    ...     ckptfmt.open("model.tar")
    ... except ckptfmt.UnsupportedError as error:
    ...     print(error.path)
    model.tar
    """

    default_status = "UNSUPPORTED"
    failures = ("UNSUPPORTED",)


class LimitError(CkptfmtError):
    """More than the limits in force allow; they can be raised (`ckptfmt.open(..., limits=...)`)."""

    default_status = "LIMIT"
    failures = ("LIMIT",)


class InvalidError(CkptfmtError, ValueError):
    """Wrong argument, closed handle, or unusable path.

    >>> try:
    ...     ckptfmt.save("model", {"w": np.ones(3)}, level="v3")
    ... except ckptfmt.InvalidError as error:
    ...     print(error.argument)
    level
    """

    default_status = "INVALID"
    failures: ClassVar[tuple[str, ...]] = ("ARGUMENT", "BAD_PATH")


class MatchError(InvalidError, AssertionError):
    """The caller asserted that a checkpoint and its objects match, and they do not."""

    failures = ("MATCH",)


class ShardingError(InvalidError, RuntimeError):
    """A sharding callback lost or changed a tensor, or returned something other than shards."""

    failures = ("SHARDING",)


class TensorNotFoundError(CkptfmtError, KeyError):
    """The checkpoint has no tensor of this name.

    >>> ckptfmt.save("model", {"layer/kernel": np.ones(3)})
    >>> try:
    ...     ckptfmt.load("model", ["layer/kernal"])
    ... except ckptfmt.TensorNotFoundError as error:
    ...     print(error.tensor)
    layer/kernal
    """

    default_status = "NOT_FOUND"
    failures = ("TENSOR_NOT_FOUND",)


class StorageError(CkptfmtError, OSError):
    """The operating system refused or failed; `errno` and `filename` as in OSError. The failure
    "NOT_REMOVED": the result of a merge is in place, but an input could not be removed.

    >>> import errno
    >>> open("file", "w").close()
    >>> try:
    ...     ckptfmt.save("file/model", {"w": np.ones(3)})
    ... except ckptfmt.StorageError as error:
    ...     print(error.failure, error.errno == errno.ENOTDIR)
    OS True
    """

    default_status = "IO"
    failures: ClassVar[tuple[str, ...]] = ("OS", "NOT_REMOVED")
    # Both bases have these; an OSError keeps them in the object itself.
    errno: int | None
    filename: str | None

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.filename = self.path


class ShardMissingError(StorageError):
    """A data file that the index names does not exist."""

    way_out = RESCUE
    failures = ("SHARD_MISSING",)


class GenerationGoneError(StorageError):
    """The checkpoint was replaced while it was being read, and its data files are gone."""

    failures = ("GENERATION_GONE",)


class DurabilityUnknownError(StorageError):
    """The new checkpoint is in place, but the final sync failed: a power cut may bring the old one
    back, whole."""

    failures = ("DURABILITY_UNKNOWN",)


class CheckpointNotFoundError(StorageError, FileNotFoundError):
    """There is no checkpoint at this path; the message says what was found instead.

    >>> try:
    ...     ckptfmt.open("nowhere")
    ... except FileNotFoundError as error:
    ...     print(type(error).__name__, error.path)
    CheckpointNotFoundError nowhere
    """

    default_status = "NOT_FOUND"
    failures = ("CHECKPOINT_NOT_FOUND",)


class MergeConflictError(CkptfmtError, ValueError):
    """The inputs of a merge contradict each other."""

    default_status = "CONFLICT"
    failures = ("MERGE_CONFLICT",)


class BusyError(CkptfmtError):
    """Another process or thread holds a lock that is needed."""

    default_status = "BUSY"
    failures = ("BUSY",)


def classes() -> tuple[dict[str, type[CkptfmtError]], dict[str, type[CkptfmtError]]]:
    """Return the class of each failure, and the general class of each status."""
    by_failure: dict[str, type[CkptfmtError]] = {}
    by_status: dict[str, type[CkptfmtError]] = {}
    # Breadth first: the general class of a status comes before its special cases.
    waiting = list(CkptfmtError.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        by_status.setdefault(kind.default_status, kind)
        by_failure.update(dict.fromkeys(kind.failures, kind))
        waiting += kind.__subclasses__()
    return by_failure, by_status
