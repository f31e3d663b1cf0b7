# SPDX-License-Identifier: Apache-2.0
"""`examples/read_v2.py`, the program of `spec/quickstart.md`, reads the vectors and the corpus, and
refuses damage; the page and the program stay short."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.vectors import DIRECTORY, KEYS, SPEC, VECTORS, Vector, array_value, expected

ROOT = SPEC.parent
PROGRAM = ROOT / "examples" / "read_v2.py"
PAGE = (SPEC / "quickstart.md").read_text(encoding="utf-8")
CORPUS = os.environ.get("CKPTFMT_CORPUS")

V2 = [vector for vector in VECTORS if vector.level == "v2"]
SOUND = [vector for vector in V2 if vector.kind != "bad"]
BAD = [vector for vector in V2 if vector.kind == "bad"]

# Sound vectors that the program refuses, and what it says.
OUT_OF_RANGE = "unknown data type or place"
REFUSED = {
    "shp-3-254": "maximum supported dimension",  # numpy's limit
    "shp-4-zero-first": "maximum allowed dimension|array is too big",
    "var-1": OUT_OF_RANGE,
    "var-1-none": OUT_OF_RANGE,
    "example-variant": OUT_OF_RANGE,
    "dty-6-box-of-all": OUT_OF_RANGE,
    "msg-8-4": "a field has an invalid tag",  # groups
    "msg-8-5": "a field has an invalid tag",
    "big-endian": "big-endian",
    "str-7": "big-endian",
    "slc-10": "a slice is missing",
    "slc-10-any": "a slice is missing",
}

# Rules whose breach the program may overlook: those of bytes that it does not use, limits, and
# what only a validator checks.
OVERLOOKED = {
    *("BLK-9", "BLK-10", "TAB-4", "TAB-5", "TAB-6", "TAB-12", "TAB-13", "BLK-14"),
    *("MSG-2", "MSG-3", "MSG-11", "MSG-14", "MSG-16", "HDR-7", "HDR-9", "NAM-5"),
    *("SLC-3", "SLC-5", "SLC-6", "SHP-3", "SHP-4", "KEY-6", "KEY-7", "DAT-8"),
    *(f"OBJ-{number}" for number in range(1, 15)),
}
FILES = {"NAM-2", "NAM-5", "NAM-6", "NAM-9"}  # broken by missing files and other kinds of files


def compiled(text: str) -> ModuleType:
    module = ModuleType("read_v2")
    exec(compile(text, str(PROGRAM), "exec"), module.__dict__)
    return module


TEXT = PROGRAM.read_text(encoding="utf-8")
READER = compiled(TEXT)


def load(vector: Vector, reader: ModuleType = READER) -> dict[bytes, np.ndarray]:
    found: dict[bytes, np.ndarray] = reader.load(f"{DIRECTORY}/{vector.prefix}")
    return found


def compare(vector: Vector, found: dict[bytes, np.ndarray]) -> None:
    """What the vector says that reading a whole tensor gives is what was found."""
    for step in vector.steps:
        if step["step"] == "read" and "gives" in step:
            want = expected(step)
            array = found[step["tensor"].encode("latin-1")]
            assert list(array.shape) == want["shape"]
            assert array_value(want["dtype"], want["shape"], array) == want
        elif step["step"] == "list" and "gives" in step:
            shapes = {name.encode("latin-1"): shape for name, (_, shape) in step["gives"].items()}
            assert shapes == {name: list(array.shape) for name, array in found.items()}


def test_sound() -> None:
    for vector in SOUND:
        if vector.name in REFUSED:
            with pytest.raises(ValueError, match=f"(?i){REFUSED[vector.name]}"):
                load(vector)
        else:
            compare(vector, load(vector))


def test_bad() -> None:
    """A breach is a ValueError, or an OSError of a file that cannot be read, or overlooked without
    a wrong value."""
    for vector in BAD:
        broken = {step["fails"][1] for step in vector.steps if "fails" in step}
        broken |= {rule for step in vector.steps for _, rule in step.get("problems", [])}
        try:
            found = load(vector)
        except ValueError:
            continue
        except OSError:
            assert broken & FILES, vector.name
            continue
        assert broken <= OVERLOOKED or vector.rules[0].startswith("OBJ"), vector.name
        compare(vector, found)


# ---- each check is needed


def checks() -> Iterator[ast.Expr]:
    for node in ast.walk(ast.parse(TEXT)):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="check"))):
                yield node


def without(check: ast.Expr) -> ModuleType:
    """The program with `pass` in the place of a check."""
    lines = TEXT.splitlines()
    line = lines[check.lineno - 1]
    lines[check.lineno - 1] = line[: check.col_offset] + "pass"
    lines[check.lineno : check.end_lineno] = []
    return compiled("\n".join(lines))


def outcome(vector: Vector, reader: ModuleType) -> str:
    try:
        found = load(vector, reader)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return repr(found)


@functools.cache
def outcomes() -> dict[str, str]:
    return {vector.name: outcome(vector, READER) for vector in BAD}


@pytest.mark.parametrize("check", list(checks()), ids=lambda check: check.value.args[1].value)
def test_every_check_is_shown(check: ast.Expr) -> None:
    message = check.value.args[1].value  # type: ignore[attr-defined]
    reader = without(check)
    fail = [vector for vector in BAD if outcomes()[vector.name] == f"ValueError: {message}"]
    shown = any(outcome(vector, reader) != outcomes()[vector.name] for vector in fail)
    assert shown


# ---- damage


def copy(prefix: str, folder: Path) -> tuple[str, list[Path]]:
    """A copy of a vector's files in `folder`: its prefix, and the files."""
    home = DIRECTORY / Path(prefix).parent
    names = [path for path in home.iterdir() if path.name.startswith(Path(prefix).name + ".")]
    files = [folder / path.name for path in names]
    for path, new in zip(names, files, strict=True):
        new.write_bytes(path.read_bytes())
    return str(folder / Path(prefix).name), files


