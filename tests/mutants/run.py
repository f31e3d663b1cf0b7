# SPDX-License-Identifier: Apache-2.0
"""Makes one fault of rows.toml at a time in a copy of the tree, and runs the tests that must fail.

    python tests/mutants/run.py [--rows FIRST:COUNT] [--changed COMMITS] [TEXT...]

Runs all rows, or COUNT rows from FIRST on, beginning again at the end of the table; given texts,
the rows whose file or fault contains one of them; with --changed, those marked `always`, and up to
20 whose file the last commits changed. A test that fails without the fault as well proves nothing
and is reported. Exits with 1 if a fault survives, or if a row does not fit the code.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from mutants.table import ROOT, Row, is_program, rows

TEST_SECONDS = 300  # of one row's tests; a hang is noticed as well
CHANGED_MAX = 20  # rows of files that the last commits changed
FAILED = 1  # exit status of pytest: tests ran, and some failed
FLAGS = "-O1"  # a row is compiled once and runs for seconds
MAKE = ["make", "MODE=release", "WITH_ZSTD=", f"CFLAGS={FLAGS}"]
EXTENSION = "ckptfmt/_ckptfmt.abi3.so"


class RunError(Exception):
    """A command that has to succeed did not."""


class Copy:
    """A copy of the working tree, with its extension.

    Args:
        place: an empty directory.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._is_built = self._is_faulty = False  # whether the built library is the last fault's
        self._sound: dict[tuple[str, ...], str] = {}
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            source, target = ROOT / name, place / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
        (place / EXTENSION).write_bytes((ROOT / EXTENSION).read_bytes())

    # ---- building

    def command(self, *words: str | Path) -> None:
        """Run a command that has to succeed."""
        done = subprocess.run(
            words, cwd=self.place, env=self._environment(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise RunError(f"{words[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")

    def build(self) -> None:
        """Link the extension from the library; `make` compiles only what changed."""
        self.command(*MAKE, "-j2", "build/release/libinternal.a")
        objects = self.place / "build" / "extension"
        if not objects.is_dir():
            objects.mkdir(parents=True)
            code = "import build_ffi; build_ffi.ffi.emit_c_code('build/extension/_ckptfmt.c')"
            self.command(sys.executable, "-c", code)
        own = [*(self.place / "csrc/python").glob("*.c"), objects / "_ckptfmt.c"]
        for source in own:
            target = objects / f"{source.stem}.o"
            if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
                self._compile(source, target)
        self.command(
            "cc", "-shared", "-pthread", "-o", EXTENSION, *sorted(objects.glob("*.o")),
            "-Wl,--whole-archive", "build/release/libinternal.a", "-Wl,--no-whole-archive", "-lm",
        )  # fmt: skip
        self._is_built, self._is_faulty = True, False

    def _compile(self, source: Path, target: Path) -> None:
        import sysconfig  # noqa: PLC0415

        include = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}", "-Icsrc"]
        self.command(
            "cc", "-c", "-std=c11", FLAGS, "-fPIC", "-pthread", "-D_GNU_SOURCE",
            "-DPy_LIMITED_API=0x030b0000", *include, "-o", target, source,
        )  # fmt: skip

    # ---- testing

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.place),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        }

    def outcome(self, tests: tuple[str, ...]) -> str:
        """Run tests until one fails: its name, "" if all pass.

        Raises:
            RunError: a test cannot be run.
        """
        for program in filter(is_program, tests):
            name = f"build/release/{Path(program).stem}"
            self.command(*MAKE, "-j2", name)
            status, _ = self._run(name)
            if status:
                return Path(program).stem
        ids = [test for test in tests if not is_program(test)]
        if not ids:
            return ""
        status, output = self._run(
            sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no",
            "-p", "no:cacheprovider", "-p", "no:xdist", *ids,
        )  # fmt: skip
        if status is None:
            return f"time limit of {TEST_SECONDS} s"
        if status < 0:
            return f"signal {-status}"
        lines = output.splitlines()
        if status == FAILED:
            found = [one for one in lines if one.startswith(("FAILED ", "ERROR "))]
            return found[0].partition("::")[2].partition(" - ")[0] if found else "pytest"
        if status or " passed" not in lines[-1]:
            raise RunError(f"pytest {' '.join(ids)}: {output.strip()[-1000:]}")
        return ""

    def _run(self, *words: str) -> tuple[int | None, str]:
        """Run a command with a time limit, and end all that it started."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                words, cwd=self.place, env=self._environment(), stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(TEST_SECONDS)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return status, output.read()

    def sound(self, row: Row) -> str:
        """Run the row's tests without the fault, once: what fails."""
        if row.tests not in self._sound:
            if self._is_faulty or (row.is_c and not self._is_built):
                self.build()
            self._sound[row.tests] = self.outcome(row.tests)
        return self._sound[row.tests]

    def killer(self, row: Row) -> str:
        """Make the fault, run the tests, and take it back: the test that fails, "" if none does."""
        place = self.place / row.file
        sound = place.read_text()
        is_built = row.file.startswith("csrc/")
        try:
            place.write_text(sound.replace(row.old, row.new))
            if is_built or self._is_faulty:
                self.build()
            self._is_faulty = is_built
            return self.outcome(row.tests)
        finally:
            place.write_text(sound)

    def run(self, row: Row) -> tuple[bool, str]:
        """Whether the row is killed, and by what, or why not."""
        if (ROOT / row.file).read_text().count(row.old) != 1:
            return False, "DOES NOT FIT: the old text must occur once"
        try:
            if failure := self.sound(row):
                return False, f"PROVES NOTHING: {failure} fails without the fault"
            killer = self.killer(row)
        except RunError as error:
            return False, f"NOT RUN: {error}"
        return bool(killer), killer or "SURVIVES"


