# SPDX-License-Identifier: Apache-2.0
"""Types of options, for argparse."""

from __future__ import annotations

import argparse

__all__ = ["count"]


def count(text: str) -> int:
    """Parse a number of things to show."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a non-negative integer")
    return int(text)
