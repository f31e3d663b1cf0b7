# SPDX-License-Identifier: Apache-2.0
"""Changes one operator or number of a decoder at a time: do its tests notice?

    python tools/mutants.py [FILE...]      (make decoder-mutants)

Each mutant is built in build/mutants/ and run through the C tests and fuzz inputs of its file. One
that they all pass must be in tools/mutants.txt with the reason why it behaves as the original.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIES = ROOT / "build" / "mutants"
EQUIVALENT = ROOT / "tools" / "mutants.txt"
WORKERS = 2
SECONDS = 60
VECTORS = "test_vectors"  # which must find the same as without the mutant
# The programs that test each file, beside the vectors; `fuzz_` ones mutate their corpus a little.
TESTED_BY = {
    "base/cursor.h": ["test_message", "test_block", "fuzz_entry", "fuzz_table"],
    "compress/chunk.c": ["test_chunk", "fuzz_chunk"],
    "proto/entry.c": ["test_message", "test_bundle", "fuzz_entry", "fuzz_bundle"],
    "proto/header.c": ["test_message", "test_merge_inputs", "fuzz_bundle"],
    "proto/strings.c": ["test_strings", "fuzz_bundle"],
    "proto/wire.c": ["test_message", "test_canonical", "fuzz_entry"],
    "slices/key.c": ["test_slice_key", "fuzz_slices"],
    "table/block.c": ["test_block", "fuzz_block"],
    "table/footer.c": ["test_table", "fuzz_table"],
    "table/snappy.c": ["test_snappy", "fuzz_snappy"],
}
OTHER = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "&&": "||", "||": "&&", "+": "-", "-": "+",
}  # fmt: skip
TOKEN = re.compile(r"(?<= )(?:<=?|>=?|==|!=|&&|\|\||\+|-)(?= )|(?<![\w.])\d+(?![\w.])")
SKIPPED = re.compile(r"^\s*(?:/?\*|//|#|assert\(|static_assert)|\* ")


class Mutant(NamedTuple):
    """One changed token of a line."""

    file: str
    line: int
    begin: int
    old: str
    new: str
    text: str

    def name(self) -> str:
        """What the list of equivalent mutants calls it, wherever the line is."""
        ordinal = len(re.findall(re.escape(self.old), self.text[: self.begin])) + 1
        return f"{self.file}: {self.text.strip()}: {self.old} number {ordinal} to {self.new}"


def mutants(file: str) -> Iterator[Mutant]:
    """All mutants of a file, in order."""
    for number, text in enumerate((ROOT / "csrc" / file).read_text().splitlines()):
        if SKIPPED.search(text):
            continue
        code = text.partition("/*")[0]
        code = re.sub(r'"[^"]*"', lambda m: " " * len(m[0]), code)
        for token in TOKEN.finditer(code):
            new = OTHER.get(token[0]) or str(int(token[0]) + 1)
            yield Mutant(file, number, token.start(), token[0], new, text)


def output(copy: Path, program: str) -> str | None:
    """What a program of the copy prints; None if it cannot be built, or finds something wrong."""
    made = subprocess.run(
        ["make", "MODE=asan", f"build/asan/{program}"], cwd=copy, capture_output=True, check=False
    )
    if made.returncode:
        return None
    command = [f"build/asan/{program}"]
    if program.startswith("fuzz_"):
        corpus = f"fuzz/corpus/{program.removeprefix('fuzz_')}"
        command += ["--mutate", "5000", "--seed", "1", corpus]
    elif program == VECTORS:
        command.append("--outcomes")
    try:
        ran = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return None
    return None if ran.returncode else ran.stdout


def survives(copy: Path, mutant: Mutant, outcomes: str) -> bool:
    """Whether no program notices the mutant."""
    place = copy / "csrc" / mutant.file
    sound = place.read_text()
    lines = sound.splitlines()
    end = mutant.begin + len(mutant.old)
    lines[mutant.line] = mutant.text[: mutant.begin] + mutant.new + mutant.text[end:]
    try:
        place.write_text("\n".join(lines) + "\n")
        passed = all(output(copy, one) is not None for one in TESTED_BY[mutant.file])
        return passed and output(copy, VECTORS) == outcomes
    finally:
        place.write_text(sound)


def make_copy(copy: Path) -> Path:
    for folder in ("csrc", "fuzz", "tests/c", "tools", "spec/vectors"):
        shutil.copytree(ROOT / folder, copy / folder, dirs_exist_ok=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, copy)
    return copy


def main(files: list[str]) -> int:
    lines = EQUIVALENT.read_text().splitlines()
    known = {one.partition(" -- ")[0] for one in lines if one and not one.startswith("#")}
    copies: Queue[Path] = Queue()
    for i in range(WORKERS):
        copies.put(make_copy(COPIES / str(i)))

    outcomes = output(copies.queue[0], VECTORS)
    if outcomes is None:
        raise SystemExit("mutants: the vectors fail without a mutant")

    def run(mutant: Mutant) -> bool:
        copy = copies.get()
        try:
            return survives(copy, mutant, outcomes)
        finally:
            copies.put(copy)

    bad = False
    for file in files or sorted(TESTED_BY):
        if not all(output(copies.queue[0], one) for one in TESTED_BY[file]):
            raise SystemExit(f"mutants: the tests of {file} fail without a mutant")
        every = list(mutants(file))
        with ThreadPoolExecutor(WORKERS) as pool:
            results = list(pool.map(run, every))
        alive = [one.name() for one, result in zip(every, results, strict=True) if result]
        new = [name for name in alive if name not in known]
        print(
            f"mutants: {file}: {len(every)}, noticed {len(every) - len(alive)}, "
            f"equivalent {len(alive) - len(new)}, survive {len(new)}"
        )
        for name in new:
            print(f"  {name}")
        bad = bad or bool(new)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
