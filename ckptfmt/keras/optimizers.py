# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a model beside one of a checkpoint: whose state each of its elements is.

Optimizers of Keras 2.11 and later have lists with an element for each trainable variable, in the
order in which the layers were made. A checkpoint says by edges, or by names, which variables these
are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from ckptfmt.bundle.graph import VARIABLE_VALUE, ObjectGraph
from ckptfmt.errors import InvalidError
from ckptfmt.keras.model import OPTIMIZER, Value
from ckptfmt.keras.pairing import Pairing

# The name in the metadata of a checkpoint for the class of the optimizer.
CLASS = "ckptfmt.keras.optimizer"
# Lists that are not in the order of the trainable variables, or are that order.
_ALL, _TRAINED = "_variables", "_trainable_variables"


def class_of(optimizer: Any) -> str:
    """Return the class of an optimizer, with that of the one in it."""
    inner = getattr(optimizer, "inner_optimizer", None)
    own = type(optimizer).__name__
    return own if inner is None else f"{own}({class_of(inner)})"


def class_by_name(name: str) -> str | None:
    """Return the class whose optimizers Keras gives this name, in lower case: "adamw" for
    "adam_w_1" (Keras 3) and "AdamW" (Keras 2); None for other names."""
    plain = re.sub(r"_\d+$", "", name).replace("_", "").lower()
    kinds = (one.lower() for one, kind in vars(keras.optimizers).items() if inspect.isclass(kind))
    return plain if plain in kinds else None


def _copied(optimizer: Any) -> Any:
    """Return a copy of an optimizer that is not built; None if its configuration is not known to
    say all."""
    if not type(optimizer).__module__.startswith("keras."):
        return None
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except Exception:  # Keras raises various ones for functions and schedules of the user
        return None


class OwnOptimizer:
    """The optimizer of a model that takes the state of a stored one. If it is one of Keras and not
    built, a copy of it is, so that an error leaves it as it is.

    Args:
        model: the model.
        wanted: whether the state is loaded.

    Attributes:
        optimizer: the optimizer, or its copy; None if no state is loaded.
        is_new: whether it is a copy.
    """

    def __init__(self, model: Any, wanted: bool) -> None:
        self._model = model
        optimizer = getattr(model, OPTIMIZER, None) if wanted else None
        copy = _copied(optimizer) if optimizer is not None and not optimizer.built else None
        self.is_new = copy is not None
        self.optimizer: Any = optimizer if copy is None else copy
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)

    def is_of_class(
        self,
        metadata: Mapping[str, Any],
        names: Iterable[tuple[str, str]] = (),
        path: str = "",
        strict: bool = False,
    ) -> bool:
        """Return whether it is of the class of the stored optimizer, as far as that is known.

        Args:
            metadata: of the checkpoint; `save_weights` stores the class.
            names: for checkpoints without that, the names of the optimizers of the model and of
                the stored ones: those that Keras gives to two classes say that these differ.
            path: of the checkpoint, for the error.
            strict: whether another class is an error.

        Raises:
            InvalidError: `strict`, and it is of another class.
        """
        own: str | None = class_of(self.optimizer)
        stored = metadata.get(CLASS)
        if not isinstance(stored, str):
            pairs = [(class_by_name(one), class_by_name(other)) for one, other in names]
            differing = (pair for pair in pairs if None not in pair and pair[0] != pair[1])
            own, stored = next(differing, (None, None))
        if strict and stored != own:
            raise InvalidError(
                f"the optimizer of the checkpoint is {stored} and that of the model {own}: compile "
                "the model with the former, or load with optimizer=False",
                path=path,
            )
        return stored == own

    def join(self, pairing: Pairing, values: Iterable[tuple[str, Value]]) -> None:
        """Let a pairing load the state whole or not at all.

        Args:
            pairing: of the model and the optimizer.
            values: the variables with their places in it.
        """
        variables = [] if self.optimizer is None else self.optimizer.variables
        numbers = {id(one): number for number, one in enumerate(variables)}
        own = [
            (place, value, numbers[id(value.variable)])
            for place, value in values
            if id(value.variable) in numbers
        ]
        pairing.together = frozenset(place for place, _, _ in own)
        if not self.is_new:
            return

        def begin() -> None:
            for _, value, _ in own:
                value.variable = None
            variables.clear()
            built = self.build()
            for _, value, number in own:
                value.variable = built.variables[number]

        pairing.begin = begin

    def build(self) -> Any:
        """Build and return the optimizer of the model."""
        self.optimizer = None  # the copy goes before the memory is taken again
        optimizer = self._model.optimizer
        if self.is_new:
            optimizer.build(self._model.trainable_variables)
        return optimizer


