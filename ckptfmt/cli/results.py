# SPDX-License-Identifier: Apache-2.0
"""What commands print of a result: what was done, what was lost, and what is missing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from itertools import islice
from typing import Any

import ckptfmt
from ckptfmt.cli import text
from ckptfmt.cli.output import Output, complain
from ckptfmt.errors import masked
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.types import Average, Conversion, Edit

# More lines of one list than this are counted.
LISTED_MAX = 10


def listed(
    title: str,
    items: Collection[Any],
    line: Callable[[Any], str] = text.name,
    what: str = "tensor",
) -> list[str]:
    """Return the lines of a list: its title, the first ones, and how many more there are; nothing
    if there are none.

    Args:
        title: has "{}" where the number is.
        items: what is listed; names by default.
        line: returns the line of one of them.
        what: noun for one of them.
    """
    if not items:
        return []
    lines = [f"  {line(one)}" for one in islice(items, LISTED_MAX)]
    more = len(items) - len(lines)
    counted = [f"  and {more:,} more"] if more else []
    return [title.format(text.plural(len(items), what)), *lines, *counted]


def names_of(path: str) -> Callable[[str], str]:
    """Return a function that gives the printed name of a tensor of a checkpoint as it is now."""
    with ckptfmt.open(path) as reader:
        others = TensorNames(reader).elsewhere
    return lambda name: text.printable(others[name]) if name in others else text.name(name)


def changed(item: tuple[str, tuple[str, str]], shown: Callable[[str], str] = text.name) -> str:
    """Return the line of a tensor, and its dtypes before and after."""
    name, (before, after) = item
    return f"{shown(name)} from {before} to {after}"


def print_result(
    done: Edit | Conversion | Average,
    options: argparse.Namespace,
    lines: Iterable[str],
    *,
    missing: Collection[str],
    shown: Callable[[str], str] = text.name,
) -> None:
    """Print what a command has done as `lines`, or as JSON, unless it is --quiet; and to standard
    error, always, what was lost, and what is missing if it is not in the JSON.

    Args:
        missing: tensors that the source lacks, and so the result.
        shown: gives the printed name of a tensor.
    """
    _warn_losses(done, shown)
    if getattr(options, "json", False):
        Output().document({**asdict(done), "path": masked(done.path)})
        return
    if not options.quiet:
        output = Output()
        for line in lines:
            output.line(line)
    _warn(
        "the object graph refers to {} that the source and the result lack: an edit has lost "
        "them, or their variables were never initialised (see `ckptfmt edit --drop-missing`)",
        missing,
        shown,
    )


def _warn_losses(done: Edit | Conversion | Average, shown: Callable[[str], str]) -> None:
    """Print what was lost, and which tensors were left as they are."""

    def line(name: str) -> str:
        counts = (
            (done.losses.get(name, 0), "changed by more than rounding"),
            (done.zeros.get(name, 0), "became 0"),
        )
        lost = [f"{text.plural(count, 'element')} {what}" for count, what in counts if count]
        if isinstance(done, Average):
            start = shown(name)
        else:
            start = changed((name, done.casts[name]), shown)
        return f"{start}: {', '.join(lost)}"

    _warn("casts lost values of {}", {**done.losses, **done.zeros}, line)
    _warn("did not cast {} without a dimension", done.uncast, shown)
    if isinstance(done, Edit):
        why = "which may be weights or the state of an optimizer"
        _warn(f"kept {{}}, {why} (--drop FILTER --drop-weights drops them)", done.undecided, shown)
    else:
        _warn("left out {} of the source", done.dropped, text.printable, "part")


def _warn(title: str, *items: Any) -> None:
    for line in listed(f"ckptfmt: warning: {title}", *items):
        complain(line)
