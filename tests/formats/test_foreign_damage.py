# SPDX-License-Identifier: Apache-2.0
"""One flipped byte in each kind of member of each format: who notices."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.arrays import bits
from support.files import flip
from support.hostile import dcp_metadata, zip_tensor
from support.strategies import LONG

import ckptfmt
from ckptfmt.cli import main
from ckptfmt.safetensors import save_file

VALUES = np.arange(1, 41, dtype=np.float32)
Places = dict[str, tuple[str, range]]


def _of_zip(path: Path, member: str, header: int = 0) -> Places:
    """The kinds of bytes of an archive; a member may have a header of its own."""
    with zipfile.ZipFile(path) as archive:
        info, directory = archive.getinfo(member), archive.start_dir
    data = path.read_bytes()
    lengths = [int.from_bytes(data[info.header_offset + at :][:2], "little") for at in (26, 28)]
    begin = info.header_offset + 30 + sum(lengths)
    return {
        "local header": (path.name, range(info.header_offset, begin)),
        "array header": (path.name, range(begin, begin + header)),
        "values": (path.name, range(begin + header, begin + info.compress_size)),
        "directory": (path.name, range(directory, len(data) - 22)),
        "end": (path.name, range(len(data) - 22, len(data))),
    }


def _npz(directory: Path) -> tuple[str, Places]:
    np.savez(directory / "x.npz", v=VALUES)
    return "x.npz", _of_zip(directory / "x.npz", "v.npy", 128)


def _npz_deflated(directory: Path) -> tuple[str, Places]:
    np.savez_compressed(directory / "x.npz", v=VALUES)
    return "x.npz", _of_zip(directory / "x.npz", "v.npy")


def _safetensors(directory: Path) -> tuple[str, Places]:
    save_file({"v": VALUES}, directory / "x.safetensors")
    size = (directory / "x.safetensors").stat().st_size
    begin = size - VALUES.nbytes
    places = {"size": range(8), "header": range(8, begin), "values": range(begin, size)}
    return "x.safetensors", {kind: ("x.safetensors", place) for kind, place in places.items()}


def _safetensors_index(directory: Path) -> tuple[str, Places]:
    save_file({"v": VALUES}, directory / "x.safetensors")
    index = directory / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"v": "x.safetensors"}}))
    return index.name, {"index": (index.name, range(index.stat().st_size))}


def _dcp(directory: Path) -> tuple[str, Places]:
    chunk = zip_tensor(VALUES.shape, VALUES.tobytes())
    (directory / "d").write_bytes(chunk)
    (directory / ".metadata").write_bytes(dcp_metadata(len(chunk), VALUES.shape, "d"))
    places = _of_zip(directory / "d", "archive/data/s")
    places["description"] = _of_zip(directory / "d", "archive/data.pkl")["values"]
    places["metadata"] = (".metadata", range((directory / ".metadata").stat().st_size))
    return "../in", places


def _hdf5(*, fletcher32: bool) -> Callable[[Path], tuple[str, Places]]:
    def make(directory: Path) -> tuple[str, Places]:
        chunks = VALUES.shape if fletcher32 else None
        with h5py.File(directory / "x.h5", "w") as file:
            file.create_dataset("v", data=VALUES, chunks=chunks, fletcher32=fletcher32)
        data = (directory / "x.h5").read_bytes()
        begin = data.index(VALUES.tobytes())
        end = begin + VALUES.nbytes
        return "x.h5", {
            "structure": ("x.h5", range(begin)),
            "values": ("x.h5", range(begin, end)),
        }

    return make


def _short_member(directory: Path) -> Path:
    """An archive whose directory says that the member has 8 bytes more than there are, with the
    checksum of those."""
    np.savez(directory / "x.npz", v=VALUES)
    whole = zipfile.ZipFile(directory / "x.npz").read("v.npy")
    with zipfile.ZipFile(directory / "x.npz", "w") as archive:
        archive.writestr("v.npy", whole[:-8])
        archive.infolist()[0].file_size += 8
    return directory / "x.npz"


# What a flipped byte leads to. In any other byte, verify and convert refuse the file.
UNUSED = {"refused", "same"}  # there are bytes that nobody reads
UNKNOWN = {"refused", "same", "changed"}  # cannot be known: there is no checksum
FORMATS: dict[str, tuple[Callable[[Path], tuple[str, Places]], dict[str, set[str]]]] = {
    "npz": (_npz, {"local header": UNUSED, "directory": UNUSED, "end": UNUSED}),
    "npz, deflated": (  # the last byte of a deflated stream has unused bits
        _npz_deflated,
        {"local header": UNUSED, "values": UNUSED, "directory": UNUSED, "end": UNUSED},
    ),
    "safetensors": (_safetensors, {"header": UNKNOWN, "values": UNKNOWN}),
    "safetensors index": (_safetensors_index, {}),
    "DCP": (
        _dcp,
        {"local header": UNUSED, "directory": UNUSED, "end": UNUSED, "metadata": UNKNOWN},
    ),
    "HDF5": (_hdf5(fletcher32=False), {"structure": UNKNOWN, "values": UNKNOWN}),
    "HDF5, fletcher32": (_hdf5(fletcher32=True), {"structure": UNKNOWN}),
}


def outcome(path: Path) -> str:
    """What verify and convert say; the verdict of both, if it is one."""
    status = main(["verify", "--quiet", str(path)])
    try:
        ckptfmt.convert(path, path.parent / "out", durability="none")
    except ckptfmt.CkptfmtError:
        return "refused" if status else "convert refuses what verify calls sound"
    found = ckptfmt.load(path.parent / "out")
    is_same = found.keys() == {"v"} and bits(found["v"]) == bits(VALUES)
    return "same" if is_same else "refused by verify only" if status else "changed"


@pytest.mark.parametrize("name", FORMATS)
def test_who_notices_a_flipped_byte(tmp_path: Path, name: str, seed: int) -> None:
    make, others = FORMATS[name]
    (tmp_path / "in").mkdir()
    path, places = make(tmp_path / "in")
    assert others.keys() <= places.keys()
    assert outcome(tmp_path / "in" / path) == "same"
    for kind, (file, place) in places.items():
        found = set()
        for at in random.Random(seed).sample(place, min(len(place), 1000 if LONG else 5)):
            flip(tmp_path / "in" / file, at)
            found.add(outcome(tmp_path / "in" / path))
            flip(tmp_path / "in" / file, at)
        assert found <= others.get(kind, {"refused"}), kind
        if kind == "values" and others.get(kind) == UNKNOWN:
            assert found == {"changed"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_file(tmp_path: Path, name: str, seed: int) -> None:
    (tmp_path / "in").mkdir()
    path, places = FORMATS[name][0](tmp_path / "in")
    for file in {file for file, _ in places.values()}:
        data = (tmp_path / "in" / file).read_bytes()
        for size in [0, len(data) - 1, *random.Random(seed).sample(range(len(data)), 3)]:
            (tmp_path / "in" / file).write_bytes(data[:size])
            assert outcome(tmp_path / "in" / path) == "refused", (file, size)
        (tmp_path / "in" / file).write_bytes(data)


def test_a_member_that_ends_early(tmp_path: Path) -> None:
    assert outcome(_short_member(tmp_path)) == "refused"


# ---- files of a model ----------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["x", "y"])
@pytest.mark.parametrize("other", ["x", "y"])
def test_a_tensor_in_two_files_of_a_model(tmp_path: Path, named: str, other: str) -> None:
    """Only the one that the index names counts, so that the other must not have it."""
    for file in "xy":
        own = {"v": VALUES} if file in (named, other) else {}
        save_file({file: VALUES, **own}, tmp_path / f"{file}.safetensors")
    places = {"v": named, "x": "x", "y": "y"}
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {name: f"{one}.safetensors" for name, one in places.items()}})
    )
    if named == other:
        ckptfmt.convert(index, tmp_path / "out")
        assert ckptfmt.load(tmp_path / "out").keys() == set("vxy")
    else:
        with pytest.raises(ckptfmt.CorruptError) as caught:
            ckptfmt.convert(index, tmp_path / "out")
        assert caught.value.tensor == "v"


# ---- what we write -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(8))
def test_safetensors_are_aligned(tmp_path: Path, length: int) -> None:
    """Each tensor is where an array of its dtype may be, as the safetensors library writes it."""
    dtypes = ["u1", "f8", "i2", "c8", "?", "f4"]
    tensors = {f"{i}{'n' * length}": np.ones(3, dtype) for i, dtype in enumerate(dtypes)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"": ""})
    data = (tmp_path / "x.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name, array in tensors.items():
        assert (8 + size + header[name]["data_offsets"][0]) % array.dtype.alignment == 0
    assert size % 8 == 0
