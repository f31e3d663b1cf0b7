# SPDX-License-Identifier: Apache-2.0
"""Types of options, for argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from ckptfmt import InvalidError
from ckptfmt.bundle.selecting import filter_function

__all__ = ["count", "name_filter", "number"]


def count(text: str) -> int:
    """Parse a number of things to show."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a non-negative integer")
    return int(text)


def name_filter(text: str) -> tuple[str, Callable[[str], object]]:
    """Return a filter, a glob or /REGEX/, and the function that it means."""
    try:
        function = filter_function(text)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    assert function is not None
    return text, function


def number(text: str) -> float:
    """Parse a tolerance."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a non-negative number")
    return value
