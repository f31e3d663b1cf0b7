# SPDX-License-Identifier: Apache-2.0
"""Pytrees of JAX in one process with 8 devices. Several processes: test_jax_ranks.py."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from support.pages import run_page
from support.strategies import property_test

import ckptfmt
import ckptfmt.jax
from ckptfmt import InvalidError, TensorNotFoundError, _core
from ckptfmt.sharded.coordinator import SingleProcess

DTYPES = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"),
    *("bfloat16", "complex64", "int2", "uint2", "int4", "uint4", "float4_e2m1fn"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"),
]
# Dtypes of JAX that the format does not have.
OTHER_DTYPES = ["float8_e3m4", "float8_e4m3", "float8_e8m0fnu"]


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    return jax.sharding.Mesh(devices, [f"axis{number}" for number in range(len(sizes))])


def on(mesh: jax.sharding.Mesh, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec))


def check(found: Any, wanted: Any) -> None:
    """The two pytrees have the same structure, types, placement and elements."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    pairs = zip(
        jax.tree_util.tree_flatten_with_path(found)[0], jax.tree.leaves(wanted), strict=True
    )
    for (path, first), second in pairs:
        one, other = first, second
        assert type(one) is type(other), path
        if isinstance(one, jax.Array):
            assert one.dtype == other.dtype, path
            assert one.sharding == other.sharding, path
            assert one.committed == other.committed, path
            if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
                assert jax.random.key_impl(one) == jax.random.key_impl(other), path
                one, other = jax.random.key_data(one), jax.random.key_data(other)
            assert one.weak_type == other.weak_type, path
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        if one.dtype.kind in "SUO":
            assert one.tolist() == other.tolist(), path
        else:
            assert one.tobytes() == other.tobytes(), path


def saved(path: Path, pytree: Any, **options: Any) -> Path:
    ckptfmt.jax.save(path / "checkpoint", pytree, **options)
    return path / "checkpoint"


def both_ways(path: Path, pytree: Any) -> list[str]:
    """Save and load; return the names."""
    check(ckptfmt.jax.load(saved(path, pytree), pytree), pytree)
    with ckptfmt.open(path / "checkpoint") as reader:
        return list(reader)


# ---- structures ----------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    x: Any
    y: Any


@flax.struct.dataclass
class Trained:
    params: Any
    opt: Any
    step: int
    name: str = flax.struct.field(pytree_node=False, default="run")


def test_structures(tmp_path: Path) -> None:
    array = jnp.arange(6.0).reshape(2, 3)
    pytree = {
        "pair": Pair(array, None),
        "point": Point([array, (array, 2)], {}),
        "numbers": {1: array, 20: {3: array}},
        "ordered": collections.OrderedDict(z=array, a=array),
        "state": Trained({"w": array}, (), 5),
        "none": None,
        "empty": [(), {}, None],
    }
    assert both_ways(tmp_path, pytree) == [
        *("numbers/1", "numbers/20/3", "ordered/a", "ordered/z", "pair/first", "point/x/0"),
        *("point/x/1/0", "point/x/1/1", "state/params/w", "state/step"),
    ]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = [st.text(max_size=3), st.integers(), st.tuples(st.integers(0, 9), st.text(max_size=1))]
    dicts = [st.dictionaries(one, inner, max_size=12) for one in keys]
    several = st.lists(inner, max_size=12)
    return st.one_of(*dicts, several, several.map(tuple))


SIMPLE_LEAVES = st.sampled_from(
    [
        *(jnp.arange(3), jnp.ones((2, 1), jnp.bfloat16), jax.random.key(3), None, 3, -0.5, True),
        *(2j, "texté", b"\0\xff", np.float32(2), np.arange(2, dtype=np.int64)),
        jax.random.split(jax.random.key(1, impl="rbg"), 2),
    ]
)
TREES = nested(st.recursive(SIMPLE_LEAVES, nested, max_leaves=15))


@property_test(25, 1000, tree=TREES)
def test_drawn_trees_come_back_without_a_structure(
    tmp_path_factory: pytest.TempPathFactory, tree: Any
) -> None:
    path = saved(tmp_path_factory.mktemp("tree"), tree)
    check(ckptfmt.jax.load(path), tree)
    assert jax.tree.structure(ckptfmt.load_tree(path)) == jax.tree.structure(tree)
    ckptfmt.jax.save(path, tree, level="v2")
    bare, without = ckptfmt.load(path), jax.tree.leaves(ckptfmt.jax.load(path))
    assert len(without) == len(bare) == len(jax.tree.leaves(tree))


