# SPDX-License-Identifier: Apache-2.0
"""strict, rename, filter and cast of Checkpoint.read and restore: as in the other loads into arrays
that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.objects import Module, Optimizer, State

import ckptfmt
from ckptfmt.errors import InvalidError, TensorNotFoundError
from ckptfmt.recipe.load import MatchReport
from ckptfmt.saving import registration

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture(params=["objects", "names"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """enc: w 1 1, b 2; dec: w 3 3; n 7; as objects and as names."""
    values = {"enc/w": np.ones(2), "enc/b": np.full(1, 2.0), "dec/w": np.full(2, 3.0)}
    if request.param == "names":
        ckptfmt.save(tmp_path / "ck", {**values, "n": np.int64(7)})
        return str(tmp_path / "ck")
    enc = {"w": values["enc/w"], "b": values["enc/b"]}
    made: str = ckptfmt.Checkpoint(enc=enc, dec={"w": values["dec/w"]}, n=7).write(tmp_path / "ck")
    return made


def blank() -> dict[str, Any]:
    return {"enc": {"w": np.zeros(2), "b": np.zeros(1)}, "dec": {"w": np.zeros(2)}, "n": 0}


# ---- strict --------------------------------------------------------------------------------------


def test_strict_counts_the_counter(tmp_path: Path) -> None:
    saved = ckptfmt.Checkpoint(a=np.ones(1)).save(tmp_path / "ck")
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(1))
    assert checkpoint.restore(saved, strict=True).assert_consumed().report
    assert int(checkpoint.save_counter) == 1
    written = ckptfmt.Checkpoint(a=np.ones(1)).write(tmp_path / "written")
    with pytest.raises(TensorNotFoundError, match="'save_counter'"):
        checkpoint.restore(written, strict=True)
    ckptfmt.save(tmp_path / "names", {"a": np.full(1, 5.0)})
    assert checkpoint.restore(tmp_path / "names", strict=True).report.matched == ("a",)


def test_what_does_not_fit_may_be_replaced_by_what_does(path: str) -> None:
    module = Module(w=np.zeros(3))
    checkpoint = ckptfmt.Checkpoint(dec=module)
    status = checkpoint.read(path, strict=False, partial=True)
    assert [one.name for one in status.report.shape_mismatch] == ["dec/w"]
    with pytest.raises(ckptfmt.errors.MatchError, match="'dec/w'"):
        status.assert_existing_objects_matched()
    module.w = np.zeros(2)
    status.assert_existing_objects_matched()
    assert module.w.tolist() == [3, 3] and status.report.shape_mismatch == ()


def test_a_tensor_that_is_promised_and_not_there(tmp_path: Path) -> None:
    saved = ckptfmt.Checkpoint(a=np.ones(1), b=np.ones(1)).write(tmp_path / "ck")
    tensors = ckptfmt.load(saved)
    del tensors[f"b{VALUE}"]
    ckptfmt.save(tmp_path / "less", tensors)
    a, b = np.zeros(1), np.zeros(1)
    checkpoint = ckptfmt.Checkpoint(a=a, b=b)
    for strict in (True, None):
        with pytest.raises(TensorNotFoundError):
            checkpoint.read(tmp_path / "less", strict=strict)
    with pytest.raises(TensorNotFoundError, match=f"leave out {VALUE}"):
        checkpoint.read(saved, names=[f"a{VALUE}"])
    assert a[0] == 0
    report = checkpoint.read(tmp_path / "less", strict=False, partial=True).report
    assert (a[0], b[0], report.matched, report.missing) == (1, 0, ("a",), ("b",))


# ---- rename --------------------------------------------------------------------------------------


def test_values_go_where_the_checkpoint_has_nothing(path: str) -> None:
    module = Module()
    checkpoint = ckptfmt.Checkpoint(net=module, n=0)
    status = checkpoint.read(path, rename=[("^(enc|dec)/", r"net/\1/")], partial=True)
    assert checkpoint.n == 7
    module.enc = Module(w=np.zeros(2), b=np.zeros(1))
    module.dec = {"w": np.zeros(2)}
    assert module.enc.w.tolist() == [1, 1] and module.dec["w"].tolist() == [3, 3]
    status.assert_consumed()


def test_slots_and_states_change_their_places(tmp_path: Path) -> None:
    variable = np.ones(2)
    optimizer = Optimizer((variable, "m", np.full(2, 4.0)))
    saved = ckptfmt.Checkpoint(v=variable, o=optimizer, s=State("saved")).write(tmp_path / "ck")
    target, slot, state = np.zeros(2), np.zeros(2), State("")
    checkpoint = ckptfmt.Checkpoint(
        model={"v": target}, adam=Optimizer((target, "first", slot)), t={"s": state}
    )
    rename = {
        "v": "model/v",
        "v/.OPTIMIZER_SLOT/o/m": "model/v/.OPTIMIZER_SLOT/adam/first",
        "s/.ATTRIBUTES/py_state": "t/s/.ATTRIBUTES/py_state",
    }
    checkpoint.read(saved, rename=rename, strict=True).assert_consumed()
    assert target.tolist() == [1, 1] and slot.tolist() == [4, 4] and state.text == "saved"


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strict": 1}, "strict must be True, False or None, not int"),
        ({"filter": 1}, "filter must be a glob pattern"),
        ({"cast": "no"}, "'no' is not a dtype"),
    ],
)
def test_wrong_arguments(path: str, options: Any, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        ckptfmt.Checkpoint(**blank()).read(path, **options)
    with pytest.raises(InvalidError, match=words):
        ckptfmt.Checkpoint(**blank()).restore(None, **options)


# ---- registered savers ---------------------------------------------------------------------------


class Own:
    def __init__(self, text: str) -> None:
        self.text = text


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A saver of Own; and what it restored, by the name of the object with it."""
    kept: dict[str, Any] = {}

    def save(trackables: dict[str, Any], file_prefix: str) -> list[str]:
        tensors = {f"own/{name}": np.array(one.text) for name, one in trackables.items()}
        ckptfmt.save(file_prefix, tensors)
        return [file_prefix]

    def restore(trackables: dict[str, Any], merged_prefix: str) -> None:
        kept.update(trackables)
        for name, one in trackables.items():
            one.text = ckptfmt.load(merged_prefix, [f"own/{name}"])[f"own/{name}"].item().decode()

    registration.register_checkpoint_saver(
        "tests",
        tmp_path.name,
        predicate=lambda value: isinstance(value, Own),
        save_fn=save,
        restore_fn=restore,
    )
    yield kept
    registration.unregister_checkpoint_saver(f"tests.{tmp_path.name}")


