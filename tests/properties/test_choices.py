# SPDX-License-Identifier: Apache-2.0
"""The options of loading mean the same in every call that has them. Loads into memory that exists:
exactly the asked elements get the stored values, or the load is refused and nothing changes, for
all aliases of the memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.choices import (
    CALLS,
    LOSSY,
    STORED,
    check,
    check_losses,
    drawn_options,
    grid,
)
from support.objects import State
from support.strategies import SEEDS, counted, property_test
from support.targets import CALLS as INTO
from support.targets import DTYPES, MEMORY_BYTES, NUMPY, check_load, places
from support.trees import nested

import ckptfmt
from ckptfmt import InvalidError


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("choices")
    ckptfmt.save(folder / "flat", STORED)
    ckptfmt.save_tree(folder / "tree", nested(STORED))
    return {False: folder / "flat", True: folder / "tree"}


@pytest.mark.parametrize("name", CALLS)
def test_all_options_together(name: str, prefixes: dict[bool, Path]) -> None:
    words = [check(CALLS[name], given, prefixes) for given in grid()]
    assert words.count("loaded") > len(words) / 4


@property_test(300, 20_000, seed=SEEDS)
def test_options_of_loading_mean_the_same_everywhere(seed: int, prefixes: dict[bool, Path]) -> None:
    chance = random.Random(seed)
    call = CALLS[chance.choice(sorted(CALLS))]
    counted("choices", **{check(call, drawn_options(chance), prefixes): 1})


@pytest.mark.parametrize("cast", [np.True_, 1, np.int64(1), {"a": True}, {"a": 1}])
def test_numbers_are_no_dtypes(cast: Any, prefixes: dict[bool, Path]) -> None:
    """1 is float32 for TensorFlow, and True a bool for NumPy."""
    for load in (ckptfmt.load, ckptfmt.load_tree):
        with pytest.raises(InvalidError) as caught:
            load(prefixes[False], cast=cast)
        assert caught.value.argument == "cast"
    targets = {name: np.zeros(array.shape, np.float64) for name, array in STORED.items()}
    if cast is np.True_:  # as True
        assert ckptfmt.load_into(prefixes[False], targets, cast=cast)


@pytest.mark.parametrize("name", CALLS)
def test_losses_are_refused_or_reported_everywhere(name: str, tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "flat", LOSSY)
    ckptfmt.save_tree(tmp_path / "tree", LOSSY)
    for graph in CALLS[name].graph:
        check_losses(CALLS[name], tmp_path / ("tree" if graph else "flat"))


def test_what_casts_do_later_is_in_the_report_then(tmp_path: Path) -> None:
    """Values may wait for their objects: what a dtype means is not known before."""
    path = ckptfmt.Checkpoint(**LOSSY, n=np.ones(2, "i8")).write(tmp_path / "ck")
    checkpoint = ckptfmt.Checkpoint(n=np.zeros(2, "i8"))
    status = checkpoint.read(path, cast="float16", allow_loss=True)
    assert not status.report.losses
    checkpoint.w, checkpoint.s = np.zeros(4, "f2"), np.zeros(())
    assert status.assert_consumed().report.losses == {"w": 1} and status.report.uncast == ("s",)
    for strict in (None, True, False):
        with pytest.raises(InvalidError) as caught:
            ckptfmt.Checkpoint(n=np.zeros(2, "i8")).read(
                path, names=["n"], cast="float16", strict=strict
            )
        assert caught.value.argument == "cast"


def test_a_refused_cast_gives_no_python_state(tmp_path: Path) -> None:
    path = ckptfmt.Checkpoint(s=State("new"), b=np.array([300, 1])).write(tmp_path / "ck")
    state = State("old")
    with pytest.raises(InvalidError):
        ckptfmt.Checkpoint(s=state, b=np.zeros(2, "i1")).read(path, cast=True)
    assert state.text == "old"


def test_losses_of_several_components_are_added(tmp_path: Path) -> None:
    def parallel(value: float, dtype: str) -> ckptfmt.tf.ParallelVariable:
        components = [np.full(3, value, dtype) for _ in range(2)]
        return ckptfmt.tf.ParallelVariable(components, ["first", "second"])

    path = ckptfmt.Checkpoint(p=parallel(1e30, "f8")).write(tmp_path / "ck")
    status = ckptfmt.Checkpoint(p=parallel(0, "f2")).read(path, cast="float16", allow_loss=True)
    assert status.report.losses == {"p": 6}


def test_tied_arrays_are_cast_together(tmp_path: Path) -> None:
    """Equal bytes that are converted alike are equal; others are not."""
    ckptfmt.save(tmp_path / "ck", {"a": np.ones(2), "b": np.ones(2)})
    array = np.zeros(2, np.float32)
    assert ckptfmt.load_into(tmp_path / "ck", {"a": array, "b": array}, cast=True)
    assert array.tolist() == [1, 1]
    for other in ({"cast": {"a": "float16"}}, {"rename": {"a": ("a", np.negative)}}):
        with pytest.raises(InvalidError):
            ckptfmt.load_into(tmp_path / "ck", {"a": array, "b": array}, **({"cast": True} | other))


class Twice:
    """A transform that cannot be hashed, and of which all are equal."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Twice)

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, array: Any) -> Any:
        return array * self.factor


def test_transforms_are_told_apart_by_identity(tmp_path: Path) -> None:
    """Two that say they are equal may give other values, and memory gets one of them."""
    ckptfmt.save(tmp_path / "ck", {"a": np.ones(2), "b": np.ones(2)})
    same = Twice(2)
    array = np.zeros(2)
    one = {"a": ("a", same), "b": ("b", same)}
    assert ckptfmt.load(tmp_path / "ck", rename=one)["b"].tolist() == [2, 2]
    assert ckptfmt.load_into(tmp_path / "ck", {"a": array, "b": array}, rename=one)
    assert array.tolist() == [2, 2]
    with pytest.raises(InvalidError, match="shares memory"):
        other = {"a": ("a", Twice(2)), "b": ("b", Twice(3))}
        ckptfmt.load_into(tmp_path / "ck", {"a": array, "b": array}, rename=other)


def test_a_missing_name_has_the_same_error_everywhere(prefixes: dict[bool, Path]) -> None:
    messages = set()
    for name, call in CALLS.items():
        for graph in call.graph:
            with pytest.raises(ckptfmt.TensorNotFoundError) as caught:
                call.load(prefixes[graph], {}, {"names": ["c/f"]})
            assert caught.value.tensor == "c/f", name
            messages.add(caught.value.message)
    assert len(messages) == 1 and "not found in checkpoint; the nearest are" in messages.pop()


@property_test(100, 20_000, data=st.data())
def test_a_load_writes_where_it_was_told_or_is_refused(
    data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    elements = MEMORY_BYTES // dtype.itemsize
    chosen = data.draw(st.lists(places(NUMPY, elements), min_size=1, max_size=3))
    call = INTO[data.draw(st.sampled_from(sorted(INTO)))]
    prefix = tmp_path_factory.getbasetemp() / "targets"
    counted("targets", **{check_load(NUMPY, chosen, dtype, prefix, call): 1})
