# SPDX-License-Identifier: Apache-2.0
"""docs/options.md: every option in every call, and what is refused."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.options import (
    ADAPTERS,
    CORE,
    EVERY,
    calls,
    check_calls,
    described,
    options_of,
    table,
)

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt._base.save_options import SaveOptions


def test_an_option_is_the_same_in_every_call() -> None:
    check_calls(CORE)


def test_the_page_describes_each_option_once() -> None:
    assert sorted(described()) == sorted(EVERY)


def test_the_page_names_no_other_calls() -> None:
    known = {name for name, call in calls(CORE).items() if options_of(call)}
    others = {name for name in table() if name.partition(".")[0] not in ADAPTERS}
    assert others <= known


def test_a_misspelt_option_is_refused() -> None:
    """At run time as by mypy: no call swallows keywords that it does not know."""
    kinds = {
        name: {one.kind for one in inspect.signature(call).parameters.values()}
        for name, call in calls(CORE).items()
    }
    objects = {"Checkpoint", "sharded.Coordinator"}  # keywords that are objects; a protocol
    assert {name for name in kinds if inspect.Parameter.VAR_KEYWORD in kinds[name]} <= objects


X = {"x": np.ones(2)}
SWAPPED: dict[str, Any] = {
    "prefix save": lambda at: ckptfmt.save(X, at),  # type: ignore[arg-type]
    "prefix save_async": lambda at: ckptfmt.save_async(X, at),  # type: ignore[arg-type]
    "prefix save_tree": lambda at: ckptfmt.save_tree(X, at),  # type: ignore[arg-type]
    "prefix save_tree_async": lambda at: ckptfmt.save_tree_async(X, at),  # type: ignore[arg-type]
    "path load": lambda at: ckptfmt.load(["x"], at),  # type: ignore[arg-type]
    "path load_into": lambda at: ckptfmt.load_into(X, at),  # type: ignore[arg-type]
    "path load_tree_into": lambda at: ckptfmt.load_tree_into(X, at),  # type: ignore[arg-type]
    "destination merge": lambda at: ckptfmt.merge(at, [at]),  # type: ignore[arg-type]
    "destination average": lambda at: ckptfmt.editing.average(at, [at]),  # type: ignore[arg-type]
    "checkpoint manager": lambda at: ckptfmt.CheckpointManager(
        at,  # type: ignore[arg-type]
        ckptfmt.Checkpoint(),
        1,
    ),
    "path save_file": lambda at: ckptfmt.safetensors.save_file(at, X),  # type: ignore[arg-type]
    "prefix sharded.save": lambda at: ckptfmt.sharded.save(
        X,  # type: ignore[arg-type]
        at,
        {"x": None},
        ckptfmt.sharded.SingleProcess(),
    ),
    "prefix sharded.restore": lambda at: ckptfmt.sharded.restore(
        {"x": None},  # type: ignore[arg-type]
        at,
        ckptfmt.sharded.SingleProcess(),
    ),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_swapped_arguments_are_recognised(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="swapped") as caught:
        SWAPPED[name](str(tmp_path / "ck"))
    assert caught.value.argument == name.partition(" ")[0]
    assert not list(tmp_path.iterdir())


def _write(at: str) -> None:
    with ckptfmt.Writer(at) as writer:
        writer.add("x", X["x"])


def _write_shards(at: str) -> None:
    policy = ckptfmt.tf.MaxShardSizePolicy(8)
    options = ckptfmt.tf.CheckpointOptions(experimental_sharding_callback=policy)
    ckptfmt.Checkpoint(**X).write(at, options)


ALONE = ckptfmt.sharded.SingleProcess()
SAVES: dict[str, Any] = {
    "save": lambda at: ckptfmt.save(at, X),
    "save(base=)": lambda at: ckptfmt.save(f"{at}-1", X, base=at),
    "save(shards=)": lambda at: ckptfmt.save(at, X | {"y": X["x"]}, shards=2),
    "save_async": lambda at: ckptfmt.save_async(at, X).result(),
    "save_tree": lambda at: ckptfmt.save_tree(at, X),
    "save_v2": lambda at: ckptfmt.save_v2(at, ["x"], [""], [X["x"]]),
    "Writer": _write,
    "Checkpoint.write": _write_shards,
    "sharded.save": lambda at: ckptfmt.sharded.save(at, X, {"x": None}, ALONE),
}


@pytest.mark.parametrize("name", SAVES)
def test_one_save_checks_its_options_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = str(tmp_path / "ck")
    ckptfmt.save(prefix, X)  # the base
    made = []
    check = SaveOptions.__post_init__
    monkeypatch.setattr(SaveOptions, "__post_init__", lambda one: made.append(check(one)))
    SAVES[name](prefix)
    assert len(made) == 1
