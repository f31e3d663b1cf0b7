# SPDX-License-Identifier: Apache-2.0
"""The layers of a checkpoint: the modules by which a report sums up its tensors.

The layer of a tensor is the module two levels above it: `h.0.attn` of `h.0.attn.c_attn.weight`. It
is the module right above it where all names begin with what is two levels above, or there would be
too few layers. Where there would be too many, layers are further above. A moment belongs to the
layer of its parameter.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ckptfmt._base.names import OBJECT_GRAPH_KEY, in_order, printable
from ckptfmt.bundle.graph import OPTIMIZER_SLOT, Node
from ckptfmt.bundle.graph_keys import key_groups
from ckptfmt.errors import CkptfmtError
from ckptfmt.naming.roles import ModelRole, model_roles
from ckptfmt.naming.states import order_of, state_of
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.report.statistics import Statistics, json_number

ROLES: tuple[ModelRole, ...] = ("weight", "optimizer", "other", "unknown")
# Layers of one role, and the fewest that are two levels above.
LAYERS_MAX, LAYERS_MIN = 400, 4
# A hostile name may have a million parts.
LEVELS_MAX = 64
# What Keras calls the layers of a model, in its order.
_LAYER = re.compile(r"layer-([0-9]{1,9})")


class Layers:
    """The layers of the tensors of a checkpoint.

    Attributes:
        people, stored: the checkpoint, and the names of its tensors.
        shown: their names as the report shows them.
        roles: of the tensors; "unknown" if the object graph is damaged.
        damage: of the object graph, or None.
        layers: name and role of each layer: by role, in the order of the model where that is
            stored, else in natural order.
        of: of each tensor the place of its layer in `layers`; None of the object graph.
        parameters: of moments, by their place in `stored`, the shown name of the parameter.
        mark: what is between the parts of names: a slash, or a dot if no name has a slash.
    """

    def __init__(self, people: TensorNames) -> None:
        self.people, self.stored = people, people.stored
        self.shown = [printable(people.shown(name)) for name in people.stored]
        self.roles: list[ModelRole] = ["unknown"] * len(people.stored)
        self.damage: str | None = None
        try:
            by_name = model_roles(people.reader)
            self.roles = [by_name[name] for name in people.stored]
        except CkptfmtError as error:
            self.damage = str(error)
        stored, shown, roles = self.stored, self.shown, self.roles
        rows: dict[ModelRole, list[int]] = {role: [] for role in ROLES}
        for row, role in enumerate(roles):
            if stored[row] != OBJECT_GRAPH_KEY:
                rows[role].append(row)
        weights = {shown[row]: row for row in rows["weight"]} if rows["optimizer"] else {}
        moments = {row: stored[row] for row in rows["optimizer"]}
        self.parameters = dict(_parameters(people, moments, shown, weights))
        self.mark = mark = "/" if any("/" in name for name in shown) else "."
        names: list[str | None] = [None] * len(stored)
        for role in ROLES:
            own = []
            for row in rows[role]:
                weight = weights.get(self.parameters[row]) if row in self.parameters else None
                if weight is None:
                    own.append(row)
                else:
                    names[row] = names[weight]
            for row, name in zip(own, _modules([shown[row] for row in own], mark), strict=True):
                names[row] = name
        self.layers = _sorted(people, stored, names, roles)
        numbers = {layer: place for place, layer in enumerate(self.layers)}
        self.of = [
            None if name is None else numbers[name, role]
            for name, role in zip(names, roles, strict=True)
        ]


class LayerSum:
    """What a report shows of a layer: sums over its tensors, and the statistics of all measured
    elements of floating point and complex tensors together."""

    def __init__(self, name: str, role: ModelRole) -> None:
        self._name, self._role, self._sampled = name, role, False
        self._tensors = self._elements = self._nbytes = 0
        self._dtypes: dict[str, int] = {}
        self._sum = Statistics()
        # How many finite elements the mean and the deviation are of; samples count as all.
        self._finite = 0.0

    def count(self, dtype: str, elements: int, nbytes: int) -> None:
        """Count a tensor."""
        self._tensors += 1
        self._elements += elements
        self._nbytes += nbytes
        self._dtypes[dtype] = self._dtypes.get(dtype, 0) + elements

    def add(self, found: Statistics, elements: int) -> None:
        """Add the statistics of a tensor, or of a sample of so many elements."""
        every = self._sum
        self._sampled = self._sampled or found.count < elements
        every.count += found.count
        every.zeros += found.zeros
        every.nans += found.nans
        every.infinite += found.infinite
        if not found.finite:
            return
        if not self._finite:
            every.low, every.high, every.mean, every.deviation = found.low, found.high, 0.0, 0.0
        more = found.finite * elements / found.count
        together = self._finite + more
        old, new = self._finite / together, more / together
        apart = (found.mean - every.mean) * math.sqrt(old * new)
        every.low, every.high = min(every.low, found.low), max(every.high, found.high)
        every.mean = every.mean * old + found.mean * new
        parts = every.deviation * math.sqrt(old), found.deviation * math.sqrt(new), apart
        every.deviation, self._finite = math.hypot(*parts), together

    def data(self) -> dict[str, Any]:
        """Return the JSON values."""
        return {
            "name": short(self._name),
            "role": self._role,
            "tensors": self._tensors,
            "elements": self._elements,
            "bytes": self._nbytes,
            "dtypes": self._dtypes,
            "sampled": self._sampled,
            "rms": json_number(self._sum.rms),
            **self._sum.data(self._finite),
        }


def _sorted(
    people: TensorNames,
    stored: Sequence[str],
    names: Sequence[str | None],
    roles: Sequence[ModelRole],
) -> list[tuple[str, ModelRole]]:
    order: list[str] = []
    with contextlib.suppress(CkptfmtError):
        order = order_of(people.reader.metadata) or list(_keras_order(people.nodes))
        groups = key_groups({*order}.difference(stored), sorted({*stored}.difference(order)))
        order = [name for key in order for name in groups.get(key, [key])]
    places = {name: place for place, name in enumerate(order)}
    first: dict[str, int] = {}
    found: dict[tuple[str, ModelRole], None] = {}
    for name, layer, role in zip(stored, names, roles, strict=True):
        if layer is not None:
            found[layer, role] = None
            place = places.get(name, len(order))
            first[layer] = min(first.get(layer, place), place)
    distinct = list(first)
    ranks = {distinct[at]: rank for rank, at in enumerate(in_order(distinct))}
    return sorted(found, key=lambda one: (ROLES.index(one[1]), first[one[0]], ranks[one[0]]))


def _keras_order(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the stored names of the variables of a model of Keras by its layers; none of others."""
    if not any(_LAYER.fullmatch(name) for node in nodes for name, _ in node.children):
        return
    waiting, seen = [0], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        yield from (one.checkpoint_key for one in nodes[number].attributes)
        layers, others = dict[int, int](), list[int]()
        for name, child in nodes[number].children:
            if match := _LAYER.fullmatch(name):
                layers[int(match[1])] = child
            else:
                others.append(child)
        waiting += [*reversed(others), *(layers[at] for at in sorted(layers, reverse=True))]


