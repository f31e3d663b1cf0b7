# SPDX-License-Identifier: Apache-2.0
"""The registry of savers: names, predicates, lookup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ckptfmt.errors import InvalidError
from ckptfmt.saving import registration
from ckptfmt.saving.registration import (
    get_registered_saver,
    get_registered_saver_name,
    register_checkpoint_saver,
    unregister_checkpoint_saver,
    validate_restore_function,
)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration, "_registry", {})
    yield


def nothing(**_: Any) -> None: ...


def register(name: str, kind: type, **more: Any) -> None:
    register_checkpoint_saver(
        name=name,
        predicate=lambda thing: isinstance(thing, kind),
        save_fn=nothing,
        restore_fn=nothing,
        **more,
    )


def test_the_saver_registered_last_counts() -> None:
    register("Whole", int)
    register("Flag", bool)
    register("Number", int, package="Other")
    assert get_registered_saver_name(True) == "Other.Number"
    unregister_checkpoint_saver("Other.Number")
    assert get_registered_saver_name(True) == "Custom.Flag"
    assert get_registered_saver_name(1) == "Custom.Whole"
    assert get_registered_saver_name("text") is None


def test_what_is_kept() -> None:
    def save(**_: Any) -> None: ...

    def restore(**_: Any) -> None: ...

    register_checkpoint_saver("P-1", "n_2", callable, save, restore, False)
    saver = get_registered_saver("P-1.n_2")
    assert saver.name == "P-1.n_2"
    assert saver.predicate is callable
    assert saver.save_fn is save
    assert saver.restore_fn is restore
    assert saver.strict_predicate_restore is False
    register("strict", int)
    assert get_registered_saver("Custom.strict").strict_predicate_restore is True


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("package", 3),
        ("name", None),
        ("predicate", None),
        ("save_fn", "f"),
        ("restore_fn", 1),
        ("strict_predicate_restore", 1),
        ("name", "a/b"),
        ("name", "line\n"),
        ("name", "taken"),
    ],
)
def test_refused(argument: str, value: Any) -> None:
    register("taken", int)
    functions = {"predicate": callable, "save_fn": nothing, "restore_fn": nothing}
    with pytest.raises(InvalidError) as caught:
        register_checkpoint_saver(**{"name": "new", **functions, argument: value})
    assert caught.value.argument == argument
    assert list(registration._registry) == ["Custom.taken"]


def test_unknown_names() -> None:
    for look in (get_registered_saver, unregister_checkpoint_saver):
        with pytest.raises(InvalidError) as caught:
            look("Custom.gone")
        assert caught.value.message == "no checkpoint saver is registered as 'Custom.gone'"


def test_validate_restore_function() -> None:
    register("Whole", int)
    validate_restore_function(3, "Custom.Whole")
    for name, why in (("Whole", "whose predicate is false for it"), ("gone", "which is not")):
        with pytest.raises(InvalidError, match=f"^the one at 'x' was saved .*, {why}"):
            validate_restore_function("x", f"Custom.{name}", "the one at 'x'")
