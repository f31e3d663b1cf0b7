# SPDX-License-Identifier: Apache-2.0
"""Adapters for PyTorch; the only package that imports torch.

state.py         save, save_async, load, load_into, RandomState
checkpoint.py    Checkpoint, for a CheckpointManager
structure.py     a training state as tensors and JSON
tensors.py       how tensors of every dtype are stored
making.py        tensors read into those given, or into new ones
matching.py      a module or state matched with what is stored
choosing.py      the structure with the chosen tensors only
parameters.py    the names of the parameters of optimizers
coordinator.py   TorchCoordinator
ranks.py         a training state of several processes
dcp.py           StorageWriter and reader for torch.distributed.checkpoint
lightning.py     CheckpointIO of Lightning
transformers.py  CheckpointCallback of transformers
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"ckptfmt.torch needs torch (pip install torch): {error}") from error

from ckptfmt.torch.checkpoint import Checkpoint
from ckptfmt.torch.coordinator import TorchCoordinator
from ckptfmt.torch.state import RandomState, load, load_into, save, save_async

__all__ = [
    "Checkpoint",
    "RandomState",
    "TorchCoordinator",
    "load",
    "load_into",
    "save",
    "save_async",
]


def __dir__() -> list[str]:
    return __all__
