# SPDX-License-Identifier: Apache-2.0
"""Datasets of HDF5 files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from support.files import file_size_limit
from support.hostile import check_opener

import ckptfmt
from ckptfmt import cli
from ckptfmt._base import dtypes, untrusted
from ckptfmt.hdf5 import open_datasets, write_datasets

NUMERIC = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "int4", "uint4"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz"),
]


def loaded(path: Path) -> dict[str, Any]:
    with open_datasets(path) as found:
        return {name: one.read() for name, one in found.items()}


def write(path: Path, arrays: dict[str, Any]) -> None:
    with write_datasets(path) as file:
        for name, array in arrays.items():
            file.add(name, array)


@pytest.mark.parametrize("name", NUMERIC)
def test_every_dtype(tmp_path: Path, name: str) -> None:
    dtype = dtypes.numpy_dtype(dtypes.code_of(name))
    assert dtype is not None
    values = np.arange(6).reshape(2, 3).astype(dtype)
    arrays = {"a/b": values, "a/empty": values[:0], "scalar": values[0, 1].reshape(())}
    write(tmp_path / "x.h5", arrays)
    found = loaded(tmp_path / "x.h5")
    assert list(found) == sorted(arrays)
    for key, array in arrays.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape)
        assert found[key].tobytes() == array.tobytes()


def test_strings_and_boxes(tmp_path: Path) -> None:
    words = np.array([[b"a", "ü"], [b"", b"\xff"]], object)
    write(tmp_path / "x.h5", {"words": words, "word": np.array(b"x", object)})
    found = loaded(tmp_path / "x.h5")
    assert found["words"].tolist() == [[b"a", "ü".encode()], [b"", b"\xff"]]
    assert found["word"].item() == b"x"
    with write_datasets(tmp_path / "x.h5") as file:
        fill = file.create("x", np.dtype(np.float32), (2, 3))
        for row in range(2):
            fill((slice(row, row + 1),), np.full((1, 3), row))
        file.set_attributes("group", {"name": "dense"})
    with open_datasets(tmp_path / "x.h5") as datasets:
        assert datasets["x"].read((slice(1, 2), slice(0, 2))).tolist() == [[1, 1]]
    with h5py.File(tmp_path / "x.h5") as h5:
        assert h5["group"].attrs["name"] == "dense"


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "a/./b", "a/../b", "a\0", "there/below"])
def test_names_that_a_file_cannot_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        write(tmp_path / "x.h5", {"there": np.ones(1), name: np.ones(1)})
    assert caught.value.tensor == name
    assert os.listdir(tmp_path) == []


def test_values_that_a_file_cannot_have(tmp_path: Path) -> None:
    write(tmp_path / "x.h5", {"a": np.ones(1)})
    for array in (np.array([b"a\0b"], object), np.zeros(1, "M8[s]")):
        with pytest.raises(ckptfmt.InvalidError, match="HDF5 cannot hold it"):
            write(tmp_path / "x.h5", {"x": array})
    assert list(loaded(tmp_path / "x.h5")) == ["a"]
    assert os.listdir(tmp_path) == ["x.h5"]
    with pytest.raises(ckptfmt.StorageError):
        write(tmp_path / "absent" / "x.h5", {})


def external_link(file: Any, tmp_path: Path) -> None:
    file["group/x"] = h5py.ExternalLink("other.h5", "/a")


def soft_link(file: Any, tmp_path: Path) -> None:
    file["group/x"] = h5py.SoftLink("/a")


def external_values(file: Any, tmp_path: Path) -> None:
    external = [(str(tmp_path / "values"), 0, 8)]
    file.create_dataset("group/x", (1,), np.float64, external=external)


def virtual(file: Any, tmp_path: Path) -> None:
    layout = h5py.VirtualLayout((1,), np.float64)
    layout[0] = h5py.VirtualSource("other.h5", "a", (1,))[0]
    file.create_virtual_dataset("group/x", layout)


def without_shape(file: Any, tmp_path: Path) -> None:
    file["group/x"] = h5py.Empty(np.float64)


def of_records(file: Any, tmp_path: Path) -> None:
    file["group/x"] = np.zeros(1, [("a", "i4"), ("b", "f8")])


def huge(file: Any, tmp_path: Path) -> None:
    file.create_dataset("group/x", (1 << 40,), np.float64, chunks=(1024,))


@pytest.mark.parametrize(
    "make",
    [external_link, soft_link, external_values, virtual, without_shape, of_records, huge],
)
def test_files_that_are_refused(tmp_path: Path, make: Any) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.ones(1)
        make(file, tmp_path)
    kind = ckptfmt.errors.LimitError if make is huge else ckptfmt.UnsupportedError
    with pytest.raises(kind) as caught:
        loaded(tmp_path / "x.h5")
    assert caught.value.tensor == "group/x"


def test_hard_links_count_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "OUTPUT_FLOOR", 1 << 20)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["w"] = np.ones(1 << 16)
        for number in range(9):
            file[f"w{number}"] = file["w"]
    ckptfmt.convert(tmp_path / "x.h5", tmp_path / "m")
    with pytest.raises(ckptfmt.errors.LimitError):
        ckptfmt.convert(tmp_path / "x.h5", tmp_path / "n", limits={"expansion_max": 5})


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"no")
    with pytest.raises(ckptfmt.CorruptError, match="not an HDF5 file"):
        loaded(tmp_path / "x.h5")
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        loaded(tmp_path / "absent.h5")


def test_links_in_a_circle(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a/b/x"] = np.ones(1)
        file["a/b/again"] = file["a"]
    assert list(loaded(tmp_path / "x.h5")) == ["a/b/x"]


def test_opaque_values_of_others(tmp_path: Path) -> None:
    """As Keras writes bfloat16; an attribute that contradicts the dataset is ignored."""
    values = np.ones(2, ml_dtypes.bfloat16)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values).attrs["dtype"] = "bfloat16"
        file["y"] = np.ones(2)
        file["y"].attrs["dtype"] = "bfloat16"
    found = loaded(tmp_path / "x.h5")
    assert found["x"].dtype == values.dtype and found["x"].tolist() == [1, 1]
    assert found["y"].dtype == np.float64


def test_hostile_files(tmp_path: Path, seed: int) -> None:
    check_opener("HDF5", tmp_path, seed, mutants=60)


def test_optimizers_of_keras_are_state(tmp_path: Path) -> None:
    """`convert` writes the path of an optimizer to the metadata, if the layout is that of Keras."""
    arrays = {
        "layers/dense/vars/0": np.ones(3, "f4"),
        "optimizer/vars/0": np.asarray(np.int64(7)),
        "optimizer/vars/1": np.ones(3, "f4"),
    }
    others = {"optimizer/vars/0": np.ones(3, "f4")}, {"w0": np.ones(3, "f4")}
    for number, changed in enumerate(({}, *others)):
        write(tmp_path / "a.h5", arrays | changed)
        prefix = tmp_path / f"a-{number}"
        ckptfmt.convert(tmp_path / "a.h5", prefix, cast={"*[0]": "float32"})
        with ckptfmt.open(prefix) as reader:
            paths = {} if number else {"ckptfmt.optimizer_states": ["optimizer"]}
            assert reader.metadata == paths
    done = ckptfmt.editing.edit(tmp_path / "a-0", tmp_path / "b", strip_optimizer=True)
    assert done.dropped == ("optimizer/vars/0", "optimizer/vars/1")
    done = ckptfmt.convert(tmp_path / "a.h5", tmp_path / "c", level="v2")
    assert not done.dropped and ckptfmt.open(tmp_path / "c").metadata == {}


@pytest.mark.parametrize("place", ["/", "model", "model/w", "empty", None])
def test_attributes_are_dropped_with_a_word(tmp_path: Path, place: str | None) -> None:
    write(tmp_path / "a.h5", {"model/w": np.ones(3, ml_dtypes.bfloat16), "x": np.ones(2)})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_group("empty")
        file.create_group("layer/vars").attrs["name"] = "dense"  # as Keras does
        if place is not None:
            file[place].attrs["model_config"] = "{}"
    for target in ("ck", "a.npz"):
        done = ckptfmt.convert(tmp_path / "a.h5", tmp_path / target, cast={"model/w": "float32"})
        assert len(done.dropped) == (place is not None) + (target == "a.npz")
    names = ckptfmt.open(tmp_path / "ck").metadata["ckptfmt.keras.names"]
    assert names == [["layer/vars", "dense"]]


def read_back(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    if path.suffix == ".safetensors":
        return ckptfmt.safetensors.load_file(path)
    return loaded(path) if path.suffix == ".h5" else ckptfmt.load(path)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("source", ["npz", "h5"])
def test_every_byte_order_converts(tmp_path: Path, source: str, order: str) -> None:
    """Between all formats, without a cast, in this machine's byte order."""
    kinds = "?bhilqBHILQefdFD"
    arrays = {
        f"{kind}{rank}": np.arange(6).reshape(shape).astype(np.dtype(kind).newbyteorder(order))
        for kind in kinds
        for rank, shape in enumerate([(6,), (2, 3)])
    } | {"scalar": np.array(3, f"{order}f4"), "none": np.zeros((0, 2), f"{order}i8")}
    path = tmp_path / f"source.{source}"
    if source == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    for target in ("out.npz", "out.safetensors", "out.h5", "out"):
        lacks = "FD" if target == "out.safetensors" else ""  # complex128, which a cast makes 64
        cast = {name: "complex64" for name in arrays if name[0] in lacks}
        ckptfmt.convert(path, tmp_path / target, cast=cast)
        found = read_back(tmp_path / target)
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            wanted = array.dtype.newbyteorder("=") if name not in cast else np.dtype("c8")
            assert found[name].dtype == wanted
            assert np.array_equal(found[name], array), (target, name)
        assert ckptfmt.verify(tmp_path / "out").ok if target == "out" else True
        assert cli.main(["verify", "-q", str(tmp_path / target)]) == 0


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.h5", "x"])
def test_checkpoints_without_tensors(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ckptfmt.save(tmp_path / "none", {})
    ckptfmt.convert(tmp_path / "none", tmp_path / name)
    assert not read_back(tmp_path / name)
    for options in ([], ["-q"], ["--json"]):
        assert cli.main(["verify", *options, str(tmp_path / name)]) == 0
        assert cli.main(["verify", *options, str(tmp_path / name), str(tmp_path / "none")]) == 0


def test_a_file_that_cannot_grow(tmp_path: Path) -> None:
    """As on a full device; HDF5 notices when it writes, or only when it closes the file."""
    tensors = {"x": np.zeros(1 << 16), "y": np.zeros(100)}
    ckptfmt.save(tmp_path / "large", tensors)
    for most in (100, 5_000, 100_000, 524_000):
        for name in ("out.h5", "out.npz", "out.safetensors", "by hand.h5"):
            with file_size_limit(most), pytest.raises(ckptfmt.StorageError):
                if name == "by hand.h5":
                    write(tmp_path / name, tensors)
                else:
                    ckptfmt.convert(tmp_path / "large", tmp_path / name)
            assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": np.zeros(1 << 20)},
        {f"g{i}/x": np.zeros(5) for i in range(900)},
        {f"{i}": np.array([b"text" * 20_000] * 5, object) for i in range(10)},
    ],
    ids=["large", "many", "strings"],
)
def test_a_device_without_room(
    tmp_path: Path, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 may end the process once it has met the end of a device, so that none of it begins."""
    ckptfmt.save(tmp_path / "model", tensors)
    size = (1 << 20) + max(sum(one.nbytes for one in tensors.values()), 1 << 20)
    used = os.fstatvfs

    def nearly_full(fd: int) -> os.statvfs_result:
        found = list(used(fd))
        found[0] = found[1] = 512
        found[4] = (
            max(size - sum(os.path.getsize(one) for one in tmp_path.glob("*temp*")), 0) // 512
        )
        return os.statvfs_result(found)

    ckptfmt.convert(tmp_path / "model", tmp_path / "x.h5")
    (tmp_path / "x.h5").unlink()
    monkeypatch.setattr(os, "fstatvfs", nearly_full)
    with pytest.raises(ckptfmt.StorageError) as caught:
        ckptfmt.convert(tmp_path / "model", tmp_path / "x.h5")
    assert caught.value.errno == errno.ENOSPC and len(os.listdir(tmp_path)) == 2


WRITING = """
import os, resource, sys
import numpy as np
import ckptfmt
sys.dont_write_bytecode = True  # Python keeps what a short write leaves of a cached module
resource.setrlimit(resource.RLIMIT_FSIZE, (800, resource.RLIM_INFINITY))
try:
    with ckptfmt.hdf5.write_datasets(sys.argv[1]) as file:
        for number in range(3000):
            file.add(f"g{number}/x", np.zeros(5))
except ckptfmt.StorageError as error:
    os._exit(error.errno)  # HDF5 may end the process, too
"""


def test_what_the_system_says_of_the_file_is_no_fault_of_the_tensor(tmp_path: Path) -> None:
    """Where only a quota is full: the device has room."""
    command = [sys.executable, "-P", "-c", WRITING, str(tmp_path / "x.h5")]
    assert subprocess.run(command, check=False).returncode == errno.EFBIG


def test_variants_are_not_made_strings(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "ck") as writer:
        writer.add("x", np.array([b"ab"], object), dtype="variant")
    with pytest.raises(ckptfmt.UnsupportedError) as caught:
        ckptfmt.convert(tmp_path / "ck", tmp_path / "x.h5")
    assert caught.value.tensor == "x" and not (tmp_path / "x.h5").exists()


def test_a_masked_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        write(tmp_path / "x.h5", {"x": np.ma.array([1.0, 2.0], mask=[False, True])})
    assert caught.value.tensor == "x" and not list(tmp_path.iterdir())
