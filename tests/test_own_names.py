# SPDX-License-Identifier: Apache-2.0
"""Names of the format itself: nobody writes them but the library (EXT-8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import index as ix

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.distributed.coordinator import SingleProcess

VECTORS = Path(__file__).resolve().parent.parent / "spec" / "vectors"
ONE = np.ones(1)


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*"))


def add(prefix: Path, name: str) -> None:
    with ckptfmt.Writer(prefix) as writer:
        writer.add(name, ONE)


def add_slice(prefix: Path, name: str) -> None:
    with ckptfmt.Writer(prefix, level="v2") as writer:
        writer.add_slice(name, ONE, [2], [0])


def save_upon(prefix: Path, name: str) -> None:
    ckptfmt.save(prefix, {name: ONE}, base=VECTORS / "good" / "header-only")


WAYS: dict[str, Callable[[Path, str], object]] = {
    "Writer.add": add,
    "Writer.add_slice": add_slice,
    "save": lambda prefix, name: ckptfmt.save(prefix, {name: ONE}),
    "save of many": lambda prefix, name: ckptfmt.save(prefix, {"a": ONE, name: ONE, "b": ONE}),
    "save at v2": lambda prefix, name: ckptfmt.save(prefix, {name: ONE}, level="v2"),
    "save compressed": lambda p, name: ckptfmt.save(p, {name: np.zeros(9999)}, level="ckptfmt"),
    "save upon a base": save_upon,
    "save_v2": lambda prefix, name: ckptfmt.save_v2(prefix, ["x", name], ["", ""], [ONE, ONE]),
    "save_async": lambda prefix, name: ckptfmt.save_async(prefix, {name: ONE}),
    "save_tree": lambda prefix, name: ckptfmt.save_tree(prefix, {name: ONE}),
    "sharded_save": lambda prefix, name: ckptfmt.sharded_save(
        prefix, {name: ONE}, {name: None}, SingleProcess()
    ),
    "Saver": lambda prefix, name: ckptfmt.Saver({"all": {name: ONE}}).save(prefix),
    "Checkpoint": lambda prefix, name: ckptfmt.Checkpoint(**{name: ONE}).write(prefix),
}


@pytest.mark.parametrize("name", ["_CKPTFMT_", "_CKPTFMT_METADATA", "_CKPTFMT_SHARD_0"])
@pytest.mark.parametrize("way", WAYS)
def test_reserved_names(tmp_path: Path, way: str, name: str) -> None:
    with pytest.raises(InvalidError) as caught:
        WAYS[way](tmp_path / "ck", name)
    assert "names beginning with _CKPTFMT_ are reserved" in caught.value.message
    assert (caught.value.tensor or "").startswith(name)
    assert listing(tmp_path) == []


def test_names_like_them(tmp_path: Path) -> None:
    names = ["_CKPTFMT", "_CKPTFMTX", "_ckptfmt_", "x_CKPTFMT_", "a/_CKPTFMT_SHARD_0"]
    ckptfmt.save(tmp_path / "ck", {name: [number] for number, name in enumerate(names)})
    assert sorted(ckptfmt.load(tmp_path / "ck")) == sorted(names)


def test_a_merge_keeps_them(tmp_path: Path) -> None:
    """Those that it knows not; to a reader they are tensors that are not listed."""
    for name in ("a", "_CKPTFMT_LATER"):
        entry = ix.stored_entry(ix.UINT8, [2], b"\1\2")
        rows = [(b"", ix.header()), (name.encode(), entry)]
        ix.write(tmp_path / name, ix.index_of(rows), b"\1\2")
    ckptfmt.merge([tmp_path / "a", tmp_path / "_CKPTFMT_LATER"], tmp_path / "ck")
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert list(reader) == ["a"]
        assert list(reader.table(reserved=True)["name"]) == ["_CKPTFMT_LATER", "a"]
        assert reader["_CKPTFMT_LATER"].read().tolist() == [1, 2]
