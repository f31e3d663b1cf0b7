# SPDX-License-Identifier: Apache-2.0
"""Values of the training states of ckptfmt.torch: they come back as themselves or are refused."""

from __future__ import annotations

import argparse
import datetime
import decimal
import enum
import functools
import io
import math
import pathlib
import random
import types
import uuid
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import ckptfmt
import ckptfmt.torch as ct
from ckptfmt.bundle import state_tree
from ckptfmt.torch.structure import Packed, structure_of

from .test_torch_state import equal

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, :UserWarning"),
]

# Kinds that come back equal, with their type, wherever they are.
KEPT: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": -(2**80),
    "floats": [0.1, 1.0, -0.0, math.inf, -math.inf, math.nan],
    "complex": 1 + 2j,
    "text": "a\n\u20ac\udc80",
    "bytes": b"\0\xff",
    "tuple": (1, (), [2, (3,)]),
    "set": {1, 2},
    "frozenset": frozenset({1, (2,)}),
    "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16,
    "device": torch.device("cuda:1"),
    "keys": {1: "a", (2, "b"): "c", None: 3, "$dollar": 4, "a.b": 5, 1.5: 7, False: 6},
    "keys of other types": {pathlib.Path("a/b"): torch.ones(1), torch.int8: 2, b"x": 3},
    "counter": Counter({30: 2}),
    "numpy counts": Counter({"a": np.int64(3), "b": 2.5}),
    "numpy keys": {np.int64(3): torch.ones(1), np.float32(0.1): torch.ones(2), np.str_("x"): 2},
    "ordered": OrderedDict(b=1, a=2),
    "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
    "scalar": np.float32(0.1),
    "nested": {"deep": [{"tensor": torch.arange(3)}], "empty": {}, "list": []},
    "path": pathlib.Path("/data/run 1"),
    "paths": {"a": [pathlib.Path(), pathlib.Path("\udc80")]},
    "deque": deque([1, torch.arange(2), {"a": np.ones(2)}], 5),
    "full deque": deque([1, 2], maxlen=2),
    "endless deque": deque(),
    "defaultdict": defaultdict(list, {"a": [1, torch.zeros(2)], 3: []}),
    "nested defaultdict": defaultdict(dict, a=defaultdict(int, b=1)),
    "no factory": defaultdict(None, a=1),
    "generator": random.Random(1).getstate(),
    "rng": {"numpy": np.random.get_state(), "torch": torch.get_rng_state()},
}
FACTORIES = [None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset]
KEPT |= {f"defaultdict of {one}": defaultdict(one, k=1) for one in FACTORIES}


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Attributes(dict[str, Any]):
    pass


class Point(tuple[int, int]):
    pass


class Units(np.ndarray):
    pass


Pair = namedtuple("Pair", "a b")


@dataclass
class Config:
    rate: float = 0.1


# Kinds that cannot come back as themselves.
REFUSED: dict[str, Any] = {
    "enum": Color.RED,
    "int enum": Level.LOW,
    "text enum": Word.YES,
    "namedtuple": Pair(1, 2),
    "tuple": Point((1, 2)),
    "dict": Attributes(a=1),
    "dataclass": Config(),
    "namespace": argparse.Namespace(rate=0.1),
    "simple namespace": types.SimpleNamespace(rate=0.1),
    "user dict": UserDict(a=1),
    "chain": ChainMap({"a": 1}),
    "mapping": types.MappingProxyType({"a": 1}),
    "class": dict,
    "module class": nn.ReLU,
    "optimizer class": torch.optim.AdamW,
    "scheduler class": torch.optim.lr_scheduler.StepLR,
    "module of Python": math,
    "module of Python with functions": torch.distributed,
    "module without a state": nn.ReLU(),
    "modules without a state": nn.Sequential(nn.Dropout(0.1)),
    "function": len,
    "lambda": lambda: 1,
    "partial": functools.partial(int, base=2),
    "object": object(),
    "ellipsis": ...,
    "range": range(3),
    "slice": slice(1, 2),
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "datetime": datetime.datetime(2026, 1, 1),
    "timedelta": datetime.timedelta(1),
    "decimal": decimal.Decimal("0.1"),
    "fraction": Fraction(1, 3),
    "uuid": uuid.UUID(int=1),
    "pure path": pathlib.PureWindowsPath("c:/a"),
    "large int": 10**5000,
    "random": random.Random(1),
    "numpy random": np.random.default_rng(0),
    "layout": torch.strided,
    "memory format": torch.channels_last,
    "storage": torch.ones(2).untyped_storage(),
    "iterator": iter([1]),
    "error": ValueError("x"),
    "numpy bytes": np.bytes_(b"a"),
    "numpy time": np.datetime64(5, "ns"),
    "array of text": np.array(["text"]),
    "array of objects": np.array([None]),
    "array of records": np.zeros(2, "i4,f4"),
    "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
    "array of a subclass": np.zeros(2).view(Units),
    "factory": defaultdict(lambda: 1),
    "factory of a type": defaultdict(deque),
}
with FakeTensorMode():
    FAKE = torch.ones(2)
