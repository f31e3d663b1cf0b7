# SPDX-License-Identifier: Apache-2.0
"""TensorFlow reads the sound vectors of levels v2 and v2+ to the values that vectors.json tells,
and refuses those that need a reader of consumer version 2."""

from __future__ import annotations

from typing import Any

import pytest
from support.vectors import DIRECTORY, VECTORS, Vector, array_value, normal

from .oracle import Oracle, OracleError
from .values import KINDS, STRING

SOUND = [one for one in VECTORS if one.kind != "bad" and one.level != "ckptfmt"]
# What it cannot read: see the table of deviations in spec/format.md and KINDS.
STRING_SLICES = {"str-slices"}
# Fields of compressed values that say nothing: their values are not compressed.
NOT_COMPRESSED = {"cmp-1-without"}
COMPRESSED = [
    one
    for one in VECTORS
    if one.kind != "bad"
    and one.name not in NOT_COMPRESSED
    and any(rule.startswith("CMP") for rule in one.rules)
]


def read_steps(vector: Vector) -> list[tuple[bytes, Any]]:
    return [
        (step["tensor"].encode("latin-1"), step["gives"])
        for step in vector.steps
        if step["step"] == "read" and step["gives"]["dtype"] in KINDS
    ]


def readable(vector: Vector, code: int) -> bool:
    big = any("BIG_ENDIAN" in step.get("deviations", ()) for step in vector.steps)
    return KINDS[code].swappable or not big


@pytest.mark.parametrize("vector", SOUND, ids=lambda vector: vector.name)
def test_sound(oracle: Oracle, vector: Vector) -> None:
    prefix = f"{DIRECTORY}/{vector.prefix}"
    for name, wanted in read_steps(vector):
        code = wanted["dtype"]
        if not readable(vector, code) or (vector.name in STRING_SLICES and code == STRING):
            with pytest.raises(OracleError):
                oracle.restore_v2(prefix, [name], [b""], [code])
            continue
        (found,) = oracle.restore_v2(prefix, [name], [b""], [code])
        assert array_value(code, list(found.shape), found.array()) == normal(wanted), name


@pytest.mark.parametrize("vector", COMPRESSED, ids=lambda vector: vector.name)
def test_compressed_is_refused(oracle: Oracle, vector: Vector) -> None:
    """By its own words about versions, where the header says that it must."""
    (head,) = [step for step in vector.steps if step["step"] == "open"]
    assert "fails" not in head
    prefix = f"{DIRECTORY}/{vector.prefix}"
    for name, wanted in read_steps(vector):
        with pytest.raises(OracleError, match="min consumer"):
            oracle.restore_v2(prefix, [name], [b""], [wanted["dtype"]])