# ---- the order of its lists ----------------------------------------------------------------------


def give_order(graph: ObjectGraph, node: int, optimizer: Any, owners: Mapping[int, int]) -> None:
    """Give the lists of a stored optimizer the order that the optimizer of the model has.

    Args:
        graph: the object graph, which is changed.
        node: the stored optimizer.
        optimizer: the one of the model, built.
        owners: the identities of the variables of the model by the nodes that they take.
    """
    # A node that is found twice is changed once.
    for stored, own in dict(_optimizers(graph, node, optimizer)).items():
        lists = dict(graph.nodes[stored].children)
        trained = dict(graph.nodes[lists[_TRAINED]].children) if _TRAINED in lists else {}
        names = {} if trained else _names(graph)
        places = {id(one): index for index, one in enumerate(getattr(own, _TRAINED, ()))}
        moved = {text: places.get(owners.get(one, 0)) for text, one in trained.items()}
        is_same = all(str(place) == text for text, place in moved.items())
        if _ALL in lists and not is_same:
            # Only what no other list has is taken from here, by its place.
            expected = {str(index): one.name for index, one in enumerate(own.variables)}
            every = graph.nodes[lists[_ALL]]
            every.children = [
                (text, one)
                for text, one in every.children
                if _full_name(graph, one).rpartition("/")[2] == expected.get(text)
            ]
        for child in {child for name, child in lists.items() if name not in (_ALL, _TRAINED)}:
            ordered = []
            for text, one in graph.nodes[child].children:
                if not text.isdecimal() or not _full_name(graph, one):
                    break  # it is not a list of variables
                if not trained:
                    place = places.get(owners.get(_named_after(names, graph, one), 0))
                else:
                    place = moved.get(text)
                ordered.append((f"{text} of no variable" if place is None else str(place), one))
            else:
                graph.nodes[child].children = ordered


def _optimizers(graph: ObjectGraph, node: int, own: Any) -> Iterator[tuple[int, Any]]:
    """Yield a stored optimizer and those in it, with those of the model of the same names."""
    yield node, own
    for name, child in graph.nodes[node].children:
        inner = getattr(own, name, None)
        if isinstance(inner, keras.optimizers.Optimizer):
            yield from _optimizers(graph, child, inner)
        elif isinstance(inner, (list, tuple)):
            numbered = {str(index): one for index, one in enumerate(inner)}
            for text, below in graph.nodes[child].children:
                if isinstance(numbered.get(text), keras.optimizers.Optimizer):
                    yield from _optimizers(graph, below, numbered[text])


def _full_name(graph: ObjectGraph, node: int) -> str:
    every = graph.nodes[node].attributes
    return next((one.full_name for one in every if one.name == VARIABLE_VALUE), "")


def _names(graph: ObjectGraph) -> dict[str, list[int]]:
    """Return the nodes by the full names of their variables."""
    found: dict[str, list[int]] = {}
    for node in range(len(graph.nodes)):
        found.setdefault(_full_name(graph, node).replace("/", "_"), []).append(node)
    return found


def _named_after(names: Mapping[str, list[int]], graph: ObjectGraph, element: int) -> int:
    """Return the variable that an element of an optimizer of Keras 2 is named after, as
    "m/dense/kernel" after "dense/kernel"; -1 unless exactly one fits."""
    name = _full_name(graph, element).replace("/", "_")
    ends = (name[at + 1 :] for at, one in enumerate(name) if one == "_")
    nodes = next((names[end] for end in ends if end in names), [])
    return nodes[0] if len(nodes) == 1 else -1
