# SPDX-License-Identifier: Apache-2.0
"""Changing checkpoints: names, tensors, dtypes and metadata; averages; copies."""
