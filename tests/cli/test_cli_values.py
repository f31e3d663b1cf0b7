# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt show`, `diff` and `merge`: what they print and do, and their exit status."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.arrays import CODES, NAMES, random_array
from support.files import contents, flip

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.bundle import comparing
from ckptfmt.cli import show
from cli.commands import ODD_NAMES, Command, data_file, index_file, odd, plus, small


def save(prefix: Path, tensors: Any, **options: Any) -> Path:
    ckptfmt.save(prefix, tensors, durability="none", **options)
    return prefix


# ---- show


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("step", "step  int64 []\n7\n"),
        ("scale", "scale  float32 []\n0.5\n"),
        ("model/none", "model/none  float64 [3, 0]\n[]\n"),
        ("model/words", "model/words  string [2]\n['one' 'three']\n"),
        ("model/words[::-1]", "model/words[::-1]  string [2] of [2]\n['three' 'one']\n"),
        ("model/words[1]", "model/words[1]  string [] of [2]\n'three'\n"),
        (
            "model/dense/kernel[3:5, ::2]",
            "model/dense/kernel[3:5, ::2]  int32 [2, 2] of [6, 4]\n[[12 14]\n [16 18]]\n",
        ),
        (
            "model/dense/kernel[-1,...,-1]",
            "model/dense/kernel[-1,...,-1]  int32 [] of [6, 4]\n23\n",
        ),
        ("step[...]", "step[...]  int64 [] of []\n7\n"),
    ],
)
def test_show(name: str, expected: str, command: Command, tmp_path: Path) -> None:
    ran = command("show", small(tmp_path), name)
    assert (ran.status, ran.out, ran.err) == (0, expected, "")


@pytest.mark.parametrize("code", CODES, ids=NAMES.get)
def test_show_every_dtype(code: int, command: Command, tmp_path: Path) -> None:
    """As numpy shows the array, and in JSON the values."""
    value = random_array(random.Random(code), code, (2, 3))
    with ckptfmt.Writer(tmp_path / "ck", durability="none") as writer:
        writer.add("x", value, NAMES[code])
    ran = command("show", tmp_path / "ck", "x")
    assert ran.status == 0
    assert ran.out.startswith(f"x  {NAMES[code]} [2, 3]\n[[")
    plain = value[value.dtype.names[0]] if value.dtype.names else value
    if plain.dtype != np.dtype(object):
        assert ran.out.split("\n", 1)[1] == f"{plain}\n"
    ran = command("show", "--json", tmp_path / "ck", "x[1, :2]")
    document = json.loads(ran.out, parse_constant=pytest.fail)
    assert (document["dtype"], document["shape"]) == (NAMES[code], [2, 3])
    expected = plain[1, :2]
    if plain.dtype == np.dtype(object):
        found = [one.encode("utf-8", "surrogateescape") for one in document["values"]]
        assert found == expected.tolist()
    elif plain.dtype.kind == "c":
        pairs = [[float(part) for part in pair] for pair in document["values"]]
        np.testing.assert_array_equal(pairs, [[one.real, one.imag] for one in expected.tolist()])
    else:
        np.testing.assert_array_equal(
            np.array(document["values"], np.object_).astype(np.float64), expected.astype(np.float64)
        )


def test_show_json(command: Command, tmp_path: Path) -> None:
    values = np.array([0.5, np.nan, np.inf, -np.inf], np.float32)
    prefix = save(tmp_path / "ck", {"x": values, "c": np.array(complex(1, np.nan))})
    assert json.loads(command("show", "--json", f"{prefix}.index", "x").out) == {
        "schema": 2,
        "path": f"{prefix}.index",
        "prefix": str(prefix),
        "name": "x",
        "display": "x",
        "dtype": "float32",
        "shape": [4],
        "index": None,
        "values": [0.5, "NaN", "Infinity", "-Infinity"],
    }
    assert json.loads(command("show", "--json", prefix, "c").out)["values"] == [1.0, "NaN"]
    document = json.loads(command("show", "--json", prefix, "x[::2]").out)
    assert (document["index"], document["values"]) == ("::2", [0.5, "Infinity"])


