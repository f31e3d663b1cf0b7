# SPDX-License-Identifier: Apache-2.0
"""How objects are seen: what is a node, which children it has, and how values are replaced."""

from __future__ import annotations

import collections
import enum
import gc
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import ckptfmt
from ckptfmt.objects.trackable import waiting
from ckptfmt.objects.traversal import Local, Role, View, children_of, role_of, trail_of
from ckptfmt.saving.parallel import ParallelVariable


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass
class Layer:
    kernel: Any
    bias: Any = None
    hidden: Any = field(default=7, repr=False)


@dataclass(frozen=True)
class Frozen:
    rate: float
    table: Any
    derived: Any = field(init=False, default=0)


@dataclass(slots=True)
class Slotted:
    step: int


class Module(ckptfmt.Trackable):
    untracked = ("act", "cache")

    def __init__(self, **attributes: Any) -> None:
        self.act = np.tanh
        for name, value in attributes.items():
            setattr(self, name, value)


class Given:
    def __init__(self, **children: Any) -> None:
        self.children = children

    def trackable_children(self) -> dict[str, Any]:
        return self.children


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(str, enum.Enum):  # noqa: UP042 (a StrEnum has another str())
    """Its str() is its name."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class Shouted(str):
    def __str__(self) -> str:
        return self.upper() + "!"


def names(value: Any) -> list[str]:
    return [child.name for child in children_of(value)]


def saved(tmp_path: Path, *args: Any, **objects: Any) -> str:
    path: str = ckptfmt.Checkpoint(*args, **objects).write(tmp_path / "ck")
    return path


# ---- roles and children --------------------------------------------------------------------------


SCALARS = [1, True, 1.5, 1j, "t", b"t", np.float32(1), ml_dtypes.bfloat16(1), Level.LOW]
HOLDERS = [{}, collections.OrderedDict(), [], (), Pair(1, 2), Layer(1), Module(), Given()]


def test_role() -> None:
    assert {role_of(value) for value in SCALARS} == {Role.SCALAR}
    assert {role_of(value) for value in (np.zeros(()), np.array(["a"]))} == {Role.ARRAY}
    assert role_of(ParallelVariable([np.zeros(1)])) is Role.PARALLEL
    assert {role_of(value) for value in (*HOLDERS, ckptfmt.Checkpoint())} == {Role.NOTHING}


@pytest.mark.parametrize(
    "value",
    [None, object(), np, np.tanh, len, Layer, dict, Color.RED, {1}, types.SimpleNamespace(a=1)],
)
def test_what_cannot_be_saved_names_its_path(value: Any) -> None:
    words = rf"^the object at 'a/x\.y' is of type {type(value).__name__}, which cannot be saved"
    with pytest.raises(ckptfmt.InvalidError, match=words):
        role_of(value, ("a", "x.y"))
    with pytest.raises(ckptfmt.InvalidError, match=r"^the root object is of type "):
        role_of(value)


class Abstract:
    """All methods of a saved object; the one named `fails` is not implemented."""

    def __init__(self, fails: str) -> None:
        self.fails = fails

    def result_of(self, method: str) -> dict[str, Any]:
        if method == self.fails:
            raise NotImplementedError("a subclass does")
        return {}


class AbstractTensors(Abstract):
    def serialize_to_tensors(self) -> dict[str, Any]:
        return self.result_of("serialize_to_tensors")

    def restore_from_tensors(self, tensors: Any) -> None:
        pass

    def trackable_children(self) -> dict[str, Any]:
        return self.result_of("trackable_children")


class AbstractState(Abstract):
    def serialize(self) -> Any:
        return self.result_of("serialize")

    def deserialize(self, state: Any) -> None:
        pass


@pytest.mark.parametrize(
    "value",
    [
        AbstractTensors("serialize_to_tensors"),
        AbstractTensors("trackable_children"),
        AbstractState("serialize"),
    ],
)
def test_methods_that_are_not_implemented(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        saved(tmp_path, model=[{"x": value}])
    assert caught.value.message == (
        f"the object at 'model/0/x' is of type {type(value).__name__}, which cannot be saved: its "
        f"{value.fails}() raises NotImplementedError: a subclass does"
    )
    assert not list(tmp_path.iterdir())


class StateAndTensors(AbstractTensors, AbstractState):
    pass


class StateOfList(list[Any], AbstractState):
    pass


class TensorsOfDict(dict[str, Any], AbstractTensors):
    trackable_children = None  # type: ignore[assignment]


class ChildrenOfDict(dict[str, Any], ckptfmt.Trackable):
    pass


@pytest.mark.parametrize(
    ("kind", "method", "reason"),
    [
        (StateAndTensors, "serialize_to_tensors", "has serialize()"),
        (StateOfList, "serialize", "is a list"),
        (TensorsOfDict, "serialize_to_tensors", "is a dict"),
        (ChildrenOfDict, "trackable_children", "is a dict"),
    ],
)
def test_methods_that_would_not_be_called(
    tmp_path: Path, kind: Any, method: str, reason: str
) -> None:
    with pytest.raises(ckptfmt.InvalidError) as caught:
        saved(tmp_path, model=kind.__new__(kind))
    assert caught.value.message == (
        f"the object at 'model' is of type {kind.__name__}, which cannot be saved: its {method}() "
        f"would not be called, because it {reason}"
    )


def test_a_deserialize_that_makes_another_object(tmp_path: Path) -> None:
    """A classmethod or staticmethod does not restore: a dataclass is saved by its fields."""

    @dataclass
    class Loader:
        position: int

        def serialize(self) -> str:
            return str(self.position)

        @classmethod
        def deserialize(cls, state: bytes) -> Loader:
            return cls(int(state))

    loader = Loader(0)
    ckptfmt.Checkpoint(loader=loader).read(saved(tmp_path, loader=Loader(3))).assert_consumed()
    assert loader.position == 3


def test_methods_of_tensorflow_that_are_not_implemented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its base class do not count: an object is refused when it is given, and saved if it
    has methods of its own."""

    class Trackable:
        def _serialize_to_tensors(self) -> Any:
            raise NotImplementedError

        def _restore_from_tensors(self, tensors: Any) -> Any:
            raise NotImplementedError

    base = types.ModuleType("tensorflow.python.trackable.base")
    base.Trackable = Trackable  # type: ignore[attr-defined]
    Trackable._serialize_to_tensors.__module__ = base.__name__
    Trackable._restore_from_tensors.__module__ = base.__name__
    monkeypatch.setitem(sys.modules, base.__name__, base)

    class Variable(Trackable):
        def _serialize_to_tensors(self) -> Any:
            return {"VARIABLE_VALUE": np.zeros(1)}

        def _restore_from_tensors(self, tensors: Any) -> Any:
            pass

    class Children(Trackable):
        def trackable_children(self) -> Any:
            return {"v": 1}

    with pytest.raises(ckptfmt.InvalidError) as caught:
        ckptfmt.Checkpoint(model=Trackable())
    assert "the object at 'model' is of type " in caught.value.message
    assert "save and load it with tf.train.Checkpoint" in caught.value.message
    assert role_of(Variable()) is Role.TENSORS
    assert role_of(Children()) is Role.NOTHING


