# SPDX-License-Identifier: Apache-2.0
"""`load_into`: arrays that are there already, and the report of what did not match."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index
from support.files import flip

import ckptfmt
from ckptfmt import InvalidError, load_into
from ckptfmt._base.arrays import describe
from ckptfmt._base.dtypes import code_of, numpy_dtype
from ckptfmt.recipe.load import Mismatch
from ckptfmt.types import MatchReport

TENSORS = {
    "d": np.arange(4.0),
    "h": np.arange(6, dtype=np.float16).reshape(2, 3) / 3,
    "i": np.arange(3, dtype=np.int64),
    "s": np.array([b"a", b"b\0"], object),
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A checkpoint of TENSORS."""
    ckptfmt.save(tmp_path / "ck", TENSORS, durability="none")
    return tmp_path / "ck"


def blank(**changed: Any) -> dict[str, Any]:
    """Arrays for TENSORS, with others in place of some; None leaves one out."""
    arrays = {name: np.zeros_like(array) for name, array in TENSORS.items()} | changed
    return {name: array for name, array in arrays.items() if array is not None}


def untouched(arrays: dict[str, Any]) -> bool:
    return all(not np.asarray(array).any() for array in arrays.values())


def refusal(kind: type[ckptfmt.CkptfmtError], *arguments: Any, **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        load_into(*arguments, **options)
    assert type(caught.value) is kind
    return caught.value


# ---- everything matches --------------------------------------------------------------------------


def test_memory_of_every_kind(prefix: Path) -> None:
    """Views with steps, buffers that are no arrays, names as bytes."""
    whole = np.zeros((2, 6), np.float16)
    buffer = bytearray(32)
    arrays: dict[Any, Any] = {
        b"h": whole[:, ::2],
        "d": memoryview(buffer).cast("d"),
        "i": np.zeros(6, np.int64)[::-2],
    }
    load_into(prefix, arrays, filter=re.compile("^[^s]"))
    assert whole[:, ::2].tolist() == TENSORS["h"].tolist()
    assert not whole[:, 1::2].any()
    assert np.frombuffer(buffer).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert arrays["i"].tolist() == [0, 1, 2]


# ---- what does not match -------------------------------------------------------------------------


def test_strict_and_not(prefix: Path) -> None:
    """The names in a report are those that support/choices.py expects; this is the rest of it."""
    arrays = blank(d=np.zeros(3, np.float32), i=None, x=np.zeros(1))
    report = MatchReport(
        matched=("h", "s"),
        missing=("x",),
        unexpected=("i",),
        shape_mismatch=(Mismatch("d", "d", (4,), (3,)),),
        dtype_mismatch=(Mismatch("d", "d", np.dtype("f8"), np.dtype("f4")),),
    )
    faults = [
        "missing in the checkpoint (1): 'x'",
        "unexpected in the checkpoint, without a target (1): 'i'",
        "of another shape (1): 'd' is (4,) and not (3,)",
        "of another dtype (1): 'd' is float64 and not float32",
    ]
    error = refusal(InvalidError, prefix, arrays)
    assert untouched(arrays)
    hint = "cast=True converts to the dtypes of the targets"
    assert (error.message, error.path) == ("; ".join([*faults, hint]), str(prefix))
    assert error.report == pickle.loads(pickle.dumps(error)).report == report
    found = load_into(prefix, arrays, strict=False)
    assert found == report and not found
    assert str(found).splitlines() == ["matched: 2 of 4 tensors", *faults]


def test_long_lists_are_counted(tmp_path: Path) -> None:
    tensors = {f"t{number:02d}": np.zeros(1) for number in range(20)}
    ckptfmt.save(tmp_path / "ck", tensors, durability="none")
    arrays = {name: np.zeros(2) for name in tensors} | {f"x{n}": np.zeros(1) for n in range(9)}
    report = load_into(tmp_path / "ck", arrays, strict=False)
    assert str(report) == (
        "matched: 0 of 29 tensors\n"
        "missing in the checkpoint (9): 'x0', 'x1', 'x2', 'x3', 'x4', 'x5', 'x6', 'x7' and 1 more\n"
        "of another shape (20): "
        + ", ".join(f"'t0{number}' is (1,) and not (2,)" for number in range(8))
        + " and 12 more"
    )


def test_names_that_could_drive_a_terminal(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"a\n\x1b[2J": np.zeros(1)}, durability="none")
    report = load_into(tmp_path / "ck", {}, strict=False)
    assert str(report).splitlines()[1:] == [
        "unexpected in the checkpoint, without a target (1): 'a\\n\\x1b[2J'"
    ]


