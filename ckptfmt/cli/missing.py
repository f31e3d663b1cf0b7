# SPDX-License-Identifier: Apache-2.0
"""Warnings about what a result lacks: tensors that are missing, and values that casts lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptfmt._base.hints import some
from ckptfmt.cli import text
from ckptfmt.cli.output import complain


def warn_losses(casts: Mapping[str, tuple[str, str]], losses: Mapping[str, int]) -> None:
    """Print to standard error which casts lost values."""
    for name, count in losses.items():
        before, after = casts[name]
        lost = text.losses(count, 0)
        complain(f"ckptfmt: warning: cast {text.name(name)} from {before} to {after}{lost}")


def warn_missing(missing: Sequence[str]) -> None:
    """Print to standard error which tensors the source lacks, and so the result; nothing if
    there are none."""
    if missing:
        message = (
            f"the object graph refers to {text.plural(len(missing), 'tensor')} that the source "
            f"does not have, and the result lacks them as well: {some(missing)}. An edit has lost "
            "them, or their variables were never initialised (see `ckptfmt edit --drop-missing`)"
        )
        complain(f"ckptfmt: warning: {text.printable(message)}")
