# SPDX-License-Identifier: Apache-2.0
"""StoreDirectory: CheckpointDirectory for a URL. A store has no locks: one process at a time saves
into a directory, and what a killed writer leaves stays until it is removed by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

from ckptfmt._base.arguments import Durability
from ckptfmt._base.names import INTENT, index_name, parse_data_name
from ckptfmt.errors import StorageError
from ckptfmt.files.orphans import DATA
from ckptfmt.files.places import is_file, list_objects, read_object, remove_object, write_object
from ckptfmt.manager.directory import SMALL_BYTES_MAX, CheckpointDirectory


class StoreDirectory:
    """Checkpoints whose URLs begin with a directory's; the methods are those of
    CheckpointDirectory."""

    def __init__(self, url: str) -> None:
        self.path = url.rstrip("/")
        self.identity = (0, hash(self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude nothing."""
        yield

    def names(self) -> list[str]:
        """Return the names of all objects right below."""
        return list_objects(self.path)

    def exists(self, name: str) -> bool:
        """Return whether this checkpoint has an index; True also if that cannot be determined."""
        try:
            return is_file(self._path(index_name(name)))
        except StorageError:
            return True

    def read(self, name: str, limit: int = SMALL_BYTES_MAX) -> bytes | None:
        """Return the content of a small object, at most `limit` bytes and one, or None."""
        return read_object(self._path(name), limit + 1)

    def write_state(self, name: str, content: bytes, durability: Durability | None = None) -> None:
        """Replace a small object."""
        write_object(self._path(name), content)

    def remove_all(self, names: Iterable[str]) -> dict[str, StorageError]:
        """Remove checkpoints: all indexes first. Return the first error of each."""
        files = {name: [index_name(name), f"{name}{INTENT}"] for name in names}
        for file in self.names() if files else ():
            owner = file.rpartition(DATA)[0]
            if owner in files and parse_data_name(file) is not None:
                files[owner].append(file)
        failed: dict[str, StorageError] = {}
        for part in (slice(0, 1), slice(1, None)):
            for name in [name for name in files if name not in failed]:
                try:
                    for file in files[name][part]:
                        remove_object(self._path(file))
                except StorageError as error:
                    failed[name] = error
        return failed

    def sweep(self, checkpoint_name: str | None = "ckpt", **_options: Any) -> list[str]:
        """Remove nothing: without locks nobody knows which writers are alive."""
        return []

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}"


Directory = CheckpointDirectory | StoreDirectory
