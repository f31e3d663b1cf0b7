# SPDX-License-Identifier: Apache-2.0
"""Reserved names: only the library writes them (EXT-8), and only those that are needed (CMT-6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import index as ix
from support.files import listing

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.sharded.coordinator import SingleProcess

VECTORS = Path(__file__).resolve().parents[2] / "spec" / "vectors"
ONE = np.ones(1)


def add(prefix: Path, name: str) -> None:
    with ckptfmt.Writer(prefix) as writer:
        writer.add(name, ONE)


def add_slice(prefix: Path, name: str) -> None:
    with ckptfmt.Writer(prefix, level="v2") as writer:
        writer.add_slice(name, ONE, [2], [0])


WAYS: dict[str, Callable[[Path, str], object]] = {
    "Writer.add": add,
    "Writer.add_slice": add_slice,
    "save": lambda prefix, name: ckptfmt.save(prefix, {name: ONE}),
    "save of many": lambda prefix, name: ckptfmt.save(prefix, {"a": ONE, name: ONE, "b": ONE}),
    "save at v2": lambda prefix, name: ckptfmt.save(prefix, {name: ONE}, level="v2"),
    "save compressed": lambda p, name: ckptfmt.save(p, {name: np.zeros(9999)}, level="ckptfmt"),
    "save upon a base": lambda prefix, name: ckptfmt.save(
        prefix, {name: ONE}, base=VECTORS / "good" / "header-only"
    ),
    "save_v2": lambda prefix, name: ckptfmt.save_v2(prefix, ["x", name], ["", ""], [ONE, ONE]),
    "save_async": lambda prefix, name: ckptfmt.save_async(prefix, {name: ONE}),
    "save_tree": lambda prefix, name: ckptfmt.save_tree(prefix, {name: ONE}),
    "sharded_save": lambda prefix, name: ckptfmt.sharded.save(
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


# ---- checkpoints of nothing ----------------------------------------------------------------------

HEADER_ONLY = (VECTORS / "good" / "header-only.index").read_bytes()


def all_names(prefix: Path) -> list[str]:
    with ckptfmt.open(prefix) as reader:
        return list(reader.table(reserved=True)["name"])


@pytest.mark.parametrize("level", ["v2", "v2+", "ckptfmt"])
def test_nothing_on_a_fresh_prefix(tmp_path: Path, level: str) -> None:
    """A header and no more: what merging such bundles and TensorFlow's writer of them gives."""
    ckptfmt.save(tmp_path / "ck", {}, level=level)
    assert (tmp_path / "ck.index").read_bytes() == HEADER_ONLY
    assert listing(tmp_path) == ["ck.data-00000-of-00001", "ck.index"]
    assert (tmp_path / "ck.data-00000-of-00001").read_bytes() == b""
    assert ckptfmt.load(tmp_path / "ck") == {}
    assert ckptfmt.verify(tmp_path / "ck").ok


def test_nothing_upon_nothing(tmp_path: Path) -> None:
    """With `base` too, where the number of data files is settled last."""
    ckptfmt.save(tmp_path / "a", {})
    ckptfmt.save(tmp_path / "b", {}, base=tmp_path / "a")
    assert (tmp_path / "b.index").read_bytes() == HEADER_ONLY


def test_nothing_where_there_was_something(tmp_path: Path) -> None:
    """The new data files are told from the old by their number; each has its placeholder."""
    ckptfmt.save(tmp_path / "ck", {"x": [1]})
    ckptfmt.save(tmp_path / "ck", {}, level="v2")
    assert all_names(tmp_path / "ck") == ["_CKPTFMT_SHARD_0", "_CKPTFMT_SHARD_1"]
    ckptfmt.save(tmp_path / "ck", {}, level="v2")
    assert all_names(tmp_path / "ck") == ["_CKPTFMT_SHARD_0"]
    assert listing(tmp_path) == ["ck.data-00000-of-00001", "ck.index"]


@pytest.mark.parametrize("left", ["ck.index", "ck.data-00001-of-00004", "ck.data-00000-of-00001"])
def test_nothing_where_something_was_left(tmp_path: Path, left: str) -> None:
    """Files of any kind, an index that cannot be read among them, make the prefix no fresh one."""
    (tmp_path / left).write_bytes(b"left")
    ckptfmt.save(tmp_path / "ck", {}, level="v2")
    shards = ["_CKPTFMT_SHARD_0", "_CKPTFMT_SHARD_1"]
    assert all_names(tmp_path / "ck") == shards[: 2 if left.endswith("00000-of-00001") else 1]


def test_a_number_taken_meanwhile(tmp_path: Path) -> None:
    """Another number than it began with: then every data file needs a placeholder."""
    writer = ckptfmt.Writer(tmp_path / "ck")
    name = "ck.data-00000-of-00001"
    with writer:
        (tmp_path / name).write_bytes(b"another's")
    assert all_names(tmp_path / "ck") == ["_CKPTFMT_SHARD_0", "_CKPTFMT_SHARD_1"]
    assert (tmp_path / name).read_bytes() == b"another's"
