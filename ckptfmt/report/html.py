# SPDX-License-Identifier: Apache-2.0
"""The HTML file of a report, from the files beside this one. Names are data: they are JSON in a
script element, where no `<` is left, and the page shows them as text."""

from __future__ import annotations

import html
import json
import os
from importlib.resources import files
from typing import Any

from ckptfmt.bundle.reader import open as open_checkpoint
from ckptfmt.names import path_text
from ckptfmt.report.collect import SAMPLE_BYTES, Progress, checkpoint_data, comparison_data
from ckptfmt.temporary import open_directory, replace_file

__all__ = ["report"]


def report(
    path: str | bytes | os.PathLike[Any],
    output: str | bytes | os.PathLike[Any],
    *,
    before: str | bytes | os.PathLike[Any] | None = None,
    sample_bytes: int = SAMPLE_BYTES,
    progress: Progress | None = None,
) -> None:
    """Write a report of a checkpoint: an HTML file that needs no other file and no network.

    Args:
        path: any path that `ckptfmt.open` takes.
        output: the file; an existing one is replaced when the new one is complete.
        before: another checkpoint; the report then says what changed from it.
        sample_bytes: of a tensor with more bytes, about so many are read for its statistics; 0
            leaves statistics out.
        progress: called with the number of tensors done, and of all.

    Raises:
        CkptfmtError: a checkpoint cannot be read; tensors that are damaged are shown as such.
        StorageError: the file cannot be written.
    """
    with open_checkpoint(path) as reader:
        data = checkpoint_data(reader, sample_bytes, progress)
        if before is not None:
            with open_checkpoint(before) as old:
                data["before"] = old.prefix
                data["comparison"] = comparison_data(old, reader, progress)
    text = page(data).encode()
    target = path_text(output)
    with open_directory(os.path.dirname(target)) as directory:
        replace_file(directory, target, text, "none")


def page(data: dict[str, Any]) -> str:
    """Return the page of these data."""
    here = files(__package__)
    encoded = json.dumps(data, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(os.path.basename(data["path"]).encode("utf-8", "replace").decode()),
        "STYLE": here.joinpath("page.css").read_text(encoding="utf-8"),
        "D3": here.joinpath("d3-hierarchy.min.js").read_text(encoding="utf-8"),
        "SCRIPT": here.joinpath("page.js").read_text(encoding="utf-8"),
        "DATA": encoded,
    }
    text = here.joinpath("page.html").read_text(encoding="utf-8")
    # Split first: a value may hold a mark.
    pieces = text.split("@@")
    return "".join(parts[piece] if odd % 2 else piece for odd, piece in enumerate(pieces))
