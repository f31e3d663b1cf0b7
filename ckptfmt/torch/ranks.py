# SPDX-License-Identifier: Apache-2.0
"""A training state of several processes, which torch.distributed.checkpoint (DCP) saves and loads.

The state dicts of modules and optimizers have the names of parameters, as DCP's `get_state_dict`
gives them, so that a shard of one process finds its place. One process stores optimizers by
numbers, with the names beside them: these are put in the place of the numbers when several read it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as named
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ckptfmt._base.background import SaveFuture, SaveQueue, Work
from ckptfmt._base.names import index_name
from ckptfmt._base.save_options import shared
from ckptfmt.bundle import reader as reading
from ckptfmt.errors import InvalidError
from ckptfmt.files.locate import locate
from ckptfmt.files.places import opened
from ckptfmt.recipe.load import MatchReport, Mismatch, refuse
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.replicas import COMPARED_BYTES
from ckptfmt.sharded import rounds
from ckptfmt.sharded.coordinator import Coordinator
from ckptfmt.sharded.rounds import Team, compare_contents
from ckptfmt.sharded.sharded import compare_seen
from ckptfmt.torch.dcp import StorageReader, StorageWriter
from ckptfmt.torch.making import New
from ckptfmt.torch.parameters import SEQUENCES, without_wrappers
from ckptfmt.torch.state import RandomState
from ckptfmt.torch.structure import is_stateful, structure_and_names

Keys = tuple[Any, ...]
T = TypeVar("T")


def agreed(
    coordinator: Coordinator, work: Callable[[], T], content: Callable[[T], bytes] = lambda _: b""
) -> T:
    """Return the result of `work` once it ended in all processes; if it failed in one, all raise.
    What `content` says of the results must be the same."""
    what = "have different values, of which one would be stored for all"
    team = Team(coordinator, "ckptfmt.torch.Checkpoint")
    return rounds.agreed(team, work, content, lambda found: compare_contents(found, what))


@dataclass
class _Unit:
    """A dict with keys other than str, as one value: DCP would make them str."""

    value: Any


class _Object(NamedTuple):
    """An object of a state: where it is, its state dict, and what takes one."""

    keys: Keys
    take: Callable[[Any], object]


class RankState:
    """The state of this process as DCP takes it. Nothing is taken yet.

    Args:
        state: modules, optimizers, objects with a `state_dict`, tensors and Python values, in
            dicts.

    Raises:
        InvalidError: an optimizer of which not exactly one module has all parameters, or LBFGS.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._objects: list[_Object] = []
        self._random: list[tuple[Keys, RandomState]] = []
        self._buffers: set[str] = set()
        self._units: list[tuple[Keys, Any]] = []
        self._optimizers: list[_Optimizer] = []
        modules = dict(_found(state, (), torch.nn.Module))
        for keys, optimizer in _found(state, (), Optimizer):
            own = {id(one) for group in optimizer.param_groups for one in group["params"]}
            places = [
                place
                for place, module in modules.items()
                if own <= {id(one) for one in module.parameters()}
            ]
            if len(places) != 1:
                having = ", ".join(map(_text, places)) or "none"
                raise InvalidError(
                    f"the parameters of the optimizer '{_text(keys)}' must be those of exactly one "
                    f"module of the state; modules that have all of them: {having}"
                )
            if isinstance(optimizer, torch.optim.LBFGS):
                raise InvalidError(
                    f"the optimizer '{_text(keys)}' is an LBFGS, whose state "
                    "torch.distributed.checkpoint cannot load: use it in one process"
                )
            module = modules[places[0]]
            self._optimizers.append(_Optimizer(keys, places[0], module, optimizer))

    def _taken(self, value: Any, keys: Keys) -> Any:
        """Return the values that are saved, or loaded into."""
        if isinstance(value, dict):
            if _is_unit(value, lambda one: _is_array(one) or is_stateful(one)):
                return self._unit(value, keys)
            return {key: self._taken(one, (*keys, key)) for key, one in value.items()}
        found: Any
        if isinstance(value, torch.nn.Module):
            found = named.get_model_state_dict(value)
            own = {
                without_wrappers(name) for name, _ in value.named_parameters(remove_duplicate=False)
            }
            self._buffers |= {
                _text((*keys, name)) for name in found if without_wrappers(name) not in own
            }
            self._objects.append(_Object(keys, lambda new: named.set_model_state_dict(value, new)))
        elif isinstance(value, Optimizer):
            one = next(one for one in self._optimizers if one.keys == keys)
            found = one.taken()
            self._objects.append(_Object(keys, one.take))
        elif isinstance(value, RandomState):
            self._random.append((keys, value))
            found = value.state_dict()
        elif is_stateful(value):
            found = self._with_units(value.state_dict(), keys)
            self._objects.append(_Object(keys, value.load_state_dict))
        elif isinstance(value, (list, tuple)) and _holds(value, is_stateful):
            raise InvalidError(f"'{_text(keys)}' is a list of objects: put them into a dict")
        else:
            return value
        return found

    def _with_units(self, value: Any, keys: Keys) -> Any:
        """Return the state dict of an object as it is saved."""
        if not isinstance(value, dict):
            return value
        if _is_unit(value, _is_sharded):
            return self._unit(value, keys)
        found = copy.copy(value)
        for key, one in value.items():
            found[key] = self._with_units(one, (*keys, key))
        return found

    def _unit(self, value: Any, keys: Keys) -> _Unit:
        self._units.append((keys, value))
        return _Unit(value)

    # ---- saving --------------------------------------------------------------------------------

    def saved(self) -> Any:
        """Return what is saved."""
        for one in self._optimizers:
            one.is_saved = True
        return self._taken(self._state, ())

    def content(self, values: Any) -> bytes:
        """Return what is the same in all processes: all that is not sharded, but the states of
        random numbers, which have the process in their keys, and buffers of modules, which are
        those of process 0. Of tensors and arrays larger than COMPARED_BYTES, dtype and shape."""
        for keys, _ in self._random:
            values = _put(values, keys, {})
        flat, _ = flatten_state_dict(values if isinstance(values, dict) else {"": values})
        described = {
            name: _described(one) for name, one in flat.items() if name not in self._buffers
        }
        return zlib.compress(json.dumps(described).encode(), 1)

    # ---- loading -------------------------------------------------------------------------------

    def load(self, path: str, group: Any, coordinator: Coordinator) -> MatchReport:
        """Load a checkpoint into the objects, tensors and dicts of the state."""
        planner = _Planner(path)
        with contextlib.ExitStack() as undone:
            for one in self._optimizers:
                undone.callback(one.undo)
            values = agreed(coordinator, lambda: self._taken(self._state, ()))
            for keys, _ in self._random:  # of another number of processes: by its own rules
                _drop(values, keys)
            random = [keys for keys, _ in self._random]
            reader = _Reader(path, self._optimizers, random, self._units)
            team = Team(coordinator, "ckptfmt.torch.Checkpoint")
            rounds.agreed(team, reader.open, bytes, lambda answers: compare_seen(answers, path))
            with _errors():
                dcp.load(values, storage_reader=reader, planner=planner, process_group=group)
            undone.pop_all()
        agreed(coordinator, lambda: self._take(values, reader.random))
        return planner.report

    def _take(self, values: Any, random: list[Any]) -> None:
        """Take what was loaded."""
        for one in self._objects:
            one.take(_at(values, one.keys))
        _replace(self._state, values)
        for (_, own), found in zip(self._random, random, strict=True):
            own.load_state_dict(found)


