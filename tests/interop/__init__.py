# SPDX-License-Identifier: Apache-2.0
"""Differential tests against the real TensorFlow, which is the oracle of the V2 format."""
