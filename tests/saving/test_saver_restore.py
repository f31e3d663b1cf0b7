# SPDX-License-Identifier: Apache-2.0
"""Saver: what it hands back, and to whom; registered savers and saveables."""

from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.saving import QUICK, Thing, files, on, previous

import ckptfmt
from ckptfmt.errors import (
    BusyError,
    CheckpointNotFoundError,
    InvalidError,
    MergeConflictError,
    StorageError,
    TensorNotFoundError,
)
from ckptfmt.saving import registration
from ckptfmt.saving import saver as saving
from ckptfmt.saving.registration import claimed, register_checkpoint_saver
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.specs import SaveableObject, SaveSpec

# ---- restoring -----------------------------------------------------------------------------------


def test_objects_are_restored_once_all_has_arrived(tmp_path: Path) -> None:
    order: list[str] = []

    class Noted(Thing):
        def __init__(self, name: str) -> None:
            super().__init__({f"{name}/done": name})
            self.name = name

        def restore(self, restored: dict[str, Any]) -> Any:
            order.append(self.name)
            return super().restore(restored)

    late, early, none = Noted("late"), Noted("early"), Noted("none")
    whole = np.arange(8).reshape(4, 2)
    tensors = {
        late: {
            "w": {
                "4 2 0,2:0,2": on(0, whole[:2], "w", slice_spec="4 2 0,2:0,2"),
                "4 2 2,2:0,2": on(1, whole[2:], "w", slice_spec="4 2 2,2:0,2"),
            },
            "late": on(0, np.ones(1), "late"),
        },
        early: {"early": on(0, np.array(b"text", object), "early")},
        none: {},
    }
    saver = Saver(tensors)
    prefix = saver.save(tmp_path / "ckpt", QUICK)
    assert saver.restore(prefix) == {"early/done": "early", "late/done": "late"}
    assert order == ["early", "late"]
    (restored,) = late.restored
    assert list(restored) == ["w", "late"]
    assert list(restored["w"]) == ["4 2 0,2:0,2", "4 2 2,2:0,2"]
    np.testing.assert_array_equal(np.concatenate(list(restored["w"].values())), whole)
    np.testing.assert_array_equal(restored["late"], np.ones(1))
    (restored,) = early.restored
    assert restored["early"].item() == b"text"
    assert none.restored == []


def test_restore_on_another_arrangement(tmp_path: Path, seed: int) -> None:
    """Random slices of what was saved in random slices."""
    rng = random.Random(seed)
    whole = np.arange(17 * 5, dtype=np.float16).reshape(17, 5)

    def cut(device: bool) -> dict[str, Any]:
        edges = [0, *sorted(rng.sample(range(1, 17), rng.randint(0, 5))), 17]
        found: dict[str, Any] = {}
        for first, last in itertools.pairwise(edges):
            text = f"17 5 {first},{last - first}:0,5"
            value = whole[first:last]
            task = rng.randrange(3)
            found[text] = on(task, value, "w", slice_spec=text) if device else value
        return found

    for number in range(20):
        prefix = Saver({"all": {"w": cut(True)}}).save(tmp_path / f"ckpt-{number}", QUICK)
        wanted = cut(bool(number % 2))
        found = Saver({text: {"w": {text: one}} for text, one in wanted.items()}).restore(prefix)
        assert sorted(found["w"]) == sorted(wanted)
        rows = [found["w"][text] for text in wanted]
        np.testing.assert_array_equal(np.concatenate(rows), whole)


def test_one_batch_a_task_from_one_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"{i}": on(i % 3, np.full(2, i), f"{i}") for i in range(9)}
    writer = Saver({"all": tensors})
    prefix = writer.save(tmp_path / "ckpt", QUICK)
    newer = {key: on(0, np.full(2, 99), key) for key in tensors}
    batches: list[list[str]] = []
    real = saving._read

    def noted(reader: ckptfmt.Reader, items: Any) -> list[Any]:
        if len(batches) == 1:  # the checkpoint is replaced in the middle
            Saver({"all": newer}).save(prefix, QUICK)
        batches.append([item.key for item in items])
        return real(reader, items)

    monkeypatch.setattr(saving, "_read", noted)
    found = writer.restore(prefix)
    assert batches == [["0", "3", "6"], ["1", "4", "7"], ["2", "5", "8"]]
    assert {key: value[0] for key, value in found.items()} == {f"{i}": i for i in range(9)}
    assert ckptfmt.load(prefix)["0"][0] == 99