@pytest.mark.parametrize(
    "array", [5, [0.0] * 4, None, b"\0" * 32, np.broadcast_to(np.zeros(1), (4,))]
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_cannot_be_read_into(prefix: Path, array: Any, strict: bool) -> None:
    """A mistake of the caller's, whatever the checkpoint holds."""
    arrays = {**blank(), "i": array}
    error = refusal(InvalidError, prefix, arrays, strict=strict)
    assert error.message.startswith(f"cannot read into {describe(array)}: ")
    assert (error.tensor, error.report) == ("i", None)
    del arrays["i"]
    assert untouched(arrays)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (5, "targets must be a mapping by names, not int"),
        ([np.zeros(1)], "targets must be a mapping by names, not list"),
        ({5: np.zeros(1)}, "a tensor name must be str or bytes, not int"),
    ],
)
def test_wrong_arguments(prefix: Path, arrays: Any, message: str) -> None:
    assert refusal(InvalidError, prefix, arrays).message == message
    assert refusal(InvalidError, prefix, {}, progress=5).message.startswith("progress must be a")


# ---- cast ----------------------------------------------------------------------------------------


def test_only_numbers_are_cast_and_only_to_numbers(tmp_path: Path, prefix: Path) -> None:
    arrays = blank(s=np.zeros(2), i=np.zeros(3, object), d=np.full(4, "x", "U1"))
    report = load_into(prefix, arrays, cast=True, strict=False)
    assert [mismatch.name for mismatch in report.dtype_mismatch] == ["d", "i", "s"]
    assert report.matched == ("h",) and arrays["d"].tolist() == ["x"] * 4
    quantized = np.array([(1,), (2,)], numpy_dtype(code_of("qint8")))
    ckptfmt.save(tmp_path / "quantized", {"q": quantized})
    numbers = np.zeros(2)
    assert load_into(tmp_path / "quantized", {"q": numbers}, cast=True)
    assert numbers.tolist() == [1, 2]
    pairs = {"q": np.zeros(2, [("x", "f4"), ("y", "f4")])}
    with pytest.raises(InvalidError, match="of another dtype"):
        load_into(tmp_path / "quantized", pairs, cast=True)


# ---- odd and damaged files -----------------------------------------------------------------------


def test_a_dtype_that_nobody_knows(tmp_path: Path) -> None:
    """As bytes, cast or not."""
    built = index.index_of([(b"", index.header()), (b"x", index.stored_entry(99, (2,), b"abcd"))])
    index.write(tmp_path / "ck", built, b"abcd")
    for cast in (False, True):
        array = np.zeros(4, np.uint8)
        load_into(tmp_path / "ck", {"x": array}, cast=cast)
        assert array.tobytes() == b"abcd"
        report = load_into(tmp_path / "ck", {"x": np.zeros(2, "i2")}, strict=False, cast=cast)
        assert report.shape_mismatch == (Mismatch("x", "x", (4,), (2,)),)


def test_what_tensorflow_adds_is_not_unexpected(tmp_path: Path) -> None:
    """The object graph and the save counter of a `tf.train.Checkpoint`, under any rename."""
    ckptfmt.Checkpoint(net={"w": np.ones(2)}).save(tmp_path / "ck")
    path, name = tmp_path / "ck-1", "net/w/.ATTRIBUTES/VARIABLE_VALUE"
    assert load_into(path, {name: np.zeros(2)})
    assert load_into(path, {"w": np.zeros(2)}, rename={name: "w"})
    counter = np.zeros((), np.int64)
    assert load_into(
        path, {name: np.zeros(2), "save_counter" + name.removeprefix("net/w"): counter}
    )
    assert counter == 1
    assert load_into(path, {}, strict=False).unexpected == (name,)
    # A program may use the name itself.
    ckptfmt.save(tmp_path / "own", {"save_counter/.ATTRIBUTES/VARIABLE_VALUE": np.ones(1)})
    assert load_into(tmp_path / "own", {}, strict=False).unexpected


def test_damaged_data(prefix: Path) -> None:
    flip(Path(f"{prefix}.data-00000-of-00001"), 3)
    error = refusal(ckptfmt.CorruptError, prefix, blank())
    assert (error.failure, error.tensor) == ("CHECKSUM", "d")
    # What does not match is told before anything is read.
    assert refusal(InvalidError, prefix, blank(d=None)).report.unexpected == ("d",)


def test_the_formats_own_tensors_are_not_unexpected(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ck", {"x": np.arange(3)}, metadata={"k": "v"})
    assert load_into(tmp_path / "ck", {"x": np.zeros(3, np.int64)})


def test_targets_of_other_kinds_of_text(tmp_path: Path) -> None:
    """They are refused; NumPy's own variable-width strings have no byte order to compare."""
    ckptfmt.save(tmp_path / "ck", {"s": np.array([b"a", b"b"], object), "x": np.ones(2)})
    for target in (np.array(["", ""], np.dtypes.StringDType()), np.array(["", ""])):
        for name in ("s", "x"):
            before = target.tolist()
            with pytest.raises(InvalidError, match="of another dtype"):
                ckptfmt.load_into(tmp_path / "ck", {name: target}, filter=name)
            assert target.tolist() == before