@dataclass
class _Optimizer:
    """An optimizer of a state, and the module with its parameters.

    torch fills a new optimizer by a step whose learning rate is 0, so that there is something to
    load into; such a state is neither saved nor kept if nothing is loaded.
    """

    keys: Keys
    place: Keys
    module: torch.nn.Module
    optimizer: Optimizer
    is_saved: bool = False
    is_new: bool = False
    is_empty: bool = False  # in the checkpoint
    names: set[str] = field(default_factory=set)
    values: dict[str, Any] = field(default_factory=dict)

    def taken(self) -> dict[str, Any]:
        """Return the state, by the names of parameters."""
        self.is_new = not self.optimizer.state
        with self._without_gradients() if self.is_new else contextlib.nullcontext():
            found: dict[str, Any] = named.get_optimizer_state_dict(self.module, self.optimizer)
        self.names = {name for group in found["param_groups"] for name in group["params"]}
        if self.is_saved and self.is_new:
            self.undo()
            found["state"] = {}
        self.values = found
        return found

    @contextlib.contextmanager
    def _without_gradients(self) -> Iterator[None]:
        """Put the gradients aside, with which torch fills no new optimizer."""
        own = [one for group in self.optimizer.param_groups for one in group["params"]]
        gradients = [one.grad for one in own]
        for one in own:
            one.grad = None
        try:
            yield
        finally:
            for one, gradient in zip(own, gradients, strict=True):
                one.grad = gradient

    def undo(self) -> None:
        """Empty the state of an optimizer that was new."""
        if self.is_new:
            self.optimizer.state.clear()

    def take(self, found: dict[str, Any]) -> None:
        """Take a state."""
        if not self.is_empty:
            named.set_optimizer_state_dict(self.module, self.optimizer, found)
            return
        self.optimizer.state.clear()
        for own, new in zip(self.optimizer.param_groups, found["param_groups"], strict=True):
            own.update({key: value for key, value in new.items() if key != "params"})


