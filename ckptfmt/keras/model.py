# SPDX-License-Identifier: Apache-2.0
"""The variables of a Keras model, and the names that checkpoints have for them.

What belongs to a model is what Keras itself saves: its `weights`, and the variables of its
optimizer. Metrics are left out; the states of random seed generators are optional.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.saving.saving_lib import _walk_saveable
from numpy.typing import NDArray

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import invalid, wrong
from ckptfmt.errors import InvalidError
from ckptfmt.objects.nodes import Slot, TreeNode
from ckptfmt.objects.traversal import View

OPTIMIZER = "optimizer"

# Names in the optimizers of Keras 2 before 2.11, which had slot variables.
LEGACY_NAMES = {"_iterations": "iter", "_learning_rate": "learning_rate"}
LEGACY_SLOTS = {
    "_momentums": ("m", "momentum"),
    "momentums": ("momentum",),
    "_velocities": ("v", "rms"),
    "_velocity_hats": ("vhat",),
    "_average_gradients": ("mg",),
    "_accumulators": ("accumulator",),
    "_linears": ("linear",),
    "_accumulated_grads": ("accum_grad",),
    "_accumulated_delta_vars": ("accum_var",),
    "_m": ("m",),
    "_u": ("v",),
}


# ---- one variable --------------------------------------------------------------------------------


class Value:
    """A variable as an array, which is converted when it is saved.

    Attributes:
        is_counter: whether the backend chooses the width of its integers, as of a step, a seed or
            the count of a Normalization layer.
            It is saved as TensorFlow has it, int64.
        is_seed: whether it is the state of a random seed generator.
    """

    def __init__(self, variable: Any, owner: Any) -> None:
        self.variable = variable
        self.is_seed = isinstance(owner, keras.random.SeedGenerator)
        own = dtypes.numpy_dtype(dtypes.code_of(str(variable.dtype)))
        assert own is not None
        self.is_counter = is_counter(own, owner)
        self.dtype = np.dtype(np.int64) if self.is_counter else own
        self.shape = tuple(variable.shape)
        self.name: str = variable.path
        if isinstance(owner, keras.optimizers.Optimizer) and "/" not in self.name:
            self.name = f"{owner.name}/{re.sub(r'_[0-9]+$', '', self.name)}"  # Nadam: "variable_5"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array: NDArray[Any] = keras.ops.convert_to_numpy(self.variable)
        if self.is_counter and array.dtype.itemsize < 8:
            array = array.astype(np.uint32)  # torch has the bits of a seed as int32
        return array.astype(self.dtype, copy=False)

    def assign(self, array: NDArray[Any]) -> None:
        """Store an array of this shape and dtype in the variable."""
        own = str(self.variable.dtype)
        if self.is_counter and own != "int64":
            array = (array & 0xFFFFFFFF).astype(np.uint32).astype(own)
        self.variable.assign(array)


def is_counter(dtype: np.dtype[Any], owner: Any) -> bool:
    """Return whether the backend chooses the width of this variable's integers."""
    return dtype.kind in "iu" and isinstance(owner, _COUNTING)


_COUNTING = (
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
    keras.layers.Normalization,
)


# ---- the objects of a model ----------------------------------------------------------------------


