# SPDX-License-Identifier: Apache-2.0
"""The HTML file of a report, from the files beside this one. Names are data: they are JSON in a
script element, where no `<` is left, and the page shows them as text."""

from __future__ import annotations

import contextlib
import html
import itertools
import json
import os
import time
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

from ckptfmt._base.arguments import check_number, check_progress, invalid, listed
from ckptfmt._base.names import is_url, path_text, printable
from ckptfmt.bundle.completeness import missing_data
from ckptfmt.errors import CkptfmtError, about, masked
from ckptfmt.files.outputs import checkpoint_files, output_path, writing_file
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.recipe.opening import Opened, open_any
from ckptfmt.report.collect import checkpoint_data
from ckptfmt.report.comparison import comparison_data
from ckptfmt.report.health import WARNED_MAX
from ckptfmt.report.layers import Layers
from ckptfmt.report.measuring import Budget, Progress
from ckptfmt.report.series import Series

# How long values are read, and how many bytes of a URL.
SECONDS, URL_BYTES = 10.0, 64 << 20
# The parts of the page's program, in their order.
SCRIPTS = [
    *("base.js", "summary.js", "table.js", "tensors.js", "changes.js", "layers.js"),
    *("series.js", "map.js", "detail.js", "start.js"),
]


@runtime_checkable
class Stream(Protocol):
    """A binary stream."""

    def write(self, data: bytes, /) -> object:
        """Append `data`."""


