# SPDX-License-Identifier: Apache-2.0
"""The match of a module, state dict or training state with what a checkpoint stores for it."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import invalid
from ckptfmt._base.arrays import describe
from ckptfmt._base.hints import some
from ckptfmt._base.names import tensor_bytes
from ckptfmt._base.renaming import transformed_kind
from ckptfmt._base.targets import Target, torch_refusal
from ckptfmt.bundle.batch import select_batch
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import CkptfmtError, InvalidError
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.load import MatchReport, Mismatch, without_bookkeeping
from ckptfmt.torch import tensors
from ckptfmt.torch.making import New
from ckptfmt.torch.parameters import SEQUENCES, Groups, Parameters, order, stored_names
from ckptfmt.torch.structure import Stored, build, holds, is_stateful, leaves, path_name

# What gives the value that replaces a target, once everything is read.
Finish = Callable[[], Any]
Names = tuple[str, ...]


class Matching:
    """The match of a target with a stored structure. Nothing is written before `fills`.

    Attributes:
        new: tensors to be made.
    """

    def __init__(
        self,
        reader: Reader,
        target: Any,
        new: New,
        assign: bool,
        choice: Changes,
        names: Mapping[str, Groups],
    ) -> None:
        self._reader, self._assign, self._choice = reader, assign, choice
        self._names = names  # of the parameters of stored optimizers
        self._own = Parameters(target)
        self.new = new
        self._matched: list[str] = []
        self._missing: list[str] = []
        self._unexpected: list[str] = []
        self._shapes: list[Mismatch] = []
        self._dtypes: list[Mismatch] = []
        self._structures: list[Mismatch] = []
        self._left: list[str] = []
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._used: set[int] = set()
        # By identity of a parameter that is replaced: what is stored for its first name.
        self._tied: dict[int, tuple[Stored, str]] = {}
        # By identity, the names of parameters that new ones replace.
        self._anew: dict[int, str] = {}
        # Stored name and memory: of tensors that are read into, and of those that new ones are
        # copied to.
        self._fills: list[tuple[str, torch.Tensor]] = []
        self._copies: list[tuple[str, torch.Tensor]] = []
        self._ways: list[int] = []  # the identities of the transforms of the copies
        # Tensors of optimizers, which are read into unless something else has their memory.
        self._states: dict[Stored, torch.Tensor] = {}
        # The parameters of optimizers, with the optimizer's name.
        self._optimized: list[tuple[str, torch.Tensor]] = []

    def report(self, unexpected: Names, filtered: Names) -> MatchReport:
        """Return what matched and what did not, with more names that are unexpected, and those of
        targets whose tensors are left out."""
        return MatchReport(
            tuple(self._matched),
            tuple(name for name in self._missing if name not in filtered),
            without_bookkeeping((*self._unexpected, *unexpected), self._reader),
            tuple(self._shapes),
            tuple(self._dtypes),
            filtered,
            structure_mismatch=tuple(self._structures),
            left=tuple(self._left),
        )

    def match(self, target: Any, stored: Any, path: Names) -> Finish:
        """Match one value."""
        if isinstance(target, torch.nn.Module) and isinstance(stored, dict):
            return self._module(target, stored, path)
        if isinstance(target, torch.Tensor):
            return self._tensor(target, stored, path, self._assign)
        if is_stateful(target):
            return self._stateful(target, stored, path)
        if isinstance(target, torch.Generator):
            if not isinstance(stored, Stored):
                return self._misfit(target, path, _kind(stored), "the state of a torch.Generator")
            return self._handed(target, target.set_state, stored, path)
        if isinstance(target, dict) and isinstance(stored, dict) and (not path or holds(target)):
            return self._dict(target, stored, path)
        is_sequence = isinstance(target, SEQUENCES) and type(target) is type(stored)
        if is_sequence and _length(target) == _length(stored):
            return self._sequence(target, stored, path)
        if holds(target):
            return self._misfit(target, path, _kind(stored), _kind(target))
        return self._replacing(target, stored, path)

    def _replacing(self, _target: Any, stored: Any, path: Names) -> Finish:
        self._take(stored, path)
        return lambda: self.new.build(stored)

    def _take(self, stored: Any, path: Names) -> None:
        self._matched += _names(stored, path)
        self.new.add(stored)

    def _misfit(self, target: Any, path: Names, stored: str, wanted: str) -> Finish:
        """Report that an object cannot take what is stored; it stays as it is."""
        name = path_name(path) or type(target).__name__
        self._structures.append(Mismatch(name, name, stored, wanted))
        return lambda: target

    # ---- containers ----

    def _sequence(self, target: Any, stored: Any, path: Names) -> Finish:
        pairs = enumerate(zip(target, stored, strict=True))
        finishes = [self.match(one, other, (*path, str(i))) for i, (one, other) in pairs]

        def finish() -> Any:
            made = [one() for one in finishes]
            if isinstance(target, tuple):
                return type(target)(made)
            target.clear()
            target.extend(made)
            return target

        return finish

    def _dict(self, target: dict[Any, Any], stored: dict[Any, Any], path: Names) -> Finish:
        finishes = self._items(target, stored, path)

        def finish() -> Any:
            target.update({key: one() for key, one in finishes.items()})
            return target

        return finish

    def _items(
        self, target: dict[Any, Any], stored: dict[Any, Any], path: Names, *, whole: bool = False
    ) -> dict[Any, Finish]:
        """Match the values of a dict by key. With `whole`, of a module, which makes its own of what
        it gets, those that are not tensors are replaced whole."""
        finishes: dict[Any, Finish] = {}
        known: dict[Any, Finish] = {}
        absent = []
        for key, value in target.items():
            if key not in stored:
                absent.append(key)
                continue
            is_tensor = isinstance(value, torch.Tensor)
            match = self.match if is_tensor or not whole else self._replacing
            finishes[key] = match(value, stored[key], (*path, str(key)))
            if is_tensor:
                known[tensors.identity(value)] = finishes[key]
        for key in absent:
            value = target[key]
            tied = tensors.identity(value) if isinstance(value, torch.Tensor) else None
            if tied in known:  # stored under another name of it
                finishes[key] = known[tied]
            elif not isinstance(value, dict) or value:  # DCP stores no empty dict
                self._missing.append(path_name((*path, str(key))))
        for key, value in stored.items():
            if key not in target:
                names = _names(value, (*path, str(key)))
                self._unexpected += names or [path_name((*path, str(key)))]
        return finishes

    def _module(self, module: torch.nn.Module, stored: dict[str, Any], path: Names) -> Finish:
        own = module.state_dict(keep_vars=True)
        finishes = self._items(own, stored, path, whole=True)
        buffers = module.named_buffers(remove_duplicate=False)
        self._left += [
            path_name((*path, name)) for name, one in buffers if one.is_meta and name not in own
        ]
        versions = getattr(stored, "_metadata", getattr(own, "_metadata", {}))
        assign = self._assign or any(
            isinstance(one, torch.Tensor) and one.is_meta for one in own.values()
        )

        def finish() -> Any:
            # Parameters that were read into are copied onto themselves, which torch skips.
            loaded: Any = OrderedDict((key, one()) for key, one in finishes.items())
            loaded._metadata = versions
            module.load_state_dict(loaded, strict=False, assign=assign)
            return module

        return finish

    # ---- tensors ----

    def _tensor(self, target: torch.Tensor, stored: Any, path: Names, assign: bool) -> Finish:
        name = path_name(path)
        if not isinstance(stored, Stored) or stored.kind != "tensor":
            kind = stored.kind if isinstance(stored, Stored) else type(stored).__name__
            self._dtypes.append(Mismatch(name, name, kind, "tensor"))
            return lambda: target
        is_lazy = torch.nn.parameter.is_lazy(target)
        anew = assign or is_lazy or target.is_meta or target.is_quantized
        if not anew or _is_sharded(target) or target.is_nested:
            _check(target, name)
        dtype, shape = self._kind_of(stored)
        if not is_lazy and shape != tuple(target.shape):
            self._shapes.append(Mismatch(name, stored.name, shape, tuple(target.shape)))
            return lambda: target
        casts = self._casts(dtype, target.dtype)
        if dtype is None or (dtype != target.dtype and not anew and not casts):
            self._dtypes.append(Mismatch(name, stored.name, dtype, target.dtype))
            return lambda: target
        if anew:
            self._check_tied(target, stored, name)
        self._matched.append(name)
        if anew:
            if not is_lazy:
                self._anew[id(target)] = name
            self.new.add(stored)
            goal = target.dtype if casts else dtype
            return lambda: self._replaced(target, self._made(stored, goal))
        place = tensors.carrier(target)
        in_place = place.data_ptr() == target.data_ptr()
        if dtype == target.dtype and in_place and stored.transform is None:
            self._fills.append((stored.name, place))
            return lambda: target
        self._copies.append((stored.name, target))
        self._ways.append(id(stored.transform))
        if stored.transform is None:
            self.new.give(stored, lambda value: self._copied(target, value, stored.name))
            return lambda: target
        self.new.add(stored)
        return lambda: self._copied(target, self.new.build(stored), stored.name)

    def _kind_of(self, stored: Stored) -> tuple[torch.dtype | None, tuple[int, ...]]:
        """Return dtype and shape of the tensor that is read."""
        handle = self._reader[stored.name]
        if stored.transform is None:
            return tensors.kind_of(handle.dtype_code, handle.shape, stored.note)
        dtype, shape = transformed_kind(stored.name, *handle._expected(), stored.transform)
        found = dtypes.code_of_array(dtype)
        return None if found is None else tensors.dtype_of(found[0]), shape

    def _casts(self, stored: torch.dtype | None, wanted: torch.dtype) -> bool:
        return self._choice.cast is True and tensors.can_cast(stored, wanted)

    def _made(self, stored: Stored, dtype: torch.dtype) -> torch.Tensor:
        value: torch.Tensor = self.new.build(stored)
        if value.is_meta:
            return value.to(dtype)
        return tensors.casted(value, dtype, stored.name, self._choice).to(value.device)

    def _copied(self, target: torch.Tensor, value: torch.Tensor, name: str) -> torch.Tensor:
        with torch.no_grad():
            return target.copy_(tensors.casted(value, target.dtype, name, self._choice))

    def _check_tied(self, target: torch.Tensor, stored: Stored, name: str) -> None:
        """Refuse different stored values for the names of one parameter, which gets one of them."""
        if not isinstance(target, torch.nn.Parameter):
            return
        other, other_name = self._tied.setdefault(id(target), (stored, name))
        if other.transform is not stored.transform:
            raise InvalidError(
                f"is the same parameter as '{other_name}', whose cast or transform differs",
                tensor=name,
            )
        if other.name == stored.name:
            return
        one, two = self._reader[stored.name], self._reader[other.name]
        known = one.crc32c is not None and one.stored_nbytes == two.stored_nbytes
        if not known or one.crc32c != two.crc32c:
            raise InvalidError(
                f"is the same parameter as '{other_name}' in the model, and the stored values "
                "differ",
                tensor=name,
            )

    def _replaced(self, target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return what replaces a target: one parameter for all names of a parameter."""
        if not isinstance(target, torch.nn.Parameter) or torch.nn.parameter.is_lazy(target):
            return value
        if id(target) not in self._parameters:
            if id(value) in self._used:  # tied in the checkpoint, but not in the module
                value = value.clone()
            self._used.add(id(value))
            made = torch.nn.Parameter(value, requires_grad=target.requires_grad)
            self._parameters[id(target)] = made
        return self._parameters[id(target)]

    # ---- objects with load_state_dict ----

    def _stateful(self, target: Any, stored: Any, path: Names) -> Finish:
        optimizer = _torch_optimizer(target)
        if isinstance(stored, dict) and stored.keys() == {"param_groups"}:
            stored = {"state": {}, **stored}  # DCP stores no empty dict
        if optimizer is not None and _is_optimizer_state(stored):
            return self._optimizer(target, optimizer, stored, path)
        known = type(target).__module__.partition(".")[0] == "torch"
        known = known or isinstance(target, torch.nn.Module)
        if optimizer is target:
            return self._misfit(target, path, _kind(stored), f"the state of a {_type(target)}")
        if known and not isinstance(stored, dict):
            return self._misfit(target, path, _kind(stored), f"the state of a {_type(target)}")
        inner = target if isinstance(target, Optimizer) else getattr(target, "optimizer", None)
        if isinstance(inner, Optimizer) and (inner is target or _is_optimizer_state(stored)):
            self._note_parameters(target, inner, path)
        return self._handed(target, target.load_state_dict, stored, path)

    def _handed(self, target: Any, load: Callable[[Any], Any], stored: Any, path: Names) -> Finish:
        """Hand new values to an object's own function."""
        self._take(stored, path)
        return lambda: _call(target, load, self.new.build(stored), path)

    def _optimizer(
        self, target: Any, optimizer: Optimizer, stored: dict[str, Any], path: Names
    ) -> Finish:
        """Match an optimizer: its tensors that have the dtype and shape of the stored ones are read
        into, and `load_state_dict` gets them. It is loaded as a whole or not at all."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        for parameter in filter(_is_sharded, parameters):
            _check(parameter, path_name(path) or _type(target))
        # A hook may fit any state to the optimizer.
        checked = not optimizer._optimizer_load_state_dict_pre_hooks
        if checked:
            misfit, groups = self._fitting(optimizer, stored["param_groups"], path)
            if misfit is not None:
                return self._misfit(target, path, *misfit)
            stored = {**stored, "param_groups": groups}
        keys = [key for group in stored["param_groups"] for key in group["params"]]
        by_key = dict(zip(keys, parameters, strict=False))
        shapes, kinds = list[Mismatch](), list[Mismatch]()
        places: dict[Stored, torch.Tensor] = {}
        casts: dict[Stored, torch.dtype] = {}
        for key, state in stored["state"].items():
            parameter = by_key.get(key)
            own = {} if parameter is None else optimizer.state.get(parameter, {})
            for names, leaf, tensor in _pairs(state, own, (*path, "state", str(key))):
                if leaf.kind != "tensor":
                    continue
                dtype, shape = self._kind_of(leaf)
                if leaf.transform is None and _fits(tensor, dtype, shape):
                    places[leaf] = tensor
                    continue
                expected = _expected(optimizer, parameter, tensor, names[-1], shape)
                if expected is None or not checked:
                    continue
                name, casts[leaf] = path_name(names), expected[0]
                if shape != expected[1]:
                    shapes.append(Mismatch(name, leaf.name, shape, expected[1]))
                elif dtype != expected[0] and not self._casts(dtype, expected[0]):
                    kinds.append(Mismatch(name, leaf.name, dtype, expected[0]))
        self._shapes += shapes
        self._dtypes += kinds
        if shapes or kinds:
            return lambda: target
        self._matched += _names(stored, path)
        self._states |= places
        self._note_parameters(target, optimizer, path)
        self.new.add(build(stored, lambda leaf: None if leaf in places else leaf))

        def finish() -> Any:
            filled = self._states  # those that `fills` left

            def of(leaf: Stored) -> Any:
                if leaf in filled:
                    return filled[leaf]
                value = self.new.build(leaf)
                if leaf in casts:  # load_state_dict would cast without a check
                    value = tensors.casted(value, casts[leaf], leaf.name, self._choice)
                return value

            return _call(target, target.load_state_dict, build(stored, of), path)

        return finish

    def _note_parameters(self, target: Any, optimizer: Optimizer, path: Names) -> None:
        """Note the parameters of an optimizer, which `fills` refuses to replace."""
        name = path_name(path) or _type(target)
        groups = optimizer.param_groups
        self._optimized += [(name, parameter) for group in groups for parameter in group["params"]]

    def _fitting(
        self, optimizer: Optimizer, groups: list[dict[str, Any]], path: Names
    ) -> tuple[tuple[str, str] | None, list[dict[str, Any]]]:
        """Return stored parameter groups with the parameters in the order of the optimizer's own,
        by their names if both have names; or what is stored, and what would fit."""
        own_groups = optimizer.param_groups
        if len(groups) != len(own_groups):
            return (_count(len(groups), "parameter group"), f"{len(own_groups)}"), []
        for index, (group, own) in enumerate(zip(groups, own_groups, strict=True)):
            found, wanted = len(group["params"]), len(own["params"])
            if found != wanted:
                what = f"{_count(found, 'parameter')} in param_groups[{index}]"
                return (what, f"{wanted}"), []
        names, own_names = self._names.get(path_name(path)), self._own.names(optimizer)
        if names is None or own_names is None:
            names = stored_names(groups)
            own_names = stored_names(own_groups) or self._own.names(optimizer, short=True)
        if names is None or own_names is None:
            return None, groups
        positions = order(names, own_names)
        # It has one history, of all parameters in their order.
        is_moved = isinstance(optimizer, torch.optim.LBFGS) and positions != [
            list(range(len(one))) for one in names
        ]
        if positions is None or is_moved:
            return (f"a state of {_some(names)}", f"of {_some(own_names)}"), []
        triples = zip(groups, positions, own_groups, strict=True)
        return None, [_ordered(*triple) for triple in triples]

    # ---- memory ----

    def fills(self) -> list[tuple[str, torch.Tensor]]:
        """Return the stored names and existing tensors that are read into.

        Raises:
            InvalidError: two targets share memory, and their stored values differ; new tensors
                replace parameters of an optimizer.
        """
        for optimizer, parameter in self._optimized:
            if id(parameter) in self._anew or parameter.is_meta:
                name = self._anew.get(id(parameter))
                reason = f"'{name}' is replaced" if name else "one is on the meta device"
                raise InvalidError(
                    f"the optimizer '{optimizer}' would lose its parameters ({reason}): load the "
                    "model first, make the optimizer of the new parameters, then load it with "
                    "strict=False"
                )
        self._keep_own_states()
        writes = [*self._fills, *self._copies]
        batch = select_batch(self._reader, [tensor_bytes(name) for name, _ in writes])
        places = {i: Target(_extent(tensor)) for i, (_, tensor) in enumerate(writes)}
        batch.targets = {i: places.pop(i) for i in range(len(self._fills))}
        batch.check_targets(places, dict(enumerate(self._ways, len(self._fills))))
        states = [(leaf.name, tensors.carrier(one)) for leaf, one in self._states.items()]
        return [*self._fills, *states]

    def _keep_own_states(self) -> None:
        """Let new tensors replace those of optimizers that share memory with another target or a
        parameter, as `load_state_dict` does."""
        others = [*self._fills, *self._copies, *(("", one) for _, one in self._optimized)]
        spans: list[Any] = [(*_span(tensor), name, None) for name, tensor in others]
        spans += [(*_span(one), leaf.name, leaf) for leaf, one in self._states.items()]
        shared: set[Stored] = set()
        last: list[Any] = []
        for span in sorted(spans, key=lambda one: one[:2]):
            last = [one for one in last if one[1] > span[0]]
            for other in last:
                if other[2:4] != span[2:4]:
                    shared |= {one for one in (span[4], other[4]) if one is not None}
            last.append(span)
        for leaf in shared:
            del self._states[leaf]
            self.new.add(leaf)


def _is_sharded(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "DTensor"


def _check(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor that cannot be written."""
    reason = torch_refusal(torch, tensor, plain=False)
    if reason is not None:
        raise InvalidError(f"cannot read into {describe(tensor)}: {reason}", tensor=name)