def test_children_of_containers() -> None:
    array = np.zeros(1)
    assert names({"b": 1, "a": array, "": 2}) == ["b", "a", ""]
    assert names([array, 1]) == names((array, 1)) == ["0", "1"]
    assert names(Pair(array, 2)) == ["x", "y", "0", "1"]
    assert names(Layer(array)) == ["kernel", "hidden"]
    assert names(Slotted(1)) == ["step"]
    assert names(Module(w=array, b=1)) == ["w", "b"]
    assert names(Given(q=array)) == ["q"]
    assert names(array) == names(3) == names("abc") == []


def test_none_is_nothing_anywhere() -> None:
    holders = [
        {"a": None},
        [None],
        (None,),
        Layer(None, hidden=None),
        Module(a=None),
        Given(a=None),
    ]
    assert [names(holder) for holder in holders] == [[]] * len(holders)
    assert names([None, 5]) == ["1"]


def test_keys_that_are_no_names() -> None:
    with pytest.raises(ckptfmt.InvalidError, match=r"^the object at 'd' has a child named 1:"):
        children_of({1: np.zeros(1)}, ("d",))
    with pytest.raises(ckptfmt.InvalidError, match=r"^the object at 'g' has a child named 2:"):
        children_of(_children_given({2: 1}), ("g",))
    with pytest.raises(ckptfmt.InvalidError, match=r"^trackable_children\(\) of the root object"):
        children_of(_children_given([1]))


def _children_given(found: Any) -> Given:
    given = Given()
    given.children = found
    return given


def test_an_object_with_a_protocol_of_its_own_says_itself_what_is_saved() -> None:
    @dataclass
    class Stated:
        step: int = 3

        def serialize(self) -> str:
            return str(self.step)

        def deserialize(self, value: bytes) -> None:
            self.step = int(value)

    assert role_of(Stated()) is Role.PYTHON
    assert names(Stated()) == []


def test_protocols_count_in_one_spelling() -> None:
    class Theirs:
        def _serialize_to_tensors(self) -> dict[str, Any]:
            return {}

        def _restore_from_tensors(self, tensors: Any) -> None:
            pass

    class Half:
        def serialize_to_tensors(self) -> dict[str, Any]:
            return {}

        def _restore_from_tensors(self, tensors: Any) -> None:
            pass

    assert role_of(Theirs()) is Role.TENSORS
    with pytest.raises(ckptfmt.InvalidError, match="the root object is of type Half"):
        role_of(Half())


