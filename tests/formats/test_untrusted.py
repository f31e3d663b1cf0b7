# SPDX-License-Identifier: Apache-2.0
"""Every opener beside every hostile thing, what pickles may name, links that are not followed, and
work in proportion to what is read."""

from __future__ import annotations

import builtins
import contextlib
import gc
import json
import pickle
import random
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forking import in_child
from support.hostile import (
    OPENERS,
    check_opener,
    dcp,
    dcp_metadata,
    npy,
    safetensors,
    zip_of,
    zip_tensor,
    zip_value,
)
from support.strategies import LONG

import ckptfmt
from ckptfmt import CkptfmtError, InvalidError
from ckptfmt._base import untrusted
from ckptfmt._base.untrusted import check_pickle, inflated, parsed_json
from ckptfmt.cli import main
from ckptfmt.errors import CorruptError, LimitError, UnsupportedError


@pytest.mark.parametrize("opener", OPENERS)
def test_every_opener(opener: str, tmp_path: Path, seed: int) -> None:
    """A result or a typed error, in time and memory."""
    check_opener(opener, tmp_path, seed, max(25, round(3000 * LONG)))


# ---- pickles -------------------------------------------------------------------------------------

NAMES = [
    *(("__builtin__", name) for name in ("eval", "getattr")),
    *(("os", "system"), ("posix", "mkdir"), ("subprocess", "Popen"), ("pickle", "loads")),
    *(("torch", "Size.__class__"), ("torch", "load"), ("torch.storage", "_load_from_bytes")),
    *(("collections", "OrderedDict.fromkeys"), ("pathlib", "Path"), ("copyreg", "_reconstructor")),
    *(("ckptfmt", "save"), ("functools", "partial"), ("operator", "attrgetter")),
]


def naming(module: str, name: str) -> list[bytes]:
    """Pickles that call what has this name, and that only name it."""
    stack = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode()
    stack += b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93"
    text = b"c" + module.encode() + b"\n" + name.encode() + b"\n"
    return [text + b"(S'1'\ntR.", text + b".", stack + b"(S'1'\ntR.", stack + b"."]


@pytest.mark.parametrize("count", [30, pytest.param(len(dir(builtins)), marks=pytest.mark.slow)])
@pytest.mark.parametrize("opener", ["DCP metadata", "DCP value"])
def test_pickles_name_only_what_is_listed(
    opener: str, count: int, tmp_path: Path, seed: int
) -> None:
    one = OPENERS[opener]
    path = one.make(tmp_path)
    named = [("builtins", name) for name in random.Random(seed).sample(dir(builtins), count)]
    for module, name in NAMES + named:
        for content in naming(module, name):
            path.write_bytes(content if opener == "DCP metadata" else zip_value(content))
            # A value is left out, and nothing is left then.
            kind = UnsupportedError if opener == "DCP metadata" else InvalidError
            with pytest.raises(kind) as caught:
                one.use(tmp_path)
            assert f"{module}.{name}" in str(caught.value)