def _span(tensor: torch.Tensor) -> tuple[int, int, Any]:
    """Return the addresses of a tensor's first byte and of the first one after it, and its
    identity."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta or not tensor.numel():
        return 0, 0, None
    if tensor.layout is not torch.strided or type(tensor) not in _PLAIN:
        return 0, 0, None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in steps)
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.itemsize, tensors.identity(tensor)


class _Extent:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{tensor.itemsize}",
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * tensor.itemsize for step in tensor.stride()),
        }


def _extent(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array of a tensor's addresses, on any device. Its elements must not be read."""
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), f"V{tensor.itemsize}")
    return np.asarray(_Extent(tensor))


# ---- structures ----------------------------------------------------------------------------------


def _names(stored: Any, path: Names) -> list[str]:
    return [path_name(names) for names, _ in leaves(stored, path)]


def _type(value: Any) -> str:
    return type(value).__name__


def _kind(value: Any) -> str:
    """Return what a stored value or target is, for a message."""
    if isinstance(value, Stored):
        return f"a stored {value.kind}"
    if isinstance(value, dict):
        return f"a dict with {some(value) or 'no keys'}"
    if isinstance(value, SEQUENCES):
        return f"a {_type(value)} of {_length(value)}"
    return f"a value of type {_type(value)}"