def test_none_and_functions_instead_of_methods(tmp_path: Path) -> None:
    thing = Thing({"unused": 1})
    seen: list[Any] = []

    def function(restored: dict[str, Any]) -> dict[str, Any]:
        seen.append({key: value.tolist() for key, value in restored.items()})
        return {"by function": 1}

    tensors = {
        thing: {"a": np.ones(1)},
        "text": {"b": np.zeros(1)},
        None: {"graph": np.array(b"graph", object)},
    }
    prefix = Saver(tensors).save(tmp_path / "ckpt", QUICK)
    found = Saver(tensors, restore_fns={thing: function}).restore(prefix)
    assert seen == [{"a": [1.0]}]
    assert thing.restored == []
    assert list(found) == ["by function", "b"]
    # The tensors of None may be missing.
    ckptfmt.save(tmp_path / "other", {"a": np.ones(1), "b": np.zeros(1)})
    assert sorted(Saver(tensors).restore(tmp_path / "other")) == ["b", "unused"]


@pytest.mark.parametrize(
    ("wanted", "error", "tensor"),
    [
        ({"gone": np.ones(1)}, TensorNotFoundError, "gone"),
        ({"a": np.ones(4, np.int16)}, InvalidError, "a"),
        ({"a": {"5 0,2": np.ones(2, np.float32)}}, InvalidError, "a"),
    ],
)
def test_restore_refuses(
    tmp_path: Path, wanted: dict[str, Any], error: type[Exception], tensor: str
) -> None:
    ckptfmt.save(tmp_path / "ckpt", {"a": np.ones(4, np.float32)})
    thing = Thing()
    with pytest.raises(error) as caught:
        Saver({thing: wanted}).restore(tmp_path / "ckpt")
    assert caught.value.tensor == tensor
    assert thing.restored == []


# ---- registered savers ---------------------------------------------------------------------------


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration, "_registry", {})
    yield


def register(name: str, save: Callable[..., Any], restore: Callable[..., Any] = print) -> None:
    register_checkpoint_saver(name=name, predicate=callable, save_fn=save, restore_fn=restore)


@pytest.mark.usefixtures("_own_registry")
def test_registered_savers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def save(trackables: dict[str, Any], file_prefix: str) -> Any:
        calls.append(("save", trackables, os.path.relpath(file_prefix, tmp_path)))
        for part, (name, value) in enumerate(trackables.items()):
            ckptfmt.save(f"{file_prefix}/part-{part}", {name: value})
        return [[f"{file_prefix}/part-0"], [], (Path(f"{file_prefix}/part-1"),)]

    def restore(trackables: dict[str, Any], merged_prefix: str) -> None:
        loaded = ckptfmt.load(merged_prefix, list(trackables))
        calls.append(("restore", {name: loaded[name] for name in trackables}, merged_prefix))

    def asked() -> np.ndarray:
        calls.append("asked")
        return np.ones(1)

    register("Pair", save, restore)
    register("Idle", lambda **_: None, lambda **_: calls.append("idle restored"))
    thing = Thing()
    monkeypatch.setattr(thing, "restore", lambda _: calls.append("restored"))
    saver = Saver(
        {thing: {"mine": SaveSpec(asked, "", "mine", np.float64, "")}},
        {"Custom.Pair": {"x": np.float32(1), "y": np.float32(2)}, "Custom.Idle": {}},
    )
    prefix = saver.save(tmp_path / "ckpt", QUICK)
    assert calls == [("save", {"x": 1, "y": 2}, "ckpt-Custom.Pair"), "asked"]
    with ckptfmt.open(prefix) as reader:
        assert {name: reader[name].shard for name in reader} == {"x": 0, "y": 1, "mine": 2}
    assert files(tmp_path) == [*(f"ckpt.data-0000{i}-of-00003" for i in range(3)), "ckpt.index"]
    calls.clear()
    saver.restore(f"{prefix}.index")
    assert calls == ["restored", ("restore", {"x": 1, "y": 2}, prefix), "idle restored"]


