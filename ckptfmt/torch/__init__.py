# SPDX-License-Identifier: Apache-2.0
"""Adapters for PyTorch; the only package that imports torch."""