def report(
    path: str | bytes | os.PathLike[Any],
    output: str | bytes | os.PathLike[Any] | Stream,
    *,
    before: str | bytes | os.PathLike[Any] | None = None,
    seconds: float | None = SECONDS,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Write a report of a checkpoint: an HTML file that needs no other file and no network.

    The report says which bytes were verified against their checksums and of which tensors the
    values were read: all of them, or a sample.

    Args:
        path: any path that `ckptfmt.open` takes, or a safetensors, npz or HDF5 file or a DCP
            directory, which is converted into a temporary directory.
        output: the file, or a binary stream. An existing report is replaced when the new one is
            complete; a FIFO or a device is written directly.
        before: another checkpoint; the report then says what changed from it.
        seconds: how long values are read, and as long again two checkpoints are compared; of a URL,
            at most 64 MiB each. 0 reads no values; None reads all of them.
        progress: called with the parts done, and of all.

    Returns:
        What is damaged of the checkpoint at `path`, as the report shows it, and of that at
        `before`, as far as they were read.

    Raises:
        InvalidError: `output` is a directory, or the name of a checkpoint's file, or a file that is
            read for the report, or an existing file that is not HTML.
        CkptfmtError: a checkpoint cannot be read; tensors that are damaged are shown as such.
        StorageError: the file cannot be written.
    """
    _check(seconds, progress)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(open_any(path_text(path, "path", urls=True)))
        reader, old = first.reader, None
        if before is not None:
            second = stack.enter_context(open_any(path_text(before, "before", urls=True)))
            old = second.reader
        if not isinstance(output, Stream):
            read = [checkpoint_files(one.prefix) for one in (reader, old) if one is not None]
            with about(argument="output"):
                output = output_path(output, itertools.chain(*read), kind="html")
        layers = Layers(TensorNames(reader))
        data = _data(first, layers, seconds, progress)
        damage = list(data["health"]["findings"])
        if old is not None:
            budget = _budget(seconds, reader.prefix, old.prefix)
            data["comparison"] = comparison_data(old, layers, budget, progress, data)
            data["comparison"]["before"] = printable(masked(second.path))
            rows = data["comparison"]["rows"]
            unread = [row["error"] for row in rows if row["change"] == "unreadable"]
            found = filter(None, [missing_data(old.prefix), *unread[:WARNED_MAX]])
            damage += [text for text in found if text not in damage]
    _write(data, output)
    return tuple(damage)


def report_series(
    paths: Iterable[str | bytes | os.PathLike[Any]],
    output: str | bytes | os.PathLike[Any] | Stream,
    *,
    seconds: float | None = SECONDS,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Write a report of the last of several checkpoints and of how the layers changed on the way:
    an HTML file as that of `report`.

    The order is that of the steps: the number of `NAME-N`, else a value or a scalar tensor `step`
    or `global_step`; where a step is not known, that of the arguments. Of more than 50 checkpoints
    50 are read, evenly spread, with the first and the last. The same elements are sampled in all,
    at most 4,096 of a tensor, of the tensors that all of them have.

    Args:
        paths: any paths that `report` takes. A checkpoint that is damaged or missing is shown as
            such.
        output: as in `report`.
        seconds: how long values are read, half of the time those of the last checkpoint; of URLs,
            at most 64 MiB for each half. 0 reads no values; None samples all checkpoints, and reads
            all values of the last.
        progress: as in `report`.

    Returns:
        What is damaged of the last checkpoint, and why others could not be read.

    Raises:
        InvalidError: `paths` is empty; `output` as in `report`.
        CkptfmtError: no checkpoint can be read, or one cannot be read now.
        StorageError: the file cannot be written.
    """
    _check(seconds, progress)
    given = [path_text(one, "paths", urls=True) for one in listed("paths", paths, "paths")]
    if not given:
        raise invalid("paths", "paths must name a checkpoint at least")
    if not isinstance(output, Stream):
        with about(argument="output"):
            output = output_path(output, kind="html")
    half = None if seconds is None else seconds / 2
    series = Series(given, progress)
    with series.last() as last:
        began, layers = time.monotonic(), Layers(TensorNames(last.reader))
        data = _data(last, layers, half, progress)
        left = None if seconds is None else max(seconds - (time.monotonic() - began), half or 0)
        data["series"] = series.data(layers, _budget(left, *series.paths))
    _write(data, output)
    return (*data["health"]["findings"], *series.errors.values())


def _check(seconds: float | None, progress: Progress | None) -> None:
    check_progress(progress)
    if seconds is not None:
        check_number("seconds", seconds)
        if not 0 <= seconds < float("inf"):
            raise invalid("seconds", f"seconds must be a number from 0, or None, not {seconds!r}")


def _data(
    opened: Opened, layers: Layers, seconds: float | None, progress: Progress | None
) -> dict[str, Any]:
    """Return the data of a checkpoint, as the page shows it."""
    reader = opened.reader
    data = checkpoint_data(layers, _budget(seconds, reader.prefix), progress)
    data |= {"path": printable(masked(opened.path)), "format": opened.format}
    if opened.format != "tensorflow":
        data["about"]["written"] = None  # the copy was, just now
    elif seconds is None:
        with contextlib.suppress(CkptfmtError):  # of damage, which is a finding
            data["about"]["digest"] = reader.digest()
    health = data["health"]
    if not health["findings"]:
        health["findings"] = [*filter(None, [missing_data(reader.prefix)])]
    return data


def _write(data: dict[str, Any], output: str | bytes | os.PathLike[Any] | Stream) -> None:
    text = page(data).encode()
    if isinstance(output, Stream):
        output.write(text)
    else:
        with writing_file(os.fsdecode(output)) as write:
            write(text)


def _budget(seconds: float | None, *paths: str) -> Budget:
    remote = any(is_url(path) for path in paths)
    return Budget(seconds, URL_BYTES if remote and seconds is not None else None)


def page(data: dict[str, Any]) -> str:
    """Return the page of these data."""
    here = files(__package__)

    def text_of(name: str) -> str:
        return here.joinpath("page", name).read_text(encoding="utf-8")

    encoded = json.dumps(data, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(os.path.basename(data["path"])),
        "STYLE": text_of("page.css"),
        "D3": here.joinpath("d3-hierarchy.min.js").read_text(encoding="utf-8"),
        # One scope, so that no name of one is another's or the window's.
        "SCRIPT": f"'use strict'; (() => {{\n{''.join(map(text_of, SCRIPTS))}}})();",
        "DATA": encoded,
    }
    text = text_of("page.html")
    # Split first: a value may hold a mark.
    pieces = text.split("@@")
    return "".join(parts[piece] if odd % 2 else piece for odd, piece in enumerate(pieces))
