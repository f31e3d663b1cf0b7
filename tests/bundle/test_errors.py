# SPDX-License-Identifier: Apache-2.0
"""The exceptions: what each of them is, what it tells, and that it crosses process borders."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt import _core, errors
from ckptfmt._ckptfmt import ffi, lib
from ckptfmt.errors import InvalidError, StorageError

# Class, what it is besides a CkptfmtError, its status, its failures.
TABLE = [
    (
        errors.CorruptError,
        (),
        "CORRUPT",
        (
            *("BAD_MAGIC", "TRUNCATED", "CHECKSUM", "BAD_BLOCK", "BAD_ORDER", "BAD_PROTO"),
            *("BAD_HEADER", "BAD_DTYPE", "BAD_SHAPE", "BAD_SLICE", "BAD_ENTRY"),
            "BAD_CHUNK",
        ),
    ),
    (errors.UnsupportedError, (), "UNSUPPORTED", ("UNSUPPORTED",)),
    (errors.LimitError, (), "LIMIT", ("LIMIT",)),
    (InvalidError, (ValueError,), "INVALID", ("ARGUMENT", "BAD_PATH")),
    (errors.MatchError, (InvalidError, ValueError, AssertionError), "INVALID", ("MATCH",)),
    (errors.ShardingError, (InvalidError, ValueError, RuntimeError), "INVALID", ("SHARDING",)),
    (errors.TensorNotFoundError, (LookupError, KeyError), "NOT_FOUND", ("TENSOR_NOT_FOUND",)),
    (StorageError, (OSError,), "IO", ("OS", "NOT_REMOVED")),
    (errors.ShardMissingError, (StorageError, OSError), "IO", ("SHARD_MISSING",)),
    (errors.GenerationGoneError, (StorageError, OSError), "IO", ("GENERATION_GONE",)),
    (errors.DurabilityUnknownError, (StorageError, OSError), "IO", ("DURABILITY_UNKNOWN",)),
    (
        errors.CheckpointNotFoundError,
        (StorageError, FileNotFoundError, OSError),
        "NOT_FOUND",
        ("CHECKPOINT_NOT_FOUND",),
    ),
    (errors.MergeConflictError, (ValueError,), "CONFLICT", ("MERGE_CONFLICT",)),
    (errors.BusyError, (), "BUSY", ("BUSY",)),
]
CLASSES = [row[0] for row in TABLE]
BUILTINS = (ValueError, AssertionError, RuntimeError, LookupError, KeyError, OSError)
BUILTINS += (FileNotFoundError, StorageError, InvalidError)
DETAILS = {
    "path": "/d/ck.index",
    "offset": 4097,
    "tensor": "layer/w",
    "errno": errno.EIO,
    "argument": "cast",
}


def attributes(error: errors.CkptfmtError) -> dict[str, object]:
    return {"message": error.message, "status": error.status, "args": error.args, **error.details()}


def each_class() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


# ---- what they are -------------------------------------------------------------------------------


def test_the_table_is_complete() -> None:
    public = set(errors.__all__) - {"CkptfmtError", "CkptfmtWarning"}
    assert {kind.__name__ for kind in CLASSES} == public
    top = [name for name in errors.__all__ if name in ckptfmt.__all__]
    assert len(top) == 8
    assert all(getattr(ckptfmt, name) is getattr(errors, name) for name in top)


@pytest.mark.parametrize(("kind", "also", "status", "failures"), TABLE)
def test_bases_status_and_failures(
    kind: type[errors.CkptfmtError], also: tuple[type, ...], status: str, failures: tuple[str, ...]
) -> None:
    assert issubclass(kind, errors.CkptfmtError)
    bases = {base for base in BUILTINS if issubclass(kind, base) and base is not kind}
    assert bases == set(also) - {kind}
    error = kind("m")
    assert error.status == status
    assert error.failure == failures[0]
    assert kind.failures == failures
    for failure in failures:
        assert kind("m", failure=failure).failure == failure


def test_every_failure_of_c_has_its_class() -> None:
    """No failure of the C core falls through to the base class."""
    expected = {failure: kind for kind, _, _, failures in TABLE for failure in failures}
    numbers = ffi.typeof("ckptfmt_failure").elements
    listed = {_core.text(lib.ckptfmt_failure_name(number)) for number in numbers}
    assert {f"CKPTFMT_FAIL_{name}" for name in listed} == set(numbers.values())
    # Only a progress function of C cancels; one of Python raises.
    assert listed - {"NONE", "NO_MEMORY", "CANCELLED"} == set(expected) - {"MATCH", "SHARDING"}
    assert expected == _core.ERROR_BY_FAILURE
    statuses = {kind.default_status for kind in CLASSES}
    assert set(_core.ERROR_BY_STATUS) == statuses
    assert _core.ERROR_BY_STATUS["IO"] is StorageError


def c_record(failure: int, status: int) -> object:
    record = ffi.new("ckptfmt_error *")
    record.failure, record.status, record.offset = failure, status, 12
    record.os_errno, record.tensor_size = 5, 3
    record.message, record.path = b"BLK-4: wrong", b"/d/\xff.index"
    ffi.buffer(record.tensor)[:3] = b"a\xfeb"
    return record


def test_record_of_c_becomes_attributes() -> None:
    error = _core.error_of(c_record(lib.CKPTFMT_FAIL_CHECKSUM, lib.CKPTFMT_CORRUPT))
    assert type(error) is errors.CorruptError
    assert attributes(error) == {
        "message": "BLK-4: wrong",
        "status": "CORRUPT",
        "failure": "CHECKSUM",
        "path": "/d/\udcff.index",
        "offset": 12,
        "tensor": "a\udcfeb",
        "errno": 5,
        "argument": None,
        "args": ("BLK-4: wrong",),
    }


def test_record_of_c_without_details() -> None:
    record = c_record(lib.CKPTFMT_FAIL_ARGUMENT, lib.CKPTFMT_INVALID)
    record.offset, record.os_errno, record.tensor_size, record.path = _core.NO_OFFSET, 0, 0, b""
    error = _core.error_of(record)
    assert type(error) is InvalidError
    assert (error.path, error.offset, error.tensor, error.errno) == (None, None, None, None)
    assert _core.error_of(record, "/where").path == "/where"


def test_no_memory_is_the_builtin() -> None:
    error = _core.error_of(c_record(lib.CKPTFMT_FAIL_NO_MEMORY, lib.CKPTFMT_NO_MEMORY))
    assert type(error) is MemoryError
    assert str(error) == "BLK-4: wrong"


# ---- attributes ----------------------------------------------------------------------------------


@each_class()
def test_attributes(kind: type[errors.CkptfmtError]) -> None:
    bare = kind("a sentence")
    assert (bare.path, bare.offset, bare.tensor, bare.errno) == (None, None, None, None)
    assert (bare.message, bare.argument, bare.rule) == ("a sentence", None, None)
    assert kind("BLK-4: wrong").rule == "BLK-4"
    assert bare.args == ("a sentence",)
    full = kind("a sentence", **DETAILS)
    assert {name: getattr(full, name) for name in DETAILS} == DETAILS


@each_class()
def test_a_message_with_more(kind: type[errors.CkptfmtError]) -> None:
    """`args`, `repr` and a copy have what was added, masked."""
    error = kind("a sentence", **DETAILS)
    error.hint("; see s3://key:word@bucket/m")
    expected = "a sentence; see s3://***@bucket/m"
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert (one.message, one.args) == (expected, (expected,))
        assert expected in repr(one) and expected in str(one)


@each_class()
def test_storage_errors_are_os_errors(kind: type[errors.CkptfmtError]) -> None:
    error = kind("no space", path=b"/d/\xff", errno=errno.ENOSPC)
    if not isinstance(error, OSError):
        assert not hasattr(error, "filename")
        return
    assert error.errno == errno.ENOSPC
    assert error.filename == error.path == "/d/\udcff"
    assert kind("no space").filename is None
    with pytest.raises(OSError) as caught:
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("details", "text"),
    [
        ({}, "CHECKSUM: m"),
        ({"offset": 0}, "CHECKSUM at offset 0: m"),
        ({"tensor": ""}, "CHECKSUM, tensor '': m"),
        ({"tensor": "w"}, "CHECKSUM, tensor 'w': m"),
        ({"path": "p"}, "CHECKSUM in p: m"),
        ({"path": "p", "tensor": "w"}, "CHECKSUM in p, tensor 'w': m"),
        ({"failure": "NONE", "tensor": "w"}, "tensor 'w': m"),
        ({"failure": "NONE", "path": "p"}, "in p: m"),
        ({"failure": "NONE", "offset": 3}, "at offset 3: m"),
        ({"failure": "NONE"}, "m"),
        ({"errno": 5}, "CHECKSUM: m"),
    ],
)
def test_message_parts(details: dict[str, object], text: str) -> None:
    assert str(errors.CorruptError("m", **{"failure": "CHECKSUM", **details})) == text


def test_key_error_has_no_quotes_of_its_own() -> None:
    """A plain KeyError shows the repr of its argument."""
    assert str(KeyError("it's gone")) == '"it\'s gone"'
    error = errors.TensorNotFoundError("it's gone", tensor="w")
    assert str(error) == "tensor 'w': it's gone"


@each_class()
def test_nothing_drives_a_terminal(kind: type[errors.CkptfmtError]) -> None:
    error = kind(
        "one\nline\r", path="/d/\x1b[2J\udcff", tensor="a\tb\x00\x7f\u202e\x85\u2028", errno=1
    )
    is_mistake = kind.default_status in ("INVALID", "NOT_FOUND")
    head = "" if is_mistake else f"{kind.failures[0]} "
    assert str(error) == (
        f"{head}in /d/\\x1b[2J\\udcff, tensor 'a\\tb\\x00\\x7f\\u202e\\x85\\u2028': one\\nline\\r"
    )
    str(error).encode("ascii")
    # The attributes are what they are.
    assert error.path == "/d/\x1b[2J\udcff"
    assert error.tensor == "a\tb\x00\x7f\u202e\x85\u2028"
    assert error.message == "one\nline\r"


def test_every_control_character_is_escaped() -> None:
    for point in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x200E, 0x2066, 0xFEFF, 0xDC80]:
        shown = str(InvalidError(f"a{chr(point)}b"))
        assert shown.isprintable() and shown.isascii(), hex(point)
        assert shown == f"a{chr(point).encode('unicode_escape').decode()}b"


# ---- across processes ----------------------------------------------------------------------------


@each_class()
@pytest.mark.parametrize("details", [{}, DETAILS, {"path": "/\udcff", "tensor": "\udcfe"}])
def test_pickling(kind: type[errors.CkptfmtError], details: dict[str, object]) -> None:
    error = kind("SHP-1: sentence", failure=kind.failures[-1], **details)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is kind
        assert attributes(again) == attributes(error)
        assert str(again) == str(error)
        if isinstance(error, OSError):
            assert again.filename == error.filename


# ---- as they are raised --------------------------------------------------------------------------


def test_refused_by_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        ckptfmt.save(tmp_path / "file" / "ck", {"x": np.arange(3)})
    error = caught.value
    assert type(error) is StorageError
    assert error.errno in {errno.ENOTDIR, errno.EEXIST}
    assert error.filename is not None and error.filename.startswith(str(tmp_path / "file"))
    assert os.listdir(tmp_path) == ["file"]


def test_long_names_are_cut_in_messages() -> None:
    """A message shows both ends of a name of 70 KB; the attribute has all of it."""
    name = "begin" + "n" * 70_000 + "end"
    error = errors.CorruptError("the tensor is damaged", tensor=name)
    assert len(str(error)) < 300
    assert "'beginnn" in str(error)
    assert "nnend'" in str(error)
    assert error.tensor == name
    assert len(str(errors.CorruptError(f"the name {name}").args[0])) < 11_000


SECRETS = [
    *("x-amz-credential", "x-amz-signature", "x-amz-security-token"),
    *("x-goog-credential", "x-goog-signature", "signature", "sig"),
    *("token", "access_token", "key", "api_key", "apikey", "auth", "password"),
]


@pytest.mark.parametrize("name", SECRETS)
def test_every_secret_of_a_query_is_masked(name: str) -> None:
    for before in ("?", "&", "%3f", "%3F", "%26"):
        for spelled in (name, name.upper()):
            text = f"https://h/m{before}{spelled}=SECRET&x=1#end"
            error = errors.StorageError(text, path=text)
            expected = text.replace("SECRET", "***")
            assert (error.message, error.path, error.args) == (expected, expected, (expected,))
        other = f"https://h/m{before}{name}s=1"
        assert errors.masked(other) == other