# ---- walks ---------------------------------------------------------------------------------------


def test_a_walk_goes_breadth_first_and_meets_shared_objects_once() -> None:
    array = np.zeros(1)
    shared = {"w": array}
    found, edges = View({"b": [shared], "a": shared, "z": array}).walk()
    assert ["/".join(local.path) for local in found] == ["", "b", "a", "z"]
    assert edges == [[("b", 1), ("a", 2), ("z", 3)], [("0", 2)], [("w", 3)], []]


def test_equal_values_in_two_places_are_two() -> None:
    value = (1, 2)
    frozen = Frozen(0.5, value)
    found, _ = View({"a": value, "b": value, "c": frozen, "d": frozen}).walk()
    paths = ["/".join(local.path) for local in found]
    assert len(paths) == len(set(paths)) == 1 + 4 + 4 + 2 * 3 + 2 * 2


def test_one_of_a_namedtuple_is_one_under_both_names() -> None:
    _, edges = View({"p": Pair(1, 2)}).walk()
    assert edges[1] == [("x", 2), ("y", 3), ("0", 2), ("1", 3)]


def test_full_names() -> None:
    class Named(ckptfmt.Trackable):
        name = "dense"

    assert Local(Named(), trail_of(("a", "b"))).full_name == "dense"
    assert Local(np.zeros(1), trail_of(("a", "x/y"))).full_name == "a/x/y"
    assert Local("text", trail_of(("t",))).full_name == "t"


# ---- values in their places ----------------------------------------------------------------------


def test_values_are_replaced_where_they_lie(tmp_path: Path) -> None:
    def objects(number: int) -> dict[str, Any]:
        return {
            "dictionary": {"step": number, "flag": bool(number)},
            "list": [float(number), str(number), str(number).encode()],
            "layer": Layer(np.float32(number), complex(number)),
            "module": Module(level=Level(1 + (number > 0)), half=ml_dtypes.bfloat16(number)),
            "mode": Module(mode=list(Mode)[number > 0], text=Shouted(f"text {number}")),
            "slotted": Slotted(number),
            "number": number,
        }

    path = saved(tmp_path, **objects(5))
    target = objects(0)
    checkpoint = ckptfmt.Checkpoint(**target)
    checkpoint.read(path).assert_consumed()
    assert target["dictionary"] == {"step": 5, "flag": True}
    assert target["list"] == [5.0, "5", b"5"]
    assert target["layer"] == Layer(np.float32(5), 5 + 0j)
    assert target["module"].level is Level.HIGH
    assert target["mode"].mode is Mode.EVALUATE
    assert target["mode"].text == Shouted("text 5")
    assert target["slotted"] == Slotted(5)
    assert checkpoint.number == 5
    kinds = [type(target["layer"].kernel), type(target["module"].half), type(checkpoint.number)]
    assert kinds == [np.float32, ml_dtypes.bfloat16, int]
    assert [type(item) for item in target["list"]] == [float, str, bytes]
    assert type(target["dictionary"]["flag"]) is bool


def test_what_lies_around_a_value_is_replaced_with_it(tmp_path: Path) -> None:
    def objects(number: int, array: Any) -> dict[str, Any]:
        return {"deep": [(Pair((number, (str(number),)), array), Frozen(float(number), [number]))]}

    path = saved(tmp_path, **objects(7, np.ones(2)))
    array = np.zeros(2)
    target = objects(0, array)
    holder, pair = target["deep"], target["deep"][0][0]
    ckptfmt.Checkpoint(**target).read(path).assert_consumed()
    assert target["deep"] is holder
    ((found_pair, frozen),) = target["deep"]
    assert type(found_pair) is Pair and found_pair.x == (7, ("7",))
    assert found_pair.y is array and array.tolist() == [1.0, 1.0]
    assert (frozen.rate, frozen.table, frozen.derived) == (7.0, [7], 0)
    assert pair.x == (0, ("0",))  # the old one is what it was


def test_a_tuple_of_arrays_only_stays(tmp_path: Path) -> None:
    path = saved(tmp_path, t=(np.ones(1), [np.ones(1)]))
    target = (np.zeros(1), [np.zeros(1)])
    checkpoint = ckptfmt.Checkpoint(t=target)
    checkpoint.read(path)
    assert checkpoint.t is target and target[0].tolist() == target[1][0].tolist() == [1.0]


