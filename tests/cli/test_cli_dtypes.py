# SPDX-License-Identifier: Apache-2.0
"""The name of each dtype, which is the same wherever a person sees one."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support import index as ix

import ckptfmt
from ckptfmt import tf
from ckptfmt.report import report
from cli.commands import Command

# TensorFlow's word in brackets, where it is another one. No tensor has dtype 20, `resource`.
TABLE = """
1 float32 (float)       2 float64 (double)      3 int32                 4 uint8
5 int16                 6 int8                  7 string                8 complex64
9 int64                 10 bool                 11 qint8                12 quint8
13 qint32               14 bfloat16             15 qint16               16 quint16
17 uint16               18 complex128           19 float16 (half)
21 variant              22 uint32               23 uint64               24 float8_e5m2
25 float8_e4m3fn        26 float8_e4m3fnuz      27 float8_e4m3b11fnuz   28 float8_e5m2fnuz
29 int4                 30 uint4                31 int2                 32 uint2
33 float4_e2m1fn        34 dtype 34             99 dtype 99
"""
ROWS = re.findall(r"(\d+) ((?:dtype )?\w+)(?: \((\w+)\))?", TABLE)
NAMES = {f"t{int(code):02}": name for code, name, _ in ROWS}
WORDS = {f"t{int(code):02}": word or name for code, name, word in ROWS}


def write(prefix: Path, *shape: int) -> Path:
    """A checkpoint with a tensor without elements of every dtype."""
    rows = [(b"t%02d" % int(code), ix.stored_entry(int(code), shape, b"")) for code, _, _ in ROWS]
    ix.write(prefix, ix.index_of([(b"", ix.header()), *rows]), b"")
    return prefix


def table_of(output: str) -> dict[str, str]:
    """Name and dtype of each line that starts with a name of `NAMES`."""
    return dict(re.findall(r"^(t\d\d)  +((?:dtype )?\w+) ", output, re.M))


def test_one_name_everywhere(command: Command, tmp_path: Path) -> None:
    prefix, other = write(tmp_path / "a", 0), write(tmp_path / "b", 0, 1)
    with ckptfmt.open(prefix) as reader:
        table = reader.table()
        assert dict(zip(table["name"], table["dtype"], strict=True)) == NAMES
        assert {name: one.dtype_name for name, one in reader.items()} == NAMES
        shown = {name: repr(one) for name, one in reader.items()}
        assert shown == {t: f"<TensorHandle {t!r} {name} (0,)>" for t, name in NAMES.items()}
        cells = [f"<td>{t}</td><td>{name}</td>" for t, name in NAMES.items()]
        notebook = re.sub("<t([dh])[^>]*>", r"<t\1>", html.unescape(reader._repr_html_()))
        assert all(one in notebook for one in cells)
    assert table_of(command("inspect", prefix).out) == NAMES
    document = json.loads(command("inspect", "--json", prefix).out)
    assert {one["name"]: one["dtype"] for one in document["tensors"]} == NAMES
    assert set(document["totals"]["by_dtype"]) == set(NAMES.values())
    assert table_of(command("show", prefix, "*").out) == NAMES
    for name, dtype in NAMES.items():
        assert json.loads(command("show", "--json", prefix, name).out)["dtype"] == dtype
    out = command("diff", prefix, other).out
    assert dict(re.findall(r"(t\d\d)  +((?:dtype )?\w+) \[0\] ", out)) == NAMES
    found = json.loads(command("diff", "--json", prefix, other).out)["differences"]
    for side in "ab":
        assert {one["name"]: one[side]["dtype"] for one in found} == NAMES
    page = io.BytesIO()
    report(prefix, page)
    (text,) = re.findall(
        rb'<script id="data" type="application/json">(.*?)</script>', page.getvalue()
    )
    assert {one["name"]: one["dtype"] for one in json.loads(text)["tensors"]} == NAMES
    lines = tf.load_checkpoint(prefix).debug_string().decode().splitlines()
    assert lines == [f"{name} (DT_{word.upper()}) [0]" for name, word in WORDS.items()]


@pytest.mark.parametrize("name", ["float32", "float", "double", "half"])
def test_both_spellings_are_taken(name: str, command: Command, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"x": np.ones(1, ml_dtypes.bfloat16)})
    assert command("edit", "--cast", name, tmp_path / "a", tmp_path / "b").status == 0
    wanted = {word: shown for _, shown, word in ROWS if word}.get(name, name)
    assert ckptfmt.load(tmp_path / "b")["x"].dtype.name == wanted
    assert ckptfmt.load(tmp_path / "a", cast=name)["x"].dtype.name == wanted
