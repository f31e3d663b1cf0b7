# SPDX-License-Identifier: Apache-2.0
"""Plants a bug for each fuzz target, and checks that the target finds it within a minute.

    python tools/planted.py [TARGET...]

A copy of the sources in build/planted/ gets the bugs, one after the other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "planted"
SECONDS = 60
ROUND = 20_000


class Bug(NamedTuple):
    """A change of one place of the sources."""

    file: str
    old: str
    new: str


BUGS = {
    "block": Bug("table/block.c", "if (head.shared > matched)", "if (head.shared >= matched)"),
    "bundle": Bug(
        "verify/data.c", "v->value.crc != stored->crc32c)", "v->value.crc != v->value.crc)"
    ),
    "chunk": Bug(
        "compress/chunk.c", "if (cf_cursor_left(bytes) != 0)", "if (cf_cursor_left(bytes) > 1)"
    ),
    "entry": Bug("proto/entry.c", "out->size = (int64_t)f.value", "out->size = (int32_t)f.value"),
    "merge": Bug("merge/join.c", "CF_TRY(check_disjoint(g, err));", "(void)check_disjoint;"),
    "program": Bug(
        "write/commit.c",
        "status = cf_file_writer_replace(index,",
        "cf_commit_remove_generation(commit, commit->old_count); "
        "status = cf_file_writer_replace(index,",
    ),
    "rescue": Bug(
        "rescue/salvage.c",
        "return above ? order > 0 : order < 0;",
        "return above ? order > 0 : order != 0;",
    ),
    "roundtrip": Bug(
        "write/commit.c",
        "if (commit->old_count != 0 && commit->old_count != count)\n\t\tcf_commit_remove",
        "if (commit->old_count > 2)\n\t\tcf_commit_remove",
    ),
    "slices": Bug(
        "slices/box.c",
        "start_at(boxes, a, d) >= end_at(boxes, b, d) ||",
        "start_at(boxes, a, d) > end_at(boxes, b, d) ||",
    ),
    "snappy": Bug("table/snappy.c", "next.distance > done)", "next.distance > done + 1)"),
    "table": Bug(
        "table/iterator.c",
        "cf_key_compare(row->separator, row->separator_size, key, key_size) < 0",
        "cf_key_compare(row->separator, row->separator_size, key, key_size) <= 0",
    ),
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the copy."""
    return subprocess.run(command, cwd=COPY, text=True, capture_output=True, check=False)


def build(target: str) -> None:
    made = run("make", "MODE=asan", "-j2", f"build/asan/fuzz_{target}")
    if made.returncode != 0:
        raise SystemExit(f"planted: fuzz_{target} does not compile:\n{made.stdout}{made.stderr}")


def seconds_to_find(target: str) -> float | None:
    """How long it takes until an input fails; None after a minute."""
    began = time.perf_counter()
    seed = 1
    while time.perf_counter() - began < SECONDS:
        mutations = ["--mutate", str(ROUND), "--seed", str(seed)]
        ran = run(f"build/asan/fuzz_{target}", *mutations, f"fuzz/corpus/{target}")
        if ran.returncode != 0:
            return time.perf_counter() - began
        seed += 1
    return None


def check(target: str) -> bool:
    """Whether the target finds its bug."""
    bug = BUGS[target]
    place = COPY / "csrc" / bug.file
    sound = place.read_text()
    if sound.count(bug.old) != 1:
        raise SystemExit(f"planted: {bug.file} has {sound.count(bug.old)} times: {bug.old}")
    try:
        place.write_text(sound.replace(bug.old, bug.new))
        build(target)
        took = seconds_to_find(target)
    finally:
        place.write_text(sound)
    print(f"planted: {target}: {'NOT found' if took is None else f'found in {took:.1f} s'}")
    return took is not None


def main(targets: list[str]) -> int:
    every = {one.stem.removeprefix("fuzz_") for one in (ROOT / "fuzz").glob("fuzz_*.c")}
    if every - {"canary"} != set(BUGS):
        raise SystemExit(f"planted: there must be one bug for each of {sorted(every)}")
    COPY.mkdir(parents=True, exist_ok=True)
    for folder in ("csrc", "fuzz", "tests/c", "tools"):
        shutil.copytree(ROOT / folder, COPY / folder, dirs_exist_ok=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, COPY)
    missed = [target for target in targets or sorted(BUGS) if not check(target)]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