def test_objects_of_registered_savers(tmp_path: Path, registered: dict[str, Any]) -> None:
    saved = ckptfmt.Checkpoint(a=Own("a"), b=Own("b")).write(tmp_path / "ck")
    one, other = Own(""), Own("")
    checkpoint = ckptfmt.Checkpoint(c={"x": one}, b=other)
    checkpoint.read(saved, rename={"a": "c/x"}, filter="a", strict=True).assert_consumed()
    assert (one.text, other.text) == ("a", "") and list(registered) == ["a"]
    status = ckptfmt.Checkpoint(b=other).read(saved, partial=True)
    assert status.report == MatchReport(("b",), (), ("a",))
    with pytest.raises(ckptfmt.errors.MatchError, match="no object took 'a'"):
        status.assert_consumed()


@pytest.mark.parametrize("strict", [None, True])
def test_a_mismatch_after_a_cast_has_the_dtype_of_the_cast(path: str, strict: bool | None) -> None:
    for cast, found in (("float16", "float16"), ({"enc/w": "int8"}, "int8")):
        objects = blank()
        with pytest.raises(InvalidError, match=rf"(is|dtype) {found}\b") as caught:
            ckptfmt.Checkpoint(**objects).read(path, strict=strict, cast=cast)
        assert not re.search(r"(is|original dtype) float64", str(caught.value))
