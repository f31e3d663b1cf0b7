# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Lightning in this package's format: `Trainer(plugins=[CheckpointIO()])`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

import torch

try:
    from lightning.fabric.plugins.io import checkpoint_io
except ImportError as error:
    raise ImportError(
        f"ckptfmt.torch.lightning needs lightning (pip install lightning): {error}"
    ) from error

from ckptfmt.errors import InvalidError
from ckptfmt.files.state_file import remove_checkpoint
from ckptfmt.torch import state
from ckptfmt.torch.parameters import objects

# In the directory that Lightning names, for example `epoch=0-step=4.ckpt`.
NAME = "state"


class CheckpointIO(checkpoint_io.CheckpointIO):  # type: ignore[misc]
    """Saves and loads what the Trainer hands over with `ckptfmt.torch.save` and `load`.

    The path of a checkpoint is a directory with one checkpoint, which all of ckptfmt takes as a
    path. A save is all or nothing: a killed one leaves a directory that is not a checkpoint.

    Args:
        options: of `ckptfmt.torch.save`, for all saves, such as `default`; `storage_options` of a
            save override them.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Save the state of the Trainer.

        Raises:
            InvalidError: a value that cannot be stored without pickle, or a module or optimizer,
                which would come back as its state dict; by its name.
        """
        # Lightning's subclass of dict is only for attribute access.
        plain = {
            key: dict(value) if isinstance(value, dict) and "hyper_parameters" in key else value
            for key, value in checkpoint.items()
        }
        for keys, one in objects(plain, ()):
            if isinstance(one, torch.nn.Parameter):
                continue
            if isinstance(one, torch.nn.Module) and not one.state_dict():
                continue  # there is nothing to come back: a value for `default`
            raise InvalidError(
                f"{'.'.join(keys)}: {type(one).__name__} would come back as its state dict: leave "
                "it out, of hyperparameters by save_hyperparameters(ignore=[...])"
            )
        options = {**self._options, **(storage_options or {})}
        state.save(plain, os.path.join(path, NAME), **options)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Return the state of the Trainer.

        Args:
            path: the checkpoint's directory, or any path that `ckptfmt.open` takes.
            map_location: a device for the tensors; anything else that torch.load takes means the
                CPU, from where Lightning moves them.
            weights_only: has no effect: no code of a checkpoint is ever run.
        """
        is_device = isinstance(map_location, (str, torch.device))
        return state.load(path, map_location if is_device else "cpu")

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove the checkpoint's directory, or its objects under a URL."""
        remove_checkpoint(os.path.join(path, NAME))
        shutil.rmtree(path, ignore_errors=True)
