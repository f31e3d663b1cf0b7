# SPDX-License-Identifier: Apache-2.0
"""Objects of registered savers and parallel variables go from one side to the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.saving import registration

from .workers import ask

ASSERTIONS = ["assert_consumed", "assert_existing_objects_matched", "assert_nontrivial_match"]


class Own:
    """Saved by the saver `tests.own`."""

    def __init__(self, value: list[float]) -> None:
        self.value = value


def save_own(trackables: Mapping[str, Own], file_prefix: str) -> str:
    names = [f"own/{name}" for name in trackables]
    values = [np.float32(one.value) for one in trackables.values()]
    ckptfmt.save_v2(file_prefix, names, [""] * len(names), values)
    return file_prefix


def restore_own(trackables: Mapping[str, Own], merged_prefix: str) -> None:
    for name, one in trackables.items():
        one.value = ckptfmt.load(merged_prefix, [f"own/{name}"])[f"own/{name}"].tolist()


@pytest.fixture
def registered() -> Iterator[None]:
    registration.register_checkpoint_saver(
        "tests",
        "own",
        predicate=lambda value: isinstance(value, Own),
        save_fn=save_own,
        restore_fn=restore_own,
    )
    yield
    registration.unregister_checkpoint_saver("tests.own")


@pytest.mark.usefixtures("registered")
def test_objects_of_registered_savers(tmp_path: Path) -> None:
    ask("tf_objects.py", "write", tmp_path)
    own, variable = Own([]), np.zeros((), np.float32)
    ckptfmt.Checkpoint(own=own, v=variable).read(tmp_path / "registered").assert_consumed()
    assert own.value == [1, 1] and variable == 3

    variable[...] = 4
    ckptfmt.Checkpoint(own=Own([5, 6, 7]), v=variable).write(tmp_path / "ours")
    assert ask("tf_objects.py", "read_registered", tmp_path) == [[5, 6, 7], 4, ASSERTIONS]


def test_parallel_variables_are_variables_to_tensorflow(tmp_path: Path) -> None:
    """TensorFlow takes component 0, and says nothing of the others."""
    parallel = ckptfmt.tf.ParallelVariable([np.float32([1, 2]), np.float32([3, 4])])
    one = ckptfmt.tf.ParallelVariable([np.float32([5, 6])])
    ckptfmt.Checkpoint(p=parallel, d={"q": one}).write(tmp_path / "ours")
    expected = [[1, 2], [5, 6], ASSERTIONS]
    assert ask("tf_objects.py", "read_parallel", tmp_path) == expected
    ckptfmt.save_tree(tmp_path / "ours", {"p": parallel, "d": {"q": one}})
    assert ask("tf_objects.py", "read_parallel", tmp_path) == expected
