# SPDX-License-Identifier: Apache-2.0
"""Metadata that name tensors, of a checkpoint that is converted with other names or dtypes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import InvalidError

STATE = {
    "model": {
        "$state_dict": [["0.w", {"$tensor": True}], ["1.w", {"$tensor": True}]],
        "versions": {"": {"version": 1}, "0": {"version": 2}, "1": {"version": 3}},
    },
    "codes": {"$tensor": True, "dtype": "float8_e8m0fnu"},
    "array": {"$array": True},
    "step": 3,
}
METADATA: dict[str, Any] = {
    "ckptfmt.torch": json.dumps({"version": 1, "state": STATE}, separators=(",", ":")),
    "ckptfmt.optimizer_states": ["opt/0"],
    "jax_prng_impls": [["key", "rbg"]],
    "note": ["of", "codes"],
}
TENSORS = {
    "model.0.w": np.ones(2, np.float32),
    "model.1.w": np.zeros(2, np.float32),
    "codes": np.ones(3, np.uint8),
    "array": np.arange(3.0),
    "opt/0/mu": np.ones(1),
    "opt/0/nu": np.ones(1),
    "params/mu": np.ones(1),
    "key": np.ones(4, np.uint32),
}
RENAMES: dict[str, Any] = {
    "a module": [(r"^model\.0\.", "model.2.")],
    "a state": {"model.0.w": "elsewhere", "array": "other"},
    "swapped": [("^opt/", "x/"), ("^params/", "opt/0/"), ("^x/0/", "params/")],
    "a key": {"key": "rng"},
    "dropped": lambda name: None if name.startswith(("opt", "model.1", "key")) else name,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    ckptfmt.save(tmp_path / "ck", TENSORS, metadata=METADATA)
    return tmp_path / "ck"


@pytest.mark.parametrize("rename", RENAMES)
def test_a_conversion_renames_as_an_edit_does(source: Path, rename: str) -> None:
    edited, converted = source.with_name("edited"), source.with_name("converted")
    file = source.with_name("file.safetensors")
    ckptfmt.editing.edit(source, edited, rename=RENAMES[rename], drop_weights=rename == "dropped")
    ckptfmt.convert(source, converted, rename=RENAMES[rename])
    ckptfmt.convert(source, file, rename=RENAMES[rename])
    with ckptfmt.open(edited) as one, ckptfmt.open(converted) as other:
        expected = one.metadata
        assert other.metadata == expected
        assert list(one) == list(other)
    head = file.read_bytes()
    found = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])["__metadata__"]
    texts = {key: one if isinstance(one, str) else json.dumps(one) for key, one in expected.items()}
    assert found == texts | {"format": "pt"}
    assert expected != METADATA
    if rename == "a module":
        model = json.loads(expected["ckptfmt.torch"])["state"]["model"]
        assert model["versions"]["2"] == {"version": 2}


def test_metadata_that_are_dropped_refuse_nothing(source: Path) -> None:
    """No paths have the state of the optimizer, and only that, below them with these names."""
    options: dict[str, Any] = {"rename": {"opt/0/mu": "z", "params/mu": "y"}, "drop": "codes"}
    done = ckptfmt.convert(source, source.with_name("to.npz"), **options)
    assert "the metadata" in done.dropped
    for level in ("v2", "v2+"):
        options["level"] = level
        with pytest.raises(InvalidError, match="drop_metadata"):
            ckptfmt.convert(source, source.with_name("kept"), **options)
        done = ckptfmt.convert(source, source.with_name("kept"), drop_metadata=True, **options)
        assert "the metadata" in done.dropped


def test_lists_in_metadata_come_back_from_safetensors(source: Path) -> None:
    ckptfmt.convert(source, source.with_name("x.safetensors"))
    ckptfmt.convert(
        source.with_name("x.safetensors"), source.with_name("back"), rename={"key": "k"}
    )
    with ckptfmt.open(source.with_name("back")) as reader:
        assert reader.metadata["ckptfmt.optimizer_states"] == ["opt/0"]
        assert reader.metadata["jax_prng_impls"] == [["k", "rbg"]]


def test_casts_of_bits(source: Path) -> None:
    """Refused between checkpoints; elsewhere they become what the bits stand for."""
    target, file = source.with_name("to"), source.with_name("to.safetensors")
    ckptfmt.convert(source, target, cast={"model*": "float16"}, rename=[("^array$", "a")])
    with pytest.raises(InvalidError) as caught:
        ckptfmt.convert(
            source, source.with_name("other"), cast={"codes": "f4"}, rename=[("^array$", "a")]
        )
    assert (caught.value.tensor, caught.value.argument) == ("codes", "cast")
    assert not list(source.parent.glob("other*"))
    options: dict[str, Any] = {"cast": {"codes": "float32"}, "rename": [("^array$", "a")]}
    with pytest.raises(InvalidError) as caught:
        ckptfmt.convert(source, target, drop_metadata=True, **options)
    assert (caught.value.tensor, caught.value.argument) == ("codes", "drop_metadata")
    for path in (source.with_name("plain.npz"), file):
        done = ckptfmt.convert(source, path, **options)
        assert done.casts == {"codes": ("float8_e8m0fnu", "float32")}
        ckptfmt.convert(path, source.with_name("back"), rename=[("^a$", "array")])
        back = ckptfmt.load(source.with_name("back"), ["codes"])["codes"]
        assert back.tolist() == [2.0**-126] * 3
    with pytest.raises(InvalidError):
        ckptfmt.convert(source, target, level="v2", drop_metadata=True)
