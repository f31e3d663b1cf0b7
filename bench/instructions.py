# SPDX-License-Identifier: Apache-2.0
"""Report the instructions of the hot paths, counted by callgrind: `make instructions`.

Counts are repeatable on a busy machine, which makes them the quickest way to compare two versions.
They hold for one compiler and C library, so nothing is asserted of them. `tests/c/hot_paths.c`
defines the paths. With a path named, the functions that take most of it are listed:

    python bench/instructions.py [PATH]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "build" / "release" / "measure_paths"

# valgrind 3.19 does not know VPCLMULQDQ, and counts `rep movsb` as one instruction per byte.
ENVIRONMENT = {
    "CKPTFMT_ISA": "sse42",
    "GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=0x40000000"
    ":glibc.cpu.x86_rep_stosb_threshold=0x40000000",
}


def callgrind(folder: Path, path: str, *options: str) -> Path:
    """Run a path under callgrind; return the profile, without the number of its part."""
    out = folder / "profile"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options]
    subprocess.run(
        [*command, str(PROGRAM), path],
        check=True,
        env={**os.environ, **ENVIRONMENT, "TMPDIR": str(folder)},
        capture_output=True,
    )
    return out


def instructions(folder: Path, path: str) -> int:
    """Instructions of all threads from the start of the path to its end."""
    out = callgrind(folder, path, "--zero-before=hot_path_run", "--dump-after=hot_path_run")
    part = out.with_name("profile.1").read_text()
    return int(re.findall(r"^summary: (\d+)$", part, re.MULTILINE)[0])


def costliest(folder: Path, path: str) -> list[str]:
    """The functions with the most instructions of the calling thread."""
    out = callgrind(folder, path, "--toggle-collect=hot_path_run")
    command = ["callgrind_annotate", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = re.findall(r"^ *([\d,]+) \(.*?\) +\S*:(\S+) \[", ran.stdout, re.MULTILINE)
    return [f"{count:>15}  {name}" for count, name in rows[:20]]


def paths() -> dict[str, tuple[int, str]]:
    """Number of units and the unit of each path."""
    ran = subprocess.run([str(PROGRAM)], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    return {name: (int(count), unit) for name, count, unit, _ in rows}


def main() -> None:
    chosen = sys.argv[1:]
    for path, (count, unit) in paths().items():
        if chosen and path not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = instructions(Path(folder), path) / count
            print(f"{path:16}{found:>15,.0f}  instructions per {unit}", flush=True)
            if chosen:
                print("\n".join(costliest(Path(folder), path)))


if __name__ == "__main__":
    main()
