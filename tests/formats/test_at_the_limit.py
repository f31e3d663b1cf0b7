# SPDX-License-Identifier: Apache-2.0
"""Each limit of SECURITY.md from both sides, many things just below one limit in one file, and
SECURITY.md beside the constants."""

from __future__ import annotations

import json
import pickle
import re
import resource
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from support import hostile
from support import index as ix
from support.forking import in_child
from support.hostile import dcp, npy, safetensors, zip_of, zip_tensor, zip_value

import ckptfmt
from ckptfmt._base import untrusted
from ckptfmt._base.untrusted import check_pickle, parsed_json
from ckptfmt._core import NUMPY_RANK_MAX
from ckptfmt.bundle import graph
from ckptfmt.errors import CkptfmtError, CorruptError, InvalidError, LimitError, UnsupportedError
from ckptfmt.files import state_file
from ckptfmt.formats import dcp as dcp_files
from ckptfmt.formats import safetensors as safetensors_files

ROOT = Path(__file__).parents[2]
KEY = b"t" * 100 + b"%03d"
GOOD = ix.entry(ix.UINT8, [0])


def converted(path: Path) -> None:
    ckptfmt.convert(path, path.with_name("out"), durability="none")


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


# ---- limits that can be changed: one file, the limit around what it has --------------------------


class Given(NamedTuple):
    """What a file has of something, where its limit is (None: `limits=`), and how it is read."""

    size: int
    name: str
    module: Any
    use: Callable[..., Any]
    zero: tuple[str, ...] = ()  # other limits, of which the larger counts


def _index(name: str, **others: int) -> Callable[[Path], Given]:
    def make(directory: Path) -> Given:
        made = ix.index_of([(b"", ix.header())], [(KEY % n, GOOD) for n in range(99)])
        ix.write(directory / "m", made, b"")
        size = {
            "index_bytes_max": (directory / "m.index").stat().st_size,
            "block_bytes_max": max(len(one.contents) for one in made.blocks),
            "key_bytes_max": len(KEY % 0),
            "entries_max": 100,
            "keys_bytes_floor": 99 * len(KEY % 0),
        }[name]

        def use(**limits: int) -> None:
            with ckptfmt.open(directory / "m", limits={**others, **limits}) as reader:
                list(reader)

        return Given(size, name, None, use)

    return make


def _slices(directory: Path) -> Given:
    ckptfmt.save_v2(
        directory / "m", ["a"] * 3, [f"3 {n},1" for n in range(3)], [np.ones(1, "f4")] * 3
    )

    def use(**limits: int) -> None:
        with ckptfmt.open(directory / "m", limits=limits) as reader:
            list(reader)

    return Given(3, "slices_max", None, use)


def _expansion(directory: Path) -> Given:
    with zipfile.ZipFile(directory / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        for name in "xyz":
            archive.writestr(f"{name}.npy", npy(f"({1 << 20},)", 1 << 20, "|u1"))
    size = (directory / "a.npz").stat().st_size
    least = -(-(3 << 20) // size)

    def use(**limits: int) -> None:
        ckptfmt.convert(directory / "a.npz", directory / "m", limits=limits)

    return Given(least, "expansion_max", None, use, ("OUTPUT_FLOOR",))


def _result(directory: Path) -> Given:
    content = zip_of(**{f"{name}.npy": npy("(1,)", 4) for name in "abc"})
    path = written(directory / "a.npz", content)

    def use(**limits: int) -> None:
        ckptfmt.convert(path, directory / "m", limits=limits)

    return Given(4, "entries_max", None, use)


def _header(directory: Path) -> Given:
    about = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"x": about}).encode()
    path = written(directory / "a.safetensors", safetensors(header, bytes(8)))
    return Given(len(header), "HEADER_MAX", safetensors_files, lambda: converted(path))


def _shards(directory: Path) -> Given:
    _header(directory)
    path = directory / "m.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}).ljust(100))
    return Given(100, "HEADER_MAX", safetensors_files, lambda: converted(path))


def _lists(directory: Path) -> Given:
    text = b"[" + b"[]," * 100 + b"{}]"
    size = 101 * 88 + 232
    use = lambda: parsed_json(text, CorruptError)  # noqa: E731
    return Given(size, "MEMORY_FLOOR", untrusted, use, ("MEMORY_FACTOR",))


def _array(dtype: str, order: str, size: int) -> Callable[[Path], Given]:
    def make(directory: Path) -> Given:
        content = npy(f"({9600 // np.dtype(dtype).itemsize // 8}, 8)", 9600, dtype)
        content = content.replace(b"False", order.encode().ljust(5))
        path = written(directory / "a.npz", zip_of(**{"x.npy": content}))
        return Given(size, "MEMORY_FLOOR", untrusted, lambda: converted(path), ("MEMORY_FACTOR",))

    return make


