# SPDX-License-Identifier: Apache-2.0
"""Saver: what it saves where, and what is left after failures."""

from __future__ import annotations

import operator
import os
import re
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.saving import QUICK, TASK, Given, Thing, files, on, one_each, previous, with_policy

import ckptfmt
from ckptfmt import _core
from ckptfmt._base.threads import StoppedError
from ckptfmt.errors import InvalidError, StorageError
from ckptfmt.saving import shards
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.policies import BalancedPolicy, MaxShardSizePolicy, ShardByTaskPolicy
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.sharding import Shard, ShardingCallback
from ckptfmt.saving.specs import DSaveSpec, SaveSpec, ShardableTensor

# ---- saving --------------------------------------------------------------------------------------


def test_one_data_file_a_task_in_order_of_appearance(tmp_path: Path) -> None:
    arrays = [np.full(3, i, np.float32) for i in range(5)]
    tensors = {
        "a": on(1, arrays[0], "a"),
        "b": on(0, arrays[1], "b", "CPU:0"),
        "c": on(1, arrays[2], "c", "CPU:0"),
        "d": on(1, arrays[3], "d", "GPU:7"),
        "e": arrays[4],
    }
    prefix = Saver({"all": tensors}).save(tmp_path / "sub" / "ckpt")
    assert prefix == str(tmp_path / "sub" / "ckpt")
    assert files(tmp_path / "sub") == [
        *(f"ckpt.data-0000{i}-of-00003" for i in range(3)),
        "ckpt.index",
    ]
    with ckptfmt.open(prefix) as reader:
        shards = {name: reader[name].shard for name in reader}
        assert shards == {"a": 0, "b": 1, "c": 0, "d": 0, "e": 2}
        assert reader["a"].offset < reader["c"].offset < reader["d"].offset
        for name, array in zip("abcde", arrays, strict=True):
            np.testing.assert_array_equal(reader[name].read(), array)
    assert ckptfmt.verify(prefix).ok


def test_names_of_the_temporary_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = _core.merge

    def spy(prefixes: Sequence[str], destination: str, **options: Any) -> None:
        seen.append([os.path.relpath(prefix, tmp_path) for prefix in prefixes])
        assert destination == str(tmp_path / "ckpt")
        assert options["consume"]
        assert options["durability"] == "rename"
        assert all(os.path.isfile(prefix + ".index") for prefix in prefixes)
        real(prefixes, destination, **options)

    monkeypatch.setattr(_core, "merge", spy)
    tensors = {key: on(task, np.zeros(4), key) for task, key in enumerate("abc")}
    # Two shards for the first task, one for each other: numbered over all.
    policy = Given(
        lambda given: [*one_each(given), {}] if given[0].name == "a" else one_each(given)
    )
    saver = Saver({"all": tensors})
    saver.save(tmp_path / "ckpt", with_policy(policy))
    saver.save(tmp_path / "ckpt", with_policy(policy))
    hexes = set()
    for names in seen:
        for number, name in enumerate(names):
            match = re.fullmatch(rf"ckpt_temp_([0-9a-f]{{16}})/part-0000{number}-of-00004", name)
            assert match, name
            hexes.add(match[1])
        assert len(names) == 4
    assert len(hexes) == 2
    assert not [name for name in files(tmp_path) if "temp" in name]
    assert sorted(ckptfmt.load(tmp_path / "ckpt")) == ["a", "b", "c"]


def test_the_policy_gets_the_tensors_of_one_task_at_a_time(tmp_path: Path) -> None:
    owner = Thing()
    whole, part = np.arange(6, dtype=np.int32), np.ones((2, 3))
    spec = SaveSpec(lambda: part, " 4 3 2,2:0,3 ", "part", np.float64, TASK.format(0, "GPU:1"))
    policy = Given(one_each)
    Saver({owner: {"part": spec, "whole": on(3, whole, "whole")}}).save(
        tmp_path / "ckpt", with_policy(policy)
    )
    (first,), (second,) = policy.calls
    assert np.shares_memory(first.tensor, part)
    assert (first.checkpoint_key, first.name) == ("part", "part")
    assert (first.slice_spec, first.shape, first.dtype) == ("4 3 2,2:0,3", (2, 3), np.float64)
    assert (first.device, first.trackable) == (TASK.format(0, "GPU:1"), owner)
    assert np.shares_memory(second.tensor, whole)
    assert (second.slice_spec, second.shape, second.dtype) == ("", (6,), np.int32)


