# SPDX-License-Identifier: Apache-2.0
"""Adapters for PyTorch; the only package that imports torch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"ckptfmt.torch needs torch (pip install torch): {error}") from error

from ckptfmt.torch.coordinator import TorchCoordinator
from ckptfmt.torch.state import RandomState, load, load_into, save, save_async

__all__ = ["RandomState", "TorchCoordinator", "load", "load_into", "save", "save_async"]


def __dir__() -> list[str]:
    return __all__
