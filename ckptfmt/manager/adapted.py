# SPDX-License-Identifier: Apache-2.0
"""AdapterCheckpoint: what a CheckpointManager takes, of a framework's state that one call saves and
one call loads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

from ckptfmt._base.arguments import invalid
from ckptfmt._base.background import SaveFuture, SaveQueue, wait_for_saves
from ckptfmt._base.names import path_text, prefix_text
from ckptfmt._base.save_options import shared
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.sharded.coordinator import Coordinator
from ckptfmt.sharded.rounds import Team, agreed, compare_all

Path = str | bytes | os.PathLike[Any]
T = TypeVar("T")


class Begun(Protocol):
    """A save whose content is collected; `ckptfmt.saving.shards.Save` is one."""

    def run(self) -> str:
        """Save, and return the prefix."""

    def run_async(self) -> SaveFuture:
        """Save in the background; return once everything is copied."""


class AdapterCheckpoint:
    """The base class of `ckptfmt.torch.Checkpoint`, `ckptfmt.jax.Checkpoint` and
    `ckptfmt.keras.Checkpoint`. A subclass defines `_save` and `_load`.

    It has no `save_counter`: the manager numbers checkpoints by those in the directory, so that a
    checkpoint has nothing beside the state.

    Args:
        options: how a save is made that gets no options of its own; also those of a manager
            without options.

    Attributes:
        coordinator: joins several processes; None in one.
    """

    coordinator: Coordinator | None = None

    # Options of CheckpointOptions that these saves cannot follow.
    _unused: ClassVar[tuple[str, ...]] = (
        "check_replicas",
        "experimental_sharding_callback",
        "experimental_io_device",
        "experimental_skip_slot_variables",
    )

    def __init__(self, options: CheckpointOptions | None) -> None:
        self._ckptfmt_queue = SaveQueue()
        self._ckptfmt_options = CheckpointOptions()
        self._ckptfmt_options = self._chosen(options)

    def _chosen(self, options: CheckpointOptions | None) -> CheckpointOptions:
        """Return the options of a save or restore, checked."""
        if options is None:
            return self._ckptfmt_options
        chosen = CheckpointOptions.of(options)
        for name in self._unused:
            if getattr(chosen, name):
                kind = f"{type(self).__module__}.{type(self).__qualname__}"
                raise invalid("options", f"the option {name} cannot be used with {kind}")
        return chosen

    def write(self, prefix: Path, options: CheckpointOptions | None = None) -> str:
        """Save a checkpoint at exactly this prefix, and return the prefix as str."""
        return self._begun(prefix, options).run()

    def write_async(self, prefix: Path, options: CheckpointOptions | None = None) -> SaveFuture:
        """Save as `write` does, in the background, and return a future of the prefix once
        everything is copied. The next save waits for it, and raises its error if no caller asked
        the future."""
        return self._begun(prefix, options).run_async()

    def _begun(self, prefix: Path, options: CheckpointOptions | None) -> Begun:
        """Collect what is saved."""
        wait_for_saves()  # they use the coordinator

        def check() -> tuple[str, CheckpointOptions]:
            path, chosen = prefix_text(prefix, urls=True), self._chosen(options)
            self._ckptfmt_queue.settle()
            return path, chosen

        def compare(answers: list[bytes]) -> None:
            compare_all("have different options", list(map(bytes.decode, answers)))

        def common(found: tuple[str, CheckpointOptions]) -> bytes:
            return json.dumps(shared(found[1])).encode()

        return self._save(*self._agreed(check, common, compare))

    def _agreed(self, check: Callable[[], T], *compared: Any) -> T:
        """Return the result of `check`; if it failed in one process, all raise."""
        if self.coordinator is None:
            return check()
        team = Team(self.coordinator, type(self).__qualname__)
        found: T = agreed(team, check, *compared)
        return found

    def sync(self) -> None:
        """Wait for background saves to end. If the last one of this object failed and no caller
        asked its future, raise its error."""
        self._ckptfmt_queue.settle()

    def restore(self, path: Path, options: CheckpointOptions | None = None) -> Any:
        """Restore the state from what `ckptfmt.open` takes. Everything is checked before anything
        is changed. `options` are only checked."""

        def check() -> str:
            self._chosen(options)
            return path_text(path, "path", urls=True)

        wait_for_saves()
        return self._load(self._agreed(check))

    def _save(self, path: str, options: CheckpointOptions) -> Begun:
        """Collect what is saved. The save uses `self._ckptfmt_queue` and calls
        `options.after_write` in the end."""
        raise NotImplementedError

    def _load(self, path: str) -> Any:
        """Restore the state."""
        raise NotImplementedError
