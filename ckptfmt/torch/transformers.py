# SPDX-License-Identifier: Apache-2.0
"""Training states of transformers in this package's format:
`Trainer(callbacks=[CheckpointCallback()])`."""

from __future__ import annotations

import os
from typing import Any

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"ckptfmt.torch.transformers needs transformers (pip install transformers): {error}"
    ) from error

from ckptfmt._base.names import index_name
from ckptfmt.errors import CheckpointNotFoundError, InvalidError
from ckptfmt.torch.state import RandomState, load_into, save

# Beside the files of transformers in `checkpoint-<step>`.
NAME = "training"


class CheckpointCallback(TrainerCallback):  # type: ignore[misc]
    """Saves model, optimizer, scheduler and random states whenever the Trainer saves, under the
    prefix `<output_dir>/checkpoint-<step>/training`, and loads them when it resumes from there.

    With `TrainingArguments(save_only_model=True)` the Trainer itself writes only the model and its
    own state. For models that are not sharded: process 0 saves, all load.

    Args:
        options: as in `ckptfmt.save`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._resumed: str | None = None

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Save, in process 0."""
        if state.is_world_process_zero:
            training = {**_objects(parts), "random": RandomState(), "step": state.global_step}
            save(training, _prefix(args, state), **self._options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Load all but the random states, if the Trainer resumes.

        Raises:
            CheckpointNotFoundError: the Trainer resumes, and `checkpoint-<step>` has neither a
                checkpoint of this callback nor the Trainer's own optimizer and scheduler.
            InvalidError: something does not match, for example another optimizer; nothing is
                loaded. Or `enable_jit_checkpoint`, which calls no callbacks, with
                `save_only_model`: a training could not resume.
        """
        if getattr(args, "enable_jit_checkpoint", False) and args.save_only_model:
            raise InvalidError("enable_jit_checkpoint=True needs save_only_model=False")
        prefix = _prefix(args, state)
        self._resumed = prefix if os.path.isfile(index_name(prefix)) else None
        if self._resumed is not None:
            load_into({**_objects(parts), "random": _Later(), "step": 0}, self._resumed)
        elif state.global_step and not _is_loaded(parts, os.path.dirname(prefix)):
            raise CheckpointNotFoundError(
                f"the Trainer resumes at step {state.global_step}, but {NAME}.index with the"
                " optimizer, scheduler and random states is missing there. Was the checkpoint saved"
                " without CheckpointCallback, or is it outside output_dir? Move the whole"
                " checkpoint below output_dir; or start without resume_from_checkpoint, with the"
                " weights alone loaded into the model (from_pretrained, ckptfmt.torch.load_into)",
                path=prefix,
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Load the random states for an epoch that begins: they decide its order."""
        if float(state.epoch or 0).is_integer():
            self._load_random()

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Load the random states within an epoch: the data loader has drawn its numbers."""
        self._load_random()

    def _load_random(self) -> None:
        prefix, self._resumed = self._resumed, None
        if prefix is not None:
            load_into({"random": RandomState()}, prefix, strict=False)


class _Later:
    """In the place of what is loaded later."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


def _prefix(args: Any, state: Any) -> str:
    return os.path.join(args.output_dir, f"checkpoint-{state.global_step}", NAME)


def _is_loaded(parts: dict[str, Any], directory: str) -> bool:
    """Return whether the Trainer itself has loaded an optimizer: it has state before the first
    step, or its files are in the checkpoint, as of an optimizer without state."""
    return bool(getattr(parts["optimizer"], "state", None)) or all(
        os.path.isfile(os.path.join(directory, name)) for name in ("optimizer.pt", "scheduler.pt")
    )


def _objects(parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": parts["model"],
        "optimizer": parts["optimizer"],
        "scheduler": parts["lr_scheduler"],
    }
