# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt verify`: check all values of a checkpoint. Never changes anything."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import ckptfmt
from ckptfmt import CheckpointNotFoundError, CkptfmtError, UnsupportedError
from ckptfmt._base.names import index_name
from ckptfmt.bundle.findings import grouped
from ckptfmt.bundle.verify import finding_of, only_unread
from ckptfmt.cli import DAMAGE, error_fields, text
from ckptfmt.cli.options import count
from ckptfmt.cli.output import COLORS, Output
from ckptfmt.cli.progress import Progress
from ckptfmt.errors import masked
from ckptfmt.files.locate import locate_all
from ckptfmt.files.places import is_directory, is_file
from ckptfmt.formats.tensors import Places
from ckptfmt.recipe.opening import kind_of, open_tensors
from ckptfmt.recipe.sources import Format
from ckptfmt.types import Finding, Report

EPILOG = """
PATH is a prefix, an .index or data file, a directory with a `checkpoint` file or a single
checkpoint, or a SavedModel directory; or a safetensors, npz or HDF5 file, the index of a model in
several safetensors files, or a directory of torch.distributed.checkpoint (DCP).

Checks every block and entry of the index, the checksum of every tensor, sizes, overlaps, slices
without a tensor, missing or unexpected data files, and the tensors of the object graph. Prints one
line per finding: severity, the rule of spec/format.md that is broken, file, offset and tensor. A
problem is damage, or MISSING_TENSOR: only the object graph has the tensor, because an edit lost it
or its variable was never initialised (`ckptfmt edit --drop-missing` repairs the graph). A note is
a sound encoding that a canonical writer would not have written, printed with --strict only. Many
findings that are alike are printed as one.

Of the other formats, the structure is checked: the header can be parsed, the bytes of every tensor
are in the file, and none overlap. Members of npz files and chunks of DCP are compared with their
CRC-32, datasets of HDF5 with fletcher32 where they have it. A safetensors file has no checksums:
changed values are not noticed. A tensor that ckptfmt cannot read, such as an object array, is a
problem: nothing is known of it.

Of several PATHs, or with -r, every checkpoint has a line with its findings below it; with --json it
has a document of its own, and a last one has the totals. With -r, directories are searched for
checkpoints, not for other formats; one that a `checkpoint` file names must be there. Symbolic links
to directories are not followed.

--json prints {"schema": 2, "path", "prefix", "format", "ok", "verified", "strict", "findings":
[{"severity", "status", "failure", "rule", "message", "path", "offset", "tensor", "count"}, ...],
"checked": {"blocks", "tensors", "bytes", "seconds"}}; only "path" and "error" of a PATH that
cannot be checked. "rule" is of spec/format.md, or null. "verified" is false if tensors were not
compared with checksums, because there are none; "bytes" are those that were. The last line, of
several: {"schema": 2, "totals": {"checkpoints", "sound", "not_sound", "unreadable", "tensors",
"bytes", "seconds"}}.

examples:
  ckptfmt verify model.ckpt-1000
  ckptfmt verify --strict checkpoints/
  ckptfmt verify --quiet model && echo sound
  ckptfmt verify -r runs/ s3://bucket/runs
  ckptfmt verify --json model | python3 -m json.tool

exit status:
  0  sound (with --strict: and as a canonical writer would have written it)
  1  problems found (with --strict: or notes)
  2  wrong usage, no checkpoint at PATH, or something that could not be read or written
"""

# By exit status.
VERDICTS = ("sound", "not sound", "unreadable")
STYLES = ("green", "red", "red")
# What `verify` compares with checksums, by format; safetensors has none.
COMPARED = {
    "tensorflow": "",
    "npz": "every member was compared with its CRC-32",
    "hdf5": "every dataset was compared with fletcher32",
    "dcp": "every chunk was compared with its CRC-32",
}
# The end of a longer path is shown beside the progress bar.
SHOWN_CELLS = 40


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