def test_read_only_arrays_are_replaced_and_stay_shared(tmp_path: Path) -> None:
    def frozen(value: float) -> Any:
        array = np.full(3, value, np.float32)
        array.flags.writeable = False
        return array

    one = frozen(1.0)
    path = saved(tmp_path, a=one, b={"c": one}, own=frozen(2.0))
    with ckptfmt.open(path) as reader:
        assert [key for key in reader if key.startswith(("a/", "b/"))] == [
            "a/.ATTRIBUTES/VARIABLE_VALUE"
        ]
    zero = frozen(0.0)
    target = {"c": zero}
    checkpoint = ckptfmt.Checkpoint(a=zero, b=target, own=zero)
    checkpoint.read(path).assert_consumed()
    assert checkpoint.a is target["c"] and checkpoint.a.tolist() == [1.0] * 3
    assert not checkpoint.a.flags.writeable and checkpoint.a.dtype == np.float32
    assert checkpoint.own.tolist() == [2.0] * 3
    assert zero.tolist() == [0.0] * 3


def test_arrays_of_numpy_texts_are_replaced(tmp_path: Path) -> None:
    path = saved(tmp_path, u=np.array([["ä", "longer"]]), s=np.array([b"a", b"longer"]))
    target = {"u": np.array([["", ""]]), "s": np.array([b"", b""])}
    ckptfmt.Checkpoint(target).read(path).assert_consumed()
    assert target["u"].tolist() == [["ä", "longer"]] and target["u"].dtype.kind == "U"
    assert target["s"].tolist() == [b"a", b"longer"] and target["s"].dtype.kind == "S"
    assert target["u"].flags.writeable
    if hasattr(np.dtypes, "StringDType"):  # NumPy 2
        kind = np.dtypes.StringDType()
        ckptfmt.Checkpoint({"t": np.array(["ä", "x" * 300], kind)}).write(tmp_path / "t")
        target = {"t": np.array(["", ""], kind)}
        ckptfmt.Checkpoint(target).read(tmp_path / "t").assert_consumed()
        assert target["t"].tolist() == ["ä", "x" * 300] and target["t"].dtype == kind


def test_a_value_that_nothing_can_replace(tmp_path: Path) -> None:
    path = saved(tmp_path, Given(n=1, w=np.ones(1)))
    target = Given(n=0, w=np.zeros(1))
    message = "is a value that cannot be replaced: a Given has no attribute 'n'"
    with pytest.raises(ckptfmt.InvalidError, match=message) as caught:
        ckptfmt.Checkpoint(target).read(path)
    assert caught.value.tensor == "n/.ATTRIBUTES/VARIABLE_VALUE"
    assert target.children["w"].tolist() == [0.0]

    for root in ((1, 2), 3, Frozen(1.0, 2)):
        with pytest.raises(ckptfmt.InvalidError, match=f"root must not be a {type(root).__name__}"):
            ckptfmt.Checkpoint(root)


def test_children_that_are_attributes_as_well_can_be_replaced(tmp_path: Path) -> None:
    class Open(Given):
        n = 0

    path = saved(tmp_path, Open(n=3))
    target = Open(n=0)
    ckptfmt.Checkpoint(target).read(path).assert_existing_objects_matched()
    assert target.n == 3


# ---- Trackable -----------------------------------------------------------------------------------


def test_untracked_attributes_are_neither_saved_nor_filled(tmp_path: Path) -> None:
    module = Module(w=np.ones(1), cache=object())
    other: Any = ckptfmt.Trackable()
    other.untracked = "view"  # one name, not its letters
    other.w, other.vi, other.view = np.ones(1), 1, object()
    path = saved(tmp_path, m=module, n=other)
    with ckptfmt.open(path) as reader:
        names = [key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for key in reader]
    assert [name for name in names if name[:2] in ("m/", "n/")] == ["m/w", "n/vi", "n/w"]


def test_attributes_in_slots_are_saved_as_well(tmp_path: Path) -> None:
    class Base(ckptfmt.Trackable):
        __slots__ = ("a", "cache")
        untracked = ("cache",)

    class Slotted(Base):
        __slots__ = ("__b", "late")

        def __init__(self, value: float) -> None:
            self.free = np.full(1, value)
            self.a, self.__b, self.cache = np.full(2, value), value, object()

        @property
        def b(self) -> float:
            return self.__b

    path = saved(tmp_path, m=Slotted(1.0))
    with ckptfmt.open(path) as reader:
        names = [key.split("/")[1] for key in reader if key.startswith("m/")]
    assert names == ["_Slotted__b", "a", "free"]
    module = Slotted(0.0)
    ckptfmt.Checkpoint(m=module).read(path).assert_consumed()
    assert module.a.tolist() == [1, 1] and module.b == 1 and module.free.tolist() == [1]


def test_nothing_is_kept_of_what_is_gone(tmp_path: Path) -> None:
    path = saved(tmp_path, m=Module(w=np.ones(1)))
    module: Any = Module()
    checkpoint = ckptfmt.Checkpoint(m=module)
    checkpoint.read(path, partial=True)
    key = id(module)
    assert key in waiting._found
    del checkpoint, module
    gc.collect()
    assert key not in waiting._found
