# SPDX-License-Identifier: Apache-2.0
"""Adapters for PyTorch; the only package that imports torch."""

from ckptfmt.torch.coordinator import TorchCoordinator

__all__ = ["TorchCoordinator"]