# What has no elements of its own, and keys whose text is not theirs: no `default` sees them.
NEVER: dict[str, Any] = {
    "meta": torch.empty(2, device="meta"),
    "lazy": nn.UninitializedParameter(),
    "sparse": torch.ones(2, 2).to_sparse(),
    "fake": FAKE,
    "of other tensors": TwoTensor(torch.ones(2), torch.ones(2)),
    **{
        f"key {type(key).__name__}": {key: 3}
        for key in (
            (1, np.int64(2)),
            torch.ones(1),
            np.datetime64(5, "ns"),
            frozenset({"a", "b"}),  # of another order in another process
            Color.RED,
            Pair(1, 2),
        )
    },
}


def in_background(*given: Any, **options: Any) -> None:
    ct.save_async(*given, **options).result()


SAVES: list[Callable[..., Any]] = [ct.save, in_background]


@pytest.mark.parametrize("kind", KEPT)
def test_values_come_back_as_they_were(tmp_path: pathlib.Path, kind: str) -> None:
    value = KEPT[kind]
    for number, inside in enumerate([value, [0, value], {"a": (value, 1)}, deque([value], 3)]):
        for save in SAVES:
            state = {"x": inside, "w": torch.ones(2)}
            path = tmp_path / f"{number}"
            save(state, path, default=lambda _: 0)
            assert equal(ct.load(path), state)
            assert equal(ct.load(path, filter="*"), state)
            target: dict[str, Any] = {"x": None, "w": torch.zeros(2)}
            assert ct.load_into(target, path)
            assert equal(target, state)
            ckptfmt.editing.edit(path, tmp_path / "edited", rename={"w": "v"})
            assert equal(ct.load(tmp_path / "edited")["x"], inside)


@pytest.mark.parametrize("kind", [*REFUSED, *NEVER])
def test_values_that_are_refused(tmp_path: pathlib.Path, kind: str) -> None:
    value = (REFUSED | NEVER)[kind]
    state = {"good": torch.ones(1), "outer": [0, {"bad": value}]}

    def refusing(_value: Any) -> Any:
        raise TypeError("unknown")

    for save in SAVES:
        for default in (None, refusing, lambda one: one):
            with pytest.raises(ckptfmt.InvalidError, match=r"outer\.1\.bad"):
                save(state, tmp_path / "ck", default=default)
            assert not list(tmp_path.iterdir())
    given = []

    def default(one: Any) -> Any:
        given.append(one)
        return {"is": (str(type(one)), torch.ones(1))}

    if kind in NEVER:
        with pytest.raises(ckptfmt.InvalidError, match=r"outer\.1\.bad"):
            ct.save(state, tmp_path / "ck", default=default)
        assert not given
        return
    ct.save(state, tmp_path / "ck", default=default)
    assert len(given) == 1 and given[0] is value
    expected = {"is": (str(type(value)), torch.ones(1))}
    assert equal(ct.load(tmp_path / "ck")["outer"], [0, {"bad": expected}])


