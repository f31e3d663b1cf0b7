# SPDX-License-Identifier: Apache-2.0
"""Managers of checkpoints, and the state of a training run."""
