# SPDX-License-Identifier: Apache-2.0
"""Options that commands share, and types of options for argparse."""

from __future__ import annotations

import argparse
import math
from typing import Any

from ckptfmt import InvalidError
from ckptfmt._base.patterns import filter_function


def add_result_options(
    parser: argparse.ArgumentParser, source: str = "SOURCE", *, reports: bool = False
) -> None:
    """Add the options of a command that writes a checkpoint to DESTINATION.

    Args:
        parser: of the command.
        source: what DESTINATION may be.
        reports: whether the command can print what it would do or has done.
    """
    add = parser.add_argument
    what = f"what is at DESTINATION, which may be {source}"
    add("--overwrite", action="store_true", help=f"replace {what}")
    if reports:
        add(
            "-n",
            "--dry-run",
            action="store_true",
            help="print what would be done, and write nothing",
        )
        add("--json", action="store_true", help="print what was done as one JSON document")
    add("-q", "--quiet", action="store_true", help="print only warnings")


def add_selection(
    parser: argparse.ArgumentParser, rename: str = "OLD=NEW", what: str = "other names"
) -> None:
    """Add the options that say which tensors are taken, and under what names.

    Args:
        parser: of the command.
        rename: the values of --rename.
        what: it gives tensors.
    """
    several: dict[str, Any] = {"action": "append", "default": []}
    add = parser.add_argument
    add("--rename", metavar=rename, help=f"give tensors {what}", **several)
    add("--drop", metavar="FILTER", help="leave out these tensors", **several)
    add("--keep", metavar="FILTER", help="leave out all others", **several)


def add_cast(parser: argparse.ArgumentParser) -> None:
    """Add the options of casts."""
    parser.add_argument(
        "--cast",
        metavar="[FILTER=]DTYPE",
        action="append",
        default=[],
        help="cast all tensors of DTYPE's kind that have a dimension, or those with such names",
    )
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="allow casts to change values by more than rounding, such as to infinity",
    )


def add_level(parser: argparse.ArgumentParser, default: str | None, note: str) -> None:
    """Add the options that say at which level of the format a result is."""
    levels = ["v2", "v2+", "ckptfmt"]
    parser.add_argument("--level", choices=levels, default=default, help=f"of the result{note}")
    parser.add_argument(
        "--compression",
        metavar="zstd[:N]",
        help="compress with this level of zstd, 1 to 22; makes the level ckptfmt",
    )


def cast(given: list[str]) -> str | dict[str, str] | None:
    """Return the `cast` argument of `ckptfmt.editing.edit` and `ckptfmt.convert`.

    Args:
        given: the values of the option --cast.
    """
    named: dict[str, str] = {}
    for one in given:
        filtered, equals, dtype = one.rpartition("=")
        if not dtype or (equals and not filtered):
            raise InvalidError(f"--cast {one!r}: expected [FILTER=]DTYPE")
        if filtered in named and filtered:
            raise InvalidError(f"--cast '{filtered}=...' is given twice")
        named[filtered] = dtype
    if "" in named and len(given) > 1:
        raise InvalidError("--cast DTYPE can be given once, and not with --cast FILTER=DTYPE")
    return named.get("", named or None)


def count(text: str) -> int:
    """Parse a number of things to show."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a non-negative integer")
    return int(text)


def name_filter(text: str) -> str:
    """Check a filter: a name, a glob or /REGEX/."""
    try:
        filter_function(text)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


def number(text: str) -> float:
    """Parse a tolerance."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a non-negative number")
    return value
