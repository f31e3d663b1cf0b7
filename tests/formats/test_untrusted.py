# SPDX-License-Identifier: Apache-2.0
"""What pickles may name, links that are not followed, and work in proportion to what is read."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.hostile import OPENERS, npy, safetensors, zip_of, zip_value

import ckptfmt
from ckptfmt import CkptfmtError, InvalidError
from ckptfmt.errors import LimitError, UnsupportedError

# ---- pickles -------------------------------------------------------------------------------------

NAMES = [
    *(("builtins", name) for name in dir(builtins)),
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


@pytest.mark.parametrize("opener", ["DCP metadata", "DCP value"])
def test_pickles_name_only_what_is_listed(opener: str, tmp_path: Path) -> None:
    one = OPENERS[opener]
    path = one.make(tmp_path)
    for module, name in NAMES:
        for content in naming(module, name):
            path.write_bytes(content if opener == "DCP metadata" else zip_value(content))
            with pytest.raises(UnsupportedError) as caught:
                one.use(tmp_path)
            assert f"{module}.{name}" in str(caught.value)


def test_extension_codes_are_refused(tmp_path: Path) -> None:
    path = OPENERS["DCP metadata"].make(tmp_path)
    for code in (b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00"):
        path.write_bytes(b"\x80\x02" + code + b".")
        with pytest.raises(CkptfmtError):
            OPENERS["DCP metadata"].use(tmp_path)


# ---- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_links_to_archives(kind: str, tmp_path: Path) -> None:
    archive = OPENERS[kind].make(tmp_path)
    (tmp_path / f"link.{kind}").symlink_to(archive.name)
    path = f"{tmp_path}/link.{kind}!/m"
    with ckptfmt.open(path) as reader:
        assert len(reader["x"].read()) == 300
    with pytest.raises(InvalidError) as caught:
        ckptfmt.open(path, follow_symlinks=False)
    assert caught.value.failure == "BAD_PATH"
    with ckptfmt.open(f"{archive}!/m", follow_symlinks=False) as reader:
        assert len(reader["x"].read()) == 300


def test_an_extended_header_of_tar_is_limited(tmp_path: Path) -> None:
    """Whether this Python's tarfile is quadratic or not."""
    path = tmp_path / "a.tar"
    path.write_bytes(OPENERS["tar"].bombs()["PAX header"])
    with pytest.raises(LimitError, match="header"):
        ckptfmt.open(f"{path}!/m")


# ---- twice as much -------------------------------------------------------------------------------


def _members(count: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i in range(count):
            archive.writestr(f"d/f{i}.txt", b"")
    return out.getvalue()


def _tar_members(count: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(count):
            tar.addfile(tarfile.TarInfo(f"d/f{i}.txt"))
    return out.getvalue()


def _deep(parts: int) -> bytes:
    return zip_of(**{f"{i}/" + "a/" * parts + "m": b"" for i in range(20)})


def _listed(path: Path) -> None:
    ckptfmt.latest_checkpoint(f"{path}!/d/")
    ckptfmt.open(f"{path}!/d/missing")


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
    "members of zip": ("a.zip", _members, _listed, 1000),
    "members of tar": ("a.tar", _tar_members, _listed, 500),
    "parts of names": ("a.zip", _deep, _listed, 100),
    "tensors of safetensors": ("a.safetensors", _header, _converted, 300),
    "digits": ("a.safetensors", _digits, _converted, 2000),
    "depth": ("a.safetensors", _nested, _converted, 300),
    "tensors of npz": (
        "a.npz",
        lambda n: zip_of(**{f"{i}.npy": npy("(0,)", 0) for i in range(n)}),
        _converted,
        100,
    ),
    "values of a pickle": (".metadata", _pickled, lambda p: _converted(p.parent), 4000),
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
        400,
    ),
}


def _directory(directory: Path, count: int) -> None:
    for i in range(count):
        (directory / f"f{i}").touch()
    ckptfmt.latest_checkpoint(directory)


class Work:
    """Counts the lines of Python that run, and the peak of what is allocated."""

    def __enter__(self) -> Work:
        self.lines = 0
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


@pytest.mark.parametrize("what", DOUBLED)
def test_twice_as_much_takes_about_twice_the_work(what: str, tmp_path: Path) -> None:
    """Lines of Python and bytes, not seconds."""
    name, make, use, count = DOUBLED[what]
    seen = []
    for times in (1, 1, 2):  # the first imports what is needed
        directory = tmp_path / f"{len(seen)}"
        directory.mkdir()
        path = directory / name
        path.write_bytes(make(count * times))
        with Work() as work, contextlib.suppress(CkptfmtError):
            use(path)
        seen.append((work.lines, work.peak))
    _, (lines, peak), (lines2, peak2) = seen
    assert lines2 <= 2.6 * lines + 2000, f"{lines:,} and {lines2:,} lines"
    assert peak2 <= 2.6 * peak + (1 << 20), f"{peak:,} and {peak2:,} bytes"