def test_structures_after_edits_and_choices(tmp_path: Path) -> None:
    """Names say where tensors are; what is noted, of what kind the containers are."""
    array = jnp.arange(6.0)
    layers = [{"w": array}] * 12
    pytree = {"layers": layers, "opt": (optax.adam(0.1).init(array), None), "numbers": {7: 1}}
    path = saved(tmp_path, pytree)
    found = ckptfmt.jax.load(path, filter="layers/1*", cast={"*/10/*": "float16"})
    assert [*found] == ["layers"]
    kinds = [one and one["w"].dtype.name for one in found["layers"]]
    assert kinds == [None, "float32", *[None] * 8, "float16", "float32"]
    rename = {"layers/3/w": "layers/3/kernel", "numbers/7": "numbers/x"}
    ckptfmt.editing.edit(path, path.with_name("b"), rename=rename, strip_optimizer=True)
    found = ckptfmt.load_tree(path.with_name("b"))
    assert [*found] == ["layers", "numbers"]
    assert [[*one] for one in found["layers"]] == [[["w"], ["kernel"]][i == 3] for i in range(12)]
    assert found["numbers"] == {"x": 1}
    ckptfmt.jax.save(tmp_path / "other", {"more": [array]})
    merged = [path.with_name("b"), tmp_path / "other"]
    ckptfmt.merge(merged, tmp_path / "merged", metadata_from=merged[0])
    found = ckptfmt.jax.load(tmp_path / "merged")
    assert (len(found["layers"]), [*found["more"]]) == (12, ["0"])
    ckptfmt.save(tmp_path / "c", {f"{at}/w": np.ones(1) for at in range(12)}, level="v2")
    assert [*ckptfmt.load_tree(tmp_path / "c")] == [str(at) for at in range(12)]
    sharded = ckptfmt.jax.load(path, names=["layers/0/w"], sharding=on(mesh_of(2), "axis0"))
    assert sharded["layers"][0]["w"].sharding == on(mesh_of(2), "axis0")


@pytest.mark.parametrize(
    ("text", "kind", "failure"),
    [
        ('{"version":2,"state":[]}', ckptfmt.UnsupportedError, None),
        ('{"version":1,"state":{"$new":1}}', ckptfmt.UnsupportedError, None),
        ("[" * 100_000, ckptfmt.CorruptError, "BAD_ENTRY"),
        (
            '{"version":1,"state":{"$dict":[[{"$tensor":true},1]]}}',
            ckptfmt.CorruptError,
            "BAD_ENTRY",
        ),
        ('{"version":1}', ckptfmt.CorruptError, "BAD_ENTRY"),
    ],
)
def test_damaged_structures(tmp_path: Path, text: str, kind: Any, failure: str | None) -> None:
    path = tmp_path / "checkpoint"
    ckptfmt.save(path, {"w": np.ones(2)}, metadata={"ckptfmt.jax": text})
    for load in (ckptfmt.load_tree, ckptfmt.jax.load):
        with pytest.raises(kind) as error:
            load(path)
        assert (error.value.path, failure) == (str(path), failure and error.value.failure)


def test_a_leaf_alone_and_nothing(tmp_path: Path) -> None:
    assert both_ways(tmp_path / "leaf", jnp.ones(3)) == ["value"]
    assert both_ways(tmp_path / "nothing", {}) == []


def test_keys_with_slashes_do_not_collide(tmp_path: Path) -> None:
    pytree = {"a/b": 1, "a": {"b": 2, "": 3}, "a%2Fb": 4, "%": 5, "": {"b": 6}, "é ": 7}
    assert len(both_ways(tmp_path, pytree)) == 7


class Unordered(dict):  # type: ignore[type-arg]
    """A dict whose keys are of several types, which JAX cannot sort."""


jax.tree_util.register_pytree_with_keys(
    Unordered,
    lambda one: ([(jax.tree_util.DictKey(key), one[key]) for key in one], tuple(one)),
    lambda keys, values: Unordered(zip(keys, values, strict=True)),
)


def test_equal_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"tensor 'a/1': two leaves of the pytree have"):
        saved(tmp_path, {"a": Unordered({1: 0, "1": 0})})


def test_training_states(tmp_path: Path) -> None:
    params = {"dense": {"kernel": jnp.ones((4, 2), jnp.bfloat16), "bias": jnp.zeros(2)}}
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.inject_hyperparams(optax.adamw)(learning_rate=optax.linear_schedule(1.0, 0.0, 10)),
    )
    state = {"params": params, "opt": optimizer.init(params), "rng": jax.random.key(7)}
    names = both_ways(tmp_path / "optax", state)
    assert {"params/dense/kernel", "rng", "opt/1/inner_state/0/mu/dense/bias"} <= set(names)
    like = jax.eval_shape(lambda: {**state, "opt": optimizer.init(params)})
    check(ckptfmt.jax.load(tmp_path / "optax" / "checkpoint", like), state)