class Objects:
    """A model as a tree of dicts whose leaves are its variables; an object found twice is one dict.

    Args:
        model: a model that is built.
        optimizer: whether its optimizer belongs to it.
        seeds: whether the states of its random seed generators do.
        saving: whether optimizers list all their variables and those of the model. These lists
            repeat what has a name of its own, in an order that depends on the version of Keras.
        instead: the optimizer to take for that of the model.

    Attributes:
        values: the variables by identity.
        tree: the model.
        optimizer: its optimizer; None without one.
    """

    def __init__(
        self,
        model: Any,
        *,
        optimizer: bool,
        seeds: bool = True,
        saving: bool = False,
        instead: Any = None,
    ) -> None:
        if not isinstance(model, keras.Model):
            raise wrong("model", "a keras.Model", model)
        if not model.built:
            raise invalid(
                "model", "the model has no weights yet: build it, or call it on some data"
            )
        self.values: dict[int, Value] = {}
        self._own, self._instead = getattr(model, OPTIMIZER, None), instead
        self._with_optimizer, self._seeds, self._saving = optimizer, seeds, saving
        # With the objects, so that their identities last.
        self._nodes: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._optimizers: list[tuple[Any, TreeNode]] = []
        self.tree: dict[str, Any] = self._of(model, None)
        lost = [one for one in model.weights if id(one) not in self.values]
        if lost:  # no attribute leads to them
            numbered = {str(index): self._of(one, None) for index, one in enumerate(lost)}
            self.tree["variables"] = numbered
        if seeds and (unnamed := [one for one in _generators(model, saving) if self._is_new(one)]):
            self.tree["seed_generators"] = self._of(unnamed, None)
        for one in self._optimizers:
            self._add_slots(*one)
        self.optimizer: Any = self.tree.get(OPTIMIZER) if optimizer else None

    def _is_new(self, generator: Any) -> bool:
        return id(generator.state) not in self.values

    def _of(self, thing: Any, owner: Any) -> Any:
        """Return a variable as a Value, what can contain variables as a dict, else None."""
        if isinstance(thing, keras.Variable):
            return self.values.setdefault(id(thing), Value(thing, owner))
        if isinstance(thing, (list, tuple)):
            thing = {str(index): item for index, item in enumerate(thing)}
        if isinstance(thing, dict):
            named = [(name, item) for name, item in thing.items() if isinstance(name, str)]
            return self._node(thing, named, owner) or None
        if isinstance(thing, keras.random.SeedGenerator):
            return self._node(thing, [("state", thing.state)], thing) if self._seeds else None
        if isinstance(thing, keras.optimizers.Optimizer):
            return self._of_optimizer(thing) if self._with_optimizer else None
        is_other = isinstance(thing, (keras.metrics.Metric, keras.losses.Loss))
        if is_other or not isinstance(thing, KerasSaveable):
            return None
        return self._node(thing, _layer_children(thing), thing)

    def has_other_optimizers(self) -> bool:
        """Return whether an optimizer is built that is not the model's."""
        found = (
            one for one, _ in self._nodes.values() if isinstance(one, keras.optimizers.Optimizer)
        )
        return any(one is not self._own and one.built for one in found)

    def _of_optimizer(self, optimizer: Any) -> dict[str, Any]:
        if optimizer is self._own and self._instead is not None:
            optimizer = self._instead
        children = list(_optimizer_children(optimizer))
        every = optimizer.variables
        if self._saving:
            trainable = getattr(optimizer, "_trainable_variables", [])
            children = [("_variables", every), ("_trainable_variables", trainable), *children]
        node = self._node(optimizer, children, optimizer)
        if self._saving:
            return node
        rest = {str(i): one for i, one in enumerate(every) if id(one) not in self.values}
        if rest:  # no attribute leads to them
            node["_variables"] = self._of(rest, optimizer)
        # As the optimizers of Keras 2 before 2.11 have them.
        aliases = {new: node[name] for name, new in LEGACY_NAMES.items() if name in node}
        found = TreeNode({**node, **aliases})
        self._optimizers.append((optimizer, found))
        return found

    def _add_slots(self, optimizer: Any, node: TreeNode) -> None:
        variables = getattr(optimizer, "_trainable_variables", [])
        node.slots = [
            Slot(self.values[id(variable)], slot, node[name][str(index)])
            for name, names in LEGACY_SLOTS.items()
            for index, variable in enumerate(variables)
            if id(variable) in self.values  # quantize() makes others
            for slot in (names if str(index) in node.get(name, ()) else ())
        ]

    def below(self, name: str | None) -> dict[str, Any]:
        """Return the tree of a checkpoint that has the model under this name, or as its root."""
        if name is None:
            return self.tree
        beside = {} if self.optimizer is None else {OPTIMIZER: self.optimizer}
        return {name: self.tree, **beside}

    def leaves(self, name: str | None) -> Iterator[tuple[str, Value]]:
        """Yield the variables with their paths in such a checkpoint."""
        for local in View(self.below(name)).walk().objects:
            if isinstance(local.value, Value):
                yield str(local), local.value

    def by_path(self) -> dict[str, Value]:
        """Return the variables by their own paths.

        Raises:
            InvalidError: two have one path.
        """
        found: dict[str, Value] = {}
        for _, value in self.leaves("model"):
            if found.setdefault(value.name, value) is not value:
                raise InvalidError(
                    "two variables have this path: use by='graph', or give layers names",
                    tensor=value.name,
                )
        return found

    def _node(self, thing: Any, children: Iterable[tuple[str, Any]], owner: Any) -> dict[str, Any]:
        known = self._nodes.get(id(thing))
        if known is not None:
            return known[1]
        node: dict[str, Any] = {}
        self._nodes[id(thing)] = thing, node
        for name, child in children:
            found = self._of(child, owner)
            if found is not None:
                node.setdefault(name, found)
        return node


def _generators(model: Any, saving: bool) -> Iterator[Any]:
    """Yield the seed generators of all layers.

    Raises:
        InvalidError: `saving`, and one has its state in another framework.
    """
    for layer in model._flatten_layers():
        others = getattr(layer, "_backend_generators", {}).values()  # in a tf.data pipeline
        for generator in (*layer._seed_generators, *others):
            if isinstance(generator.state, keras.Variable):
                yield generator
            elif saving:
                raise InvalidError(
                    f"seeds=True cannot save a generator of layer {layer.name!r}: the layer was"
                    " called in a tf.data pipeline, which draws ahead of the training. Use another"
                    " layer there than in the model, or seeds=False"
                )


def _layer_children(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the children of a layer or model under all names that a checkpoint may have for
    them, those of Keras 2 first."""
    kind = layer._obj_type()
    if kind in ("Functional", "Sequential"):
        weighted = 0
        for index, one in enumerate(layer.layers):
            if one.weights:
                yield f"layer_with_weights-{weighted}", one
                weighted += 1
            yield f"layer-{index}", one
        functional = layer._functional if kind == "Sequential" else layer
        if functional is not None:
            operations = {"_operations": functional.operations}
            yield from [("_functional", operations)] if kind == "Sequential" else operations.items()
    for name, child in _walk_saveable(layer):
        # A property that lists layers repeats attributes.
        listed = isinstance(child, (list, tuple, dict)) and kind == "Layer"
        if not (listed and isinstance(inspect.getattr_static(layer, name, None), property)):
            yield name, child
    if isinstance(layer, (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)):
        yield "depthwise_kernel", layer.kernel  # as Keras 2 has it


def _optimizer_children(optimizer: Any) -> Iterator[tuple[str, Any]]:
    yield "_iterations", optimizer.iterations
    yield "_learning_rate", optimizer._learning_rate
    yield from ((name, child) for name, child in _walk_saveable(optimizer) if name != "variables")
