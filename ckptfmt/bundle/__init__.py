# SPDX-License-Identifier: Apache-2.0
"""The format as people use it: readers, tensors, writers, merge, verify, convert."""
