# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints against a dict of arrays: saved, overwritten, cut, merged, loaded."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.arrays import bits, random_key
from support.strategies import arrays, counted, key_of, property_test, tilings

import ckptfmt

NAMES = st.one_of(
    st.text(max_size=6, min_size=1).filter(lambda text: not any(map(is_surrogate, text))),
    st.binary(max_size=6, min_size=1),
    st.sampled_from(["a", "a/b", "a/b/c", "\0", b"\xff", b"\xff\xff"]),
).filter(lambda name: not raw_name(name).startswith(b"_CKPTFMT_"))


def is_surrogate(one: str) -> bool:
    return "\ud800" <= one <= "\udfff"


def raw_name(name: str | bytes) -> bytes:
    return name.encode() if isinstance(name, str) else name


MODELS = st.dictionaries(NAMES.map(raw_name), arrays(views=True), max_size=8)
OPTIONS = st.fixed_dictionaries(
    {
        "level": st.sampled_from(["v2", "v2+"]),
        "alignment": st.sampled_from([None, 1, 3, 64]),
        "durability": st.sampled_from(["rename", "none"]),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], Path]:
    """Makes an empty directory for each example."""
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def by_bits(tensors: Any) -> Any:
    return [(name, bits(array)) for name, array in tensors.items()]


def expected(model: dict[bytes, Any]) -> Any:
    """As `load` gives it: by str, in order of the bytes."""
    return [(text(name), bits(model[name])) for name in sorted(model)]


def check(prefix: Path, model: dict[bytes, Any], chance: random.Random) -> None:
    assert by_bits(ckptfmt.load(prefix, verify="full")) == expected(model)
    report = ckptfmt.verify(prefix)
    assert report.ok, report
    with ckptfmt.open(prefix) as reader:
        assert [handle.raw_name for handle in reader.values()] == sorted(model)
        for name, value in model.items():
            handle = reader[name]
            assert handle.shape == value.shape and handle.dtype == value.dtype
            key = random_key(chance, value.shape)
            try:
                wanted = value[key]
            except IndexError:
                continue
            assert bits(handle[key]) == bits(wanted), (name, key)


@property_test(
    *(12, 500),
    models=st.lists(MODELS, min_size=1, max_size=3),
    options=OPTIONS,
    number=st.integers(0),
)
def test_save_and_overwrite(
    folder: Callable[[], Path], models: list[Any], options: dict[str, Any], number: int
) -> None:
    """Every generation is read back as it was saved, and is alone in its directory."""
    chance, here = random.Random(number), folder()
    for model in models:
        ckptfmt.save(here / "ck", model, **options)
        check(here / "ck", model, chance)
        files = [path.name for path in here.iterdir()]
        assert "ck.index" in files and len(files) <= 3
    shutil.rmtree(here)


@property_test(
    *(40, 2000),
    data=st.data(),
    model=MODELS,
    options=OPTIONS,
    count=st.integers(1, 4),
    inputs=st.sampled_from(["keep", "consume"]),
    number=st.integers(0),
)
def test_merge_of_slices(
    folder: Callable[[], Path],
    data: st.DataObject,
    model: Any,
    options: dict[str, Any],
    count: int,
    inputs: str,
    number: int,
) -> None:
    """Tensors and pieces of them dealt out to several writers and merged are the model again."""
    chance, here = random.Random(number), folder()
    cuts = {name: data.draw(tilings(value.shape)) for name, value in model.items()}
    prefixes = [here / f"part{i}" / "p" for i in range(count)]
    writers = [ckptfmt.Writer(prefix, **options) for prefix in prefixes]
    for name, value in model.items():
        if not value.ndim or not value.size or chance.random() < 0.3:
            chance.choice(writers).add(name, value)
            continue
        for box in cuts[name]:
            start = [start for start, _ in box]
            chance.choice(writers).add_slice(name, value[key_of(box)], value.shape, start)
            counted("merges", pieces=1)
    counted("merges", merges=1, inputs=count, tensors=len(model))
    for writer in writers:
        writer.commit()
    if chance.random() < 0.3:
        ckptfmt.save(here / "m", {"older": np.arange(3)}, durability="none")
    ckptfmt.merge(prefixes, here / "m", inputs=inputs, durability="none")
    check(here / "m", model, chance)
    left = [prefix for prefix in prefixes if list(prefix.parent.iterdir())]
    assert left == (prefixes if inputs == "keep" else [])
    with ckptfmt.open(here / "m") as merged:
        digest = merged.digest()
    ckptfmt.save(here / "again", model, durability="none")
    with ckptfmt.open(here / "again") as saved:
        assert saved.digest() == digest
    shutil.rmtree(here)
