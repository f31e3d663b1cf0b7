# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt verify`: checks everything in a checkpoint that can be. Never changes anything."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import ckptfmt
from ckptfmt import CkptfmtError, Finding, Report
from ckptfmt.cli import text
from ckptfmt.cli.output import COLORS, Output
from ckptfmt.cli.progress import Progress

__all__ = ["EPILOG", "SUMMARY", "add_options", "run"]

SUMMARY = "check every block, entry and byte of a checkpoint"

EPILOG = """
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, or a SavedModel directory. It is taken literally.

Checked are every block and entry of the index, the checksum of every tensor, sizes, overlaps,
slices without a tensor, data files that are missing or left over. One line a finding: how bad,
what, in which file at which offset, which tensor, and the rule of spec/format.md that is broken.
A problem is damage; a note is something sound that no canonical writer would have written.

examples:
  ckptfmt verify model.ckpt-1000
  ckptfmt verify --strict checkpoints/
  ckptfmt verify --quiet model && echo sound
  ckptfmt verify --json model | python3 -m json.tool

exit status:
  0  sound (with --strict: and as a canonical writer would have written it)
  1  problems found (with --strict: or notes)
  2  wrong usage, no checkpoint at PATH, or output that could not be written
"""

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Checked:
    """What was gone through, and how long it took.

    Attributes:
        blocks: data blocks of the index; None if it cannot be opened.
        tensors: as `Report.tensors_checked`.
        bytes, seconds: of index and data files; how long they took.
    """

    blocks: int | None
    tensors: int
    bytes: int
    seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describes the options of this command."""
    add = parser.add_argument
    add("path", metavar="PATH", help="the checkpoint")
    add("--strict", action="store_true", help="notes count as problems do")
    add("--json", action="store_true", help="one JSON document")
    add(
        "-q",
        "--quiet",
        action="store_true",
        help="no progress bar and no last line; without --strict no notes either",
    )
    add("--color", choices=COLORS, default="auto", help="colours; auto: on a terminal")


def run(options: argparse.Namespace) -> int:
    """Checks a checkpoint; the exit status.

    Raises:
        CkptfmtError: there is nothing to check.
    """
    began = time.perf_counter()
    with Progress("checking", quiet=options.quiet) as progress:
        report = ckptfmt.verify(options.path, strict=options.strict, progress=progress.update)
    seconds = time.perf_counter() - began
    checked = Checked(_blocks(report.prefix), report.tensors_checked, report.bytes_checked, seconds)
    out = Output(options.color)
    if options.json:
        _show_json(out, options.path, report, checked)
    else:
        _show_text(out, report, checked, quiet=options.quiet)
    out.flush()
    return 0 if report.ok else 1


def _blocks(prefix: str) -> int | None:
    """Data blocks of the index; what its index block says."""
    try:
        with ckptfmt.open(prefix) as reader:
            return reader.header.block_count
    except CkptfmtError:
        return None


def _show_text(out: Output, report: Report, checked: Checked, *, quiet: bool) -> None:
    for finding in report.findings:
        if finding.severity == "note" and quiet and not report.strict:
            continue
        style = "red" if finding.severity == "problem" else "yellow"
        line = str(finding)
        head, rest = line[: len(finding.severity)], line[len(finding.severity) :]
        out.line(out.paint(head, style) + rest)
    if not quiet:
        out.line(_last_line(out, report, checked))


def _last_line(out: Output, report: Report, checked: Checked) -> str:
    blocks = "" if checked.blocks is None else f"{text.plural(checked.blocks, 'index block')}, "
    rate = ""
    if checked.seconds > 0:
        rate = f" ({text.size(int(checked.bytes / checked.seconds))}/s)"
    what = (
        f"checked {blocks}{text.plural(checked.tensors, 'tensor')}, "
        f"{text.size(checked.bytes)} in {checked.seconds:.2f} s{rate}"
    )
    counts = [
        text.plural(len(found), kind)
        for kind, found in (("problem", report.problems), ("note", report.notes))
        if found
    ]
    verdict = out.paint("sound", "green") if report.ok else out.paint("not sound", "red")
    return f"{verdict}{': ' + ', '.join(counts) if counts else ''}; {what}"


def _show_json(out: Output, path: str, report: Report, checked: Checked) -> None:
    findings = "".join(f"\n  {json.dumps(_finding(found))}," for found in report.findings)[:-1]
    out.write(
        f'{{\n "schema": {SCHEMA},\n "path": {json.dumps(path)},\n'
        f' "prefix": {json.dumps(report.prefix)},\n'
        f' "ok": {json.dumps(report.ok)},\n "strict": {json.dumps(report.strict)},\n'
        f' "findings": [{findings}{chr(10) + " " if findings else ""}],\n'
        f' "checked": {json.dumps(asdict(checked))}\n}}\n'
    )


def _finding(found: Finding) -> dict[str, object]:
    return asdict(found)