def _metadata(directory: Path) -> Given:
    path = dcp(directory, zip_tensor((2,), bytes(8)), (2,))
    size = (path / ".metadata").stat().st_size
    return Given(size, "METADATA_MAX", dcp_files, lambda: converted(path))


def _value(content: bytes, size: int, name: str, *zero: str) -> Callable[[Path], Given]:
    def make(directory: Path) -> Given:
        path = dcp(directory, zip_value(content), None)
        return Given(size, name, dcp_files, lambda: converted(path), zero)

    return make


def _pickle(size: int, name: str, *zero: str) -> Callable[[Path], Given]:
    content = b"\x80\x02](" + b"N" * 100 + b"e."

    def make(directory: Path) -> Given:
        return Given(size, name, untrusted, lambda: check_pickle(content, CorruptError), zero)

    return make


def _strings(directory: Path) -> Given:
    from ckptfmt.formats import datasets  # noqa: PLC0415

    with h5py.File(directory / "a.h5", "w") as file:
        for name in "ab":  # of all together
            file.create_dataset(name, (500,), h5py.string_dtype(), chunks=(100,))
    return Given(1000, "STRINGS_FLOOR", datasets, lambda: converted(directory / "a.h5"))


def _state(directory: Path) -> Given:
    path = written(directory / "checkpoint", b'model_checkpoint_path: "m"\n')
    use = lambda: state_file.read_state_file(str(path))  # noqa: E731
    return Given(path.stat().st_size, "STATE_BYTES_MAX", state_file, use)


LIST = b"\x80\x02](" + b"K\x01" * 100 + b"e."
GIVEN: dict[str, tuple[Callable[[Path], Given], type[CkptfmtError]]] = {
    **{
        name: (_index(name), LimitError)
        for name in ("index_bytes_max", "block_bytes_max", "key_bytes_max", "entries_max")
    },
    "all keys": (_index("keys_bytes_floor", keys_bytes_factor=1), LimitError),
    "slices of a tensor": (_slices, LimitError),
    "what all becomes": (_expansion, LimitError),
    "entries of what it becomes": (_result, LimitError),
    "header of safetensors": (_header, LimitError),
    "index of safetensors": (_shards, LimitError),
    "lists of JSON": (_lists, CorruptError),
    "order of columns": (_array("<f8", "True", 9600), LimitError),
    "texts of npz": (_array("|S12", "False", 9600 + 50 * 800), LimitError),
    "DCP metadata": (_metadata, LimitError),
    "DCP value": (_value(LIST, len(LIST), "DESCRIPTION_MAX"), LimitError),
    "parts of a value": (_value(LIST, 101, "VALUES_FLOOR", "VALUES_PER_BYTE"), LimitError),
    "parts of a pickle": (_pickle(101, "PARTS_FLOOR", "PARTS_PER_BYTE"), CorruptError),
    "strings of HDF5": (_strings, LimitError),
    "state file": (_state, LimitError),
}