def _length(value: Any) -> str:
    limit = getattr(value, "maxlen", None)  # of a deque
    return str(len(value)) if limit is None else f"{len(value)}, at most {limit}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _call(target: Any, load: Callable[[Any], Any], value: Any, path: Names) -> Any:
    """Call the function of an object that loads its state; return the object."""
    try:
        load(value)
    except CkptfmtError:
        raise
    except Exception as error:  # whatever the object raises
        raise InvalidError(
            f"the {_type(target)} refuses the stored state ({type(error).__name__}: {error}); "
            "other targets may have been loaded",
            tensor=path_name(path) or None,
        ) from error
    return target


def check_whole(target: Any, structure: Any, path: Any, report: MatchReport) -> None:
    """Refuse a single object as the target of a checkpoint that has nothing of it by name, but its
    state dict under a key.

    Raises:
        InvalidError: names the key and the call that works.
    """
    if isinstance(target, dict) or not isinstance(structure, dict):
        return
    if _torch_optimizer(target) is target:
        what, own = "optimizer", {"state", "param_groups"}
    else:
        what = "model" if isinstance(target, torch.nn.Module) else "target"
        state = target.state_dict()
        own = set(state) if isinstance(state, dict) else set()
    if own & structure.keys():
        return

    def has(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        return bool(own & value.keys()) if what == "model" else own <= value.keys()

    keys = [key for key, value in structure.items() if own and has(value)]
    if keys:
        call = f"ckptfmt.torch.load_into({{{keys[0]!r}: {what}}}, {path!r}, strict=False)"
        error = invalid(
            "target",
            f"the checkpoint is a training state, with a state dict for {_type(target)} under "
            f"{some(keys)}: call {call}",
        )
        error.report = None if report else report  # a scheduler takes any state
        raise error


# ---- optimizers ----------------------------------------------------------------------------------

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Optimizers of torch with state of other shapes than their parameter's.
_FACTORED = (torch.optim.LBFGS, torch.optim.Adafactor)


def _torch_optimizer(target: Any) -> Optimizer | None:
    """Return the optimizer that a target is or wraps, if its state is loaded by torch's
    `Optimizer.load_state_dict`."""
    if isinstance(target, Optimizer) and type(target).load_state_dict is Optimizer.load_state_dict:
        return target
    inner = getattr(target, "optimizer", None)
    return _torch_optimizer(inner) if isinstance(inner, Optimizer) else None


def _is_optimizer_state(stored: Any) -> bool:
    return (
        isinstance(stored, dict)
        and isinstance(stored.get("state"), dict)
        and isinstance(stored.get("param_groups"), list)
        and all(
            isinstance(one, dict) and isinstance(one.get("params"), list)
            for one in stored["param_groups"]
        )
    )


def _some(groups: Groups) -> str:
    return some([names[0] for group in groups for names in group])


def _ordered(stored: dict[str, Any], positions: list[int], own: dict[str, Any]) -> dict[str, Any]:
    """Return a stored parameter group with its parameters at these positions, and its own names."""
    found = {**stored, "params": [stored["params"][one] for one in positions]}
    found.pop("param_names", None)
    return {**found, "param_names": own["param_names"]} if "param_names" in own else found


def _pairs(stored: Any, own: Any, path: Names) -> Iterator[tuple[Names, Stored, Any]]:
    """Yield path, stored tensor and the value at its place in an optimizer's state."""
    if isinstance(stored, Stored):
        yield path, stored, own
    elif isinstance(stored, dict):
        for key, one in stored.items():
            other = own.get(key) if isinstance(own, dict) else None
            yield from _pairs(one, other, (*path, str(key)))
    elif isinstance(stored, list):
        others = own if isinstance(own, list) else []
        pairs = itertools.zip_longest(stored, others[: len(stored)])
        for index, (one, other) in enumerate(pairs):
            yield from _pairs(one, other, (*path, str(index)))


def _fits(own: Any, dtype: torch.dtype | None, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of an optimizer can be read into."""
    return (
        type(own) in _PLAIN
        and torch_refusal(torch, own, plain=False) is None
        and not (own.is_quantized or own.is_conj() or own.is_neg())
        and (own.dtype, tuple(own.shape)) == (dtype, shape)
    )


def _expected(
    optimizer: Optimizer,
    parameter: torch.Tensor | None,
    own: Any,
    key: str,
    shape: tuple[int, ...],
) -> tuple[torch.dtype, tuple[int, ...]] | None:
    """Return the dtype and shape that a tensor of an optimizer's state must have; None if that is
    not known.

    Known are tensors like their parameter: those that the optimizer has, and those with dimensions
    of the optimizers of torch that compute element by element.
    """
    if parameter is None or key == "step" or torch.nn.parameter.is_lazy(parameter):
        return None
    if isinstance(own, torch.Tensor) and own.shape == parameter.shape:
        return own.dtype, tuple(own.shape)
    is_torch = f"{type(optimizer).__module__}.".startswith("torch.optim.")  # Muon: "torch.optim"
    if is_torch and not isinstance(optimizer, _FACTORED) and shape and own is None:
        return parameter.dtype, tuple(parameter.shape)
    return None