DAMAGED = ("minimal", "slices", "str-1", "two-shards")


@pytest.mark.parametrize("name", DAMAGED)
def test_every_byte(tmp_path: Path, name: str) -> None:
    """With any byte changed or the rest cut off, values are the same or it is a ValueError."""
    prefix, files = copy(f"good/{name}", tmp_path)
    sound = repr(READER.load(prefix))
    for path in files:
        whole = path.read_bytes()
        for at in range(len(whole)):
            changed = whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]
            for data in (changed, whole[:at]):
                path.write_bytes(data)
                with suppress(ValueError):
                    assert repr(READER.load(prefix)) == sound
        path.write_bytes(whole)


def test_every_byte_of_a_block(tmp_path: Path) -> None:
    """With any byte of the first block changed and its checksum made right, no other error than
    ValueError and OSError."""
    for name in DAMAGED:
        prefix, files = copy(f"good/{name}", tmp_path)
        (path,) = (path for path in files if path.suffix == ".index")
        whole = path.read_bytes()
        footer = READER.Cursor(whole[-48:-8])
        size = footer.varint()  # the metaindex block follows the only data block
        for at in range(size - 5):
            for bits in (0x01, 0x41, 0x80, 0xFF):
                stored = bytearray(whole[: size - 4])
                stored[at] ^= bits
                path.write_bytes(stored + READER.masked(READER.crc32c(stored)) + whole[size:])
                with suppress(ValueError, OSError):
                    READER.load(prefix)


# ---- the corpus

CASES = sorted(Path(CORPUS).glob("*/expected.json")) if CORPUS else []


@pytest.mark.skipif(not CORPUS, reason="CKPTFMT_CORPUS is not set")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.parent.name)
def test_corpus(path: Path) -> None:
    want = json.loads(path.read_text(encoding="utf-8"))
    found = READER.load(str(path.parent.parent / want["prefix"]))
    names = sorted(name.decode("utf-8", "surrogateescape") for name in found)
    assert names == sorted(tensor["name"] for tensor in want["tensors"])
    for tensor in want["tensors"]:
        array = found[tensor["name"].encode("utf-8", "surrogateescape")]
        data = array.tobytes()
        if tensor["dtype"] == "string":
            elements = array.reshape(-1).tolist()
            data = b"".join(len(one).to_bytes(8, "little") + one for one in elements)
        assert list(array.shape) == tensor["shape"]
        assert hashlib.sha256(data).hexdigest() == tensor["sha256"]


# ---- the program and its page are short


def test_code_lines() -> None:
    code_size = runpy.run_path(str(ROOT / "tools" / "code_size.py"))
    assert code_size["python_lines"](TEXT) <= 130


def test_prints() -> None:
    command = [sys.executable, str(PROGRAM), str(DIRECTORY / "good" / "slices")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "a uint8 (2,)\nx uint8 (4, 2)\n"


def test_words_of_the_page() -> None:
    """Its words, without those of bytes and pictures."""
    text = re.sub(r"^```.*?^```$|^ {4}.*?$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert 700 < len([word for word in text.split() if re.search(r"\w", word)]) <= 900


def test_functions_of_the_page() -> None:
    functions = set(re.findall(r"^def (\w+)", TEXT, re.MULTILINE))
    named = set(re.findall(r"\(`(\w+)`\)", PAGE))
    assert len(named) >= 8
    assert named <= functions


def test_bytes_of_the_page() -> None:
    """They are those of the vectors, at the offsets that the comments say."""
    blocks = dict(re.findall(r"^```hex name=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    index = (DIRECTORY / "good" / "minimal.index").read_bytes()
    found = b""
    for line in blocks.pop("index-minimal").splitlines():
        data, _, comment = line.partition("#")
        offset = re.match(r" (\d+): ", comment)
        assert offset is None or int(offset[1]) == len(found), line
        found += bytes.fromhex(data)
        assert index.startswith(found), line
    assert found == index
    assert bytes.fromhex(blocks.pop("slice-key-v")) == READER.slice_key(b"v", [(0, 2), (0, -1)])
    assert not blocks
    (value,) = re.findall(r"---> ((?:[0-9a-f]{2} ?){8})", PAGE)
    data = (DIRECTORY / "good" / "minimal.data-00000-of-00001").read_bytes()
    assert bytes.fromhex(value) == data


@pytest.mark.parametrize("one", [one for one in KEYS if "gives" in one], ids=lambda one: one["key"])
def test_slice_key(one: dict[str, Any]) -> None:
    name, extents = one["gives"]
    key = READER.slice_key(bytes.fromhex(name), [tuple(extent) for extent in extents])
    assert key.hex() == one["key"]
