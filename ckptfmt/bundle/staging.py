# SPDX-License-Identifier: Apache-2.0
"""Staging: a checkpoint is written as parts in a temporary directory beside it, which a merge then
moves into place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from ckptfmt import _core
from ckptfmt._base.arguments import Durability
from ckptfmt._base.names import sharded_filename
from ckptfmt.bundle.merge import common_store
from ckptfmt.errors import StorageError
from ckptfmt.files.folder import split


class Staging:
    """The parts of one checkpoint in a temporary directory.

    Args:
        prefix: of the checkpoint that is saved.
        token: the random part of the directory's name, if another process (process 0) has drawn it.
        durability: of the save.

    Attributes:
        directory: the directory, as `Folder.temporary` returns it.
    """

    def __init__(self, prefix: str, token: str | None = None, *, durability: Durability) -> None:
        self._prefix, self._durability = prefix, durability
        folder, name = split(prefix, durability=durability)
        self.directory = folder.temporary(name, token)

    def start(self) -> None:
        """Remove what killed saves of this checkpoint left, and create the directory."""
        _core.sweep_before_save(self._prefix)
        self.directory.make()

    def part(self, number: int = 0, count: int = 1) -> str:
        """Return the prefix of one of `count` parts. Sweeping recognises files by it (CMT-15)."""
        return sharded_filename(os.path.join(self.directory.path, "part"), number, count)

    def merge(
        self,
        parts: Sequence[str],
        *,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """Make the checkpoint of these bundles, all or nothing; they are removed, or swept."""
        try:
            _core.merge(
                parts,
                self._prefix,
                consume=True,
                allow_missing=False,
                durability=self._durability,
                limits=limits,
                store=common_store(parts, self._prefix),
            )
        except StorageError as error:
            if error.failure != "NOT_REMOVED":
                raise


@contextlib.contextmanager
def staged(prefix: str, durability: Durability) -> Iterator[Staging]:
    """Create the temporary directory of a checkpoint, and remove it at the end of the `with` block
    in any case."""
    staging = Staging(prefix, durability=durability)
    try:
        staging.start()
        yield staging
    finally:
        staging.directory.remove()
