# SPDX-License-Identifier: Apache-2.0
"""The warning of commands that copy an object graph whose tensors are missing."""

from __future__ import annotations

from collections.abc import Sequence

from ckptfmt.bundle.selecting import some
from ckptfmt.cli import text
from ckptfmt.cli.output import complain


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
