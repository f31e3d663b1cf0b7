# SPDX-License-Identifier: Apache-2.0
"""CheckpointOptions: both spellings, everything checked at construction, nothing changes later."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ckptfmt.errors import InvalidError
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.policies import MaxShardSizePolicy, ShardByTaskPolicy
from ckptfmt.saving.sharding import Shard, ShardableTensor


def test_defaults() -> None:
    options = CheckpointOptions()
    assert {field.name: getattr(options, field.name) for field in dataclasses.fields(options)} == {
        "sharding_callback": None,
        "io_device": None,
        "alignment": None,
        "durability": "full",
        "level": "v2+",
        "compression": None,
        "enable_async": False,
        "write_callbacks": (),
        "before_save_callbacks": (),
        "skip_slot_variables": False,
        "check_replicas": False,
    }


def test_tensorflow_spellings() -> None:
    policy = ShardByTaskPolicy()
    theirs = CheckpointOptions(
        experimental_sharding_callback=policy,
        experimental_io_device="/job:localhost",
        experimental_write_callbacks=[print],
        experimental_skip_slot_variables=True,
        experimental_enable_async_checkpoint=True,
    )
    ours = CheckpointOptions(
        sharding_callback=policy,
        io_device="/job:localhost",
        write_callbacks=[print],
        skip_slot_variables=True,
        enable_async=True,
    )
    assert theirs == ours
    assert hash(theirs) == hash(ours)
    assert theirs != CheckpointOptions()
    assert theirs.experimental_sharding_callback is policy
    assert ours.experimental_io_device == "/job:localhost"
    assert ours.experimental_write_callbacks == (print,)
    assert ours.experimental_skip_slot_variables is True
    assert ours.experimental_enable_async_checkpoint is True
    with pytest.raises(AttributeError):
        ours.experimental_io_device = "/cpu:0"
    with pytest.raises(TypeError):
        CheckpointOptions("/cpu:0")


def test_any_described_callable_is_a_sharding_callback() -> None:
    class Described:
        description = "one shard"

    class Duck(Described):
        def __call__(self, tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
            return ShardByTaskPolicy()(tensors)

    duck: Any = Duck()
    assert CheckpointOptions(sharding_callback=duck).sharding_callback is duck
    not_callable: Any = Described()
    with pytest.raises(InvalidError, match="must be a ShardingCallback, not Described"):
        CheckpointOptions(sharding_callback=not_callable)


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("sharding_callback", [MaxShardSizePolicy, 3]),
        ("experimental_sharding_callback", [len]),
        ("io_device", [0]),
        ("alignment", [1.5, True, 0, 2**63]),
        ("durability", ["sync", None]),
        ("level", ["v3"]),
        ("enable_async", [1]),
        ("experimental_enable_async_checkpoint", [None]),
        ("skip_slot_variables", ["no"]),
        ("write_callbacks", [print, "ab", [1]]),
        ("before_save_callbacks", [[None]]),
    ],
)
def test_refused(argument: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidError) as caught:
            CheckpointOptions(**{argument: value})
        assert argument.endswith(caught.value.argument or "none")


def test_an_option_is_given_once() -> None:
    with pytest.raises(InvalidError, match="as io_device and as experimental_io_device"):
        CheckpointOptions(io_device="/cpu:0", experimental_io_device="/cpu:0")


def test_compression_and_level_go_together() -> None:
    assert CheckpointOptions(level="ckptfmt").compression is None
    assert CheckpointOptions(compression="zstd:3").compression == "zstd:3"
    with pytest.raises(InvalidError) as caught:
        CheckpointOptions(level="v2", compression="zstd")
    assert caught.value.message == "level 'v2' has no place for compressed values"


@pytest.mark.parametrize("name", ["write_callbacks", "before_save_callbacks"])
def test_callbacks_that_want_more_than_a_path(name: str) -> None:
    def wants_two(path: str, step: int) -> None: ...

    def wants_a_keyword(path: str, *, step: int) -> None: ...

    for callback in (wants_two, wants_a_keyword):
        with pytest.raises(InvalidError) as caught:
            CheckpointOptions(**{name: [callback]})
        assert caught.value.message == (
            f"one of {name}, {callback!r}, must take no argument or a path"
        )


def test_callbacks_get_the_path_if_they_take_one() -> None:
    seen: list[Any] = []

    def none() -> None:
        seen.append("none")

    def one(path: str) -> str:
        seen.append(("one", path))
        return "ignored"

    def perhaps(path: str = "default") -> None:
        seen.append(("perhaps", path))

    callbacks: list[Callable[..., Any]] = [none, one, perhaps, seen.append]
    given = list(callbacks)
    options = CheckpointOptions(write_callbacks=given, before_save_callbacks=[one])
    given.clear()
    options.after_write("p")
    assert seen == ["none", ("one", "p"), ("perhaps", "p"), "p"]
    seen.clear()
    options.before_save("q")
    assert seen == [("one", "q")]


def test_frozen_and_replaceable() -> None:
    options = CheckpointOptions(level="v2", alignment=512)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.level = "v2+"
    changed = dataclasses.replace(options, durability="rename")
    assert (changed.level, changed.alignment, changed.durability) == ("v2", 512, "rename")
    assert options.durability == "full"
    with pytest.raises(InvalidError, match="alignment -1 is not a positive number of bytes"):
        dataclasses.replace(options, alignment=-1)
    assert pickle.loads(pickle.dumps(options)) == options


class TensorFlows:
    """The attributes of `tf.train.CheckpointOptions`."""

    experimental_io_device = "/cpu:0"
    experimental_enable_async_checkpoint = False
    experimental_write_callbacks = (print,)
    experimental_skip_slot_variables = True
    experimental_sharding_callback = None
    enable_async = True


def test_options_of_tensorflow() -> None:
    found = CheckpointOptions.of(TensorFlows())
    assert found == CheckpointOptions(
        io_device="/cpu:0", enable_async=True, write_callbacks=[print], skip_slot_variables=True
    )


@pytest.mark.parametrize("given", [3, object(), {"durability": "none"}])
def test_no_options(given: Any) -> None:
    with pytest.raises(InvalidError, match=r"^options must be a CheckpointOptions, not "):
        CheckpointOptions.of(given)
