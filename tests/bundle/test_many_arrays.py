# SPDX-License-Identifier: Apache-2.0
"""Saves of many arrays, which are taken in by the batch: as one by one, whatever is among them."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.files import contents

import ckptfmt
from ckptfmt import save_async
from ckptfmt._base import arrays as taken
from ckptfmt.bundle import saving
from ckptfmt.errors import InvalidError

COUNT = 4 * taken.BATCH + 7


def many(seed: int) -> dict[Any, Any]:
    """Batches of plain arrays only, of scalars only, of all kinds, and names of all kinds."""
    chance = np.random.default_rng(seed)
    kinds: list[Any] = [
        lambda n: chance.integers(0, 99, (n % 5, 3)),
        lambda n: chance.standard_normal((2, n % 3, 2)).astype(ml_dtypes.bfloat16),
        np.float32,
        np.array,
        lambda n: chance.standard_normal((4, 6))[1::2, ::-2],
        lambda n: np.asfortranarray(chance.standard_normal((3, n % 4))),
        lambda n: np.arange(n % 7, dtype=">i4"),
        lambda n: [f"text {n}", ""],
        lambda n: n,
    ]
    found: dict[Any, Any] = {}
    for number in range(COUNT):
        batch = number // taken.BATCH
        some = [kinds[:2], kinds[3:4], kinds[:4], kinds, kinds][batch]
        name: Any = f"{number}/ä" if batch % 2 else f"{number}"
        if batch == 3 and number % 3:
            name = [b"", name.encode() + b"\xff", f"{number}\udcfe\0"][number % 3]
        found[name] = some[number % len(some)](number)
    return found


def test_as_one_by_one(tmp_path: Path, seed: int) -> None:
    given = many(seed)
    with ckptfmt.Writer(tmp_path / "a" / "ck", durability="none") as one:
        for name, array in given.items():
            one.add(name, array)
    want = contents(tmp_path / "a")
    forms: list[Any] = [given, list(given.items()), collections.OrderedDict(given)]
    for number, form in enumerate(forms):
        ckptfmt.save(tmp_path / f"b{number}" / "ck", form, durability="none")
        assert contents(tmp_path / f"b{number}") == want
    save_async(tmp_path / "c" / "ck", given, durability="none").result()
    assert contents(tmp_path / "c") == want
    ckptfmt.save(tmp_path / "d" / "ck", given, durability="none", base=tmp_path / "a" / "ck")
    with ckptfmt.open(tmp_path / "d" / "ck") as reader:
        for name, array in given.items():
            loaded = reader[name].read()
            if not isinstance(array, list):
                np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize("at", [0, taken.BATCH - 1, taken.BATCH, COUNT - 1])
@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (f"{ckptfmt._base.names.RESERVED}x", np.ones(1), "names beginning with"),
        ("", np.ones(1), "TAB-12: a tensor's name is empty"),
        (7, np.ones(1), "a tensor name must be str or bytes, not int"),
        ("\ud800", np.ones(1), "cannot be encoded"),
        ("ok", np.ones(1, "M8[s]"), "cannot be stored"),
        ("ok", {"a": 1}, "a nested mapping is not an array"),
        ("ok", np.ma.zeros(2), "a masked array would lose its mask"),
        ("ok", [np.zeros(2), np.ma.zeros(2)], "a masked array would lose its mask"),
        ("ok", ([np.ma.zeros(2)],), "a masked array would lose its mask"),
        ("ok", [np.ma.masked, 1.0], "a masked array would lose its mask"),
        ("5x", np.ones(1), "the name is added twice"),
    ],
)
def test_what_is_wrong_with_one_of_many(at: int, name: Any, array: Any, message: str) -> None:
    given: list[tuple[Any, Any]] = [(f"{number}x", np.ones(1)) for number in range(COUNT)]
    given[at] = (name, array)
    with pytest.raises(InvalidError, match=message):
        saving.collect(given)


def test_one_of_a_hundred_thousand_names_twice() -> None:
    one = np.ones(1)
    given = [(f"{number}", one) for number in range(100_000)]
    with pytest.raises(InvalidError, match="the name is added twice") as caught:
        saving.collect([*given, ("99999", one)])
    assert caught.value.tensor == "99999"
