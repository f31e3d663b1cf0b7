# SPDX-License-Identifier: Apache-2.0
"""Saves and restores by many processes."""