def changed_files(commits: int) -> list[str]:
    """The files that the last commits changed, the last changed first."""
    command = ["git", "log", f"-{commits}", "--name-only", "--pretty=format:"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return list(dict.fromkeys(printed.split()))


def changed(every: list[Row], files: list[str]) -> list[Row]:
    """The rows marked `always`, and the first of those of these files."""
    found = [row for row in every if row.file in files and not row.always]
    found.sort(key=lambda row: files.index(row.file))
    if len(found) > CHANGED_MAX:
        print(f"mutants: {len(found) - CHANGED_MAX} more rows of changed files did not run")
    return [row for row in every if row.always] + found[:CHANGED_MAX]


def slice_of(every: list[Row], text: str) -> list[Row]:
    """The rows of FIRST:COUNT, from the beginning again after the last."""
    first, count = map(int, text.split(":"))
    return list(
        itertools.islice(itertools.cycle(every), first % len(every), first % len(every) + count)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", metavar="FIRST:COUNT", help="COUNT rows of the table")
    parser.add_argument("--changed", type=int, metavar="COMMITS", help="rows of changed files")
    parser.add_argument("texts", nargs="*", help="parts of files or faults")
    given = parser.parse_args()
    chosen = [
        row for row in rows()
        if not given.texts or any(one in f"{row.file}: {row.fault}" for one in given.texts)
    ]  # fmt: skip
    if given.changed is not None:
        chosen = changed(chosen, changed_files(given.changed))
    if given.rows is not None:
        chosen = slice_of(chosen, given.rows)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="ckptfmt-mutants-") as scratch:
        copy = Copy(Path(scratch))
        # Rows without a build first: they need no library.
        for row in sorted(chosen, key=lambda row: row.is_c):
            began = time.monotonic()
            killed, by = copy.run(row)
            bad += not killed
            print(f"{time.monotonic() - began:6.1f} s  {row.file}: {row.fault}: {by}", flush=True)
    print(f"mutants: {len(chosen)} rows ran, {len(chosen) - bad} killed, {bad} not")
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
