# SPDX-License-Identifier: Apache-2.0
"""Files of other formats, through the commands that read checkpoints."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from cli.commands import Command

ARRAYS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "a\x1b[31m": np.int64(7)}
EXTENSIONS = ("safetensors", "npz", "safetensors.index.json")


def sound(directory: Path, extension: str) -> Path:
    ckptfmt.save(directory / "c", {"w": ARRAYS["w"], "b": ARRAYS["a\x1b[31m"]})
    path = directory / f"x.{extension}"
    shards = {"max_shard_bytes": 50} if extension.endswith("json") else {}
    ckptfmt.convert(directory / "c", path, **shards)
    return path


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_sound(tmp_path: Path, command: Command, extension: str) -> None:
    path = sound(tmp_path, extension)
    kind = "npz" if extension == "npz" else "safetensors"
    found = json.loads(command("inspect", "--json", path).out)
    assert found["format"] == kind
    assert [one["name"] for one in found["tensors"]] == ["b", "w"]
    assert {one["offset"] for one in found["tensors"]} == {None}
    assert found["totals"]["nbytes"] == 56
    printed = command("inspect", "--filter", "w", path).out
    assert f"format    {kind}\n" in printed
    assert "1 tensor (of 2 tensors), 12 elements, 48 B" in printed
    assert json.loads(command("show", "--json", path, "w[1]").out)["values"] == [4, 5, 6, 7]
    checked = json.loads(command("verify", "--json", path).out)
    assert (checked["ok"], checked["verified"]) == (True, kind == "npz")
    how = "compared with its CRC-32" if kind == "npz" else "this format has no checksums"
    assert how in command("verify", path).out
    assert command("report", "-q", path, "-o", tmp_path / "x.html").status == 0
    page = (tmp_path / "x.html").read_text()
    assert json.dumps(str(path)) in page
    assert f'"format": "{kind}"' in page
    assert "ckptfmt-" not in page
    missing = command("show", path, "v")
    assert missing.status == 2
    assert f"in {path}, tensor 'v': not found" in missing.err


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("size", [0, 0.6])
def test_truncated(tmp_path: Path, command: Command, extension: str, size: float) -> None:
    path = sound(tmp_path, extension)
    os.truncate(path, int(path.stat().st_size * size))
    for words in (["inspect", path], ["show", path, "w"], ["report", path, "-o", tmp_path / "x"]):
        ran = command(*words)
        assert ran.status == 1
        assert str(path) in ran.err
    ran = command("verify", path)
    assert ran.status == 1
    assert "not sound: 1 problem" in ran.out
    assert str(path) in ran.out


def test_short_names_of_variables(tmp_path: Path, command: Command) -> None:
    path, stored = tmp_path / "m.safetensors", "step/.ATTRIBUTES/VARIABLE_VALUE"
    ckptfmt.save(tmp_path / "m", {stored: np.int64(7), "w": np.ones(3)})
    ckptfmt.convert(tmp_path / "m", path)
    for name in ("step", stored):
        assert json.loads(command("show", "--json", path, name).out)["values"] == 7
        assert command("inspect", "--filter", name, path).status == 0
    printed = command("inspect", path).out
    assert "\nstep  int64" in printed and stored not in printed
    assert stored in command("inspect", "--raw-names", path).out


def test_changed_value(tmp_path: Path, command: Command) -> None:
    path, array = tmp_path / "x.npz", np.arange(100_000.0)
    np.savez(path, w=array, b=np.int64(7))
    data = bytearray(path.read_bytes())
    data[data.index(array[-9:].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    assert command("inspect", path).status == 0  # reads no values
    found = json.loads(command("verify", "--json", path).out)
    assert [one["tensor"] for one in found["findings"]] == ["w"]
    assert command("show", path, "b").status == 0
    assert command("show", path, "w").status == 1


def test_overlapping_members(tmp_path: Path, command: Command) -> None:
    """Of a zip bomb, members are in the same place."""
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(1000), b=np.zeros(1000))
    with zipfile.ZipFile(path, "a") as archive:
        first = archive.getinfo("a.npy")
        for number in range(9):
            archive.filelist.append(first)
            archive.NameToInfo[str(number)] = first
        archive._didModify = True
    ran = command("verify", path)
    assert ran.status == 1
    assert "the members overlap" in ran.out


def test_hostile_name(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "x.safetensors"
    ckptfmt.save(tmp_path / "c", ARRAYS)
    ckptfmt.convert(tmp_path / "c", path)
    assert "\x1b" not in command("inspect", path).out + command("verify", path).out
    assert command("show", path, "a\\x1b[31m").out == "a\\x1b[31m  int64 []\n7\n"
