# SPDX-License-Identifier: Apache-2.0
"""Status objects: what their assertions and reports say, and what is told at their end."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.objects import Module

import ckptfmt
from ckptfmt.errors import MatchError
from ckptfmt.objects.status import InitializationOnlyStatus, LoadStatus, NameBasedSaverStatus
from ckptfmt.recipe.load import MatchReport

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def written(tmp_path: Path, **objects: Any) -> str:
    path: str = ckptfmt.Checkpoint(**objects).write(tmp_path / "ck")
    return path


def zeros(*names: str) -> dict[str, Any]:
    return {name: np.zeros(1) for name in names}


# ---- assertions ----------------------------------------------------------------------------------


def test_kinds_of_status(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1))
    ckptfmt.save(tmp_path / "named", {"a": np.ones(1)})
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(1))
    assert type(checkpoint.read(path)) is LoadStatus
    assert type(checkpoint.read(tmp_path / "named")) is NameBasedSaverStatus
    assert type(checkpoint.read(None)) is InitializationOnlyStatus


def test_all_that_fits_can_be_chained(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1), d={"b": 1})
    status = ckptfmt.Checkpoint(a=np.zeros(1), d={"b": 0}).read(path)
    found = status.assert_consumed().assert_existing_objects_matched().assert_nontrivial_match()
    assert found.expect_partial() is status
    assert status.report == MatchReport(("a", "d/b"), (), ())


def test_the_two_calls_of_graph_mode(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1))
    ckptfmt.save(tmp_path / "named", {"a": np.ones(1)})
    a = np.zeros(1)
    checkpoint = ckptfmt.Checkpoint(a=a)
    for given in (path, tmp_path / "named"):
        status = checkpoint.read(given)
        a[...] = 3
        for call in (status.initialize_or_restore, status.run_restore_ops):
            call()
            call(None)
            call(session=None)
        assert a == 3
    nothing = checkpoint.read(None)
    nothing.initialize_or_restore()
    with pytest.raises(ckptfmt.errors.MatchError, match="no checkpoint was given"):
        nothing.run_restore_ops()


def test_values_that_nobody_took(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1), d={"b": 1, "c": 2})
    status = ckptfmt.Checkpoint(a=np.zeros(1)).read(path, partial=True)
    status.assert_existing_objects_matched().assert_nontrivial_match()
    with pytest.raises(ckptfmt.errors.MatchError) as caught:
        status.assert_consumed()
    assert caught.value.message == f"no object took 'd/b{VALUE}', 'd/c{VALUE}'"
    assert (caught.value.path, caught.value.failure) == (path, "MATCH")
    assert status.report == MatchReport(("a",), (), ("d/b", "d/c"))


def test_objects_that_got_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1))
    target = {"x": np.zeros(1), "n": 5, "empty": {}, "nothing": None}
    status = ckptfmt.Checkpoint(a=np.zeros(1), d=target).read(path)
    for assertion in (status.assert_consumed, status.assert_existing_objects_matched):
        with pytest.raises(AssertionError) as caught:
            assertion()
        assert "these objects got no value from the checkpoint: 'd/x', 'd/n'" in str(caught.value)
    assert status.report == MatchReport(("a",), ("d/x", "d/n"), ())
    assert target["n"] == 5


def test_many_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, d={f"x{number}": number for number in range(30)})
    status = ckptfmt.Checkpoint(d={}).read(path, partial=True)
    with pytest.raises(ckptfmt.errors.MatchError, match=f"'d/x7{VALUE}' and 22 more$"):
        status.assert_consumed()


def test_a_trivial_match(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1))
    status = ckptfmt.Checkpoint(b=np.zeros(1)).read(path, partial=True)
    words = "the checkpoint has no object but the root; the objects here: 'b'"
    with pytest.raises(ckptfmt.errors.MatchError, match=words):
        status.assert_nontrivial_match()
    checkpoint = ckptfmt.Checkpoint()
    status = checkpoint.read(path, partial=True)
    with pytest.raises(ckptfmt.errors.MatchError, match="the objects here: none"):
        status.assert_nontrivial_match()
    checkpoint.a = np.zeros(1)
    status.assert_nontrivial_match()


def test_what_is_not_what_was_saved_got_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, a={"x": np.ones(1)}, b=np.ones(1))
    status = ckptfmt.Checkpoint(a=np.zeros(1), b={"y": np.zeros(1)}).read(path, partial=True)
    report = status.report
    assert (report.matched, report.missing) == ((), ("a", "b/y"))
    assert report.unexpected == ("b", "a/x")


def test_an_object_that_took_the_place_of_a_restored_one(tmp_path: Path) -> None:
    path = written(tmp_path, m=Module(w=np.ones(1), n=1))
    module = Module(w=np.zeros(1), n=0)
    status = ckptfmt.Checkpoint(m=module).read(path)
    module.n += 5
    status.assert_consumed()
    assert module.n == 6
    module.w = np.zeros(1)
    with pytest.raises(ckptfmt.errors.MatchError, match="'m/w'"):
        status.assert_existing_objects_matched()
    assert module.w[0] == 0.0


def test_without_a_checkpoint_everything_fails() -> None:
    target = np.zeros(1)
    status = ckptfmt.Checkpoint(a=target).restore(None)
    assert status.retry().expect_partial() is status
    status.close()
    for assertion in (
        status.assert_consumed,
        status.assert_existing_objects_matched,
        status.assert_nontrivial_match,
    ):
        with pytest.raises(ckptfmt.errors.MatchError, match="no checkpoint was given"):
            assertion()
    assert status.report == MatchReport((), (), ())


def test_the_counter_is_expected_by_restore_only(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1))
    with pytest.raises(ckptfmt.errors.MatchError, match="'save_counter'"):
        ckptfmt.Checkpoint(a=np.zeros(1)).restore(path).assert_consumed()
    ckptfmt.Checkpoint(a=np.zeros(1)).read(path).assert_consumed()
    counted = ckptfmt.Checkpoint(a=np.ones(1)).save(tmp_path / "counted")
    with pytest.raises(ckptfmt.errors.MatchError, match=f"no object took 'save_counter{VALUE}'"):
        ckptfmt.Checkpoint(a=np.zeros(1)).read(counted, partial=True).assert_consumed()
    ckptfmt.save(tmp_path / "named", {"a": np.ones(1)})
    ckptfmt.Checkpoint(a=np.zeros(1)).restore(tmp_path / "named").assert_consumed()
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(1))
    assert checkpoint.save_counter[()] == 0
    with pytest.raises(ckptfmt.errors.MatchError, match="'save_counter'"):
        checkpoint.read(tmp_path / "named").assert_consumed()


def test_a_report_hands_out_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, d={"a": np.ones(1)})
    target: dict[str, Any] = {}
    status = ckptfmt.Checkpoint(d=target).read(path, partial=True)
    target["a"] = np.zeros(1)
    assert status.report == MatchReport((), ("d/a",), ("d/a",))
    assert target["a"][0] == 0.0
    assert status.retry().report == MatchReport(("d/a",), (), ())


def test_partial_is_true_or_false(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1))
    with pytest.raises(ckptfmt.InvalidError, match="partial must be True or False, not int"):
        ckptfmt.Checkpoint(a=np.zeros(1)).read(path, partial=1)  # type: ignore[arg-type]


# ---- what is told --------------------------------------------------------------------------------


def test_what_nobody_took_is_told_at_the_end(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1), b=np.ones(1))
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(1))
    status = checkpoint.read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del status
        gc.collect()
    with pytest.warns(ckptfmt.CkptfmtWarning) as caught:
        del checkpoint
        gc.collect()
    assert [str(warning.message) for warning in caught] == [
        f"{path}: no object took 'b{VALUE}'; expect_partial() of the status silences this warning"
    ]


@pytest.mark.parametrize("how", ["partial", "expect_partial", "taken", "failed"])
def test_nothing_is_told_where_nothing_is_wrong(tmp_path: Path, how: str) -> None:
    path = written(tmp_path, a=np.ones(1), b=np.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint: Any = ckptfmt.Checkpoint(a=np.zeros(2 if how == "failed" else 1))
        if how == "failed":
            with pytest.raises(ckptfmt.InvalidError):
                checkpoint.read(path)
        else:
            status: Any = checkpoint.read(path, partial=how == "partial")
            if how == "expect_partial":
                status.expect_partial()
            if how == "taken":
                checkpoint.b = np.zeros(1)
            del status
        del checkpoint
        gc.collect()


def test_the_end_of_the_program_is_an_end(tmp_path: Path) -> None:
    path = written(tmp_path, a=np.ones(1), b=np.ones(1))
    program = (
        "import sys, numpy, ckptfmt\n"
        "checkpoint = ckptfmt.Checkpoint(a=numpy.zeros(1))\n"
        "status = checkpoint.read(sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    assert f"CkptfmtWarning: {path}: no object took 'b{VALUE}'" in done.stderr


def test_a_save_tells_of_values_that_still_wait(tmp_path: Path) -> None:
    path = written(tmp_path, d={"a": np.ones(1), "never": 1})
    target: dict[str, Any] = {}
    checkpoint = ckptfmt.Checkpoint(d=target)
    status = checkpoint.read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.write(tmp_path / "first")
    target["a"] = np.full(1, 9.0)
    words = "is saved with the values that 'd/a' have now"
    with pytest.warns(ckptfmt.CkptfmtWarning, match=words):
        checkpoint.write(tmp_path / "second")
    assert target["a"][0] == 9.0  # nothing is changed behind the caller's back
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.write(tmp_path / "third")
    status.expect_partial()


# ---- after strict --------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [None, True, False])
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("cast", [None, True])
def test_a_status_answers_for_every_strict(
    tmp_path: Path, strict: bool | None, graph: bool, cast: bool | None
) -> None:
    """Also once everything is restored, when the files are closed."""
    values = {"a": np.ones(2), "d": {"b": np.ones(1), "n": 1}}
    path = ckptfmt.save_tree(tmp_path / "ck", values, graph=graph)
    d = {"b": np.zeros(1), "n": 0}
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(2), d=d)
    status = checkpoint.read(path, strict=strict, cast=cast, partial=True)
    for _ in range(2):
        for check in (
            status.assert_existing_objects_matched,
            status.assert_nontrivial_match,
            status.assert_consumed,
            status.retry,
        ):
            assert check() is status
    assert status.report.complete
    d["later"] = np.zeros(1)
    with pytest.raises(MatchError, match="got no value"):
        status.assert_existing_objects_matched()
