# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: a training state for a CheckpointManager."""

from __future__ import annotations

from typing import Any

from ckptfmt.bundle.saving import collect
from ckptfmt.bundle.writer import metadata_json
from ckptfmt.errors import UnsupportedError
from ckptfmt.manager.adapted import AdapterCheckpoint
from ckptfmt.recipe.load import MatchReport
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.shards import Save
from ckptfmt.torch.state import check_target, load_into, rank_and_size, taken_apart


class Checkpoint(AdapterCheckpoint):
    """A training state that a CheckpointManager saves and restores.

    A checkpoint is what `ckptfmt.torch.save` writes, and `ckptfmt.torch.load` and `load_into` read
    it. A restore is `load_into` of the whole state, strict: Python values of dicts, such as a step,
    are replaced in their dicts, at any depth, so that `checkpoint.state["step"]` is the stored one.

    Example:
        checkpoint = ckptfmt.torch.Checkpoint({"model": model, "optimizer": optimizer, "step": 0})
        manager = ckptfmt.CheckpointManager(checkpoint, "run", max_to_keep=3)
        manager.restore_or_initialize()

    Args:
        state: what `ckptfmt.torch.load_into` loads into: a module, another object with
            `load_state_dict`, or a dict of these, tensors and Python values.
        options: how a save is made that gets no options of its own.

    Attributes:
        state: as given; a save takes what it has then.

    Raises:
        InvalidError: a state that cannot be restored; an option that has no meaning here.
        UnsupportedError: there are several processes of `torch.distributed`.
    """

    def __init__(self, state: Any, *, options: CheckpointOptions | None = None) -> None:
        check_target("Checkpoint(state)", "state", state)
        super().__init__(options)
        self.state = state
        _check_alone()

    def _save(self, path: str, options: CheckpointOptions) -> Save:
        _check_alone()
        packed, metadata = taken_apart(self.state, None, options.level)
        sources = collect(packed.tensors)
        text = metadata_json(metadata, options.level)
        return Save(lambda *_: ([], [sources]), path, options, self._ckptfmt_queue, metadata=text)

    def _load(self, path: str) -> MatchReport:
        _check_alone()
        return load_into(self.state, path)


Checkpoint.__module__ = "ckptfmt.torch"


def _check_alone() -> None:
    _, world_size = rank_and_size()
    if world_size > 1:
        raise UnsupportedError(
            f"this is one of {world_size} processes of torch.distributed: they save together with "
            "torch.distributed.checkpoint and ckptfmt.torch.dcp.StorageWriter (docs/dcp.md)"
        )