@pytest.mark.parametrize("what", GIVEN)
def test_a_limit_around_what_a_file_has(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, refused = GIVEN[what]
    given = make(tmp_path)
    for other in given.zero:
        monkeypatch.setattr(given.module or untrusted, other, 0)
    for limit in (given.size + 1, given.size, given.size - 1):
        limits = {given.name: limit} if given.module is None else {}
        if given.module is not None:
            monkeypatch.setattr(given.module, given.name, limit)
        if limit >= given.size:
            given.use(**limits)
            continue
        with pytest.raises(refused) as caught:
            given.use(**limits)
        assert type(caught.value) is refused
        assert given.module is not None or given.name in str(caught.value)


# ---- limits that are fixed: three files ----------------------------------------------------------


def _dimensions(make: Callable[[Path, tuple[int, ...]], Path]) -> Callable[[Path, int], Any]:
    def use(directory: Path, count: int) -> None:
        converted(make(directory, (1,) * count))
        assert ckptfmt.load(directory / "out")["v"].shape == (1,) * count

    return use


def _of_safetensors(directory: Path, shape: tuple[int, ...]) -> Path:
    about = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
    header = json.dumps({"v": about}).encode()
    return written(directory / "a.safetensors", safetensors(header, bytes(4)))


def _of_npz(directory: Path, shape: tuple[int, ...]) -> Path:
    return written(directory / "a.npz", zip_of(**{"v.npy": npy(str(shape), 4)}))


def _of_dcp(directory: Path, shape: tuple[int, ...]) -> Path:
    return dcp(directory, zip_tensor(shape, bytes(4)), shape)


def _write_parts(directory: Path, count: int) -> None:
    ckptfmt.save(directory / "m", {"/".join("a" * count): np.ones(3)})
    ckptfmt.convert(directory / "m", directory / "x.h5")


def _read_parts(directory: Path, count: int) -> None:
    with h5py.File(directory / "a.h5", "w") as file:
        file["/".join("a" * count)] = 1.0
    converted(directory / "a.h5")


def _key(directory: Path, key: int) -> None:
    check_pickle(pickle.dumps({key: 1, (key,): 2}), CorruptError)


def _memo(directory: Path, index: int) -> None:
    check_pickle(b"\x80\x02Nr" + struct.pack("<I", index) + b"." * 11, CorruptError)


FIXED: dict[str, tuple[int, Callable[[Path, int], Any], type[CkptfmtError]]] = {
    "digits": (4300, lambda _, n: parsed_json(b"9" * n, CorruptError), CorruptError),
    "digits of a pickle": (
        4300,
        lambda _, n: check_pickle(b"\x80\x02L" + b"9" * n + b"L\n.", CorruptError),
        CorruptError,
    ),
    "nesting": (256, lambda _, n: parsed_json(b"[" * n + b"]" * n, CorruptError), CorruptError),
    "keys of a pickle": ((1 << 60) - 1, _key, CorruptError),
    "memo of a pickle": (9, _memo, CorruptError),
    "dimensions of safetensors": (64, _dimensions(_of_safetensors), UnsupportedError),
    "dimensions of npz": (64, _dimensions(_of_npz), UnsupportedError),
    "dimensions of DCP": (64, _dimensions(_of_dcp), UnsupportedError),
    "parts of a name that is written to HDF5": (256, _write_parts, InvalidError),
    "parts of a name in HDF5": (256, _read_parts, LimitError),
}


@pytest.mark.parametrize("what", FIXED)
def test_a_file_around_a_limit(what: str, tmp_path: Path) -> None:
    limit, use, refused = FIXED[what]
    use(tmp_path, limit - 1)
    use(tmp_path, limit)
    with pytest.raises(refused) as caught:
        use(tmp_path, limit + 1)
    assert type(caught.value) is refused


# ---- many below a limit in one file --------------------------------------------------------------


def _many_values(directory: Path) -> Path:
    """Values that each become as many parts as any may, of two kilobytes."""
    text = b"t" * 500
    content = b"\x80\x02X" + struct.pack("<I", len(text)) + text + b"q\x000]("
    value = zip_value(content + b"h\x00" * 500 + b"e.")
    return dcp(directory, value, None, names=tuple(f"v{n}" for n in range(250)))


def _many_in_hdf5(fill: Callable[[Any], object]) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        with h5py.File(directory / "a.h5", "w", libver="latest") as file:
            fill(file)
        return directory / "a.h5"

    return make


def _strings_each(file: Any) -> None:
    from h5py import string_dtype  # noqa: PLC0415

    for n in range(200):
        file.create_dataset(f"{n}", ((1 << 19) - 1,), string_dtype(), chunks=(1 << 16,))


def _deep(file: Any) -> None:
    for n in range(200):
        group = file
        for _ in range(20):
            group = group.create_group("a" * 3000 + f"{n}")
        group["x"] = group["y"] = 1.0


def _nested(file: Any) -> None:
    group = file
    for _ in range(6000):
        group = group.create_group("a")


def _json(header: bytes) -> Callable[[Path], Path]:
    return lambda directory: written(directory / "a.safetensors", safetensors(header))


def _listed(parts: bytes) -> Callable[[Path], Path]:
    return lambda directory: (
        written(directory / "dcp/.metadata", b"\x80\x04](" + parts + b"e.").parent
    )


def _npz(count: int, shape: str) -> Callable[[Path], Path]:
    return lambda directory: written(
        directory / "a.npz", zip_of(**{f"{n}.npy": npy(shape, 0) for n in range(count)})
    )


DIMENSIONS = json.dumps({"dtype": "F32", "shape": [0] * 64, "data_offsets": [0, 0]}).encode()
# How much, and how often the file's own bytes: of JSON and pickles more than of others.
MANY: dict[str, tuple[Callable[[Path], Path], int]] = {
    "values of DCP": (_many_values, 8),
    "datasets of strings": (_many_in_hdf5(_strings_each), 8),
    "long names in HDF5": (_many_in_hdf5(_deep), 8),
    "groups in groups": (_many_in_hdf5(_nested), 8),
    "tensors of 64 dimensions": (
        _json(b"{" + b",".join(b'"%d":' % n + DIMENSIONS for n in range(2000)) + b"}"),
        25,
    ),
    "long numbers": (_json(b'{"x":[' + b",".join([b"9" * 4299] * 500) + b"]}"), 25),
    "nested lists": (_json(b'{"x":[' + b",".join([b"[" * 250 + b"]" * 250] * 1000) + b"]}"), 25),
    "names": (_json(b"{" + b",".join(b'"%x":0' % n for n in range(100_000)) + b"}"), 25),
    "arrays of 64 dimensions": (_npz(500, f"(0, {'1,' * 63})"), 8),
    "long headers": (_npz(500, f"(0, {' ' * 9800})"), 8),
    "numbers of a pickle": (_listed((b"L" + b"9" * 4299 + b"L\n") * 200), 16),
    "objects of a pickle": (_listed(b"]N}" * 30_000), 16),
    "memo": (_listed(b"K\x01\x94" * 100_000), 16),
}
MANY["objects of a graph"] = (
    lambda directory: written(directory / "graph", b"\n\0" * 100_000),
    150,
)
FLOOR = 32 << 20


@pytest.mark.parametrize("what", MANY)
def test_many_below_a_limit(what: str, tmp_path: Path) -> None:
    """A result or a typed error, in time and the memory that SECURITY.md allows; with a smaller
    floor, so that small files show it."""
    make, factor = MANY[what]
    is_graph = what == "objects of a graph"
    use = (lambda path: graph.decode_graph(path.read_bytes())) if is_graph else converted
    path = make(tmp_path)
    files = [path] if path.is_file() else list(path.iterdir())
    size = sum(one.stat().st_size for one in files)
    spent = tmp_path / "spent"

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (hostile.SECONDS, hostile.SECONDS))
        before, began = hostile.peak(), time.process_time()
        try:
            use(path)
        except CkptfmtError as error:
            print(error)
        spent.write_text(json.dumps([hostile.peak() - before, time.process_time() - began]))

    assert in_child(work) == 0
    grown, seconds = json.loads(spent.read_text())
    print(f"{size} bytes: {grown >> 20} MiB, {seconds:.2f} s")
    assert grown <= FLOOR + factor * size
    assert seconds < 5


