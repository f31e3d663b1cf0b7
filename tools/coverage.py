# SPDX-License-Identifier: Apache-2.0
"""Shows which branches of the C library its C tests and fuzz inputs take.

    python tools/coverage.py [--list]

Reads what the programs of `make MODE=coverage` counted. A branch that none of them takes must be
explained in tools/coverage.txt; --list prints those that are not. A folder below its bound there
fails. Branches of headers are those of any object that includes them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "build" / "coverage"
EXPLAINED = ROOT / "tools" / "coverage.txt"

Branch = tuple[str, int, int]


class Reason(NamedTuple):
    """Why branches of lines that match are not taken."""

    place: re.Pattern[str]
    line: re.Pattern[str]
    why: str


def taken() -> dict[Branch, int]:
    """How often each branch was taken: by file, line, and number within the line."""
    counts: dict[Branch, int] = defaultdict(int)
    for data in sorted(COUNTS.rglob("*.gcda")):
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(data)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for one in json.loads(ran.stdout)["files"]:
            if not one["file"].startswith("csrc/"):
                continue
            for line in one["lines"]:
                for number, branch in enumerate(line["branches"]):
                    counts[one["file"], line["line_number"], number] += branch["count"]
    return counts


def explanations() -> tuple[dict[str, float], list[Reason]]:
    """The bound of each folder, and the reasons for branches that are not taken."""
    bounds: dict[str, float] = {}
    reasons: list[Reason] = []
    for text in EXPLAINED.read_text().splitlines():
        if not text or text.startswith("#"):
            continue
        kind, _, rest = text.partition(" ")
        if kind == "bound":
            folder, bound = rest.split()
            bounds[folder] = float(bound)
        else:
            line, _, why = rest.partition(" -- ")
            reasons.append(Reason(re.compile(kind), re.compile(line), why))
    return bounds, reasons


def main(arguments: list[str]) -> int:
    counts = taken()
    if not counts:
        raise SystemExit("coverage: nothing was counted; `make coverage` builds and runs")
    bounds, reasons = explanations()
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    sources = {name: (ROOT / name).read_text().splitlines() for name, *_ in counts}
    used: set[Reason] = set()
    for (name, line, number), count in sorted(counts.items()):
        total = totals[name.split("/")[1]]
        total[0] += 1
        if count:
            total[1] += 1
            continue
        source = sources[name][line - 1].strip()
        reason = next((r for r in reasons if r.place.search(name) and r.line.search(source)), None)
        if reason:
            used.add(reason)
            total[2] += 1
        elif "--list" in arguments:
            print(f"{name}:{line}: branch {number}: {source}")
    low = 0
    print(f"{'folder':<10}{'branches':>9}{'taken':>8}{'%':>8}{'explained':>11}{'neither':>9}")
    for folder, (every, reached, explained) in sorted(totals.items()):
        percent = 100 * (reached + explained) / every
        print(
            f"{folder:<10}{every:>9}{reached:>8}{100 * reached / every:>8.2f}{explained:>11}"
            f"{every - reached - explained:>9}"
        )
        low += percent < bounds.get(folder, 100)
    for reason in reasons:
        if reason not in used:
            print(f"coverage: no branch needs this any more: {reason.line.pattern}")
            low += 1
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
