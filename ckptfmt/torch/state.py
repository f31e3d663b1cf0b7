# SPDX-License-Identifier: Apache-2.0
"""save, save_async, load and load_into: modules, state dicts and whole training states."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from ckptfmt._base.arguments import (
    Durability,
    Level,
    Verify,
    check_metadata,
    check_order,
    check_progress,
    check_switch,
    invalid,
)
from ckptfmt._base.background import SaveFuture
from ckptfmt._base.patterns import Filter
from ckptfmt._base.progress import Progress
from ckptfmt._base.renaming import Rename
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle import saving
from ckptfmt.bundle.state_tree import KEY
from ckptfmt.errors import warn
from ckptfmt.recipe.changes import Cast, Changes, Names
from ckptfmt.recipe.load import MatchReport, refuse, rename_remedy
from ckptfmt.torch import tensors
from ckptfmt.torch.choosing import Placed, chosen_state
from ckptfmt.torch.making import New
from ckptfmt.torch.matching import Matching, check_whole
from ckptfmt.torch.structure import (
    Default,
    Packed,
    is_stateful,
    structure_and_names,
    structure_of,
)

Path = str | bytes | os.PathLike[Any]


def save(
    state: Any,
    prefix: Path,
    *,
    default: Default | None = None,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    base: Path | None = None,
    progress: Progress | None = None,
    compression: str | None = None,
    shards: int | None = None,
) -> None:
    """Save a module, a state dict, or a whole training state as one checkpoint, all or nothing.

    A tensor is stored under its path: "0.weight" of a module, "model.0.weight" of a dict with that
    module under "model". Tensors that have the same memory, dtype, shape and strides are stored
    once; other views are stored each with its own elements. Numbers, text, None, lists,
    tuples and dicts with any of these as keys are stored in the metadata, without pickle.

    Args:
        state: a module, a state dict, or a dict of tensors, Python and NumPy values, and objects
            with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, RandomState).
        prefix: the checkpoint's prefix.
        default: as of `json.dump`: a function that is called with each value that cannot be stored
            and returns what is stored in its place, or raises TypeError. Keys of dicts and tensors
            are not given to it.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        base: an earlier checkpoint: tensors whose bytes have not changed since are linked, not
            written.
        progress: called as `progress(done, total)` with two ints.
        shards: the number of data files, 1 to 1024; None: by the size of the tensors.

    Raises:
        InvalidError: a value that cannot be stored, by its name; nothing is written.
        What `ckptfmt.save` raises.
    """
    check_order("save(state, prefix)", "prefix", prefix, state)
    packed, metadata = taken_apart(state, metadata, level, default)
    saving.save(
        prefix,
        packed.tensors,
        metadata=metadata,
        level=level,
        alignment=alignment,
        durability=durability,
        base=base,
        progress=progress,
        compression=compression,
        shards=shards,
    )


def save_async(
    state: Any,
    prefix: Path,
    *,
    default: Default | None = None,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    base: Path | None = None,
    progress: Progress | None = None,
    compression: str | None = None,
    shards: int | None = None,
) -> SaveFuture:
    """Save as `save` does, in the background. Returns when the tensors are copied: training may go
    on and change them.

    Args:
        state: a module, a state dict, or a dict of tensors, Python and NumPy values, and objects
            with `state_dict` and `load_state_dict` (modules, optimizers, schedulers, RandomState).
        prefix: the checkpoint's prefix.
        default: as of `json.dump`: a function that is called with each value that cannot be stored
            and returns what is stored in its place, or raises TypeError. Keys of dicts and tensors
            are not given to it.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".
        base: an earlier checkpoint: tensors whose bytes have not changed since are linked, not
            written.
        progress: called as `progress(done, total)` with two ints.
        shards: the number of data files, 1 to 1024; None: by the size of the tensors.

    Returns:
        A future of the prefix. Errors of the write are raised by it.
    """
    check_order("save_async(state, prefix)", "prefix", prefix, state)
    packed, metadata = taken_apart(state, metadata, level, default)
    return saving.save_async(
        prefix,
        packed.tensors,
        metadata=metadata,
        level=level,
        alignment=alignment,
        durability=durability,
        base=base,
        progress=progress,
        compression=compression,
        shards=shards,
    )


def taken_apart(
    state: Any,
    metadata: Mapping[str, Any] | None,
    level: Level,
    default: Default | None = None,
) -> tuple[Packed, Mapping[str, Any] | None]:
    """Return the state taken apart, and the metadata with what is not tensors."""
    check_metadata(metadata)
    packed = Packed(state, default)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # for copies in pinned memory
    if level == "v2" and packed.is_plain:
        return packed, metadata
    return packed, {**(metadata or {}), KEY: packed.text}


P = ParamSpec("P")
R = TypeVar("R")
# Options of torch.load, and what to write instead.
_OF_TORCH = {
    "map_location": "is device= here",
    "weights_only": "has no place here, leave it out: no pickle is ever run",
}


def _without_torch_options(call: Callable[P, R]) -> Callable[P, R]:
    """Add the error for options of torch.load."""

    @functools.wraps(call)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        for name in _OF_TORCH.keys() & options:
            raise invalid(name, f"{name}= of torch.load {_OF_TORCH[name]}")
        return call(*args, **options)

    return checked


@_without_torch_options
def load(
    path: Path,
    device: Any = "cpu",
    *,
    names: Names | None = None,
    filter: Filter | None = None,  # noqa: A002 (as in `ckptfmt.load_into`)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    verify: Verify = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Load a checkpoint into new tensors and return what was saved: the state dict of a module, or
    the nested dict of a training state, with the state dicts of its objects.

    Of a checkpoint that another program wrote (TensorFlow, `ckptfmt.save`), a dict of its tensors;
    strings, which torch lacks, are NumPy arrays of bytes.

    Args:
        path: any path that `ckptfmt.open` takes.
        device: where the tensors go. "meta": the tensors have only shape and dtype.
        names: the tensors to load, str or bytes; None: all. A missing one is an error. A name is a
            path.
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all. It
            means other values too. Dicts omit what is left out, lists and tuples have None in its
            place.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name. Of tensors, to a name in the same dict.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. Dtypes may be those of torch.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. A CkptfmtWarning counts them.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        progress: called as `progress(done, total)` with two ints.

    Returns:
        The saved dict. Tensors that were tied are one tensor.

    Raises:
        TensorNotFoundError: one of `names` is missing, or `filter` matches no tensor.
        InvalidError: a tensor of a dtype that torch lacks; an argument of a wrong type; `rename`
            gives a tensor a name outside of its dict.
        CorruptError: the stored structure is damaged.
        What `ckptfmt.open` and reading raise.
    """
    check_progress(progress)
    choice = Changes.of(names, filter, rename, cast, allow_loss, has_targets=False)
    with reading.open(path, verify=verify) as reader:
        structure = structure_of(reader)
        if not choice.is_default:
            structure = chosen_state(structure, choice, reader)
        new = New(_device(device))
        new.add(structure)
        new.read(reader, [], progress)
    loaded: dict[str, Any] = new.build(structure)
    choice.warn()
    return loaded