class Eager:
    """As an eager tensor of TensorFlow."""

    def __init__(self, value: Any) -> None:
        self.numpy = lambda: value


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize("shape", ["one", "bytes", "nested", "dict", "array", "eager"])
def test_shapes_of_what_a_registered_saver_returns(tmp_path: Path, shape: str) -> None:
    def save(trackables: dict[str, Any], file_prefix: str) -> Any:
        ckptfmt.save(file_prefix, {"x": np.ones(1)})
        nested = ([], [[file_prefix], []])
        return {
            "one": file_prefix,
            "bytes": os.fsencode(file_prefix),
            "nested": nested,
            "dict": {"b": {}, "a": [file_prefix]},
            "array": np.array([[file_prefix]], object),
            "eager": [Eager(os.fsencode(file_prefix)), Eager(np.array([], object))],
        }[shape]

    register("One", save)
    prefix = Saver({}, {"Custom.One": {}}).save(tmp_path / "ckpt", QUICK)
    assert list(ckptfmt.load(prefix)) == ["x"]
    assert files(tmp_path) == ["ckpt.data-00000-of-00001", "ckpt.index"]


@pytest.mark.usefixtures("_own_registry")
@pytest.mark.parametrize(
    "returned",
    ["", ["a", ""], 3, [["a"], 3], [None], True, {"a": 3}, ["a", object], "nul\0", np.array([1.5])],
    ids=repr,
)
def test_what_a_registered_saver_must_not_return(tmp_path: Path, returned: Any) -> None:
    before = previous(tmp_path)
    register("Odd", lambda **_: returned)
    with pytest.raises(InvalidError) as caught:
        Saver({"all": {"a": np.ones(1)}}, {"Custom.Odd": {}}).save(tmp_path / "ckpt", QUICK)
    assert caught.value.message == (
        "the registered saver 'Custom.Odd' must return None, a prefix or a list of prefixes, not "
        f"{returned!r}"
    )
    assert files(tmp_path) == before


@pytest.mark.usefixtures("_own_registry")
def test_a_registered_saver_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    before = previous(tmp_path)
    register("Lost", lambda file_prefix, **_: [file_prefix])
    with pytest.raises(CheckpointNotFoundError) as caught:
        Saver({"all": {"a": np.ones(1)}}, {"Custom.Lost": {}}).save(tmp_path / "ckpt", QUICK)
    assert "the registered saver 'Custom.Lost' returned this prefix" in caught.value.message
    assert caught.value.path == str(tmp_path / "ckpt-Custom.Lost")
    assert files(tmp_path) == before


@pytest.mark.usefixtures("_own_registry")
def test_one_registered_saver_at_a_prefix_at_a_time(tmp_path: Path) -> None:
    """The second of two saves would overwrite what the first is about to merge."""
    errors: list[BusyError] = []

    def save(trackables: dict[str, Any], file_prefix: str) -> str:
        ckptfmt.save(file_prefix, trackables)
        if float(trackables["x"]) == 1:
            with pytest.raises(BusyError) as caught:
                saver(2).save(tmp_path / "sub" / "ckpt", QUICK)
            errors.append(caught.value)
            saver(2).save(tmp_path / "sub" / "other", QUICK)
        return file_prefix

    def saver(value: int) -> Saver:
        number = np.float64(value)
        return Saver({"all": {"a": number}}, {"Custom.Part": {"x": number}})

    register("Part", save)
    prefix = saver(1).save(tmp_path / "sub" / "ckpt", QUICK)
    assert ckptfmt.load(prefix) == {"a": 1, "x": 1}
    assert ckptfmt.load(tmp_path / "sub" / "other") == {"a": 2, "x": 2}
    (error,) = errors
    assert error.message == (
        f"another save to '{prefix}' is running the registered saver 'Custom.Part'"
    )
    assert not [name for name in files(tmp_path) if "claim" in name or "temp" in name]
    # What a killed process left does not count.
    (tmp_path / "sub" / "ckpt-Custom.Part.claim").touch()
    assert ckptfmt.load(saver(3).save(prefix, QUICK)) == {"a": 3, "x": 3}
    assert not [name for name in files(tmp_path) if "claim" in name]


@pytest.mark.usefixtures("_own_registry")
def test_a_claim_that_cannot_be_made(tmp_path: Path) -> None:
    register("Part", lambda **_: None)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError) as caught:
        Saver({}, {"Custom.Part": {}}).save(tmp_path / "file" / "ckpt", QUICK)
    assert "cannot claim the files of the registered saver 'Custom.Part'" in caught.value.message
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)