@pytest.mark.parametrize("get", ["tensor", "tensor_save_spec.tensor"])
def test_a_policy_cannot_write_to_the_tensors(tmp_path: Path, get: str) -> None:
    array, made = np.ones(3), np.ones(2)
    late = SaveSpec(lambda: made, "", "late", np.float64, "")

    def zero(tensors: Sequence[ShardableTensor]) -> list[Shard]:
        for tensor in tensors:
            with pytest.raises(ValueError, match="read-only"):
                operator.attrgetter(get)(tensor)[...] = 0
        return one_each(tensors)

    Saver({"all": {"now": array, "late": late}}).save(tmp_path / "ckpt", with_policy(Given(zero)))
    assert ckptfmt.load(tmp_path / "ckpt")["now"].tolist() == [1, 1, 1]
    array[:], made[:] = 2, 2  # the caller's own can still be written to


def test_what_the_policy_gives_is_always_validated(tmp_path: Path) -> None:
    saver = Saver({"all": {"a": np.zeros(2), "b": np.zeros(2)}})
    saver.save(tmp_path / "ckpt", QUICK)
    before = files(tmp_path)
    policy = Given(lambda tensors: one_each(tensors[:1]))
    with pytest.raises(InvalidError) as caught:
        saver.save(tmp_path / "ckpt", with_policy(policy))
    assert caught.value.tensor == "b"
    assert "as given" in caught.value.message
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "policy",
    [ShardByTaskPolicy(), MaxShardSizePolicy(100), BalancedPolicy(3), Given(one_each)],
    ids=lambda policy: type(policy).__name__,
)
def test_every_policy_and_dtype(tmp_path: Path, policy: ShardingCallback, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {
        "float": rng.standard_normal((7, 5)).astype(np.float32),
        "half": rng.standard_normal((4, 9)).astype(np.float16),
        "long": rng.integers(0, 99, 40),
        "scalar": np.float64(3),
        "text": np.array([b"x" * 30, b"", b"yy\0", b"z" * 90], object),
        "empty": np.zeros((0, 4), np.int8),
        "names": np.array(["ab", "c"]),
        "variant": SaveSpec(np.array([b"v1", b"v2"], object), "", "variant", "variant"),
        "quantized": SaveSpec(np.arange(5, dtype=np.int8), "", "quantized", "qint8"),
        "list": [1.5, 2.5],
        "root/\udcff": np.arange(3),
    }
    prefix = Saver({"all": tensors}).save(tmp_path / "ckpt", with_policy(policy))
    with ckptfmt.open(prefix) as reader:
        assert sorted(reader) == sorted(tensors)
        assert reader["variant"].dtype_code == 21
        assert reader["quantized"].dtype_code == 11
        for name, given in tensors.items():
            value = given.tensor if isinstance(given, SaveSpec) else np.asarray(given)
            if value.dtype.kind == "U":
                value = np.char.encode(value).astype(object)
            found = reader[name].read()
            if found.dtype.names:
                found = found[found.dtype.names[0]]
            assert found.shape == value.shape, name
            np.testing.assert_array_equal(found, value, strict=True)
    assert ckptfmt.verify(prefix).ok


def test_callables_are_asked_once_a_save(tmp_path: Path) -> None:
    asked: list[int] = []

    def value() -> np.ndarray:
        asked.append(len(asked))
        return np.full(2, len(asked), np.float32)

    saver = Saver({"all": {"a": SaveSpec(value, "", "a", np.float32, "")}})
    assert asked == []
    for count in (1, 2):
        prefix = saver.save(tmp_path / "ckpt", QUICK)
        assert len(asked) == count
        assert ckptfmt.load(prefix)["a"].tolist() == [count, count]
    saver.restore(prefix)
    assert len(asked) == 2


def test_the_layout_says_what_is_saved_and_restored(tmp_path: Path) -> None:
    mesh = Mesh([("x", 4)])
    layout = Layout(["x"], mesh)
    whole = np.arange(5.0)
    pieces = [whole[0:2], whole[2:4], whole[4:5], whole[5:5]]
    owners = [Thing() for _ in pieces]
    specs = [
        DSaveSpec(piece, "", "w", (5,), layout, device=device)
        for piece, device in zip(pieces, mesh.devices, strict=True)
    ]
    saver = Saver({owner: {"w": spec} for owner, spec in zip(owners, specs, strict=True)})
    prefix = saver.save(tmp_path / "ckpt", QUICK)
    assert ckptfmt.load(prefix)["w"].tolist() == whole.tolist()
    assert ckptfmt.verify(prefix).ok
    saver.restore(prefix)
    for owner, spec, piece in zip(owners, specs, pieces, strict=True):
        ((restored,),) = (one["w"].values() for one in owner.restored)
        assert list(owner.restored[0]["w"]) == [spec.slice_spec]
        assert (restored.tolist(), restored.dtype) == (piece.tolist(), piece.dtype)


def test_arrays_are_saved_as_they_are_at_the_save(tmp_path: Path) -> None:
    array = np.zeros(2)
    saver = Saver({"all": {"a": array}})
    array[:] = 5
    assert ckptfmt.load(saver.save(tmp_path / "ckpt", QUICK))["a"].tolist() == [5, 5]


def test_none_is_not_saved(tmp_path: Path) -> None:
    device = TASK.format(5, "GPU:0")
    policy = Given(one_each)
    tensors = {"a": np.ones(1), "b": SaveSpec(lambda: None, "", "b", np.float32, device)}
    prefix = Saver({"all": tensors}).save(tmp_path / "ckpt", with_policy(policy))
    assert list(ckptfmt.load(prefix)) == ["a"]
    assert [[one.checkpoint_key for one in call] for call in policy.calls] == [["a"]]


def test_nothing_at_all(tmp_path: Path) -> None:
    prefix = Saver({}).save(tmp_path / "ckpt")
    assert ckptfmt.load(prefix) == {}
    assert Saver({}).restore(prefix) == {}
    assert ckptfmt.verify(prefix).ok
    assert [name for name in files(tmp_path) if "temp" in name] == []


@pytest.mark.parametrize("shards", [[], [{}], [{}, {}]])
def test_shards_without_tensors(tmp_path: Path, shards: list[Shard]) -> None:
    policy = Given(lambda tensors: [*shards, *one_each(tensors), *shards])
    prefix = Saver({"all": {"a": np.ones(3)}}).save(tmp_path / "ckpt", with_policy(policy))
    assert ckptfmt.load(prefix)["a"].tolist() == [1, 1, 1]
    assert files(tmp_path) == ["ckpt.data-00000-of-00001", "ckpt.index"]


def test_options_reach_the_files(tmp_path: Path) -> None:
    big = np.zeros(300_000, np.float32)
    saver = Saver({"all": {"a": np.ones(1, np.int8), "big": big}})
    saver.save(tmp_path / "plain", CheckpointOptions(level="v2"))
    saver.save(tmp_path / "padded", CheckpointOptions(level="v2", alignment=1000))
    saver.save(tmp_path / "plus")
    with ckptfmt.open(tmp_path / "plain") as reader:
        assert (reader.level, reader["big"].offset) == ("v2", 1)
    with ckptfmt.open(tmp_path / "padded") as reader:
        assert (reader.level, reader["big"].offset) == ("v2", 1000)
    with ckptfmt.open(tmp_path / "plus") as reader:
        assert (reader.level, reader["big"].offset) == ("v2+", 64)


def test_failing_callbacks(tmp_path: Path) -> None:
    def fails() -> None:
        raise KeyError("mine")

    saver = Saver({"all": {"a": np.ones(1)}})
    with pytest.raises(KeyError, match="mine"):
        saver.save(tmp_path / "ckpt", CheckpointOptions(experimental_write_callbacks=[fails]))
    assert files(tmp_path) == ["ckpt.data-00000-of-00001", "ckpt.index"]


# ---- failures ------------------------------------------------------------------------------------


def test_an_error_in_one_shard_is_raised_as_it_is_and_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = previous(tmp_path)
    monkeypatch.setattr(secrets, "token_hex", lambda size: "ab" * size)
    # It blocks the second shard's index.
    blocked = tmp_path / f"ckpt_temp_{'ab' * 8}" / "part-00001-of-00003.index"
    (blocked / "full").mkdir(parents=True)
    adds: list[Any] = []
    watches: list[Any] = []
    stopped = threading.Event()
    real_add, real_write = shards.writing.Writer._add, shards.writing.write_sources

    busy = threading.Event()

    def noted_write(*arguments: Any, **more: Any) -> None:
        watches.append(arguments[2])
        assert "part-00001" not in arguments[0] or busy.wait(600)
        real_write(*arguments, **more)

    def slow_add(self: ckptfmt.Writer, *arguments: Any) -> None:
        real_add(self, *arguments)
        if "part-00002" in self.prefix:
            adds.append(arguments[1:])
            busy.set()
            with pytest.raises(StoppedError):
                while True:
                    watches[0]()
                    time.sleep(0.001)
            stopped.set()

    monkeypatch.setattr(shards.writing, "write_sources", noted_write)
    monkeypatch.setattr(shards.writing.Writer, "_add", slow_add)
    # Two crossings at least: more bytes than a watched writer gives to C at once.
    big = {f"big{i}": on(2, np.zeros(5 << 20, np.float32), f"big{i}") for i in range(4)}
    tensors = {"a": on(0, np.zeros(1), "a"), "b": on(1, np.zeros(1), "b"), **big}
    with pytest.raises(StorageError) as caught:
        Saver({"all": tensors}).save(tmp_path / "ckpt", QUICK)
    assert caught.value.path is not None
    assert "part-00001-of-00003" in caught.value.path
    assert len(adds) == 1
    assert stopped.is_set()
    assert files(tmp_path) == before
    assert list(ckptfmt.load(tmp_path / "ckpt")) == ["old"]


def test_the_error_of_the_first_shard_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = previous(tmp_path)
    barrier = threading.Barrier(3)

    def fails(part: str, *_: Any, **__: Any) -> None:
        barrier.wait(600)
        raise StorageError("full", path=part)

    monkeypatch.setattr(shards.writing, "write_sources", fails)
    tensors = {key: on(task, np.zeros(1), key) for task, key in enumerate("abc")}
    with pytest.raises(StorageError) as caught:
        Saver({"all": tensors}).save(tmp_path / "ckpt", QUICK)
    assert str(caught.value.path).endswith("part-00000-of-00003")
    assert files(tmp_path) == before


def test_interrupted_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = previous(tmp_path)
    real, raised = shards.writing.write_sources, threading.Event()

    def interrupted(*given: Any, **options: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            raised.set()
            raise KeyboardInterrupt
        assert raised.wait(600)  # else they might have done it all before this thread had its turn
        real(*given, **options)

    monkeypatch.setattr(shards.writing, "write_sources", interrupted)
    tensors = {f"{i}": on(i, np.zeros(1 << 20), f"{i}") for i in range(20)}
    with pytest.raises(KeyboardInterrupt):
        Saver({"all": tensors}).save(tmp_path / "ckpt", QUICK)
    assert files(tmp_path) == before
    assert not [one for one in threading.enumerate() if one.name.startswith("ckptfmt-save")]


def test_shards_are_written_by_a_bounded_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(shards.WRITERS_MAX)
    threads = set()
    real = shards.writing.write_sources

    def noted(part: str, *arguments: Any, **options: Any) -> None:
        assert options == {"shards": 1}
        threads.add(threading.get_ident())
        together.wait(600)
        real(part, *arguments, **options)

    monkeypatch.setattr(shards.writing, "write_sources", noted)
    count = 3 * shards.WRITERS_MAX
    policy = Given(one_each)
    tensors = {f"{i}": np.zeros(1) for i in range(count)}
    prefix = Saver({"all": tensors}).save(tmp_path / "ckpt", with_policy(policy))
    assert len(threads) == shards.WRITERS_MAX
    with ckptfmt.open(prefix) as reader:
        assert reader.header.num_shards == count


def test_a_callable_that_raises(tmp_path: Path) -> None:
    before = previous(tmp_path)

    def fails() -> Any:
        raise ArithmeticError("device lost")

    saver = Saver({"all": {"a": SaveSpec(fails, "", "a", np.float32, "")}})
    with pytest.raises(ArithmeticError, match="device lost"):
        saver.save(tmp_path / "ckpt")
    assert files(tmp_path) == before


def test_two_savers_of_one_prefix(tmp_path: Path) -> None:
    start = threading.Barrier(2)
    errors: list[BaseException] = []

    def save(number: int) -> None:
        tensors = {f"{key}": on(key, np.full(50, number), f"{key}") for key in range(number + 2)}
        try:
            for _ in range(15):
                start.wait(600)
                Saver({"all": tensors}).save(tmp_path / "ckpt", QUICK)
        except BaseException as error:
            start.abort()
            errors.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = ckptfmt.load(tmp_path / "ckpt")
    (winner,) = {int(value) for array in found.values() for value in array}
    assert sorted(found) == [f"{key}" for key in range(winner + 2)]
    # Of the other nothing is left; a data file without tensors may have made the names new.
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        count = reader.header.num_shards
    names = [f"ckpt.data-{shard:05d}-of-{count:05d}" for shard in range(count)]
    assert files(tmp_path) == [*names, "ckpt.index"]


# ---- construction --------------------------------------------------------------------------------


ONE, TWO, THREE, FOUR = (np.ones(count) for count in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({1: {"a": ONE}, 2: {"a": TWO}}, "'' is given twice"),
        ({1: {"a": {"4 0,2": TWO}}, 2: {b"a": {" 4 0,2 ": TWO}}}, "'4 0,2' is given twice"),
        ({1: {"a": {"4 0,4": FOUR, "4 1,2": TWO}}}, "'4 0,4' and '4 1,2' overlap"),
        ({1: {"a": {"4 0,3": THREE}}, 2: {"a": {"4 2,2": TWO}}}, "'4 0,3' and '4 2,2' overlap"),
        ({1: {"a": FOUR}, 2: {"a": {"4 0,4": FOUR}}}, "'' and '4 0,4' overlap"),
        ({1: {"a": {"4 -": FOUR}}, 2: {"a": {"4 0,4": FOUR}}}, "'4 -' and '4 0,4' overlap"),
        (
            {1: {"a": {"0 4 -:0,2": np.ones((0, 2)), "0 4 -:0,2 ": np.ones((0, 2))}}},
            "'0 4 -:0,2' is given twice",
        ),
        ({1: {"a": {"4 0,2": TWO, "5 2,2": TWO}}}, "of different shapes"),
        ({1: {"a": {"4 0,2": TWO, "4 2,2": np.ones(2, "f4")}}}, "of different dtypes"),
        ({1: {"a": {3: TWO}}}, "a slice text must be a str, not 3"),
        ({1: {"a": SaveSpec(ONE, "", "b")}}, "'' has the SaveSpec of 'b', slice ''"),
        (
            {1: {"a": {"4 0,2": SaveSpec(TWO, "4 2,2", "a")}}},
            "'4 0,2' has the SaveSpec of 'a', slice '4 2,2'",
        ),
        ({1: {"a": {"4 0,9": np.ones(9)}}}, ""),
    ],
)
def test_construction_refuses(tensors: Any, words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        Saver(tensors)
    assert words in caught.value.message and caught.value.tensor == "a"


@pytest.mark.parametrize("tensors", [[], {"x": 3}])
def test_construction_refuses_what_is_no_mapping(tensors: Any) -> None:
    with pytest.raises(InvalidError, match=r"must be a mapping .*, not (list|int)"):
        Saver(tensors)


def test_an_empty_name() -> None:
    with pytest.raises(InvalidError, match="TAB-12: a tensor's name is empty"):
        Saver({"all": {"": np.ones(1)}})


def test_restore_functions_are_checked() -> None:
    tensors = {"x": {"a": np.ones(1)}, None: {"b": np.ones(1)}}
    for functions, message in (
        ([], "restore_fns must be a mapping from objects to functions, not list"),
        ({"x": 3}, "the restore function of 'x' must be a function, not int"),
        ({"y": print}, "restore_fns has a function for 'y', which has no tensors"),
        ({None: print}, "restore_fns has a function for None, which has no tensors"),
    ):
        with pytest.raises(InvalidError) as caught:
            Saver(tensors, restore_fns=functions)
        assert caught.value.message == message


def test_slices_of_one_dtype_in_two_byte_orders(tmp_path: Path) -> None:
    tensors = {"a": {"4 0,2": np.ones(2, ">f4"), "4 2,2": np.ones(2, "<f4")}}
    prefix = Saver({"all": tensors}).save(tmp_path / "ckpt", QUICK)
    assert ckptfmt.load(prefix)["a"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("durability", ["full", "rename", "none"])
@pytest.mark.parametrize("count", [1, 2])
def test_the_durability_of_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, count: int
) -> None:
    """One shard is the checkpoint; the merge syncs several."""
    seen: list[str] = []
    real = shards.writing.write_sources

    def spy(*given: Any, **options: Any) -> None:
        seen.append(given[3].durability)
        real(*given, **options)

    monkeypatch.setattr(shards.writing, "write_sources", spy)
    tensors = {f"{task}": on(task, np.ones(1), f"{task}") for task in range(count)}
    Saver({"all": tensors}).save(tmp_path / "ckpt", CheckpointOptions(durability=durability))
    of_shards = "rename" if (durability, count) == ("full", 2) else durability
    assert seen == [of_shards] * count


def test_io_device_and_a_mesh(tmp_path: Path) -> None:
    spec = DSaveSpec(np.ones(2), "4 0,2", "m", (4,), Layout(["x"], Mesh([("x", 2)])))
    saver = Saver({"all": {"a": np.ones(1), "m": spec}})
    options = CheckpointOptions(experimental_io_device="/job:localhost")
    for call in (saver.save, saver.restore):
        with pytest.raises(InvalidError) as caught:
            call(tmp_path / "ckpt", options)
        assert caught.value.message == (
            "experimental_io_device '/job:localhost' cannot be used for a tensor on a mesh"
        )
        assert caught.value.tensor == "m"
    assert files(tmp_path) == []
    prefix = Saver({"all": {"a": np.ones(1)}}).save(tmp_path / "ckpt", options)
    assert list(Saver({"all": {"a": np.ones(1)}}).restore(prefix, options)) == ["a"]


class Holder:
    """A device's replica, which it restores itself."""

    def __init__(self, value: float) -> None:
        self.array = np.full(3, value)

    def restore(self, restored: Any) -> None:
        self.array[:] = restored["w"]


def test_replicas_of_devices_are_saved_once_and_restored_in_all(tmp_path: Path) -> None:
    mesh = Mesh({"x": 2}, ["/task:0/device:CPU:0", "/task:1/device:CPU:0"])
    layout = Layout([None], mesh)

    def saver(holders: list[Holder]) -> Saver:
        return Saver(
            {
                holder: {"w": DSaveSpec(holder.array, "", "w", (3,), layout, device=device)}
                for holder, device in zip(holders, mesh.devices, strict=True)
            }
        )

    saver([Holder(2), Holder(2)]).save(tmp_path / "ck")
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert list(reader) == ["w"]
        assert not reader["w"].slices
    holders = [Holder(0), Holder(0)]
    saver(holders).restore(tmp_path / "ck")
    assert [holder.array.tolist() for holder in holders] == [[2, 2, 2]] * 2
    with pytest.raises(InvalidError, match=r"hold the same part of it, but their arrays differ"):
        saver([Holder(2), Holder(3)]).save(tmp_path / "ck")
    with pytest.raises(InvalidError, match="given twice"):
        spec = DSaveSpec(holders[0].array, "", "w", (3,), layout, device=mesh.devices[0])
        Saver({holder: {"w": spec} for holder in holders})