def test_optimizer_states_are_in_the_metadata(tmp_path: Path) -> None:
    """Whatever their names are; an average may be of weights, and so may a class of others."""
    params = {"kernel": jnp.ones((4, 2)), "optimizer": jnp.zeros(2)}
    average = optax.ema(0.9)
    state = {
        "params": params,
        "a": optax.MultiSteps(optax.adamw(0.1), 2).init(params),
        "b/c": optax.chain(optax.trace(0.9), optax.scale(2.0)).init(params),
        "average": average.init(params),
    }
    ckptfmt.jax.save(tmp_path / "a", state, metadata={"step": 3})
    done = ckptfmt.editing.edit(tmp_path / "a", tmp_path / "b", strip_optimizer=True)
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader.metadata == {
            "ckptfmt.optimizer_states": ["a", "b%2Fc/0"],
            "ckptfmt.jax": ckptfmt.jax.pytrees.structure_of(state),
            "step": 3,
        }
    check(ckptfmt.jax.load(tmp_path / "b", {"params": params}, strict=False), {"params": params})
    left = set(ckptfmt.load(tmp_path / "b"))
    assert {name.partition("/")[0] for name in left} == {"params", "average"}
    assert len(done.dropped) == 11
    ckptfmt.jax.save(tmp_path / "c", optax.adam(0.1).init(params))
    with pytest.raises(InvalidError, match="no weight would be left"):
        ckptfmt.editing.edit(tmp_path / "c", tmp_path / "d", strip_optimizer=True)


def test_renamed_states_and_keys(tmp_path: Path) -> None:
    """The metadata follow the names."""
    params, key = {"kernel": jnp.ones((4, 2))}, jax.random.key(0, impl="rbg")
    state = optax.adam(0.1).init(params)
    ckptfmt.jax.save(tmp_path / "a", {"params": params, "opt": state, "key": key})
    ckptfmt.editing.edit(
        tmp_path / "a", tmp_path / "b", rename=[("^opt/", "state/"), ("^key$", "rng")]
    )
    renamed = {"params": params, "state": state, "rng": key}
    check(ckptfmt.jax.load(tmp_path / "b", renamed), renamed)
    with pytest.raises(InvalidError, match="PRNG keys of rbg"):
        ckptfmt.jax.load(tmp_path / "b", {**renamed, "rng": jax.random.key(0)})
    ckptfmt.editing.edit(tmp_path / "b", tmp_path / "c", strip_optimizer=True)
    del renamed["state"]
    check(ckptfmt.jax.load(tmp_path / "c", renamed), renamed)


def test_nnx(tmp_path: Path) -> None:
    def model(seed: int) -> nnx.Module:
        rngs = nnx.Rngs(seed)
        return nnx.Sequential(
            nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        )

    one, other = model(1), model(2)
    both_ways(tmp_path, nnx.state(one))
    nnx.update(other, ckptfmt.jax.load(tmp_path / "checkpoint", nnx.state(other)))
    abstract = nnx.state(nnx.eval_shape(lambda: model(3)))
    check(ckptfmt.jax.load(tmp_path / "checkpoint", abstract), nnx.state(one))
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(one(x), other(x))


# ---- leaves --------------------------------------------------------------------------------------


def test_dtypes(tmp_path: Path) -> None:
    mesh = mesh_of(2, 4)
    bits = np.arange(8).reshape(2, 4) % 2
    arrays = {dtype: bits.astype(jnp.dtype(dtype)) for dtype in DTYPES}
    pytree = {
        "whole": jax.device_put(arrays),
        "sharded": jax.device_put(arrays, on(mesh, "axis0", "axis1")),
        "scalar": jax.device_put({dtype: array[1, 1:2][0] for dtype, array in arrays.items()}),
        "empty": jax.device_put({dtype: array[:0] for dtype, array in arrays.items()}),
    }
    both_ways(tmp_path, pytree)
    ckptfmt.save(tmp_path / "plain", pytree["whole"])
    for dtype, array in ckptfmt.load(tmp_path / "plain").items():
        assert array.dtype == dtype and np.array_equal(array, arrays[dtype])
    for dtype in OTHER_DTYPES:
        with pytest.raises(InvalidError, match=rf"tensor 'w': dtype {dtype} cannot be stored"):
            saved(tmp_path, {"w": jax.device_put(np.zeros(2, jnp.dtype(dtype)))})


def test_other_leaves(tmp_path: Path) -> None:
    pytree = {
        "int": -(2**62),
        "float": 0.1,
        "bool": True,
        "complex": 1 - 2j,
        "str": "text ü \udcff",
        "bytes": b"\0\xff",
        "numpy": np.arange(6.0).reshape(2, 3).T,
        "swapped": np.arange(3, dtype="<i8"),
        "numpy scalar": np.float64(0.1),
        "weak": jnp.asarray(0.5),
        "strong": jnp.float32(0.5),
    }
    both_ways(tmp_path, pytree)


