# SPDX-License-Identifier: Apache-2.0
"""Save and load pytrees of JAX, in one process or many; the only package that imports jax.

checkpoint.py   save, save_async, load
training.py     Checkpoint, for a CheckpointManager
pytrees.py      the names of leaves, and what a leaf is
saving.py       what each process writes
coordinator.py  JaxCoordinator
orbax.py        Orbax in this format
"""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"ckptfmt.jax needs jax (pip install jax): {error}") from error

from ckptfmt.jax.checkpoint import load, save, save_async
from ckptfmt.jax.coordinator import JaxCoordinator
from ckptfmt.jax.training import Checkpoint

__all__ = ["Checkpoint", "JaxCoordinator", "load", "save", "save_async"]


def __dir__() -> list[str]:
    return __all__
