# SPDX-License-Identifier: Apache-2.0
"""Arguments of the wrong type: an InvalidError that says what was expected, before anything is
done."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import InvalidError, SaveSliceInfo

ARRAY = np.zeros((2, 3))

Call = Callable[[Path], Any]


def opened(path: Path, use: Callable[[ckptfmt.Reader], Any], **options: Any) -> Any:
    with ckptfmt.open(path, **options) as reader:
        return use(reader)


def written(path: Path, use: Callable[[ckptfmt.Writer], Any], **options: Any) -> None:
    writer = ckptfmt.Writer(f"{path}-new", **options)
    try:
        use(writer)
    finally:
        writer.abandon()


def saved(path: Path, tensors: Any, **options: Any) -> None:
    ckptfmt.save(f"{path}-new", tensors, **options)


def saved_v2(path: Path, *arguments: Any) -> None:
    ckptfmt.save_v2(f"{path}-new", *arguments)


def merged(path: Path, inputs: Any, **options: Any) -> None:
    ckptfmt.merge(inputs, f"{path}-new", **options)


PATH = "a path must be str, bytes or os.PathLike, not int"
NAME = "a tensor name must be str or bytes, not int"
LIMITS = "limits must be a mapping from names of limits to numbers, not int"
PROGRESS = "progress must be a function of two numbers, not int"
VERIFY = "verify must be one of 'auto', 'full', 'off'"
DURABILITY = "durability must be one of 'full', 'rename', 'none'"
ALIGNMENT = "alignment must be a whole number of bytes"
TEXTS, DTYPES = "must be a sequence of texts", "dtypes must be a sequence of dtypes"
SPEC = "a shape_and_slice text must be str or bytes, not "
TENSORS = "tensors must be a mapping of names to arrays, or pairs of these"

CASES: dict[str, tuple[Call, str]] = {
    "open path": (lambda _: ckptfmt.open(5), PATH),
    "open limits": (lambda p: opened(p, len, limits=5), LIMITS),
    "open limits pairs": (
        lambda p: opened(p, len, limits=[("entries_max", 5)]),
        "limits must be a mapping from names of limits to numbers, not list",
    ),
    "open verify": (
        lambda p: opened(p, len, verify=3),
        f"{VERIFY}, not 3",
    ),
    "handle verify": (
        lambda p: opened(p, lambda r: r["a"].read(verify=[])),
        f"{VERIFY}, not []",
    ),
    "reader name": (lambda p: opened(p, lambda r: r[5]), NAME),
    "keys prefix": (lambda p: opened(p, lambda r: r.keys(prefix=5)), NAME),
    "keys glob": (
        lambda p: opened(p, lambda r: r.keys(glob=b"a")),
        "glob must be a str, not bytes",
    ),
    "keys regex": (
        lambda p: opened(p, lambda r: r.keys(regex=5)),
        "regex: 5 is not a regular expression: first argument must be string or compiled pattern",
    ),
    "keys regex malformed": (
        lambda p: opened(p, lambda r: r.keys(regex="(")),
        "regex: '(' is not a regular expression: missing ), unterminated subpattern at position 0",
    ),
    "keys regex bytes": (
        lambda p: opened(p, lambda r: r.keys(regex=re.compile(b"a"))),
        "regex: re.compile(b'a') is for bytes: names are str",
    ),
    "reader verify": (lambda p: opened(p, lambda r: r.verify(progress=5)), PROGRESS),
    "verify path": (lambda _: ckptfmt.verify(5), PATH),
    "verify progress": (lambda p: ckptfmt.verify(p, progress=5), PROGRESS),
    "verify limits": (lambda p: ckptfmt.verify(p, limits=5), LIMITS),
    "load names": (lambda p: ckptfmt.load(p, 5), "names must be a list of names, not int"),
    "load name": (lambda p: ckptfmt.load(p, [5]), NAME),
    "load rename": (
        lambda p: ckptfmt.load_into(p, {}, rename=5),
        "rename must be a mapping from names to names, a function, or a list of pairs, not int",
    ),
    "load rename name": (lambda p: ckptfmt.load_into(p, {}, rename={5: "a"}), NAME),
    "load progress": (lambda p: ckptfmt.load(p, progress=5), PROGRESS),
    "load verify": (
        lambda p: ckptfmt.load(p, verify=3),
        f"{VERIFY}, not 3",
    ),
    "restore names": (
        lambda p: ckptfmt.restore_v2(p, 5, [""]),
        f"tensor_names {TEXTS}, not int",
    ),
    "restore specs": (
        lambda p: ckptfmt.restore_v2(p, ["a"], None),
        f"shape_and_slices {TEXTS}, not NoneType",
    ),
    "restore spec": (lambda p: ckptfmt.restore_v2(p, ["a"], [None]), f"{SPEC}NoneType"),
    "restore dtypes": (
        lambda p: ckptfmt.restore_v2(p, ["a"], [""], 5),
        f"{DTYPES}, not int",
    ),
    "restore dtypes text": (
        lambda p: ckptfmt.restore_v2(p, ["a"], [""], "f"),
        f"{DTYPES}, not one",
    ),
    "writer path": (lambda _: ckptfmt.Writer(5), PATH),
    "writer level": (
        lambda p: written(p, len, level=[]),
        "level must be one of 'v2', 'v2+', 'ckptfmt', not []",
    ),
    "writer compression": (
        lambda p: written(p, len, compression=1),
        "compression must be 'zstd', 'zstd:<level>' or None, not int",
    ),
    "writer durability": (
        lambda p: written(p, len, durability=[]),
        f"{DURABILITY}, not []",
    ),
    "writer alignment": (
        lambda p: written(p, len, alignment=64.0),
        f"{ALIGNMENT}, not float",
    ),
    "writer alignment that is a truth": (
        lambda p: written(p, len, alignment=True),
        f"{ALIGNMENT}, not bool",
    ),
    "writer metadata": (
        lambda p: written(p, len, metadata=[("step", 1)]),
        "metadata must be a mapping of names to values, not list",
    ),
    "add name": (lambda p: written(p, lambda w: w.add(5, ARRAY)), NAME),
    "add dtype": (
        lambda p: written(p, lambda w: w.add("a", ARRAY, 5.5)),
        "5.5 is not a dtype that a checkpoint can store",
    ),
    "add slice offset": (
        lambda p: written(p, lambda w: w.add_slice("a", ARRAY, (4, 3), (0.0, 0))),
        "offset must be a sequence of integers, not (0.0, 0)",
    ),
    "add slice shape": (
        lambda p: written(p, lambda w: w.add_slice("a", ARRAY, 5, (0, 0))),
        "shape must be a sequence of integers, not 5",
    ),
    "add slice spec": (
        lambda p: written(p, lambda w: w.add_slice("a", ARRAY, spec=5)),
        f"{SPEC}int",
    ),
    "save path": (
        lambda _: ckptfmt.save(5, {"a": ARRAY}),
        "save(prefix, tensors): prefix must be str, bytes or os.PathLike, not int",
    ),
    "save tensors": (lambda p: saved(p, 5), f"{TENSORS}, not int"),
    "save names": (lambda p: saved(p, ["ab"]), f"{TENSORS}, got str as a pair"),
    "save triples": (lambda p: saved(p, [("a", 1, 2)]), f"{TENSORS}, got tuple as a pair"),
    "save name": (lambda p: saved(p, {5: ARRAY}), NAME),
    "save progress": (lambda p: saved(p, {"a": ARRAY}, progress=5), PROGRESS),
    "save_v2 names": (
        lambda p: saved_v2(p, 5, [""], [ARRAY]),
        f"tensor_names {TEXTS}, not int",
    ),
    "save_v2 iterators": (
        lambda p: saved_v2(p, iter(["a"]), [""], [ARRAY]),
        f"tensor_names {TEXTS}, not list_iterator",
    ),
    "save_v2 spec": (lambda p: saved_v2(p, ["a"], [None], [ARRAY]), f"{SPEC}NoneType"),
    "save_v2 tensors": (
        lambda p: saved_v2(p, ["a"], [""], 5),
        "tensors must be a sequence of arrays, not int",
    ),
    "cast keys": (
        lambda p: ckptfmt.load(p, cast={b"a": "f2", "a": "f4"}),
        "cast has 'a' as str and as bytes",
    ),
    "merge inputs": (lambda p: merged(p, 5), "prefixes must be a list of prefixes, not int"),
    "merge input": (lambda p: merged(p, [5]), PATH),
    "merge durability": (
        lambda p: merged(p, [p], durability=[]),
        f"{DURABILITY}, not []",
    ),
    "merge limits": (lambda p: merged(p, [p], limits=5), LIMITS),
    "merge_v2 inputs": (
        lambda p: ckptfmt.merge_v2_checkpoints(5, f"{p}-new"),
        "checkpoint_prefixes must be a list of prefixes, not int",
    ),
    "parse_spec": (lambda _: ckptfmt.tf.parse_spec(5), f"{SPEC}int"),
    "from_spec": (
        lambda _: SaveSliceInfo.from_spec(b"4 0,1"),
        "a spec text must be a str, not bytes",
    ),
    "spec": (
        lambda _: SaveSliceInfo("a", 5, [0], ["x"]).spec,
        "full_shape 5, var_offset [0] and var_shape ['x'] must be sequences of integers",
    ),
    "sharded_filename": (
        lambda _: ckptfmt.sharded_filename("a", "1", 2.0),
        "shard must be an integer, not str",
    ),
    "tf name": (lambda p: ckptfmt.tf.load_variable(p, 5), NAME),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_type(case: str, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"a": ARRAY}, durability="none")
    before = sorted(os.listdir(tmp_path))
    call, message = CASES[case]
    with pytest.raises(InvalidError) as caught:
        call(tmp_path / "ck")
    assert (caught.value.status, caught.value.failure) == ("INVALID", "ARGUMENT")
    assert caught.value.message == message
    assert sorted(os.listdir(tmp_path)) == before


def test_what_numpy_and_dictionaries_give_is_taken(tmp_path: Path) -> None:
    """Whatever has elements, and whatever counts as an integer."""
    tensors = {"a": ARRAY, "b": np.arange(3)}
    ckptfmt.save_v2(tmp_path / "v2", tensors.keys(), np.array(["", ""]), tensors.values())
    ckptfmt.save(tmp_path / "ck", tensors.items(), alignment=np.int64(8))
    for name in ("v2", "ck"):
        assert list(ckptfmt.load(tmp_path / name, tensors.keys())) == ["a", "b"]
    assert ckptfmt.sharded_filename("a", np.int32(1), True) == "a-00001-of-00001"
    with pytest.raises(TypeError, match="unexpected keyword argument 'name'"):
        ckptfmt.load(tmp_path / "ck", name="a")
