# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: a training state for a CheckpointManager."""

from __future__ import annotations

from typing import Any

import torch

from ckptfmt._base.arguments import invalid
from ckptfmt._base.background import wait_for_saves
from ckptfmt.bundle.saving import collect
from ckptfmt.bundle.writer import metadata_json
from ckptfmt.errors import InvalidError
from ckptfmt.manager.adapted import AdapterCheckpoint, Begun
from ckptfmt.recipe.load import MatchReport
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.shards import Save
from ckptfmt.sharded.coordinator import Coordinator
from ckptfmt.torch.coordinator import TorchCoordinator
from ckptfmt.torch.state import check_target, load_into, rank_and_size, taken_apart


class Checkpoint(AdapterCheckpoint):
    """A training state that a CheckpointManager saves and restores.

    A checkpoint is what `ckptfmt.torch.save` writes, and `ckptfmt.torch.load` and `load_into` read
    it. A restore is `load_into` of the whole state, strict: Python values of dicts, such as a step,
    are replaced in their dicts, at any depth, so that `checkpoint.state["step"]` is the stored one.

    Where `torch.distributed` has several processes, each makes a Checkpoint and a manager of the
    same arguments, and all call the same methods in the same order: they save and load their shards
    together, by torch.distributed.checkpoint. Any number of processes continues what another one
    saved, or the restore is refused before anything is changed. The data of a tensor that is
    damaged are found while tensors are filled: `restore_latest` verifies them first.

    Example:
        checkpoint = ckptfmt.torch.Checkpoint({"model": model, "optimizer": optimizer, "step": 0})
        manager = ckptfmt.CheckpointManager(checkpoint, "run", max_to_keep=3)
        manager.restore_or_initialize()

    Args:
        state: what `ckptfmt.torch.load_into` loads into: a module, another object with
            `load_state_dict`, or a dict of these, tensors and Python values.
        coordinator: joins several processes; by default a TorchCoordinator over a gloo group of all
            of them. That group, which also carries the saves, is made by the constructor, so that
            all processes call it.
        options: how a save is made that gets no options of its own.

    Attributes:
        state: as given; a save takes what it has then.
        coordinator: None in one process.

    Raises:
        InvalidError: a state that cannot be restored; an option that has no meaning here; in
            several processes, an optimizer whose parameters are not those of exactly one module.
    """

    def __init__(
        self,
        state: Any,
        *,
        coordinator: Coordinator | None = None,
        options: CheckpointOptions | None = None,
    ) -> None:
        check_target("Checkpoint(state)", "state", state)
        super().__init__(options)
        self.state = state
        self._group: Any = None
        self._made: TorchCoordinator | None = None
        if rank_and_size()[1] > 1:
            wait_for_saves()  # of another Checkpoint, with the same coordinator
            self._group = torch.distributed.new_group(backend="gloo")
            if coordinator is None:
                coordinator = self._made = TorchCoordinator(self._group)
        elif coordinator is not None:
            raise invalid("coordinator", "a coordinator joins several processes, and this is one")
        self.coordinator = coordinator
        if coordinator is not None:
            self._rank_state()

    def close(self) -> None:
        """Wait for the background save, and destroy the group that the constructor made."""
        self.sync()
        if self._made is not None:
            self._made.close()
        group, self._group = self._group, None
        if group is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(group)

    def _is_alone(self) -> bool:
        if self._group is None and rank_and_size()[1] > 1:
            raise InvalidError(
                "make the Checkpoint when torch.distributed is initialised, and do not close it"
            )
        return self._group is None

    def _save(self, path: str, options: CheckpointOptions) -> Begun:
        if not self._is_alone():
            together, queue = _ranks(), self._ckptfmt_queue
            begun: Begun = together.RankSave(
                self._rank_state(), path, options, queue, self._group, self.coordinator
            )
            return begun
        packed, metadata = taken_apart(self.state, None, options.level)
        sources = collect(packed.tensors)
        text = metadata_json(metadata, options.level)
        return Save(lambda *_: ([], [sources]), path, options, self._ckptfmt_queue, metadata=text)

    def _load(self, path: str) -> MatchReport:
        if self._is_alone():
            return load_into(self.state, path)
        report: MatchReport = self._rank_state().load(path, self._group, self.coordinator)
        return report

    def _rank_state(self) -> Any:
        return _ranks().agreed(self.coordinator, lambda: _ranks().RankState(self.state))


Checkpoint.__module__ = "ckptfmt.torch"


def _ranks() -> Any:
    # DCP takes half a second to import.
    from ckptfmt.torch import ranks  # noqa: PLC0415

    return ranks
