# SPDX-License-Identifier: Apache-2.0
"""CheckpointOptions: everything checked at construction, nothing changes later."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.saving import with_policy

from ckptfmt.errors import InvalidError
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.policies import MaxShardSizePolicy, ShardByTaskPolicy
from ckptfmt.saving.sharding import Shard, ShardableTensor


def test_defaults() -> None:
    options = CheckpointOptions()
    assert {field.name: getattr(options, field.name) for field in dataclasses.fields(options)} == {
        "alignment": None,
        "durability": "full",
        "level": "v2+",
        "compression": None,
        "enable_async": False,
        "check_replicas": False,
        "experimental_sharding_callback": None,
        "experimental_io_device": None,
        "experimental_write_callbacks": (),
        "experimental_skip_slot_variables": False,
    }


def test_any_described_callable_is_a_sharding_callback() -> None:
    class Described:
        description = "one shard"

    class Duck(Described):
        def __call__(self, tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
            return ShardByTaskPolicy()(tensors)

    duck: Any = Duck()
    assert with_policy(duck).experimental_sharding_callback is duck
    not_callable: Any = Described()
    with pytest.raises(InvalidError, match="must be a ShardingCallback, not Described"):
        with_policy(not_callable)


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("experimental_sharding_callback", [MaxShardSizePolicy, 3, len]),
        ("experimental_io_device", [0]),
        ("alignment", [1.5, True, 0, 2**63]),
        ("durability", ["sync", None]),
        ("level", ["v3"]),
        ("enable_async", [1]),
        ("check_replicas", [None]),
        ("experimental_skip_slot_variables", ["no"]),
        ("experimental_write_callbacks", [print, "ab", [1], [None]]),
    ],
)
def test_refused(argument: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidError) as caught:
            CheckpointOptions(**{argument: value})
        assert caught.value.argument == argument


def test_compression_and_level_go_together() -> None:
    assert CheckpointOptions(level="ckptfmt").compression is None
    assert CheckpointOptions(compression="zstd:3").compression == "zstd:3"
    with pytest.raises(InvalidError) as caught:
        CheckpointOptions(level="v2", compression="zstd")
    assert caught.value.message == "level 'v2' has no place for compressed values"


def test_callbacks_that_want_more_than_a_path() -> None:
    name = "experimental_write_callbacks"

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
    options = CheckpointOptions(experimental_write_callbacks=given)
    given.clear()
    options.after_write("p")
    assert seen == ["none", ("one", "p"), ("perhaps", "p"), "p"]


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
    experimental_write_callbacks = (print,)
    experimental_skip_slot_variables = True
    experimental_sharding_callback = None
    enable_async = True


def test_options_of_tensorflow() -> None:
    found = CheckpointOptions.of(TensorFlows())
    assert found == CheckpointOptions(
        enable_async=True,
        experimental_io_device="/cpu:0",
        experimental_write_callbacks=[print],
        experimental_skip_slot_variables=True,
    )


@pytest.mark.parametrize("given", [3, object(), {"durability": "none"}])
def test_no_options(given: Any) -> None:
    with pytest.raises(InvalidError, match=r"^options must be a CheckpointOptions, not "):
        CheckpointOptions.of(given)