@_without_torch_options
def load_into(
    target: Any,
    path: Path,
    *,
    names: Names | None = None,
    filter: Filter | None = None,  # noqa: A002 (as in `ckptfmt.load_into`)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    strict: bool = True,
    assign: bool = False,
    device: Any = "cpu",
    verify: Verify = "auto",
    progress: Progress | None = None,
) -> MatchReport:
    """Load a checkpoint into a module, a state dict, or a whole training state as given to `save`.

    Tensors are read straight into the memory of the module's parameters and buffers, of the tensors
    of a state dict, and of the state that an optimizer has; those on the meta device are replaced
    by new ones. Optimizers and other objects get their state through their `load_state_dict`, other
    values of a dict are replaced. Everything is matched before the first tensor is read, optimizers
    too: their groups, parameters, and the shapes and dtypes of their moments.

    Args:
        target: what to load into: a module, another object with `load_state_dict`, or a dict.
        path: any path that `ckptfmt.open` takes.
        names: the tensors to load, str or bytes; None: all. A missing one is an error.
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all. It
            must match a tensor, and means the paths of other values too.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. True: numbers become what their targets are.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions. The result counts them.
        strict: True: anything that does not match is an error. False: load what matches. An object
            that is not a module gets all that is stored at its path, or stays as it is if none of
            its tensors is chosen. See `ckptfmt.huggingface` for checkpoints of other names.
        assign: True replaces the parameters and buffers of modules by new tensors, without a cast
            of the stored dtype, as `load_state_dict(assign=True)`. Make the optimizer afterwards.
        device: where new tensors go.
        verify: "auto": check whole reads, and parts where that is cheap; "full": all; "off": none.
        progress: called as `progress(done, total)` with two ints.

    Returns:
        What matched, with the names that are `missing` in the checkpoint and those that are
        `unexpected` there.

    Raises:
        TensorNotFoundError: `strict`, and something is missing in the checkpoint.
        InvalidError: `strict`, and something else does not match (with `report`); tensors share
            memory and their stored values differ; a tensor is expanded, sharded or otherwise
            cannot be written; the checkpoint has the target's state only under a key; an object
            would get a part of its state, or renamed tensors.
        What `ckptfmt.open` and reading raise; the content of the targets is then unspecified.
    """
    check_order("load_into(target, path)", "path", path, target)
    check_target("load_into(target, path)", "target", target)
    check_switch("assign", assign)
    check_progress(progress)
    choice = Changes.of(names, filter, rename, cast, allow_loss, strict)
    with reading.open(path, verify=verify) as reader:
        structure, parameters = structure_and_names(reader)
        new = New(_device(device))
        placed = Placed(structure, choice, reader, target)
        matching = Matching(reader, target, new, assign, choice, placed.renamed(parameters))
        finish = matching.match(target, placed.structure, ())
        report = matching.report(tuple(placed.unexpected), tuple(placed.filtered))
        if choice.is_default or not isinstance(target, torch.nn.Module):
            check_whole(target, structure, path, report)
        if strict and not report:
            remedy = rename_remedy if rename is None else None
            refuse(reader.prefix, report, casts=tensors.can_cast, remedy=remedy)
        matching.new.read(reader, matching.fills(), progress)
    finish()
    return choice.reported(report)


