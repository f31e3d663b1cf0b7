# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: a pytree for a CheckpointManager."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ckptfmt.errors import warn
from ckptfmt.jax.checkpoint import Save, load, own_coordinator
from ckptfmt.jax.pytrees import check_pytree
from ckptfmt.manager.adapted import AdapterCheckpoint
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.sharded.coordinator import Coordinator

_UNCHANGING = (jax.Array, np.generic, bool, int, float, complex, str, bytes)


class Checkpoint(AdapterCheckpoint):
    """A pytree that a CheckpointManager saves and restores.

    Arrays of JAX do not change, so that a training loop has new ones after each step: it sets
    `tree` before a save. A restore reads into the structure and the shardings of `tree`, as
    `ckptfmt.jax.load` does, and sets it once everything is read, in all processes. A checkpoint is
    what `ckptfmt.jax.save` writes.

    A CkptfmtWarning says, once, that a save has the very leaves of the last save or restore, unless
    one, such as an array of NumPy, can change in place.

    Example:
        checkpoint = ckptfmt.jax.Checkpoint(state)
        manager = ckptfmt.CheckpointManager(checkpoint, "run", max_to_keep=3)
        manager.restore_or_initialize()

    Args:
        tree: the pytree. One that is only restored may consist of jax.ShapeDtypeStruct.
        options: how a save is made that gets no options of its own.

    Attributes:
        tree: the pytree.
        coordinator: joins the processes of JAX; None if there is one.

    Raises:
        InvalidError: None or a path instead of a pytree; an option that has no meaning here.
    """

    def __init__(self, tree: Any, *, options: CheckpointOptions | None = None) -> None:
        check_pytree("tree must be a pytree of arrays", tree)
        super().__init__(options)
        self.tree = tree
        self.coordinator: Coordinator | None = None
        if jax.process_count() > 1:
            self.coordinator = own_coordinator()
        self._last: list[Callable[[], Any]] = []  # leaves of the last save or restore
        self._has_warned = False

    def _save(self, path: str, options: CheckpointOptions) -> Save:
        leaves = jax.tree.leaves(self.tree)
        last = [one() for one in self._last]
        is_same = len(leaves) == len(last) > 0 and all(map(operator.is_, leaves, last))
        if is_same and not self._has_warned:
            self._has_warned = True
            warn(
                "the tree has the very leaves of the last save or restore: set the `tree` of the "
                "checkpoint to the new state before each save"
            )
        begun = Save(path, self.tree, None, lambda: options, self.coordinator, self._ckptfmt_queue)
        self._remember()
        return begun

    def _load(self, path: str) -> None:
        self.tree = load(path, self.tree, coordinator=self.coordinator)
        self._remember()

    def _remember(self) -> None:
        leaves = jax.tree.leaves(self.tree)
        arrays = [one for one in leaves if isinstance(one, jax.Array)]
        # Values that can change in place say nothing.
        fixed = len(arrays) > 0 and all(isinstance(one, _UNCHANGING) for one in leaves)
        self._last = [_reference(one) for one in leaves] if fixed else []


def _reference(leaf: Any) -> Callable[[], Any]:
    return weakref.ref(leaf) if isinstance(leaf, jax.Array) else lambda: leaf


Checkpoint.__module__ = "ckptfmt.jax"