def test_extension_codes_are_refused(tmp_path: Path) -> None:
    path = OPENERS["DCP metadata"].make(tmp_path)
    for code in (b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00"):
        path.write_bytes(b"\x80\x02" + code + b".")
        with pytest.raises(CkptfmtError):
            OPENERS["DCP metadata"].use(tmp_path)


KEYS = {
    True: ["a", b"a", 1, (1 << 60) - 1, ("a", (1,))],
    False: [0.5, 1 << 60, -(1 << 200), (0.5,), ("a", (1 << 61,))],
}


@pytest.mark.parametrize("is_sound, key", [(ok, key) for ok in KEYS for key in KEYS[ok]], ids=repr)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_keys_of_pickles_cannot_collide(is_sound: bool, key: Any, protocol: int) -> None:
    for value in (
        {key: 1},
        {key: 1, "b": 2},
        *([{key}, frozenset([key])] if protocol == 4 else ()),
    ):
        with contextlib.nullcontext() if is_sound else pytest.raises(CorruptError):
            check_pickle(pickle.dumps([value], protocol), CorruptError)


# ---- places and sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape, strides", [((2**20,), (0,)), ((2, 2), (1, 1)), ((3, 3), (2, 1))])
def test_elements_that_are_stored_once_for_several(
    shape: tuple[int, ...], strides: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        ckptfmt.convert(dcp(tmp_path, zip_tensor(shape, bytes(36), strides), shape), tmp_path / "m")
    assert caught.value.tensor == "v"


def test_nesting_is_counted_before_json_is_parsed() -> None:
    """Also where the program allows deep recursion; brackets in texts do not count."""

    def work() -> None:
        sys.setrecursionlimit(10**7)
        for text in (b"[" * 500_000, b'{"a\\\\":[{"]":' * 200_000, b'["' + b"\\" * 500_000):
            with pytest.raises(CorruptError):
                parsed_json(text, CorruptError)
        assert len(parsed_json(b'["%b\\"]"]' % (b"[" * 1000), CorruptError)[0]) == 1002

    assert in_child(work) == 0


def test_json_takes_the_memory_of_its_parser() -> None:
    text = _header(4000)[8:]
    peaks = []
    for parse in (json.loads, lambda one: parsed_json(one, CorruptError, unique=True)):
        with Work() as work:
            parse(text)
        peaks.append(work.peak)
    assert peaks[1] < 1.2 * peaks[0]


def test_values_are_stored_apart(tmp_path: Path) -> None:
    """Each is held: two hundred bytes of metadata must not hold a megabyte again."""
    data = zip_value(pickle.dumps("text"))
    path = dcp(tmp_path, data, None)
    ckptfmt.convert(path, tmp_path / "m")
    (path / ".metadata").write_bytes(dcp_metadata(len(data), path="d", names=("v", "w")))
    with pytest.raises(CorruptError):
        ckptfmt.convert(path, tmp_path / "m")


def test_what_a_file_becomes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over the file, unless the caller allows more; what deflate makes is allowed."""
    monkeypatch.setattr(untrusted, "OUTPUT_FLOOR", 1 << 20)
    for method, is_much in ((zipfile.ZIP_DEFLATED, False), (zipfile.ZIP_LZMA, True)):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            for name in "xyz":
                archive.writestr(f"{name}.npy", npy(f"({1 << 20},)", 1 << 20, "|u1"))
        with pytest.raises(LimitError) if is_much else contextlib.nullcontext():
            ckptfmt.convert(tmp_path / "a.npz", tmp_path / "m")
    ckptfmt.convert(tmp_path / "a.npz", tmp_path / "n", limits={"expansion_max": 1 << 20})
    assert main(["convert", str(tmp_path / "a.npz"), str(tmp_path / "o")]) == 1
    given = ["--expansion-max", f"{1 << 20}"]
    assert main(["convert", *given, str(tmp_path / "a.npz"), str(tmp_path / "o")]) == 0


@pytest.mark.parametrize("name", ["../d", "a/../../d", "..", "/etc/passwd", "d\0"])
def test_data_files_are_in_the_directory(name: str, tmp_path: Path) -> None:
    data = zip_tensor((2,), bytes(8))
    (tmp_path / "d").write_bytes(data)
    with pytest.raises(InvalidError, match="data file"):
        ckptfmt.convert(dcp(tmp_path, data, (2,), name), tmp_path / "m")
    (tmp_path / "dcp/a").mkdir()
    (tmp_path / "dcp/a/d").write_bytes(data)
    ckptfmt.convert(dcp(tmp_path, data, (2,), "a/d"), tmp_path / "m")


def _directory_entry(data: bytearray) -> int:
    """Where a zip's directory describes the bytes of the tensor; their checksum is left out."""
    at = data.rindex(b"archive/data/s") - 46
    assert data[at : at + 4] == b"PK\x01\x02"
    data[at + 16 : at + 20] = bytes(4)
    return at


def _number(data: bytearray, at: int, change: int) -> None:
    data[at : at + 4] = (int.from_bytes(data[at : at + 4], "little") + change).to_bytes(4, "little")


@pytest.mark.parametrize("what", ["nothing", "behind", "before", "longer"])
def test_a_chunk_is_in_its_archive(what: str, tmp_path: Path) -> None:
    """Not in the chunk before or behind it in the file, whose bytes would pass for its own."""
    one, ours = (bytearray(zip_tensor((2,), value * 8)) for value in (b"1", b"2"))
    entry = _directory_entry(ours)
    length = len(one)
    if what == "behind":  # the header of the neighbour's storage
        _number(ours, entry + 42, length)
    elif what == "before":
        _number(ours, len(ours) - 22 + 16, length)  # where the directory is: all is moved,
        _number(ours, ours.rindex(b"archive/data.pkl") - 46 + 42, length)  # but the description
    elif what == "longer":
        for at in (20, 24):
            _number(ours, entry + at, length)
    path = dcp(tmp_path, bytes(one + ours + one), (2,), offset=length, length=length)
    if what == "nothing":
        ckptfmt.convert(path, tmp_path / "m")
        assert ckptfmt.load(tmp_path / "m")["v"].tobytes() == b"2" * 8
        return
    with pytest.raises(CorruptError) as caught:
        ckptfmt.convert(path, tmp_path / "m")
    assert caught.value.tensor == "v"
    assert str(caught.value.path).endswith("dcp/d")


def test_messages_are_inflated_up_to_a_limit() -> None:
    packed = zlib.compress(bytes(1000))
    assert inflated(packed, CorruptError, 1001) == bytes(1000)
    for data, limit in ((packed, 999), (packed[:-1], 1001), (packed + b"x", 1001), (b"x", 1001)):
        with pytest.raises(CorruptError):
            inflated(data, CorruptError, limit)


# ---- twice as much -------------------------------------------------------------------------------


def _converted(path: Path) -> None:
    ckptfmt.convert(path, path.with_name("out"), durability="none")


def _header(count: int) -> bytes:
    about = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return safetensors(json.dumps({f"t{i}": about for i in range(count)}).encode())


def _digits(count: int) -> bytes:
    return safetensors(b'{"x":' + b"9" * count + b"}")


def _nested(levels: int) -> bytes:
    return safetensors(b'{"x":' + b"[" * levels + b"]" * levels + b"}")


def _pickled(count: int) -> bytes:
    return b"\x80\x02]" + b"(" + b"K\x01" * count + b"e."


def _states(count: int) -> bytes:
    return b"".join(b'all_model_checkpoint_paths: "c%d"\n' % i for i in range(count))


DOUBLED: dict[str, tuple[str, Callable[[int], bytes], Callable[[Path], Any], int]] = {
    "tensors of safetensors": ("a.safetensors", _header, _converted, 50),
    "digits": ("a.safetensors", _digits, _converted, 2000),
    "depth": ("a.safetensors", _nested, _converted, 300),
    "tensors of npz": (
        "a.npz",
        lambda n: zip_of(**{f"{i}.npy": npy("(0,)", 0) for i in range(n)}),
        _converted,
        25,
    ),
    "values of a pickle": (".metadata", _pickled, lambda p: _converted(p.parent), 1000),
    "paths of a state file": (
        "checkpoint",
        _states,
        lambda p: ckptfmt.tf.get_checkpoint_state(p.parent),
        2000,
    ),
    "files of a directory": (
        "dir",
        lambda n: n.to_bytes(4),
        lambda p: _directory(p.parent, int.from_bytes(p.read_bytes())),
        250,
    ),
}


def _directory(directory: Path, count: int) -> None:
    for i in range(count):
        (directory / f"f{i}").touch()
    ckptfmt.latest_checkpoint(directory)


class Work:
    """Counts the lines of Python that run, and the peak of what is allocated; garbage of earlier
    tests is not collected meanwhile."""

    def __enter__(self) -> Work:
        self.lines = 0
        gc.disable()
        tracemalloc.start()
        sys.settrace(self._trace)
        return self

    def _trace(self, _frame: Any, event: str, _argument: Any) -> Any:
        self.lines += event == "line"
        return self._trace

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("what", DOUBLED)
def test_twice_as_much_takes_about_twice_the_work(what: str, tmp_path: Path) -> None:
    """Lines of Python and bytes, not seconds; threads of earlier tests may add to either."""
    name, make, use, count = DOUBLED[what]
    seen: dict[float, tuple[int, int]] = {}
    for turn, times in enumerate((0.1, 1, 2, 1, 2)):  # the first imports what is needed
        directory = tmp_path / f"{turn}"
        directory.mkdir()
        path = directory / name
        path.write_bytes(make(round(count * times)))
        with Work() as work, contextlib.suppress(CkptfmtError):
            use(path)
        lines, peak = seen.get(times, (work.lines, work.peak))
        seen[times] = min(lines, work.lines), min(peak, work.peak)
    (lines, peak), (lines2, peak2) = seen[1], seen[2]
    assert lines2 <= 2.6 * lines + 2000, f"{lines:,} and {lines2:,} lines"
    assert peak2 <= 2.6 * peak + (1 << 17), f"{peak:,} and {peak2:,} bytes"
