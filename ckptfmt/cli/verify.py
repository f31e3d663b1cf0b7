# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt verify`: check every byte of a checkpoint. Never changes anything."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace

import ckptfmt
from ckptfmt import CkptfmtError, Finding, Report
from ckptfmt.cli import text
from ckptfmt.cli.contents import finding_of
from ckptfmt.cli.output import COLORS, Output
from ckptfmt.cli.progress import Progress
from ckptfmt.names import index_name
from ckptfmt.objects.build import missing_keys, read_graph_bytes
from ckptfmt.objects.graph import OBJECT_GRAPH_KEY, decode_graph

__all__ = ["EPILOG", "SUMMARY", "add_options", "run"]

SUMMARY = "check every block, entry and byte of a checkpoint"

EPILOG = """
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, or a SavedModel directory.

Checks every block and entry of the index, the checksum of every tensor, sizes, overlaps, slices
without a tensor, missing or unexpected data files, and the tensors of the object graph. Prints one
line per finding: severity, the rule of spec/format.md that is broken, file, offset and tensor. A
problem is damage; a note is a sound encoding that a canonical writer would not have written, or a
tensor that only the object graph knows.

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
    """The amount of work done.

    Attributes:
        blocks: number of data blocks of the index; None if it cannot be opened.
        tensors: as `Report.tensors_checked`.
        bytes: bytes checked, of index and data files.
        seconds: duration of the check.
    """

    blocks: int | None
    tensors: int
    bytes: int
    seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("path", metavar="PATH", help="the checkpoint")
    add("--strict", action="store_true", help="count notes as problems")
    add("--json", action="store_true", help="one JSON document")
    add(
        "-q",
        "--quiet",
        action="store_true",
        help="print no progress bar and no summary line; without --strict no notes either",
    )
    add("--color", choices=COLORS, default="auto", help="colours; auto: on a terminal")


def run(options: argparse.Namespace) -> int:
    """Check a checkpoint and return the exit status.

    Raises:
        CkptfmtError: there is no checkpoint to check.
    """
    began = time.perf_counter()
    with Progress("checking", quiet=options.quiet) as progress:
        report = ckptfmt.verify(options.path, strict=options.strict, progress=progress.update)
    blocks, findings = _blocks_and_graph(report.prefix)
    report.findings.extend(findings)
    seconds = time.perf_counter() - began
    checked = Checked(blocks, report.tensors_checked, report.bytes_checked, seconds)
    out = Output(options.color)
    if options.json:
        _show_json(out, options.path, report, checked)
    else:
        _show_text(out, report, checked, quiet=options.quiet)
    out.flush()
    return 0 if report.ok else 1


def _blocks_and_graph(prefix: str) -> tuple[int | None, list[Finding]]:
    """Return the number of data blocks that the index block names, and check the object graph
    against the tensors.

    Findings are notes: the tensors can be read without the graph, and TensorFlow saves an
    uninitialised variable as an object without its tensor.
    """
    blocks, missing = None, list[str]()
    try:
        with ckptfmt.open(prefix) as reader:
            blocks = reader.header.block_count
            if OBJECT_GRAPH_KEY not in reader:
                return blocks, []
            try:
                graph = decode_graph(read_graph_bytes(reader), prefix)
            except CkptfmtError as error:
                return blocks, [replace(finding_of(error), severity="note")]
            missing = missing_keys(reader, graph)
    except CkptfmtError:
        pass  # an index that cannot be read is a finding of the verifier
    message = "the object graph refers to this missing tensor"
    path = index_name(prefix)
    notes = [Finding("note", "CORRUPT", "BAD_ENTRY", message, path, None, name) for name in missing]
    return blocks, notes


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
    out.document(
        {
            "schema": SCHEMA,
            "path": path,
            "prefix": report.prefix,
            "ok": report.ok,
            "strict": report.strict,
            "findings": [asdict(finding) for finding in report.findings],
            "checked": asdict(checked),
        }
    )
