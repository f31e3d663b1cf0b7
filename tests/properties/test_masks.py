# SPDX-License-Identifier: Apache-2.0
"""No call stores the values of a masked array without its mask, wherever in the value it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import InvalidError

MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
ZERO = np.ma.array(2.0, mask=True)
PLAIN = [1.0, 2.0]

VALUES: dict[str, Callable[[], Any]] = {
    "array": lambda: MASKED,
    "scalar": lambda: ZERO,
    "constant": lambda: np.ma.masked,
    "first": lambda: [MASKED, PLAIN],
    "last": lambda: (PLAIN, MASKED),
    "after numbers": lambda: [1, 2.0, np.ma.masked],
    "after a scalar of NumPy": lambda: [np.float64(1), ZERO],
    "after an array": lambda: [np.ones(2), MASKED],
    "deque": lambda: deque([MASKED]),
    "deep": lambda: [[PLAIN, PLAIN], [PLAIN, (1, ZERO)]],
}


def by_writer(path: Path, value: Any) -> None:
    with ckptfmt.Writer(path) as writer:
        writer.add("x", value)


def by_component(path: Path, value: Any) -> None:
    ckptfmt.tf.ParallelVariable(value, ["/device:CPU:0"])


def by_assignment(path: Path, value: Any) -> None:
    shape = np.shape(np.asarray(value, object)) if isinstance(value, np.ndarray) else (2,)
    ckptfmt.tf.ParallelVariable(np.ones(shape), ["/device:CPU:0"]).assign(value)


def by_objects(path: Path, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        value = {"inside": value}
    ckptfmt.Checkpoint(x=value).write(path)


CALLS: dict[str, Callable[[Path, Any], object]] = {
    "save": lambda path, value: ckptfmt.save(path, {"x": value}),
    "save, of many": lambda path, value: ckptfmt.save(
        path, {**{str(i): np.ones(1) for i in range(3000)}, "x": value}
    ),
    "save_async": lambda path, value: ckptfmt.save_async(path, {"x": value}).result(),
    "save_v2": lambda path, value: ckptfmt.save_v2(path, ["x"], [""], [value]),
    "save_tree": lambda path, value: ckptfmt.save_tree(path, {"x": value}),
    "Writer": by_writer,
    "SaveSpec": lambda path, value: ckptfmt.Saver(
        [[ckptfmt.SaveSpec(value, "", "x", np.float64)]]
    ).save(path),
    "Checkpoint": by_objects,
    "ParallelVariable": by_component,
    "ParallelVariable.assign": by_assignment,
    "safetensors": lambda path, value: ckptfmt.safetensors.save_file({"x": value}, f"{path}.st"),
    "sharded": lambda path, value: ckptfmt.sharded.save(
        path, {"x": value}, {}, ckptfmt.sharded.SingleProcess()
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_mask_is_lost(call: str, tmp_path: Path) -> None:
    for value, make in VALUES.items():
        with pytest.raises(InvalidError):
            CALLS[call](tmp_path / "model", make())
            pytest.fail(value)
        assert not list(tmp_path.iterdir()), value


def test_sequences_without_an_end(tmp_path: Path) -> None:
    own: list[Any] = []
    own += [1.0, own, own]
    deep: Any = 1.0
    for _ in range(2000):
        deep = [deep]
    for value in (own, [own], deep):
        for call in ("save", "safetensors"):
            with pytest.raises(InvalidError):
                CALLS[call](tmp_path / "model", value)
    assert not list(tmp_path.iterdir())