DTYPES = [np.dtype(code) for code in np.typecodes["All"] if code not in "UqQ"]
DTYPES += [np.dtype(one) for one in vars(ml_dtypes).values() if isinstance(one, type)]
DTYPES += [np.dtype([("qint8", "i1")])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_numpy(tmp_path: pathlib.Path, dtype: np.dtype[Any]) -> None:
    for value in (np.ones(2, dtype), np.ones((), dtype), np.ones((), dtype)[()]):
        try:
            ct.save({"x": value}, tmp_path / "ck")
        except ckptfmt.InvalidError:
            assert not list(tmp_path.iterdir())
        else:
            assert equal(ct.load(tmp_path / "ck")["x"], value)


LEAVES = [
    *(KEPT[kind] for kind in ("none", "int", "floats", "complex", "text", "bytes", "set", "size")),
    *(KEPT[kind] for kind in ("dtype", "device", "path", "counter", "array", "scalar")),
    *(torch.ones(2), nn.BatchNorm1d(2), {torch.ones(1), 3}),
]
KEYS = [
    *("a", "b c", "$d", "state", "param_groups", "", 3, None, 1.5, math.inf, 2 + 1j, b"x"),
    *(torch.Size([1, 2]), torch.int8, torch.device("cuda:1"), pathlib.Path("p/q")),
    *((1, ("a",)), ("z", torch.half, torch.device("cpu"), pathlib.Path("r"), torch.Size([]))),
]
ONES = torch.ones(2)
TREES = st.recursive(
    st.sampled_from(LEAVES)
    | st.builds(torch.quantize_per_channel, *map(st.just, (ONES, ONES, ONES, 0, torch.quint8))),
    lambda inner: st.one_of(
        st.builds(
            lambda make, values: make(values),
            st.sampled_from([list, tuple, lambda values: deque(values, 5)]),
            st.lists(inner, max_size=3),
        ),
        st.builds(
            lambda make, values: make(values),
            st.sampled_from([dict, OrderedDict, lambda values: defaultdict(list, values)]),
            st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
        ),
    ),
    max_leaves=8,
)


def shown(value: Any) -> Any:
    """What a value that was read is, with torch or without it."""
    if isinstance(value, state_tree.Leaf):
        return value.name, value.kind, shown(value.note)
    if isinstance(value, dict):
        more = getattr(value, "default_factory", None), getattr(value, "_metadata", None)
        return type(value).__name__, more, [(repr(key), shown(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return type(value).__name__, getattr(value, "maxlen", None), [*map(shown, value)]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(shown, value), key=repr)
    return repr(value)


@given(st.dictionaries(st.sampled_from(KEYS), TREES, min_size=1, max_size=3))
def test_a_state_is_read_alike_without_torch(state: dict[Any, Any]) -> None:
    packed = Packed(state)
    tree = state_tree.parse(packed.text)["state"]
    reader: Any = type("", (dict,), {"metadata": {state_tree.KEY: packed.text}})(packed.tensors)
    assert shown(state_tree.decode(tree)) == shown(structure_of(reader))
    assert {one.name for one in state_tree.leaves(tree)} == packed.tensors.keys()


def test_objects_are_stored_as_their_state(tmp_path: pathlib.Path) -> None:
    """And text of NumPy as text, buffers as buffers at their start."""
    model = nn.Linear(2, 1)
    generator = torch.Generator().manual_seed(3)
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), 0.1), 2)
    state = {
        "models": [model, nn.BatchNorm1d(2)],
        "scheduler": scheduler,
        "generator": generator,
        "text": np.str_("a"),
        "buffer": io.BytesIO(b"ab"),
    }
    ct.save(state, tmp_path / "ck")
    found = ct.load(tmp_path / "ck")
    assert equal(found["models"][0], model.state_dict())
    assert found["scheduler"] == scheduler.state_dict()
    assert equal(found["generator"], generator.get_state())
    assert found["buffer"].read() == b"ab"
    assert type(found["text"]) is str and found["text"] == "a"


def test_defaults_that_fail(tmp_path: pathlib.Path) -> None:
    for default, error in (
        (3, ckptfmt.InvalidError),
        (lambda one: [one], ckptfmt.InvalidError),  # never ends
        (lambda one: 1 / 0, ZeroDivisionError),
    ):
        with pytest.raises(error):
            ct.save({"x": object()}, tmp_path / "ck", default=default)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_deques_are_loaded_into(tmp_path: pathlib.Path) -> None:
    ct.save({"x": deque([torch.ones(2), 3], 4)}, tmp_path / "ck")
    tensor = torch.zeros(2)
    window: deque[Any] = deque([tensor, 0], 4)
    assert ct.load_into({"x": window}, tmp_path / "ck")
    assert tensor.tolist() == [1, 1] and window[0] is tensor and window[1] == 3
    ct.save({"x": deque([torch.ones(2), torch.zeros(2)], 4)}, tmp_path / "ck")
    assert equal(ct.load(tmp_path / "ck", filter="x.1")["x"], deque([None, torch.zeros(2)], 4))
