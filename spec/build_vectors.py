# SPDX-License-Identifier: Apache-2.0
"""Writes `spec/vectors/`: small checkpoints, good and bad, made byte by byte from the rules.

    python spec/build_vectors.py [DIRECTORY]

`vectors.json` has the expected outcome of each, step by step; `spec/README.md` describes its form.
Running this again gives the same bytes: nothing here is random, and no compressor is used.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from making import (  # noqa: E402
    chunks,
    examples,
    index,
    joined,
    messages,
    objects,
    values,
    verifying,
)
from making.vectors import Vectors  # noqa: E402


def vectors() -> Vectors:
    """All of them."""
    made = Vectors()
    for module in (index, messages, values, chunks, verifying, objects, joined, examples):
        module.add(made)
    return made


def described(made: Vectors) -> str:
    """vectors.json: one vector a line."""

    def lines(things: list[object]) -> str:
        return ",\n".join(json.dumps(one, separators=(",", ":")) for one in things)

    every = lines([one.json() for one in made])
    merges, texts, keys = lines([*made.merges]), lines([*made.texts]), lines([*made.keys])
    return (
        f'{{"format": "1.1",\n"vectors": [\n{every}\n],\n"merges": [\n{merges}\n],\n'
        f'"texts": [\n{texts}\n],\n"keys": [\n{keys}\n]}}\n'
    )


def files(made: Vectors) -> dict[str, bytes]:
    """Every file but vectors.json, by its path under the directory."""
    found = dict(made.merge_files)
    for one in made:
        found |= {one.prefix + suffix: content for suffix, content in one.files.items()}
    return found


def write(directory: Path) -> None:
    """Writes all files into the directory, which is made anew."""
    made = vectors()
    for kind in ("good", "deviation", "bad", "merge"):
        shutil.rmtree(directory / kind, ignore_errors=True)
    for name, content in files(made).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (directory / "vectors.json").write_text(described(made), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "vectors")