def check_target(call: str, argument: str, given: Any) -> None:
    """Refuse what `load_into` cannot load into."""
    if not isinstance(given, dict) and not is_stateful(given):
        raise invalid(
            argument,
            f"{call}: {argument} must be a module, a state dict or a dict of these, "
            f"not {type(given).__name__}",
        )


def _device(given: Any) -> torch.device:
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise invalid("device", f"device={given!r} cannot be used: {reason}") from None


# ---- random numbers ------------------------------------------------------------------------------


class RandomState:
    """The random number generators of this process, as a part of a training state: those of torch
    on the CPU and on every GPU in use, of NumPy and of Python.

    Where `torch.distributed` has several processes, each has a state of its own under "rank_<r>".
    One process takes the state of rank 0.

    Example:
        save({"model": model, "random": RandomState()}, prefix)
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all of them."""
        state = {
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
        }
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        rank, world_size = rank_and_size()
        return {f"rank_{rank}": state} if world_size > 1 else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the state of all of them; of the GPUs, as many as there are. A process for whose rank
        there is none keeps its own, with a CkptfmtWarning."""
        rank, _ = rank_and_size()
        own = state if "torch" in state and rank == 0 else state.get(f"rank_{rank}")
        # DCP gives None for what a partial load leaves out.
        if own is None or any(one is None for one in own["numpy"]):
            warn(
                f"the random state has no generators of rank {rank}, which keeps its own: it draws "
                "other numbers than a training without a break"
            )
            return
        torch.set_rng_state(own["torch"].cpu())
        np.random.set_state(own["numpy"])
        random.setstate(own["python"])
        if torch.cuda.is_available():
            for device, one in enumerate(own.get("cuda", ())[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(one.cpu(), device)


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process, and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


RandomState.__module__ = "ckptfmt.torch"