def _parameters(
    people: TensorNames,
    moments: dict[int, str],
    shown: Sequence[str],
    weights: dict[str, int],
) -> Iterator[tuple[int, str]]:
    """Yield the places of moments of which the parameter is known, and its shown name."""
    state = None
    with contextlib.suppress(CkptfmtError):
        state = state_of(people.reader.metadata)
    if state is None:
        for row in moments:
            name = shown[row]
            owner, slot, _ = name.partition(f"/{OPTIMIZER_SLOT}/")
            owner = owner if slot else name.rpartition("/")[0]
            if owner in weights:
                yield row, owner
        return
    found = {row: state.parameter_of(name) for row, name in moments.items()}
    # The name in the module is the end of the name in the state.
    ends: dict[str, str | None] = dict.fromkeys(one for one in found.values() if one is not None)
    for name in weights if ends else ():
        end = name
        for _ in range(LEVELS_MAX):
            if end in ends and ends[end] is None:
                ends[end] = name
            _, dot, end = end.partition(".")
            if not dot:
                break
    for row, one in found.items():
        if one is not None:
            yield row, ends[one] or one


def _modules(names: Sequence[str], mark: str) -> list[str]:
    """Return the layer of each tensor."""

    def above(name: str) -> str:
        return name.rpartition(mark)[0] or name

    known: dict[str, str] = {}
    found = [known.setdefault(one, one) for one in map(above, names)]
    low, high = (choose((one + mark for one in known), default="") for choose in (min, max))
    differ = (at for at, pair in enumerate(zip(low, high, strict=False)) if len({*pair}) > 1)
    same = low.rfind(mark, 0, next(differ, len(low)))  # the module that all names begin with
    for level in range(2, LEVELS_MAX):
        shorter = {one: above(one) if len(above(one)) > same else one for one in known}
        after = {one: one for one in shorter.values()}
        is_few = len(known) <= LAYERS_MAX and (level > 2 or len(after) < LAYERS_MIN)
        if is_few or after.keys() == known.keys():
            break
        known = after
        found = [after[shorter[one]] for one in found]
    return runs(found, LAYERS_MAX)


def runs(names: Sequence[str], most: int) -> list[str]:
    """Return the names; if more than `most` of them are distinct, of each name the first and the
    last of some that follow each other."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) <= most:
        return list(names)
    step = -(-len(distinct) // most)
    labels: dict[str, str] = {}
    for at in range(0, len(distinct), step):
        run = distinct[at : at + step]
        labels |= dict.fromkeys(run, f"{short(run[0])} ... {short(run[-1])}")
    return [labels[name] for name in names]


def short(name: str) -> str:
    """Return a name without the middle of a very long one."""
    return name if len(name) <= 200 else f"{name[:100]}...{name[-97:]}"