def test_leaves_of_other_frameworks(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": torch.arange(3.0)})
    check(ckptfmt.jax.load(path, {"w": jnp.zeros(3)}), {"w": jnp.arange(3.0)})


def test_ints_above_63_bits(tmp_path: Path) -> None:
    ckptfmt.jax.save(tmp_path / "ck", {"n": 2**64 - 1})
    assert ckptfmt.jax.load(tmp_path / "ck") == {"n": 2**64 - 1}
    assert ckptfmt.jax.load(tmp_path / "ck", {"n": 0}) == {"n": 2**64 - 1}


def test_scalars_and_weak_types(tmp_path: Path) -> None:
    """What `jax.eval_shape` makes of a Python scalar takes what was saved of the scalar."""
    pytree = {"step": 3, "rate": 0.25, "done": False}
    path = saved(tmp_path, pytree)
    found = ckptfmt.jax.load(path, jax.eval_shape(lambda: pytree))
    check(found, jax.tree.map(jnp.asarray, pytree))
    arrays = saved(tmp_path, {"step": jnp.int32(3), "rate": jnp.float32(0.25), "done": False})
    check(ckptfmt.jax.load(arrays, pytree), pytree)
    ckptfmt.jax.save(path, {"step": 2**40})
    with pytest.raises(
        InvalidError, match=r"'step': a cast from int64 to int32 changes 1 .* 1099511627776"
    ):
        ckptfmt.jax.load(path, jax.eval_shape(lambda: {"step": 3}))
    like = {"rate": jnp.asarray(0.5)}
    for value in (np.inf, -np.inf, 3e38, 1e-300):
        ckptfmt.jax.save(path, {"rate": value})
        assert ckptfmt.jax.load(path, like)["rate"] == np.float32(value)
    ckptfmt.jax.save(path, {"rate": np.float64(1e300)})
    with pytest.raises(InvalidError, match=r"changes 1 element .* 1e\+300"):
        ckptfmt.jax.load(path, like)


@pytest.mark.parametrize("value", [np.array([1.0, 1e300]), np.ones((2, 3)), np.zeros((0, 2))])
def test_weak_arrays_take_casts(tmp_path: Path, value: Any) -> None:
    ckptfmt.jax.save(tmp_path / "ck", {"x": value})
    like = {"x": jnp.full(value.shape, 0.5)}
    if value.size == 2:
        with pytest.raises(InvalidError, match=r"changes 1 element .*at \[1\]"):
            ckptfmt.jax.load(tmp_path / "ck", like, cast=True)
        value[1] = 3
        ckptfmt.jax.save(tmp_path / "ck", {"x": value})
    found = ckptfmt.jax.load(tmp_path / "ck", like, cast=True)
    assert np.array_equal(found["x"], value.astype(np.float32))


def test_metadata_of_keys_that_are_none(tmp_path: Path) -> None:
    for number, damage in enumerate(("[[1", ["x"], 5, [["a", "b", "c"]])):
        ckptfmt.save(
            tmp_path / f"{number}", {"x": np.ones(2, "f4")}, metadata={"jax_prng_impls": damage}
        )
        with pytest.raises(ckptfmt.CorruptError):
            ckptfmt.jax.load(tmp_path / f"{number}", {"x": jnp.ones(2)})


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_prng_keys(impl: str, tmp_path: Path) -> None:
    key = jax.random.key(3, impl=impl)
    keys = jax.device_put(jax.random.split(key, 8), on(mesh_of(8), "axis0"))
    pytree = {"key": key, "keys": keys, "raw": jax.random.key_data(key)}
    both_ways(tmp_path, pytree)
    other = {"threefry2x32": "rbg"}.get(impl, "threefry2x32")
    like = {**pytree, "keys": jax.random.split(jax.random.key(0, impl=other), 8)}
    with pytest.raises(InvalidError, match=f"'keys' is PRNG keys of {impl} and not {other}"):
        ckptfmt.jax.load(tmp_path / "checkpoint", like)
    plain = saved(tmp_path, pytree, level="v2")
    check(ckptfmt.jax.load(plain, pytree), pytree)


def test_leaves_that_cannot_be_saved(tmp_path: Path) -> None:
    donated = jnp.arange(3.0)
    donated.delete()
    for leaf, message in (
        (object(), "a leaf must be an array, a Python scalar, str or bytes, not object"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "has no elements to save"),
        (donated, "the array was deleted or donated"),
        (np.zeros(2, "datetime64[s]"), "cannot be stored"),
    ):
        with pytest.raises(InvalidError, match=f"tensor 'a/w': .*{message}"):
            saved(tmp_path, {"a": {"w": leaf}})

    @jax.jit
    def step(x: Any) -> Any:
        ckptfmt.jax.save(tmp_path / "checkpoint", {"x": x})
        return x

    with pytest.raises(InvalidError, match=r"tensor 'x': .* save outside"):
        step(1.0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidError, match="not dict"):
        ckptfmt.jax.save({"w": jnp.ones(2)}, tmp_path)  # type: ignore[arg-type]


# ---- what is loaded where ------------------------------------------------------------------------


def test_placement(tmp_path: Path) -> None:
    one = jax.devices()[5]
    pytree = {
        "committed": jax.device_put(jnp.ones(2), one),
        "free": jnp.ones(2),
        "key": jax.device_put(jax.random.key(0), one),
        "weak": jax.device_put(jnp.asarray(1.5), one),
    }
    path = saved(tmp_path, pytree)
    # Nothing is read from the arrays.
    expected = jax.tree.map(jnp.copy, pytree)
    like = dict(pytree)
    like["free"] = jnp.ones(2) + 0
    like["free"].delete()
    check(ckptfmt.jax.load(path, like), expected)

    everywhere = on(mesh_of(4))
    found = ckptfmt.jax.load(path, pytree, sharding=everywhere)
    assert {leaf.sharding for leaf in found.values()} == {everywhere}
    found = ckptfmt.jax.load(path, pytree, sharding=one)
    assert {leaf.sharding for leaf in found.values()} == {SingleDeviceSharding(one)}
    chosen = {"committed": None, "free": everywhere, "key": None, "weak": one}
    found = ckptfmt.jax.load(path, pytree, sharding=chosen)
    assert found["free"].sharding == everywhere
    assert found["committed"].sharding == found["weak"].sharding == SingleDeviceSharding(one)


def test_a_sharding_that_does_not_fit(tmp_path: Path) -> None:
    """All leaves that it does not fit are in one error, and nothing is read before it."""
    pytree = {
        "kernel": jnp.ones((4, 4)),
        "bias": jnp.ones(4),
        "odd": jnp.ones((4, 7)),
        "scale": jnp.float32(1),
        "key": jax.random.key(0),
        "keys": jax.random.split(jax.random.key(0), 4),
        "numpy": np.ones(3),
        "step": 3,
    }
    path = saved(tmp_path, pytree)
    sharding = on(mesh_of(2, 2), None, "axis0")
    before = _core.counters()["bytes_read"]
    with pytest.raises(InvalidError) as raised:
        ckptfmt.jax.load(path, pytree, sharding=sharding)
    spec = f"its rank is below the 2 of {sharding.spec}"
    assert raised.value.message == (
        f"sharding does not fit these leaves: 'bias' of shape (4,): {spec}; 'key' of shape (): "
        f"{spec}; 'keys' of shape (4,): {spec}; 'odd' of shape (4, 7): {sharding.spec} divides "
        f"dimension 1 into 2 parts; 'scale' of shape (): {spec}. Give a pytree of shardings, for "
        "example with PartitionSpec() for these"
    )
    assert _core.counters()["bytes_read"] == before
    for name in ("bias", "key", "keys", "odd", "scale"):
        fits = on(mesh_of(2, 2))
        ckptfmt.jax.load(path, pytree, sharding=dict.fromkeys(pytree) | {name: fits})
        with pytest.raises(InvalidError, match=f"not fit these leaves: '{name}' of shape [^;]*$"):
            ckptfmt.jax.load(path, pytree, sharding=dict.fromkeys(pytree, fits) | {name: sharding})

    # Several axes of one dimension, a dimension of size 1, and the own shardings of leaves.
    several = on(mesh_of(2, 2), ("axis0", "axis1"))
    own = {"w": jax.ShapeDtypeStruct((6,), jnp.float32, sharding=several)}
    with pytest.raises(InvalidError, match=r"'w' of shape \(6,\): .* dimension 0 into 4 parts"):
        ckptfmt.jax.load(path, own, strict=False)
    own = {"w": jax.ShapeDtypeStruct((1,), jnp.float32, sharding=on(mesh_of(2), "axis0"))}
    with pytest.raises(InvalidError, match=r"'w' of shape \(1,\): .* dimension 0 into 2 parts"):
        ckptfmt.jax.load(path, own, strict=False)
    with pytest.raises(InvalidError, match=r"tensor 'bias': .* call jax.set_mesh"):
        abstract = NamedSharding(mesh_of(2).abstract_mesh, PartitionSpec("axis0"))
        ckptfmt.jax.load(path, {"bias": pytree["bias"]}, sharding=abstract, strict=False)


class Odd(jax.sharding.Sharding):
    """A sharding of another kind, which fails as JAX's own may."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def device_set(self) -> Any:
        return set(jax.devices()[:1])

    def shard_shape(self, global_shape: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("kind", [IndexError, ValueError, TypeError, AssertionError])
def test_errors_of_jax_name_the_leaf(
    tmp_path: Path, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytree = {"a": jnp.ones(2), "w": jnp.ones(2)}
    path = saved(tmp_path, pytree)
    with pytest.raises(InvalidError, match=r"leaves: 'w' of shape \(2,\): no such thing\. Give"):
        ckptfmt.jax.load(path, pytree, sharding={"a": None, "w": Odd(kind("no\nsuch  thing"))})

    def fails(*arguments: Any) -> Any:
        raise kind("no such memory")

    monkeypatch.setattr(jax, "make_array_from_callback", fails)
    with pytest.raises(InvalidError, match=r"tensor 'a': .*sharding.*: no such memory"):
        ckptfmt.jax.load(path, pytree, sharding=jax.devices()[0])


def test_memory_kinds(tmp_path: Path) -> None:
    pytree = {"w": jnp.ones(2)}
    path = saved(tmp_path, pytree)
    for kind in ("device", "pinned_host", "unpinned_host"):
        sharding = on(mesh_of(2), "axis0").with_memory_kind(kind)
        assert ckptfmt.jax.load(path, pytree, sharding=sharding)["w"].sharding == sharding


def test_an_abstract_mesh(tmp_path: Path) -> None:
    """`jax.eval_shape` gives shardings without devices."""
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    array = jax.device_put(jnp.arange(8.0), on(mesh, "x"))
    path, like = saved(tmp_path, {"w": array}), jax.eval_shape(lambda: {"w": array * 1})
    with pytest.raises(InvalidError, match=r"tensor 'w': .* call jax.set_mesh"):
        ckptfmt.jax.load(path, like)
    check(ckptfmt.jax.load(path, like, sharding=array.sharding), {"w": array})
    with jax.set_mesh(mesh):
        check(ckptfmt.jax.load(path, like), {"w": array})


def test_each_box_is_read_once(tmp_path: Path) -> None:
    mesh = mesh_of(2, 4)
    array = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    like = {"w": jax.device_put(array, on(mesh, "axis0"))}  # 4 replicas of each half
    path = saved(tmp_path, like)
    with ckptfmt.open(path) as reader:
        assert len(reader["w"].slices) == 2

    def read(sharding: Any) -> int:
        before = _core.counters()["bytes_read"]
        found = ckptfmt.jax.load(path, like, sharding=sharding)
        np.testing.assert_array_equal(found["w"], array)
        return int(_core.counters()["bytes_read"] - before)

    for sharding in (on(mesh), on(mesh, "axis0"), on(mesh, None, ("axis0", "axis1"))):
        assert array.nbytes <= read(sharding) < array.nbytes * 1.05


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], list[Any]]]]:
    """A shape, and two meshes with the axes of each dimension."""
    rank = draw(st.integers(0, 3))
    multiples = draw(st.lists(st.integers(0, 2), min_size=rank, max_size=rank))
    placements = []
    parts = [1] * rank
    for _ in range(2):
        sizes = draw(st.sampled_from([[1], [8], [2, 4], [4, 2], [2, 2, 2], [3, 2], [5]]))
        axes = draw(st.permutations(range(len(sizes))))
        spec: list[list[str]] = [[] for _ in range(rank)]
        for axis in axes:
            dimension = draw(st.integers(-1, rank - 1))
            if dimension >= 0:
                spec[dimension].append(f"axis{axis}")
        for dimension, chosen in enumerate(spec):
            count = math.prod(sizes[int(name[4:])] for name in chosen)
            parts[dimension] = math.lcm(parts[dimension], count)
        placements.append((sizes, [tuple(chosen) or None for chosen in spec]))
    return [size * part for size, part in zip(multiples, parts, strict=True)], placements


@property_test(25, 300, cases())
def test_any_mesh_to_any_mesh(tmp_path_factory: pytest.TempPathFactory, case: Any) -> None:
    shape, ((sizes, spec), (other_sizes, other_spec)) = case
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    pytree = {"w": jax.device_put(array, on(mesh_of(*sizes), *spec))}
    path = saved(tmp_path_factory.mktemp("any"), pytree)
    wanted = jax.device_put(array, on(mesh_of(*other_sizes), *other_spec))
    check(ckptfmt.jax.load(path, pytree, sharding=wanted.sharding), {"w": wanted})
    np.testing.assert_array_equal(ckptfmt.load(path)["w"], array)


# ---- what does not match -------------------------------------------------------------------------


def test_one_error_for_all_that_does_not_match(tmp_path: Path) -> None:
    path = saved(tmp_path, {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3), "step": 3, "more": 1})
    like = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(3, jnp.bfloat16), "steps": 0, "more": 1}
    with pytest.raises(InvalidError) as raised:
        ckptfmt.jax.load(path, like)
    for text in (
        "missing in the checkpoint (1): 'steps'",
        "unexpected in the checkpoint, without a target (1): 'step'",
        "'kernel' is (2, 3) and not (3, 2)",
        "'bias' is float32 and not bfloat16",
        "the nearest are 'step'",
    ):
        assert text in str(raised.value)
    assert raised.value.report.matched == ("more",)
    with pytest.raises(TensorNotFoundError, match="missing in the checkpoint") as raised:
        like = {"kernels": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
        ckptfmt.jax.load(path, like, strict=False)
    assert "the nearest are 'kernel'" in str(raised.value)


def test_strict_and_cast(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": jnp.ones(3), "more": jnp.ones(2)})
    like = {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
    found = ckptfmt.jax.load(path, like, strict=False, cast=True)
    check(found, {"w": jnp.ones(3, jnp.bfloat16)})


def test_64_bits(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": np.ones(3)})
    like = {"w": jax.ShapeDtypeStruct((3,), np.float64)}
    with pytest.raises(InvalidError, match=r"float64 and not float32 \(jax_enable_x64 is off\)"):
        ckptfmt.jax.load(path, like)
    with jax.enable_x64(True):
        assert ckptfmt.jax.load(path, like)["w"].dtype == np.float64


def test_wrong_leaves_of_like(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": 1})
    with pytest.raises(InvalidError, match=r"tensor 'w': a leaf of `like` must be .*, not object"):
        ckptfmt.jax.load(path, {"w": object()})
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        ckptfmt.jax.load(tmp_path / "other", {"w": 1})


# What cannot work is refused when it is given; `path` and `tree` are a checkpoint and its pytree.
WRONG: list[tuple[str, str]] = [
    ("load(path, None)", "like must be a pytree with the structure of what .* leave it out"),
    ("load(path, cast=True)", "cast must be"),
    ("load(path, path)", "not PosixPath"),
    ("load(path, str(path))", "not str"),
    ("load(tree, path)", "load(path, like): path must be .*, not dict. Are the arguments swapped"),
    ("load(tree, tree)", "load(path, like): path must be str, bytes or os.PathLike, not dict$"),
    ("load(path, tree, strict='no')", "strict must be True or False, not str"),
    ("load(path, tree, cast='text')", "'text' is not a dtype"),
    ("load(path, tree, verify='x')", "verify must be one of 'auto', 'full', 'off', not 'x'"),
    ("load(path, tree, coordinator=3)", "coordinator must be a Coordinator, not int"),
    ("load(path, tree, sharding='cpu')", "sharding must be .*, not str"),
    ("load(path, tree, sharding=0)", "sharding must be .*, not int"),
    ("load(path, tree, sharding=tree['w'])", "sharding must be .*, not ArrayImpl"),
    ("load(path, tree, sharding=np.ones(2))", "sharding must be .*, not ndarray"),
    (
        "load(path, tree, sharding=PartitionSpec())",
        "not PartitionSpec: NamedSharding.mesh, spec. makes",
    ),
    ("load(path, tree, sharding={'w': PartitionSpec()})", "NamedSharding.mesh, spec. makes one"),
    ("load(path, tree, sharding=mesh_of(2))", "not Mesh: NamedSharding.mesh, spec. makes one"),
    ("load(path, tree, sharding=jax.devices())", "sharding must be .* prefix of like: "),
    ("load(path, tree, sharding={'v': on(mesh_of(2))})", "sharding must be .* prefix of like: "),
    ("load(path, {'w': torch.ones(2)})", "tensor 'w': a leaf of `like` must be .*, not Tensor"),
    ("load(path, {'w': print})", "tensor 'w': a leaf of `like` must be .*, not builtin_function"),
    ("load(path, {'w': flax.linen.Dense(2)})", "not Dense: save the pytree that its init returns"),
    ("save(tree, path)", "save(prefix, pytree): prefix must be .*, not dict. Are the arguments"),
    ("save(path, None)", "pytree must be a pytree of arrays, not None"),
    ("save(path, path)", "pytree must be a pytree of arrays, not PosixPath"),
    ("save(path, 'text')", "pytree must be a pytree of arrays, not str"),
    (
        "save(path, print)",
        "a leaf must be an array, a Python scalar, str or bytes, not builtin_fun",
    ),
    ("save(path, {'w': flax.linen.Dense(2)})", "tensor 'w': .*: save the pytree that its init"),
    ("save(path, {'w': torch.nn.Linear(1, 1)})", "tensor 'w': .*: save it with ckptfmt.torch.save"),
    ("save(path, {'w': optax.adam(1)})", "tensor 'w/init': a leaf must be .*, not function"),
    ("save(path, tree, coordinator=3)", "coordinator must be a Coordinator, not int"),
    ("save_async(tree, path)", "save(prefix, pytree): prefix must be .*, not dict. Are the argum"),
    ("save_async(path, None)", "pytree must be a pytree of arrays, not None"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_arguments_that_cannot_work(tmp_path: Path, call: str, message: str) -> None:
    tree = {"w": jnp.ones(2)}
    path = saved(tmp_path, tree)
    stored = path.with_name("checkpoint.index").read_bytes()
    message = message.replace("(prefix, pytree)", ".prefix, pytree.")
    message = message.replace("(path, like)", ".path, like.")
    with pytest.raises(InvalidError, match=message):
        eval(f"ckptfmt.jax.{call}", {**globals(), "path": path, "tree": tree})
    assert path.with_name("checkpoint.index").read_bytes() == stored


# ---- the arrays of `like` ------------------------------------------------------------------------


def test_the_arrays_of_like_are_neither_read_nor_written(tmp_path: Path) -> None:
    mesh = mesh_of(2, 4)
    stored = {
        "own": jax.device_put(jnp.arange(8.0), on(mesh, "axis1")),
        "free": jnp.arange(4.0),
        "weak": jnp.asarray(2.5),
        "key": jax.random.key(1),
        "numpy": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(2),
    }
    path = saved(tmp_path, stored)
    like = jax.tree.map(
        lambda one: one * 0 if hasattr(one, "sharding") else one,
        {name: leaf for name, leaf in stored.items() if name != "key"},
    )
    like["key"] = jax.random.key(0)
    like["numpy"] = np.full((3, 2), 7.0).T
    before = {name: np.array(like[name]) for name in ("own", "free", "weak", "numpy")}
    aliases = {name: np.asarray(like[name]) for name in before}
    found = ckptfmt.jax.load(path, like)
    check(found, stored)
    for name, array in before.items():
        np.testing.assert_array_equal(aliases[name], array)
    assert not np.shares_memory(found["numpy"], like["numpy"])
    assert found["numpy"].flags.writeable
    frozen = {**like, "numpy": like["numpy"].copy()}
    frozen["numpy"].flags.writeable = False
    check(ckptfmt.jax.load(path, frozen), stored)
    # Their memory need not exist any more.
    for name in ("own", "free", "weak", "key"):
        like[name].delete()
    check(ckptfmt.jax.load(path, like), stored)
    check(found, stored)


# ---- saving in the background, options -----------------------------------------------------------


def test_save_async_and_donation(tmp_path: Path) -> None:
    array = jnp.arange(1000.0)
    expected = np.arange(1000.0, dtype=np.float32)
    own = np.arange(5)
    future = ckptfmt.jax.save_async(tmp_path / "checkpoint", {"w": array, "own": own})
    jax.block_until_ready(jax.jit(lambda x: x * 2, donate_argnums=0)(array))
    own += 1
    assert future.result() == str(tmp_path / "checkpoint")
    found = ckptfmt.jax.load(future, {"w": array, "own": own})
    np.testing.assert_array_equal(found["w"], expected)
    np.testing.assert_array_equal(found["own"], np.arange(5))
    (tmp_path / "file").touch()
    future = ckptfmt.jax.save_async(tmp_path / "file" / "checkpoint", {"own": own})
    with pytest.raises(ckptfmt.StorageError):
        future.result()


def test_options(tmp_path: Path) -> None:
    pytree = {"w": jnp.zeros((512, 512)), "key": jax.random.key(0)}
    path = saved(tmp_path, pytree, metadata={"step": 3}, compression="zstd", durability="none")
    with ckptfmt.open(path) as reader:
        assert reader.metadata["step"] == 3
        assert reader["w"].stored_nbytes < 10_000
    check(ckptfmt.jax.load(path, pytree, verify="full", coordinator=SingleProcess()), pytree)
    with pytest.raises(InvalidError, match="durability"):
        saved(tmp_path, pytree, durability="some")

    class Other(SingleProcess):
        rank = 1  # type: ignore[assignment]

    with pytest.raises(InvalidError, match="this is process 0 of 1 of JAX, but rank 1 of 1"):
        ckptfmt.jax.load(path, pytree, coordinator=Other())
    with pytest.raises(InvalidError, match=r"call jax.distributed.initialize first"):
        ckptfmt.jax.JaxCoordinator()


def test_other_checkpoints(tmp_path: Path) -> None:
    """Those that were not saved from a pytree, and what others read of ours."""
    arrays = {"params/dense/kernel": np.ones((2, 3), np.float32), "params/dense/bias": np.ones(3)}
    ckptfmt.save(tmp_path / "plain", arrays)
    shapes = {"kernel": jax.ShapeDtypeStruct((2, 3), "float32"), "bias": np.empty(3)}
    like = {"params": {"dense": shapes}}
    found = ckptfmt.jax.load(tmp_path / "plain", like)
    np.testing.assert_array_equal(found["params"]["dense"]["kernel"], np.ones((2, 3)))
    ckptfmt.jax.save(tmp_path / "ours", found)
    assert ckptfmt.load(tmp_path / "ours").keys() == arrays.keys()
    assert ckptfmt.load_tree(tmp_path / "ours")["params"]["dense"]["bias"].tolist() == [1, 1, 1]


def test_many_leaves_are_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptfmt.jax.checkpoint.BATCH_BYTES", 1000)
    sharding = on(mesh_of(8), "axis0")
    pytree = {
        f"{number}": jax.device_put(np.full((8, number), number, np.int32), sharding)
        for number in itertools.chain(range(20), [300])
    }
    both_ways(tmp_path, pytree)


def test_page(tmp_path: Path) -> None:
    assert "checkpoints/state" in run_page("docs/jax.md", tmp_path)


def test_leaves_in_another_byte_order_and_casts_of_scalars(tmp_path: Path) -> None:
    given = {"big": np.arange(3, dtype=">i4"), "n": np.float32(1.0), "half": np.float32(2.5)}
    ckptfmt.jax.save(tmp_path / "p", given)
    loaded = ckptfmt.jax.load(tmp_path / "p", {**given, "big": np.zeros(3, ">i4")})
    assert loaded["big"].dtype == np.dtype(">i4")
    assert loaded["big"].tolist() == [0, 1, 2]
    for wanted in (0, True):
        with pytest.raises(InvalidError, match="cast=True"):
            ckptfmt.jax.load(tmp_path / "p", {"big": given["big"], "n": wanted, "half": 0.0})
        loaded = ckptfmt.jax.load(tmp_path / "p", {**given, "n": wanted, "half": 0.0}, cast=True)
        assert (loaded["n"], type(loaded["n"]), loaded["half"]) == (
            1 if wanted == 0 else True,
            type(wanted),
            2.5,
        )
    with pytest.raises(InvalidError, match="changes 1 element"):
        ckptfmt.jax.load(tmp_path / "p", {**given, "half": 0}, cast=True)
