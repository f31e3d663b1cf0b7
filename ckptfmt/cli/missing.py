# SPDX-License-Identifier: Apache-2.0
"""Warnings about what a result lacks: tensors that are missing, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfmt.cli import text
from ckptfmt.cli.output import complain, listed
from ckptfmt.types import Conversion, Edit


def warn_losses(done: Edit | Conversion) -> None:
    """Print to standard error what was lost, and which tensors were left as they are."""
    lost: list[str] = []
    for name in {**done.losses, **done.zeros}:
        counts = (
            (done.losses.get(name, 0), "changed by more than rounding"),
            (done.zeros.get(name, 0), "became 0"),
        )
        how = [f"{text.plural(count, 'element')} {what}" for count, what in counts if count]
        lost += [f"{line}: {', '.join(how)}" for line in text.casts({name: done.casts[name]})]
    _warn("casts lost values of {}", lost)
    _warn("{} without a dimension not cast", list(map(text.name, done.uncast)))
    if isinstance(done, Edit):
        undecided = list(map(text.name, done.undecided))
        why = "which may be weights or the state of an optimizer"
        _warn(f"kept {{}}, {why} (--drop FILTER --drop-weights drops them)", undecided)
    else:
        _warn("left out {} of the source", list(map(text.printable, done.dropped)), "part")


def warn_missing(missing: Sequence[str]) -> None:
    """Print to standard error which tensors the source lacks, and so the result; nothing if
    there are none."""
    _warn(
        "the object graph refers to {} that the source and the result lack: an edit has lost them, "
        "or their variables were never initialised (see `ckptfmt edit --drop-missing`)",
        list(map(text.name, missing)),
    )


def _warn(title: str, lines: list[str], what: str = "tensor") -> None:
    listed(complain, f"ckptfmt: warning: {title}", lines, what)