@pytest.mark.usefixtures("_own_registry")
def test_a_registered_saver_in_conflict(tmp_path: Path) -> None:
    before = previous(tmp_path)

    def save(trackables: dict[str, Any], file_prefix: str) -> str:
        ckptfmt.save(file_prefix, {"a": np.ones(1)})
        return file_prefix

    register("Same", save)
    with pytest.raises(MergeConflictError):
        Saver({"all": {"a": np.ones(1)}}, {"Custom.Same": {}}).save(tmp_path / "ckpt", QUICK)
    # What the registered saver wrote is its own.
    own = [f"ckpt-Custom.Same.{end}" for end in ("data-00000-of-00001", "index")]
    assert files(tmp_path) == sorted(before + own)
    assert list(ckptfmt.load(tmp_path / "ckpt")) == ["old"]


@pytest.mark.usefixtures("_own_registry")
def test_registered_savers_are_checked_at_construction() -> None:
    for given, message in (
        (["Custom.A"], "registered_savers must be a mapping from names of savers to their objects"),
        ({"Custom.Gone": {}}, "no checkpoint saver is registered as 'Custom.Gone'"),
        (
            {"Custom.Gone": ["x"]},
            "the objects of the registered saver 'Custom.Gone' must be a mapping",
        ),
    ):
        with pytest.raises(InvalidError) as caught:
            Saver({}, given)
        assert caught.value.message.startswith(message)


# ---- saveables -----------------------------------------------------------------------------------


class Held(SaveableObject):
    """A saveable that notes what it is restored from."""

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        return [tensor.tolist() for tensor in restored_tensors], restored_shapes


def test_the_slices_of_a_partitioned_variable_have_a_list_of_results(tmp_path: Path) -> None:
    # Tasks in another order than the saveables.
    parts = [
        Held(None, [on(task, np.full(1, row), "w", slice_spec=f"3 {row},1")], "w")
        for row, task in enumerate([1, 0, 1])
    ]
    single = Held(None, [SaveSpec(np.array([5]), "", "v")], "v")
    saver = Saver.from_saveables([*parts, single])
    prefix = saver.save(tmp_path / "ckpt", QUICK)
    assert saver.restore(prefix) == {
        "w": [([[0]], None), ([[1]], None), ([[2]], None)],
        "v": ([[5]], None),
    }


def test_from_saveables_refuses() -> None:
    spec = SaveSpec(np.ones(1), "", "a")
    twice = Held(None, [spec, SaveSpec(np.ones(1), "", "a")], "x")
    for given, message in (
        (3, "saveables must be a list of SaveableObjects, not int"),
        (Held(None, [spec], "x"), "saveables must be a list of SaveableObjects, not Held"),
        ([spec], "a saveable must be a ckptfmt.tf.SaveableObject, not SaveSpec"),
        ([twice], "a saveable has two specs of the slice ''"),
        (
            [Held(None, [spec], "x"), Held(None, [spec], "y")],
            "the slice '' is given twice: one would overwrite the other",
        ),
    ):
        with pytest.raises(InvalidError) as caught:
            Saver.from_saveables(given)
        assert caught.value.message == message


CLAIM_AND_FORK = """
import os, signal, sys
from ckptfmt.saving.registration import claimed
with claimed(sys.argv[1], ["Custom.Part"]):
    child = os.fork()
    if child == 0:
        print("forked", flush=True)
        sys.stdin.read()  # until the test ends
        os._exit(0)
    signal.pause()
"""


def test_an_error_of_closing_a_claim_does_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close

    def fails(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "no")

    prefix = str(tmp_path / "ckpt")
    with monkeypatch.context() as patch, claimed(prefix, ["Custom.Part"]):
        patch.setattr(os, "close", fails)
    assert os.listdir(tmp_path) == []


def test_a_forked_child_does_not_keep_a_claim(tmp_path: Path) -> None:
    """The claim ends with the process that made it, also while a child of it lives."""
    prefix, pipe = str(tmp_path / "ckpt"), subprocess.PIPE
    command = [sys.executable, "-c", CLAIM_AND_FORK, prefix]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "forked\n"
        try:
            with pytest.raises(BusyError), claimed(prefix, ["Custom.Part"]):
                pass
        finally:
            process.kill()
            process.wait()
        try:
            with claimed(prefix, ["Custom.Part"]):
                pass
        finally:
            process.stdin.close()