class _Reader(StorageReader):
    """Reads a checkpoint with the names of parameters in the place of numbers, and the states of
    random number generators apart.

    Attributes:
        random: of each, as loaded, once the checkpoint was opened.
    """

    def __init__(
        self,
        path: str,
        optimizers: list[_Optimizer],
        random: list[Keys],
        units: list[tuple[Keys, Any]],
    ) -> None:
        super().__init__(path)
        self._prefix, self._units = path, units
        self._optimizers, self._places = optimizers, random
        self.random: list[Any] = []

    def open(self) -> bytes:
        """Open the checkpoint, before DCP, which has an AssertionError for all that fails here.
        Return the digest of its index."""
        with opened(index_name(locate(self._prefix))) as digest:
            super().read_metadata()
            assert self._opened is not None
            for name, leaf in self._opened.leaves.items():
                if isinstance(leaf, _Unit):
                    self._opened.leaves[name] = leaf.value
            return digest()

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """Return the contents of the checkpoint, which is open."""
        assert self._opened is not None
        return self._opened.metadata

    def _structure(self, reader: reading.Reader) -> Any:
        structure, names = structure_and_names(reader)
        for one in self._optimizers:
            groups, stored = names.get(_text(one.keys)), _at(structure, one.keys)
            if not isinstance(stored, dict):
                continue
            one.is_empty = not stored.get("state")
            if one.is_empty:
                one.values["state"] = {}
            if groups is not None:
                begin = f"{_text(one.place)}." if one.place else ""
                flat = [_own_name(each, begin, one.names) for group in groups for each in group]
                stored = _by_names(stored, flat)
                structure = _put(structure, one.keys, stored)
            self._compare_groups(one, stored)
        for keys, own in self._units:
            stored = _at(structure, keys)
            if isinstance(stored, dict) and stored.keys() == own.keys():  # else DCP misses keys
                structure = _put(structure, keys, _Unit(stored))
        self.random = []
        for keys in self._places:
            found, new = _own_random(_at(structure, keys)), New(torch.device("cpu"))
            new.add(found)
            new.read(reader, [], None)
            self.random.append(new.build(found))
            structure = _put(structure, keys, None)
            _drop(structure, keys)
        return structure

    def _compare_groups(self, one: _Optimizer, stored: dict[str, Any]) -> None:
        """Refuse other parameters in a group: their options would be those of no group, or of
        another one. The order does not matter, and DCP compares the number of groups."""
        there, here = (
            {frozenset(map(str, group["params"])) for group in state.get("param_groups", ())}
            for state in (stored, one.values)
        )
        if len(there) == len(here) and there != here:  # else DCP misses keys
            name = f"{_text(one.keys)}.param_groups"
            stored_groups, own_groups = (
                sorted(map(sorted, one)) for one in (there - here, here - there)
            )
            mismatch = Mismatch(name, name, stored_groups, own_groups)
            refuse(self._prefix, MatchReport(structure_mismatch=(mismatch,)))


