# SPDX-License-Identifier: Apache-2.0
"""StoreFolder: LocalFolder for a URL. A store has no locks: one process at a time saves into a
directory, and what a killed writer leaves stays until `leftovers` removes it."""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from ckptfmt._base.arguments import Durability
from ckptfmt._base.names import INTENT, index_name, is_url, parse_data_name
from ckptfmt.errors import StorageError, storage_errors
from ckptfmt.files.local_folder import SMALL_BYTES_MAX
from ckptfmt.files.orphans import DATA, INDEX
from ckptfmt.files.places import is_file, read_file, store_of

if TYPE_CHECKING:
    from ckptfmt.stores.leftovers import Leftover


class StoreFolder:
    """A directory of checkpoints in an object store: what begins with its URL and a slash. The
    methods are those of LocalFolder."""

    scratch = None  # the system's own
    why_no_sweep = (
        "a store has no locks that show which writers are dead: --older-than HOURS, more than any "
        "save takes, lists what is so old, and --remove removes it"
    )

    def __init__(self, url: str) -> None:
        self.path = url if url.endswith("://") else url.rstrip("/")
        self.identity = (0, hash(self.path))
        self._begin = url if url.endswith("/") else f"{url}/"

    def opened(self) -> Self:
        """Return this object: there is nothing to open."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    # ---- what a store has not ------------------------------------------------------------------

    def absolute(self) -> Self:
        """Return this object: a URL depends on no working directory."""
        return self

    def make(self) -> None:
        """Do nothing: a store has no directories."""

    def remove_if_empty(self) -> None:
        """Do nothing: a store has no directories."""

    def sweep_before_save(self, name: str, *, numbered: bool = False) -> None:
        """Remove nothing: without locks nothing shows which writers are alive."""

    def sweep(self, checkpoint_name: str | None = "ckpt", **_options: Any) -> list[str]:
        """Remove nothing, as before a save."""
        return []

    def can_sweep(self) -> bool:
        """Return False: no locks show which writers are alive."""
        return False

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude nothing."""
        yield

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Claim nothing."""
        yield

    def local_files(self, name: str) -> Iterator[str]:
        """Yield nothing: the files are elsewhere."""
        yield from ()

    def links(self) -> Iterator[tuple[str, list[str]]]:
        """Yield nothing: a store has no links."""
        yield from ()

    # ---- objects -------------------------------------------------------------------------------

    def temporary(self, name: str, token: str | None = None) -> TemporaryObjects:
        """Return the place of the parts of a save of the checkpoint `name`."""
        return TemporaryObjects(self._path(name), token)

    def indexed(self) -> list[tuple[str, int]]:
        """Return the checkpoints in the directory, in no order, each with time 0."""
        return [(name[:-6], 0) for name in self.names() if name.endswith(INDEX) and name != INDEX]

    def inside(self, folder: str) -> str | None:
        """Return where a folder ("", "a/b/", "memory://a/b/") is, relative to this one; None
        outside."""
        rest = folder.removeprefix(self._begin)
        outside = is_url(rest) or rest.startswith("/") or ".." in rest.split("/")
        return None if outside else posixpath.normpath(rest)

    def leftovers(self, seconds: float, *, remove: bool) -> list[Leftover]:
        """Return what killed writers left at least so long ago; with `remove`, remove it.

        Raises:
            StorageError, UnsupportedError: as `ckptfmt.stores.leftovers`.
        """
        from ckptfmt.stores.leftovers import leftovers, remove_leftovers  # noqa: PLC0415

        return (remove_leftovers if remove else leftovers)(self._begin, seconds)

    def names(self) -> list[str]:
        """Return the names of all objects right below."""
        with storage_errors(self.path):
            return list(self._store().list(self._begin))

    def exists(self, name: str) -> bool:
        """Return whether this checkpoint has an index; True also if that cannot be determined."""
        try:
            return is_file(self._path(index_name(name)))
        except StorageError:
            return True

    def read(self, name: str, limit: int = SMALL_BYTES_MAX) -> bytes | None:
        """Return the content of a small object, at most `limit` bytes and one, or None."""
        try:
            return read_file(self._path(name), limit + 1)
        except FileNotFoundError:
            return None

    def write_state(self, name: str, content: bytes, durability: Durability | None = None) -> None:
        """Replace a small object."""
        with storage_errors(self._path(name)):
            self._store().replace(self._path(name), content)

    def remove_all(self, names: Iterable[str]) -> dict[str, StorageError]:
        """Remove checkpoints: all indexes first. Return the first error of each."""
        files = {name: [f"{name}{INTENT}"] for name in names}
        for file in self.names() if files else ():
            owner = file.rpartition(DATA)[0]
            if owner in files and parse_data_name(file) is not None:
                files[owner].append(file)
        failed: dict[str, StorageError] = {}
        indexes = [(owner, index_name(owner)) for owner in files]
        for owner, file in [*indexes, *((one, file) for one in files for file in files[one])]:
            if owner not in failed:
                try:
                    self.remove_file(file)
                except StorageError as error:
                    failed[owner] = error
        return failed

    def remove_file(self, name: str) -> None:
        """Remove an object; a missing one is not an error."""
        with storage_errors(self._path(name)):
            self._store().remove(self._path(name))

    def _store(self) -> Any:
        return store_of(self._begin)

    def _path(self, name: str) -> str:
        return f"{self._begin}{name}"


class TemporaryObjects:
    """TemporaryDirectory for a URL: nothing is made, and only the process that has drawn the name
    removes what is below it.

    Args:
        prefix: of the checkpoint that is saved.
        token: the random part of the name, if another process (process 0) has drawn it.
    """

    def __init__(self, prefix: str, token: str | None) -> None:
        self._joins = token is not None
        self.token = token or secrets.token_hex(8)
        self.path = f"{prefix}_temp_{self.token}"

    def make(self) -> None:
        """Do nothing: a store has no directories."""

    def release(self) -> None:
        """Do nothing: a store has no locks."""

    def leave(self) -> None:
        """Remove the objects, if this process has drawn the name."""
        if not self._joins:
            self.remove()

    def remove(self) -> None:
        """Remove the objects, as far as that is possible. Raises nothing."""
        with contextlib.suppress(OSError):
            folder = StoreFolder(self.path)
            for name in folder.names():
                folder.remove_file(name)
