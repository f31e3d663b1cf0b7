# SPDX-License-Identifier: Apache-2.0
"""A store that lies to Python: bodies, sizes, identities and listings that are not so. A read gives
the stored values or a typed error, a save that succeeds is there, and what is in place stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.dict_client import DictClient
from support.strategies import SEEDS, counted, property_test

import ckptfmt
from ckptfmt import CkptfmtError, stores
from ckptfmt._core import ObjectInfo
from ckptfmt.stores import waiting

URL = "lies://bucket"


def _cut(body: bytes, chance: random.Random) -> bytes:
    return body[: chance.randrange(len(body) + 1)]


def _changed(body: bytes, chance: random.Random) -> bytes:
    if not body:
        return body
    at = chance.randrange(len(body))
    return body[:at] + bytes([body[at] ^ chance.randrange(1, 256)]) + body[at + 1 :]


BODIES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": _cut,
    "changed": _changed,
    "longer": lambda body, chance: body + bytes(chance.randrange(1, 50)),
    "empty": lambda *_: b"",
    "other": lambda body, chance: chance.randbytes(len(body)),
}
INFOS: dict[str, Callable[[ObjectInfo, random.Random], ObjectInfo]] = {
    "smaller": lambda info, chance: info._replace(size=chance.randrange(info.size + 1)),
    "larger": lambda info, chance: info._replace(size=info.size + chance.randrange(1, 1 << 50)),
    "another etag": lambda info, chance: info._replace(identity=f"etag{chance.random()}"),
    "negative": lambda info, _: info._replace(size=-1),
}


class Liar(DictClient):
    """Lies in some of its answers while `lies` is not None."""

    def __init__(self, chance: random.Random, share: float) -> None:
        super().__init__()
        self.lies: str | None = None
        self._chance, self._share = chance, share

    def _is_time(self, lies: dict[str, Any]) -> bool:
        return self.lies in lies and self._chance.random() < self._share

    def _deliver(self, body: bytes) -> bytes:
        if self._is_time(BODIES):
            body = BODIES[str(self.lies)](body, self._chance)
        return super()._deliver(body)

    def _find(self, key: str) -> tuple[bytes, ObjectInfo]:
        data, info = super()._find(key)
        if self._is_time(INFOS):
            info = INFOS[str(self.lies)](info, self._chance)
        return data, info


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    """Between one request and the next try."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "PAUSE", 0)
        yield


@property_test(
    30,
    20_000,
    seed=SEEDS,
    lie=st.sampled_from(sorted([*BODIES, *INFOS])),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    verify=st.sampled_from(["auto", "full"]),
)
def test_a_store_that_lies(seed: int, lie: str, share: float, verify: Any) -> None:
    chance = random.Random(seed)
    client = Liar(chance, share)
    stores._mounted[URL] = client
    values = {name: np.random.default_rng(seed).random(5000) for name in ("a", "b")}
    try:
        ckptfmt.save(f"{URL}/m", {"a": values["a"]})
        client.lies = lie
        saved = False
        try:
            ckptfmt.save(f"{URL}/m", {"a": values["a"], "b": values["b"]})
            saved = True
        except CkptfmtError:
            pass
        for read in (
            lambda: ckptfmt.load(f"{URL}/m", verify=verify),
            lambda: {"a": _slice(verify)},
            _verified,
        ):
            try:
                found = read()
            except CkptfmtError:
                continue
            for name, array in found.items():
                assert array.tobytes() in values[name].tobytes()
        client.lies = None
        found = ckptfmt.load(f"{URL}/m")
        assert not saved or set(found) == {"a", "b"}
        for name, array in found.items():
            assert array.tobytes() == values[name].tobytes()
        counted("stores that lie", **{"saved" if saved else "refused": 1})
    finally:
        del stores._mounted[URL]


def _verified() -> dict[str, Any]:
    ckptfmt.verify(f"{URL}/m")
    return {}


def _slice(verify: Any) -> Any:
    with ckptfmt.open(f"{URL}/m", verify=verify) as reader:
        return reader["a"][100:200]