class _SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    def lookup_object(self, index: Any) -> Any:
        """Return the value that is stored."""
        found = super().lookup_object(index)
        return found.value if isinstance(found, _Unit) else found


class _Planner(DefaultLoadPlanner):  # type: ignore[misc]
    """Refuses, on all processes, what differs before anything is read.

    Attributes:
        report: by keys of DCP.
    """

    report: MatchReport

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def create_local_plan(self) -> LoadPlan:
        """Return the plan of this process."""
        stored, own = self.metadata.state_dict_metadata, self.state_dict
        shapes, dtypes = list[Mismatch](), list[Mismatch]()
        for name in (one for one in stored if one in own):
            there, here = _kind(stored[name]), _kind(own[name])
            if there[0] != here[0]:
                dtypes.append(Mismatch(name, name, there[0], here[0]))
            if there[1] != here[1]:
                shapes.append(Mismatch(name, name, there[1], here[1]))
        self.report = MatchReport(
            shape_mismatch=tuple(shapes),
            dtype_mismatch=tuple(dtypes),
            matched=tuple(name for name in stored if name in own),
            missing=tuple(name for name in own if name not in stored),
            unexpected=tuple(name for name in stored if name not in own),
        )
        if not self.report.complete:
            refuse(self.path, self.report, casts=lambda *_: False)
        return super().create_local_plan()


def _kind(value: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype and the shape of a tensor, in DCP's metadata or in a state."""
    if isinstance(value, TensorStorageMetadata):
        return value.properties.dtype, tuple(value.size)
    if isinstance(value, torch.Tensor) or hasattr(value, "local_shards"):
        return value.dtype, tuple(value.size())
    return "value", ()


def _described(value: Any) -> str:
    text = _value_text(value)
    if _is_array(value):
        return text
    return f"a value with checksum {zlib.crc32(text.encode()):08x}"


def _value_text(value: Any) -> str:
    """Return a text that is the same for equal values. `repr` abbreviates arrays, and orders sets
    differently in each process."""
    parts: Iterable[str] = ()
    if isinstance(value, _Unit):
        value = value.value
    if _is_array(value):
        return _array_text(value)
    if isinstance(value, (set, frozenset)):
        parts = sorted(map(_value_text, value))
    elif isinstance(value, dict):
        parts = (f"{_value_text(key)}: {_value_text(one)}" for key, one in value.items())
    elif isinstance(value, SEQUENCES):
        parts = [*map(_value_text, value), f"maxlen={getattr(value, 'maxlen', None)}"]
    else:
        return repr(value)
    return f"{type(value).__name__}({', '.join(parts)})"


def _is_array(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray)) or hasattr(value, "local_shards")


def _is_sharded(value: Any) -> bool:
    return isinstance(value, DTensor) or hasattr(value, "local_shards")


def _array_text(value: Any) -> str:
    """Return dtype and shape, and the checksum of what is not larger than COMPARED_BYTES."""
    if _is_sharded(value):
        return f"{value.dtype}{list(value.size())} in shards"
    text = f"{value.dtype}{list(value.shape)}"
    if isinstance(value, np.ndarray):
        is_plain = not value.dtype.hasobject
    else:
        is_plain = value.layout == torch.strided and not (value.is_quantized or value.is_meta)
    if not is_plain or value.nbytes > COMPARED_BYTES:
        return text
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        value = flat.view(torch.uint8).numpy()
    return f"{text} with checksum {zlib.crc32(value.tobytes()):08x}"


def _is_unit(value: dict[Any, Any], is_apart: Callable[[Any], bool]) -> bool:
    return not all(isinstance(key, str) for key in value) and not _holds(value, is_apart)


def _holds(value: Any, kind: Callable[[Any], bool]) -> bool:
    if isinstance(value, (dict, list, tuple)):
        inner = value.values() if isinstance(value, dict) else value
        return any(_holds(one, kind) for one in inner)
    return kind(value)


