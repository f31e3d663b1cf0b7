# SPDX-License-Identifier: Apache-2.0
"""What `ckptfmt.stores` needs of an object store's client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from ckptfmt._core import ObjectInfo


class BodyError(OSError):
    """An answer did not arrive, or not whole: worth another request."""


class Body(NamedTuple):
    """Bytes of an object.

    Attributes:
        chunks: in order; fewer bytes than were asked for if the body ended before.
        info: of the object that they are part of.
        problem: why there are fewer, if that is known.
    """

    chunks: Sequence[Any]
    info: ObjectInfo
    problem: BodyError | None = None

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(map(len, self.chunks))


class Upload(Protocol):
    """An object that is being written, part by part."""

    def write(self, data: bytes) -> None:
        """Append bytes."""

    def close(self) -> None:
        """The object is complete and visible."""

    def abort(self) -> None:
        """Nothing of it remains. After `close`: does nothing."""


class Client(Protocol):
    """Objects by key, for any number of threads. What fails raises OSError, FileNotFoundError for a
    missing object, BodyError for what is worth another request. Each call ends when the server has
    moved no byte for a while, and at once when the waiting thread is interrupted."""

    def key(self, rest: str) -> str:
        """Return the key for what follows the root in a URL."""

    def head(self, key: str) -> ObjectInfo:
        """Size and etag."""

    def get_async(self, key: str, start: int, end: int) -> Future[Body]:
        """Bytes [start, end), which are not in memory of the caller's."""

    def tail(self, key: str, size: int) -> Body:
        """The last `size` bytes, or all."""

    def list(self, directory: str) -> tuple[dict[str, float | None], list[str]]:
        """The last parts of the keys right below a directory, each with the time when the object
        was last written (seconds since 1970, None if the store does not say), and of the
        directories there."""

    def list_after(self, directory: str, after: str) -> Iterator[tuple[str, ObjectInfo]]:
        """The keys below a directory that are greater than `after`, in order; ENOTSUP if the store
        has no such listing."""

    def put(self, key: str, data: bytes, replaces: str | None) -> str:
        """Write a small object if the etag is still `replaces`, or, with None, if there is none.
        Return its etag.

        Raises FileExistsError otherwise."""

    def upload(self, key: str) -> Upload:
        """Begin a large object; one that exists is replaced in the end."""

    def copy(self, source: str, target: str) -> None:
        """Copy within the store, replacing the target."""

    def remove(self, key: str) -> None:
        """Remove an object; a missing one is not an error."""