@dataclass(frozen=True, slots=True)
class Verified:
    """A checkpoint that was checked, or an error where there was none to check.

    Attributes:
        format: its format.
        unverified: number of its tensors that have no checksums.
    """

    path: str
    report: Report | None = None
    checked: Checked = Checked(None, 0, 0, 0.0)
    error: CkptfmtError | None = None
    format: Format = "tensorflow"
    unverified: int = 0

    @property
    def status(self) -> int:
        """Exit status of this one."""
        if self.report is not None:
            if only_unread(self.report.problems):
                return 2
            return 0 if self.report.ok else 1
        return 1 if isinstance(self.error, DAMAGE) else 2

    @property
    def how(self) -> str:
        """What was done to the tensors of another format, in words."""
        if self.format == "tensorflow" or self.status:
            return ""
        if not self.unverified and self.format in COMPARED:
            return COMPARED[self.format]
        if 0 < self.unverified < self.checked.tensors:
            tensors = text.plural(self.unverified, "tensor")
            return f"structure checked; {tensors} of {self.checked.tensors:,} without checksums"
        return "structure checked; this format has no checksums"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="+", help="a checkpoint, or with -r a directory of them")
    add("-r", "--recursive", action="store_true", help="all checkpoints in and below directories")
    add("--strict", action="store_true", help="count notes as problems")
    add(
        "--max-findings",
        metavar="N",
        type=count,
        default=5,
        help="print more than N findings that are alike as one (default 5; 0: print all)",
    )
    add("--json", action="store_true", help="one JSON document, of several checkpoints one a line")
    add(
        "-q",
        "--quiet",
        action="store_true",
        help="print no progress bar, no summary line and no sound checkpoint; without --strict no "
        "notes either",
    )
    add("--color", choices=COLORS, default="auto", help="colours; auto: on a terminal")


def run(options: argparse.Namespace) -> int:
    """Check checkpoints and return the exit status.

    Raises:
        CkptfmtError: there is no checkpoint to check at a single PATH.
    """
    out = Output(options.color)
    if options.recursive or len(options.paths) > 1:
        status = _run_many(out, options)
    else:
        (path,) = options.paths
        status = _run_one(out, path, options)
    out.flush()
    return status


def _run_one(out: Output, path: str, options: argparse.Namespace) -> int:
    found = _check(path, "checking", options)
    assert found.report is not None
    if options.json:
        out.document(_document(found, options.max_findings))
    else:
        _show_findings(out, found.report, options.max_findings)
        if not options.quiet:
            out.line(_last_line(out, found.report, found))
    return found.status


def _run_many(out: Output, options: argparse.Namespace) -> int:
    began = time.perf_counter()
    results: Counter[int] = Counter()
    tensors = nbytes = 0
    for path in options.paths:
        for found in _check_all(path, options):
            results[found.status] += 1
            tensors += found.checked.tensors
            nbytes += found.checked.bytes
            if options.json:
                out.document(_document(found, options.max_findings))
            elif found.status or not options.quiet:
                _show_one_of_many(out, found, options)
            out.flush()
    seconds = time.perf_counter() - began
    if options.json:
        totals = {
            "checkpoints": results.total(),
            "sound": results[0],
            "not_sound": results[1],
            "unreadable": results[2],
            "tensors": tensors,
            "bytes": nbytes,
            "seconds": seconds,
        }
        out.document({"totals": totals})
    elif not options.quiet:
        verdicts = [
            f"{results[status]:,} {verdict}"
            for status, verdict in enumerate(VERDICTS)
            if results[status]
        ]
        out.line(
            f"{text.plural(results.total(), 'checkpoint')}: {', '.join(verdicts)}; "
            + _amount(Checked(None, tensors, nbytes, seconds))
        )
    return max(results, default=0)


def _check_all(path: str, options: argparse.Namespace) -> Iterator[Verified]:
    """Check what a PATH means, one after the other; errors are results as well."""
    try:
        listed = options.recursive and is_directory(path)
        found = 0
        for prefix in locate_all(path) if listed else (path,):
            found += 1
            # Masked first: the cut could remove what shows that it is a URL.
            shown = masked(prefix)
            shown = shown if len(shown) <= SHOWN_CELLS else "..." + shown[-SHOWN_CELLS:]
            what = f"checking {text.printable(shown)}"
            verified = _settled(prefix, what, options)
            if not (listed and _was_removed(prefix, verified)):
                yield verified
        if not found:
            message = "no checkpoint in this directory or below it"
            yield Verified(path, error=CheckpointNotFoundError(message, path=path))
    except CkptfmtError as error:  # of a directory
        yield Verified(path, error=error)


def _settled(prefix: str, what: str, options: argparse.Namespace) -> Verified:
    """Check a checkpoint; again if another save replaced it meanwhile."""
    try:
        verified = _check(prefix, what, options)
        if _was_replaced(verified) and is_file(index_name(prefix)):
            verified = _check(prefix, what, options)
    except CkptfmtError as error:
        return Verified(prefix, error=error)
    return verified


def _was_replaced(verified: Verified) -> bool:
    problems = verified.report.problems if verified.report is not None else ()
    return bool(problems) and all(one.failure == "GENERATION_GONE" for one in problems)


