# SPDX-License-Identifier: Apache-2.0
"""Small sound checkpoints, taken apart into rows of the index and data files.

They are the vectors that are read, checkpoints written here, and those of CKPTFMT_CORPUS.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from support import index as ix
from support import vectors

import ckptfmt

# Larger ones take longer than they show more.
INDEX_MAX, DATA_MAX = 1200, 20_000


@dataclass(frozen=True)
class Sample:
    """A checkpoint's rows (key and value) and the contents of its data files by number."""

    name: str
    rows: list[ix.Row]
    data: dict[int, bytes]
    num_shards: int


def taken_apart(name: str, prefix: str) -> Sample | None:
    """None if it is too large."""
    size = os.path.getsize(f"{prefix}.index")
    data: dict[int, bytes] = {}
    shards = 1
    folder, base = os.path.split(prefix)
    for path in Path(folder).iterdir():
        match = re.fullmatch(re.escape(base) + r"\.data-(\d{5,})-of-(\d{5,})", path.name)
        if match and path.is_file():
            data[int(match[1])] = path.read_bytes()
            shards = int(match[2])
    if size > INDEX_MAX or sum(map(len, data.values())) > DATA_MAX:
        return None
    bundle = vectors.load_reference().Bundle(prefix)
    keys = bundle.keys()
    places = ((key, bundle.place(key)) for key in keys)
    rows = [(key, place.contents[place.start : place.stop]) for key, place in places]
    return Sample(name, rows, data, shards)


def written(directory: Path) -> list[tuple[str, str]]:
    """Writes checkpoints of what the package can write."""
    number = np.arange(24, dtype=np.int16).reshape(4, 6)
    many = np.arange(3000, dtype=np.float32).reshape(50, 60)
    text = np.array([b"hello", b"", b"wor\0ld", b"x" * 200], object)
    plain: dict[str, Any] = {
        "bool": np.array([True, False, True]),
        "float": np.array([[1.5, -2.0, np.nan], [0.0, -0.0, 3e-39]], np.float32),
        "half": np.array([1, 2], ml_dtypes.bfloat16),
        "int4": np.array([-8, 7, -1], ml_dtypes.int4),
        "scalar": np.array(-7, np.int64),
        "text": text,
        "zero": np.zeros((0, 3), np.complex64),
    }
    metadata = {"step": 3, "name": "\u00e9", "list": [1, True, "a"]}

    def sliced(prefix: Path, **options: Any) -> None:
        with ckptfmt.Writer(prefix, durability="none", **options) as writer:
            writer.add_slice("part", number[:, :2], number.shape, (0, 0))
            writer.add_slice("part", number[:2, 2:], number.shape, (0, 2))
            writer.add_slice("part", number[2:, 2:], number.shape, (2, 2))
            writer.add_slice("text", text[:2], text.shape, (0,))
            writer.add_slice("text", text[2:], text.shape, (2,))
            writer.add("whole", number)

    def graph(prefix: Path) -> None:
        tree = {"layers": [{"w": number, "b": number[0]}, (number[1], text)], "step": 3}
        ckptfmt.save_tree(prefix, tree, durability="none")

    def merged(prefix: Path) -> None:
        first, second = prefix.with_name("a"), prefix.with_name("b")
        for part, columns in ((first, slice(0, 3)), (second, slice(3, 6))):
            with ckptfmt.Writer(part, durability="none", level="v2") as writer:
                writer.add_slice("part", number[:, columns], number.shape, (0, columns.start))
                writer.add(f"own of {part.name}", number)
        ckptfmt.merge([first, second], prefix, durability="none")

    save = partial(ckptfmt.save, durability="none")
    makers = {
        "plain": lambda prefix: save(prefix, plain, level="v2"),
        "metadata": lambda prefix: save(prefix, plain, metadata=metadata),
        "compressed": lambda prefix: save(
            prefix, {"many": many, "text": text, "number": number}, compression="zstd"
        ),
        "sliced": sliced,
        "sliced and compressed": partial(sliced, compression="zstd"),
        "graph": graph,
        "merged": merged,
    }
    found = []
    for name, make in makers.items():
        prefix = directory / name / "m"
        prefix.parent.mkdir(parents=True)
        make(prefix)
        found.append((f"written/{name}", str(prefix)))
    return found


def samples(directory: Path) -> list[Sample]:
    """All of them; `directory` takes what is written."""
    places = [
        (f"vector/{one.name}", f"{vectors.DIRECTORY}/{one.prefix}")
        for one in vectors.VECTORS
        if one.kind in ("good", "deviation") and one.files and not one.limits
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places += written(directory)
    corpus = os.environ.get("CKPTFMT_CORPUS")
    if corpus:
        for path in sorted(Path(corpus).rglob("*.index")):
            places.append((f"corpus/{path.parent.name}", str(path.with_suffix(""))))
    taken = (taken_apart(name, prefix) for name, prefix in places)
    return [one for one in taken if one is not None]