# ---- SECURITY.md ---------------------------------------------------------------------------------


def test_security_has_the_limits() -> None:
    """The constants of the code, and what the table of hostile things allows."""
    text = (ROOT / "SECURITY.md").read_text()
    code = (ROOT / "csrc/base/limits.c").read_text()
    defaults = dict(re.findall(r"\.(\w+_max) = (.+),", code))
    shown = dict(re.findall(r"\| `(\w+_max)`.* \| (.+) \|", text))
    units = {"GiB": 1 << 30, "MiB": 1 << 20}
    for name, value in shown.items():
        number, _, unit = value.partition(" ")
        base, _, power = number.partition("^")
        found = {"none": (1 << 64) - 1, "UINT64_MAX": (1 << 64) - 1}.get(value)
        found = found or int(base) ** int(power or 1) * units.get(unit, 1)
        given = defaults[name].replace("(uint64_t)", "").replace("UINT64_MAX", f"{2**64 - 1}")
        if name == "key_bytes_max":
            given = "16 << 20"
        left, _, shift = given.partition(" << ")
        assert found == int(left) << int(shift or 0), name
    floor, factor = untrusted.MEMORY_FLOOR >> 20, untrusted.MEMORY_FACTOR
    assert shown.keys() | {"open_files_max"} == defaults.keys()
    for phrase in (
        f"{floor} MiB and {factor} times its bytes",
        f"at most {floor} MiB and {factor} times the file",
        f"in {hostile.SECONDS} s of processor time",
        f"{untrusted.OUTPUT_FLOOR >> 30} GiB, or {untrusted.EXPANSION_MAX:,} times the bytes",
        f"{safetensors_files.HEADER_MAX // 10**6} MB",
        f"{dcp_files.METADATA_MAX >> 20} MiB, as a million tensors need",
        f"{dcp_files.DESCRIPTION_MAX >> 20} MiB, not compressed",
        f"may have {dcp_files.VALUES_PER_BYTE} parts for each byte",
        f"{FIXED['digits'][0]:,} digits; {FIXED['nesting'][0]}; {NUMPY_RANK_MAX}; "
        f"{FIXED['parts of a name in HDF5'][0]}",
        f"{graph.BYTES_MAX >> 20} MiB, 2^{graph.NODES_MAX.bit_length() - 1} objects, "
        f"2^{graph.ENTRIES_MAX.bit_length() - 1} children",
        "each of which takes 300 bytes",
    ):
        assert phrase in text, phrase