def _was_removed(prefix: str, verified: Verified) -> bool:
    """Return whether a checkpoint was removed since its directory was listed. If a state file names
    it as the newest, it is lost."""
    gone = isinstance(verified.error, CheckpointNotFoundError) or _was_replaced(verified)
    return (
        gone
        and not is_file(index_name(prefix))
        and prefix not in locate_all(os.path.dirname(prefix))
    )


def _check(path: str, what: str, options: argparse.Namespace) -> Verified:
    began = time.perf_counter()
    kind = kind_of(path)
    with Progress(what, quiet=options.quiet) as progress:
        if kind != "tensorflow":
            return _check_file(kind, path, progress, strict=options.strict)
        report = ckptfmt.verify(path, strict=options.strict, progress=progress.update)
    blocks = _block_count(report.prefix)
    seconds = time.perf_counter() - began
    checked = Checked(blocks, report.tensors_checked, report.bytes_checked, seconds)
    return Verified(path, report, checked)


def _check_file(kind: Format, path: str, progress: Progress, *, strict: bool) -> Verified:
    """Check a file of another format: its structure, and the checksums of the tensors that have
    some."""
    began = time.perf_counter()
    places, findings = Places(), list[Finding]()
    count = unverified = nbytes = done = 0
    try:
        with open_tensors(kind, path) as (tensors, _):
            total = sum(tensor.nbytes for tensor in tensors.values())
            for tensor in tensors.values():
                try:
                    compared = tensor.check(places)
                    unverified += compared is None
                    nbytes += compared or 0
                except (*DAMAGE, UnsupportedError) as error:
                    findings.append(finding_of(error))
                count, done = count + 1, done + tensor.nbytes
                progress.update(done, total)
            places.check()
    except DAMAGE as error:
        findings.append(finding_of(error))
    report = Report(path, findings, nbytes, count, strict)
    checked = Checked(None, count, nbytes, time.perf_counter() - began)
    return Verified(path, report, checked, format=kind, unverified=unverified)


def _block_count(prefix: str) -> int | None:
    """Return the number of data blocks that the index block names; None if it cannot be opened."""
    try:
        with ckptfmt.open(prefix) as reader:
            return reader.header.block_count
    except CkptfmtError:
        return None


def _show_findings(out: Output, report: Report, at_most: int, *, indent: str = "") -> None:
    shown = report.findings if report.strict else report.problems
    for group in grouped(shown, at_most):
        severity = group.first.severity
        style = "red" if severity == "problem" else "yellow"
        rest = str(group).removeprefix(severity)
        out.line(indent + out.paint(severity, style) + rest)


def _show_one_of_many(out: Output, found: Verified, options: argparse.Namespace) -> None:
    verdict = out.paint(f"{VERDICTS[found.status]:10}", STYLES[found.status])
    tensors = text.plural(found.checked.tensors, "tensor")
    size = text.size(found.checked.bytes)
    out.line(f"{verdict}  {tensors:>16}  {size:>10}  {text.path(found.path)}")
    if found.report is not None:
        _show_findings(out, found.report, options.max_findings, indent="  ")
        if found.how:
            out.line(f"  {found.how}")
    else:
        out.line(f"  {found.error}")


def _last_line(out: Output, report: Report, found: Verified) -> str:
    counts = [
        text.plural(len(some), kind)
        for kind, some in (("problem", report.problems), ("note", report.notes))
        if some
    ]
    counts += [found.how] if found.how else []
    verdict = out.paint(VERDICTS[found.status], STYLES[found.status])
    return (
        f"{verdict}{': ' + ', '.join(counts) if counts else ''}; checked {_amount(found.checked)}"
    )


def _amount(checked: Checked) -> str:
    blocks = "" if checked.blocks is None else f"{text.plural(checked.blocks, 'index block')}, "
    nbytes = rate = ""
    if checked.bytes:
        nbytes = f", {text.size(checked.bytes)}"
    if checked.bytes and checked.seconds > 0:
        rate = f" ({text.size(int(checked.bytes / checked.seconds))}/s)"
    return (
        f"{blocks}{text.plural(checked.tensors, 'tensor')}{nbytes} in {checked.seconds:.2f} s{rate}"
    )


def _document(found: Verified, at_most: int) -> dict[str, object]:
    report = found.report
    if report is None:
        assert found.error is not None
        return {"path": masked(found.path), "error": error_fields(found.error)}
    return {
        "path": masked(found.path),
        "prefix": masked(report.prefix),
        "format": found.format,
        "ok": report.ok,
        "verified": found.format in COMPARED and not found.unverified,
        "strict": report.strict,
        "findings": [group.fields() for group in grouped(report.findings, at_most)],
        "checked": asdict(found.checked),
    }