def test_show_shortens(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As numpy does, and the same text where only the edges of a large tensor are read."""
    tensors = {
        "one": np.arange(1001.0),
        "few": np.arange(1000, dtype=np.int32),
        "two": np.arange(7 * 300, dtype=ml_dtypes.bfloat16).reshape(7, 300),
        "three": np.arange(8 * 6 * 50, dtype=np.int16).reshape(8, 6, 50) * -1,
        "texts": np.array([f"t{number}" for number in range(2000)]),
    }
    prefix = save(tmp_path / "ck", tensors)
    for name, value in tensors.items():
        with np.printoptions(threshold=1000):
            expected = f"{value}\n" if name != "texts" else None
        texts = set()
        for limit in (1 << 30, 0):
            monkeypatch.setattr(show, "EDGES_BYTES", limit)
            ran = command("show", prefix, name)
            assert ran.status == 0
            texts.add(ran.out.split("\n", 1)[1])
        assert len(texts) == 1
        assert texts == {expected} or name == "texts"
        assert ("..." in texts.pop()) == (name != "few")
        assert "..." not in command("show", "--all", prefix, name).out
    monkeypatch.setattr(show, "EDGES_BYTES", 0)
    monkeypatch.setattr(ckptfmt.types.TensorHandle, "read", pytest.fail)
    assert command("show", prefix, "three").status == 0


def test_show_escapes(command: Command, tmp_path: Path) -> None:
    texts = [b"\x1b[2J", b"\xff'\\", "検\u202e".encode(), b"x" * 1000]
    prefix = save(tmp_path / "ck", {"t\x1b": np.array(texts, object)})
    ran = command("show", prefix, "t\x1b")
    assert (ran.status, ran.err) == (0, "")
    assert all(line.isprintable() for line in ran.out.split("\n"))
    assert ran.out.startswith(r"t\x1b  string [4]" + "\n")
    for shown in (r"'\x1b[2J'", r"'\xff\'\\'", r"'検\u202e'", f"'{'x' * 200}'... (1,000 bytes)"):
        assert shown in ran.out
    assert f"'{'x' * 1000}'" in command("show", "--all", prefix, "t\x1b").out
    for name in ODD_NAMES:
        text = name.decode("utf-8", "surrogateescape")
        ran = command("show", odd(tmp_path), text)
        assert (ran.status, ran.out.splitlines()[-1]) == (0, "1")
        assert all(line.isprintable() for line in ran.out.split("\n"))


def test_show_names_with_brackets(command: Command, tmp_path: Path) -> None:
    """The whole text is the name where there is such a tensor."""
    prefix = save(tmp_path / "ck", {"a": [5, 6], "a[0]": [7, 8], "[1]": [9]})
    for name, expected in (("a[0]", "[7 8]"), ("a[0][0]", "7"), ("a[1]", "6"), ("[1]", "[9]")):
        assert command("show", prefix, name).out.splitlines()[1:] == [expected]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("step[0]", "tensor 'step': too many indices: 1 for a tensor of 0 dimensions"),
        (
            "model/words[2]",
            "tensor 'model/words': index 2 is out of bounds for dimension 0 of size 2",
        ),
        (
            "model/words[]",
            "invalid index []: '' must be an integer, a slice start:stop:step or ...",
        ),
        (
            "model/words[a]",
            "invalid index [a]: 'a' must be an integer, a slice start:stop:step or ...",
        ),
        (
            "model/words[1.0]",
            "invalid index [1.0]: '1.0' must be an integer, a slice start:stop:step or ...",
        ),
        ("model/words[::0]", r"slice\(None, None, 0\): slice step cannot be zero"),
        ("words", r"in .+\.index, tensor 'words': not found in checkpoint; the nearest are [^\n]+"),
        ("words[0]", r"in .+\.index, tensor 'words': not found in checkpoint; the nearest are .+"),
    ],
)
def test_show_refuses(name: str, message: str, command: Command, tmp_path: Path) -> None:
    ran = command("show", small(tmp_path), name)
    assert (ran.status, ran.out) == (2, "")
    expected = message if "\\" in message else re.escape(message)
    assert re.fullmatch(f"ckptfmt: {expected}\n", ran.err), ran.err


def test_parse_index() -> None:
    assert show.parse_index(" 1 , -2:, ::3,...,:, ") == (
        1,
        slice(-2, None),
        slice(None, None, 3),
        ...,
        slice(None),
    )
    for index in ("", ",", "1,,2", "1:2:3:4", "None", "True", "1:a", "[0]", "....", "0x1"):
        with pytest.raises(InvalidError, match="must be an integer, a slice"):
            show.parse_index(index)


def test_show_damage(command: Command, tmp_path: Path) -> None:
    prefix = small(tmp_path)
    with ckptfmt.open(prefix) as reader:
        offset = reader["step"].offset
    flip(data_file(prefix), offset)
    ran = command("show", prefix, "step")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(
        f"ckptfmt: CHECKSUM in {data_file(prefix)} at offset {offset}, tensor 'step': DAT-6: "
    )


# ---- diff


def test_diff_equal(command: Command, tmp_path: Path) -> None:
    """However the tensors are stored."""
    prefix = plus(tmp_path)
    with ckptfmt.open(prefix) as reader:
        other = save(tmp_path / "other", dict(reader.items()), metadata=reader.metadata)
    for a, b in ((prefix, other), (other, prefix), (prefix, prefix)):
        ran = command("diff", a, b)
        assert (ran.status, ran.out, ran.err) == (0, "equal: 3 tensors equal\n", "")
        ran = command("diff", "--quiet", a, b)
        assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert json.loads(command("diff", "--json", prefix, other).out) == {
        "schema": 2,
        "a": str(prefix),
        "b": str(other),
        "equal": True,
        "metadata_equal": True,
        "metadata": {},
        "values": {},
        "tensors_equal": 3,
        "norm_a": None,
        "norm_change": None,
        "differences": [],
    }


NAN = np.nan
A = {
    "a": [1],
    "bf": np.array([1.5, NAN, 1, np.inf], ml_dtypes.bfloat16),
    "c": np.array([1 + 2j, 0]),
    "i": np.arange(5),
    "lr": np.array(0.1, np.float32),
    "nan": np.array([NAN, -NAN, 0.0]),
    "on": np.array([[True, True]]),
    "q\x1b": np.array([[1, 2], [3, 4]], np.int8),
    "s": ["x", "y"],
    "same": np.arange(6.0).reshape(2, 3),
    "shape": np.zeros((2, 3), np.float32),
    "step": 5,
    "str": "X" * 61,
    "type": np.array(0.5, np.float32),
}
B = {
    **A,
    "b": np.zeros((), np.float16),
    "bf": np.array([1.5, 2, 3, -np.inf], ml_dtypes.bfloat16),
    "c": np.array([1 + 2j, 3 + 4j]),
    "i": np.array([0, 5, 2, 6, 4]),
    "lr": np.array(0.01, np.float32),
    "nan": np.array([NAN, -NAN, -0.0]),
    "on": np.array([[True, False]]),
    "q\x1b": np.array([[1, 2], [4, 4]], np.int8),
    "s": ["x", "z\n"],
    "shape": np.zeros((3, 2), np.float64),
    "step": 6,
    "str": "",
    "type": np.array(0, np.int32),
}
del B["a"]
DIFFERENT = r"""only in A: a  int64 [1]
only in B: b  float16 []
values: bf  bfloat16 [4]: [1.5, nan, 1, inf] -> [1.5, 2, 3, -inf], 3 of 4 elements,
 largest difference inf, norm of the change 2 (relative 1.11), 1 NaN in A and 0 in B,
 1 infinite in A and 1 in B
values: c  complex128 [2]: [(1+2j), 0j] -> [(1+2j), (3+4j)], 1 of 2 elements,
 largest difference 5, norm of the change 5 (relative 2.24)
values: i  int64 [5]: 2 of 5 elements, largest difference 4, norm of the change 5 (relative 0.913)
values: lr  float32 []: 0.1 -> 0.01
values: nan  float64 [3]: [nan, nan, 0.0] -> [nan, nan, -0.0], 1 of 3 elements,
 largest difference 0, norm of the change 0 (relative 0), 2 NaN in A and 2 in B
values: on  bool [1, 2]: [True, True] -> [True, False], 1 of 2 elements
values: q\x1b  int8 [2, 2]: [1, 2, 3, 4] -> [1, 2, 4, 4], 1 of 4 elements,
 largest difference 1, norm of the change 1 (relative 0.183)
values: s  string [2]: ['x', 'y'] -> ['x', 'z\n'], 1 of 2 elements
shape: shape  float32 [2, 3] in A, float64 [3, 2] in B
values: step  int64 []: 5 -> 6
values: str  string []: 'XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX'...
 (61 bytes) -> ''
dtype: type  float32 [] in A, int32 [] in B: 0.5 -> 0
metadata a: only in A
metadata b: only in B
metadata long: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... -> ""
metadata step: 1 -> 1.0
different: 1 only in A, 1 only in B, 10 with other values, 1 of another shape,
 1 of another dtype, other metadata, 1 tensor equal; norm of the change 5.38516 (relative 1.87)
"""


def test_diff(command: Command, tmp_path: Path) -> None:
    a = save(tmp_path / "a", A, metadata={"step": 1, "a": 1, "long": "x" * 60})
    b = save(tmp_path / "b", B, metadata={"step": 1.0, "b": "B", "long": ""})
    ran = command("diff", a, b)
    assert (ran.status, ran.err) == (1, "")
    assert ran.out == DIFFERENT.replace("\n ", " ")
    ran = command("diff", "--quiet", a, b)
    assert (ran.status, ran.out, ran.err) == (1, "", "")
    document = json.loads(command("diff", "--json", a, b).out, parse_constant=pytest.fail)
    assert (document["equal"], document["metadata_equal"]) == (False, False)
    assert document["tensors_equal"] == 1
    found = {one["name"]: one for one in document["differences"]}
    assert list(found) == sorted({*A, *B} - {"same"})
    assert found["b"]["a"] is None
    assert found["b"]["b"] == {"dtype": "float16", "shape": []}
    assert found["c"] == {
        "name": "c",
        "display": "c",
        "kind": "values",
        "a": {"dtype": "complex128", "shape": [2]},
        "b": {"dtype": "complex128", "shape": [2]},
        "elements": 1,
        "elements_within_tolerance": 0,
        "max_abs_difference": 5.0,
        "norm_a": pytest.approx(5**0.5),
        "norm_change": 5.0,
        **dict.fromkeys(["nan_a", "nan_b", "infinite_a", "infinite_b"], 0),
        "values_a": [[1.0, 2.0], [0.0, 0.0]],
        "values_b": [[1.0, 2.0], [3.0, 4.0]],
    }
    assert found["bf"]["max_abs_difference"] == "Infinity"
    assert [found[name]["max_abs_difference"] for name in ("i", "s", "shape")] == [4, None, None]
    assert document["metadata"] == {
        "a": [1, None],
        "b": [None, "B"],
        "long": ["x" * 60, ""],
        "step": [1, 1.0],
    }


@pytest.mark.parametrize("code", CODES, ids=NAMES.get)
def test_diff_every_dtype(code: int, command: Command, tmp_path: Path, seed: int) -> None:
    """One element that differs is found, whatever the dtype; in pieces as well."""
    chance = random.Random(seed + code)
    value = random_array(chance, code, (3, 5))
    changed = value.copy()
    if value.dtype == np.dtype(object):
        changed[1, 2] += b"x"
    else:
        changed.view(np.uint8).reshape(3, 5, -1)[1, 2, 0] ^= 1
    for name, array in (("a", value), ("b", changed)):
        with ckptfmt.Writer(tmp_path / name, durability="none") as writer:
            writer.add("x", array, NAMES[code])
    for size in (comparing.PIECE_BYTES, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comparing, "PIECE_BYTES", size)
            assert command("diff", tmp_path / "a", tmp_path / "a").status == 0
            ran = command("diff", "--json", tmp_path / "a", tmp_path / "b")
        assert ran.status == 1
        (found,) = json.loads(ran.out)["differences"]
        assert (found["kind"], found["elements"]) == ("values", 1)


def test_diff_memory_is_bounded(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large tensor is read in pieces, and never whole."""
    value = np.arange(1 << 12).reshape(1 << 6, 1 << 6)
    prefix = save(tmp_path / "a", {"x": value})
    monkeypatch.setattr(comparing, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(ckptfmt.types.TensorHandle, "read", pytest.fail)
    read: list[int] = []
    fetch = ckptfmt.types.TensorHandle._read_box

    def watched(self: Any, box: Any, shape: Any, verify: Any) -> Any:
        array = fetch(self, box, shape, verify)
        read.append(array.nbytes)
        return array

    monkeypatch.setattr(ckptfmt.types.TensorHandle, "_read_box", watched)
    assert command("diff", prefix, prefix).status == 0
    assert max(read) <= 1 << 10 and sum(read) == 2 * value.nbytes


def test_diff_damage(command: Command, tmp_path: Path) -> None:
    a = small(tmp_path)
    b = save(tmp_path / "b", {})
    with ckptfmt.open(a) as reader:
        ckptfmt.save(b, dict(reader.items()))
        offset = reader["step"].offset
    assert command("diff", a, b).status == 0
    flip(data_file(a), offset)
    for pair in ((a, b), (b, a)):
        ran = command("diff", *pair)
        assert (ran.status, ran.out) == (1, "")
        assert ran.err.startswith(f"ckptfmt: CHECKSUM in {data_file(a)} at offset {offset}, ")
    ran = command("diff", a, tmp_path / "none")
    assert (ran.status, ran.out) == (2, "")


# ---- merge


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Two halves of one tensor, and a tensor more in each."""
    made = []
    for number in range(2):
        made.append(tmp_path / "parts" / f"part-{number}")
        with ckptfmt.Writer(made[-1], durability="none") as writer:
            writer.add_slice("cut", np.full((1, 3), number), (2, 3), (number, 0))
            writer.add(f"own{number}", [number])
    return made


@pytest.mark.parametrize("durability", [[], ["--durability", "rename"], ["--durability", "none"]])
@pytest.mark.parametrize("consume", [[], ["--consume"]])
def test_merge(
    consume: list[str], durability: list[str], command: Command, parts: list[Path], tmp_path: Path
) -> None:
    before = contents(tmp_path / "parts")
    destination = tmp_path / "whole"
    ran = command("merge", *consume, *durability, parts[0], f"{parts[1]}.index", destination)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == f"merged 2 checkpoints into {destination}\n"
    loaded = ckptfmt.load(destination)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        "cut": [[0] * 3, [1] * 3],
        "own0": [0],
        "own1": [1],
    }
    assert contents(tmp_path / "parts") == ({} if consume else before)
    assert data_file(destination, 1, 2).stat().st_nlink == (1 if consume else 2)


def test_merge_quiet(command: Command, parts: list[Path], tmp_path: Path) -> None:
    ran = command("merge", "-q", "--allow-missing", *parts, tmp_path / "no", tmp_path / "whole")
    assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_merge_missing(command: Command, parts: list[Path], tmp_path: Path) -> None:
    gone, destination = tmp_path / "gone\x1b", tmp_path / "whole"
    ran = command("merge", *parts, gone, destination)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("ckptfmt: in ")
    assert not index_file(destination).exists()
    ran = command("merge", "--allow-missing", gone, *parts, destination)
    assert (ran.status, ran.out) == (0, f"merged 2 checkpoints into {destination}\n")
    assert ran.err.startswith("ckptfmt: skipped: in ")
    assert ran.err.count("\n") == 1 and ran.err[:-1].isprintable()
    assert len(ckptfmt.load(destination)) == 3
    ran = command("merge", "--allow-missing", gone, tmp_path / "other")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("ckptfmt: in ")


def test_merge_into_what_is_there(command: Command, parts: list[Path], tmp_path: Path) -> None:
    """The forgotten DESTINATION: the last input is none."""
    before = contents(tmp_path)
    ran = command("merge", *parts)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        f"ckptfmt: in {parts[1]}: DESTINATION already holds a checkpoint (--overwrite replaces "
        "it)\n"
    )
    assert contents(tmp_path) == before


def test_merge_conflict(command: Command, parts: list[Path], tmp_path: Path) -> None:
    other = save(tmp_path / "other", {"own0": [5]})
    before = contents(tmp_path)
    ran = command("merge", "--consume", parts[0], other, tmp_path / "whole")
    assert (ran.status, ran.out) == (1, "")
    assert re.fullmatch(
        r"ckptfmt: MERGE_CONFLICT in [^\n]+, tensor 'own0': MRG-3: [^\n]+\n", ran.err
    )
    flip(index_file(other), index_file(other).stat().st_size - 1)
    ran = command("merge", parts[0], other, tmp_path / "whole")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"ckptfmt: BAD_MAGIC in {other}.index at offset ")
    flip(index_file(other), index_file(other).stat().st_size - 1)
    assert contents(tmp_path) == before


# ---- failures


@pytest.mark.parametrize("arguments", [["inspect"], ["verify"], ["show"], ["diff"]])
def test_json_of_a_failure(command: Command, tmp_path: Path, arguments: list[str]) -> None:
    """With --json a failing command prints its document as well."""
    more = {"show": ["x"], "diff": [tmp_path / "other"]}.get(arguments[0], [])
    ran = command(*arguments, "--json", tmp_path / "nosuch", *more)
    assert ran.status == 2
    error = json.loads(ran.out)["error"]
    assert (error["status"], error["failure"]) == ("NOT_FOUND", "CHECKPOINT_NOT_FOUND")
    assert ran.err.startswith("ckptfmt: ")