class RankSave(NamedTuple):
    """A save of all processes together; `Begun` of an AdapterCheckpoint."""

    state: RankState
    path: str
    options: CheckpointOptions
    queue: SaveQueue
    group: Any
    coordinator: Coordinator

    def run(self) -> str:
        """Save, and return the prefix."""
        if self.options.enable_async:
            return self.run_async().prefix
        self._write(agreed(self.coordinator, self.state.saved, self.state.content))
        return self.path

    def run_async(self) -> SaveFuture:
        """Save in the background; return once everything is copied."""

        def copied() -> Any:
            # On the CPU; Python values may be lists that the training changes.
            return copy.deepcopy(BlockingAsyncStager().stage(self.state.saved()))

        def prepare() -> Work:
            values = agreed(self.coordinator, copied, self.state.content)
            return lambda: self._write(values)

        return self.queue.begin(self.path, prepare)

    def _write(self, values: Any) -> None:
        options = self.options
        writer = StorageWriter(self.path, **shared(options))
        # Of buffers the values of process 0, as DistributedDataParallel takes them.
        planner = _SavePlanner(dedup_save_to_lowest_rank=True)
        try:
            with _errors():
                dcp.save(values, storage_writer=writer, planner=planner, process_group=self.group)
        except BaseException:
            writer.discard()  # the error may keep the writer
            raise
        agreed(self.coordinator, lambda: options.after_write(self.path))


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise the error of this process, or of the first that failed, for that of DCP."""
    try:
        with warnings.catch_warnings():
            # Of a state dict whose tensors lie in memory of the CPU while the group is for others.
            warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
            yield
    except CheckpointException as error:
        failures = {rank: one for rank, (one, _) in error.failures.items()}
        first = failures.get(distributed.get_rank()) or failures[min(failures)]
        raise first from None


def _found(value: Any, keys: Keys, kind: type) -> Iterator[tuple[Keys, Any]]:
    """Yield the objects of a kind, and where they are."""
    if isinstance(value, kind):
        yield keys, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _found(one, (*keys, key), kind)


def _text(keys: Keys) -> str:
    return ".".join(map(str, keys))


def _at(values: Any, keys: Keys) -> Any:
    """Return what is at a place; None if there is no such place."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def _put(values: Any, keys: Keys, value: Any) -> Any:
    """Return the values with another one at a place that exists."""
    if not keys:
        return value
    return (
        {**values, keys[0]: _put(values[keys[0]], keys[1:], value)} if keys[0] in values else values
    )


def _drop(values: Any, keys: Keys) -> None:
    owner = _at(values, keys[:-1])
    if isinstance(owner, dict):
        owner.pop(keys[-1], None)


def _replace(state: Any, values: Any) -> None:
    """Put the Python values into the dicts of the state."""
    for key, value in state.items() if isinstance(state, dict) else ():
        if isinstance(value, dict):
            _replace(value, values[key])
        elif not isinstance(value, (torch.Tensor, RandomState)) and not is_stateful(value):
            state[key] = values[key]


def _own_name(names: list[str], begin: str, own: set[str]) -> str:
    """Return the one of a parameter's names in the state that its module has for it."""
    short = [name.removeprefix(begin) for name in names if name.startswith(begin)]
    return next((name for name in short if name in own), names[0])


def _by_names(stored: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the state of an optimizer with names in the place of numbers."""

    def name(key: Any) -> Any:
        return names[key] if isinstance(key, int) and 0 <= key < len(names) else key

    state = {name(key): one for key, one in stored.get("state", {}).items()}
    groups = [
        {**group, "params": [name(one) for one in group["params"]]}
        for group in stored.get("param_groups", ())
    ]
    return {**stored, "state": state, "param_groups": groups}


def _own_random(stored: Any) -> dict[str, Any]:
    """Return the part of a RandomState's state that is this process's."""
    rank = distributed.get_rank()
    if not isinstance(stored, Mapping):
        return {}
    if rank == 0 and "torch" in stored:
        return {f"rank_{rank}": stored}
    return {key: one for key, one in stored.items() if key == f"rank_{rank}"}
