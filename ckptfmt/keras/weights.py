# SPDX-License-Identifier: Apache-2.0
"""load_weights and save_weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from ckptfmt._base.arguments import (
    Durability,
    Level,
    check_choice,
    check_order,
    check_switch,
    invalid,
)
from ckptfmt._base.arrays import Sources
from ckptfmt._base.background import wait_for_saves
from ckptfmt._base.names import path_text, prefix_text
from ckptfmt._base.patterns import Filter
from ckptfmt._base.renaming import Rename
from ckptfmt._base.save_options import SaveOptions
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.graph_keys import graph_of
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.saving import collect
from ckptfmt.bundle.writer import metadata_json, write_sources
from ckptfmt.errors import InvalidError
from ckptfmt.formats.datasets import is_variable_name, open_datasets
from ckptfmt.keras.checkpoint import by_graph, by_path
from ckptfmt.keras.generators import (
    RANDOM_STATE,
    add_generators,
    generators_of_process,
    warn_of_layers,
)
from ckptfmt.keras.h5 import by_h5, owners_of, tensors_of, write_h5
from ckptfmt.keras.layers import (
    beside_variables,
    derive,
    paths_of,
    warn_of_rest,
    without_variables,
)
from ckptfmt.keras.model import OPTIMIZER, Objects
from ckptfmt.keras.optimizers import CLASS, class_of
from ckptfmt.keras.pairing import Pairing
from ckptfmt.objects.choice import value_names
from ckptfmt.objects.serializing import content_of as graph_content
from ckptfmt.objects.traversal import TreeView
from ckptfmt.recipe.changes import Cast, Changes, Names
from ckptfmt.recipe.load import MatchReport
from ckptfmt.recipe.sources import format_of

Path = str | bytes | os.PathLike[Any]
By = Literal["graph", "path", "h5"]

H5 = ".weights.h5"


def load_weights(
    model: Any,
    path: Path,
    *,
    by: By | None = None,
    optimizer: bool = True,
    names: Names | None = None,
    filter: Filter | None = None,  # noqa: A002 (as in `ckptfmt.load_into`)
    rename: Rename | None = None,
    cast: Cast | None = None,
    allow_loss: bool = False,
    strict: bool = True,
) -> MatchReport:
    """Load weights into a model that is built, on any backend.

    The checkpoint may be what `save_weights`, `tf.train.Checkpoint(model=model)` (under any name,
    or as the root), Keras 2's `model.save_weights` or `model.save` wrote, one with tensors named by
    `variable.path`, or a `.weights.h5` file of Keras 3. Everything is compared before the first
    variable is changed; then one value at a time is read, verified and assigned. A checkpoint with
    seeds also sets the generators of this process; the states of other backends are left out.

    Args:
        model: the model.
        path: what `ckptfmt.open` takes, or a file whose name ends with ".weights.h5".
        by: "graph" matches the edges of the object graph, "path" the paths of variables, "h5" the
            names in `.weights.h5`. None: "graph" if one of its edges leads to a variable of the
            model; without a graph "h5" if a name is one of these; else "path".
        optimizer: whether to load the variables of the model's optimizer, if the checkpoint has an
            optimizer as well. An optimizer that is not built is built.
        names: the tensors to load, str or bytes; None: all. A missing one is an error. With "graph"
            a name is a path in the checkpoint, such as "model/layer_with_weights-1/kernel".
        filter: which tensors to load: a name, a glob pattern (`*` matches slashes too), `/REGEX/`
            or a compiled pattern found anywhere in the name, or a function of it; None: all.
        rename: stored name to new name: a mapping, a function, or a list of pairs (regular
            expression, replacement) applied in order, as `re.sub` does. None from a function or a
            pair drops the tensor. A transform, a function of the array such as `numpy.transpose`,
            may follow the new name.
        cast: a dtype for all tensors of its kind (floating-point, integer, complex) with at least
            one dimension, or a mapping of filters to dtypes: the first that matches counts, None
            changes nothing. True: numbers become what their targets are. The widths of steps and of
            random seeds differ between backends, and are always converted.
        allow_loss: True allows casts that change values by more than rounding: overflow, lost
            fractions.
        strict: True: anything that does not match is an error. False: load what matches.

    Returns:
        What matched and what did not, by the names that were compared. `left` has the layers whose
        state is not in variables, and "optimizer" if that of a `.weights.h5` file is another one.

    Raises:
        TensorNotFoundError: `strict`, and variables without a value are the only problem.
        InvalidError: `strict`, and something else does not match; the model is not built; an
            argument; or, before anything is changed, a cast that loses values, without
            `allow_loss`. The attribute `report` of both is the MatchReport if a name, shape or
            dtype does not match, else None.
        What `ckptfmt.open` and reading raise; the model then has some of the values.
    """
    check_order("load_weights(model, path)", "path", path, model)
    if by is not None:
        check_choice("by", by, get_args(By))
    check_switch("optimizer", optimizer)
    choice = Changes.of(names, filter, rename, cast, allow_loss, strict)
    Objects(model, optimizer=False)  # checks the model
    text = path_text(path, "path", urls=True)
    if text.endswith(H5) and format_of(text, exists=True) == "hdf5":
        if by not in (None, "h5"):
            raise InvalidError(f"a {H5} file is loaded by='h5', not by={by!r}", path=text)
        with open_datasets(path_text(text, "path")) as stored:
            return _loaded(by_h5(stored, model, optimizer, choice), text, model, choice)
    with reading.open(text) as reader:
        return load_from(reader, by, model, optimizer, choice)


def load_from(
    reader: Reader, by: By | None, model: Any, optimizer: bool, choice: Changes
) -> MatchReport:
    """Load weights as `load_weights` does, from an open checkpoint."""
    pairing = _pairing(reader, by, model, optimizer, choice)
    add_generators(pairing, reader, model)
    return _loaded(pairing, reader.prefix, model, choice)


def _loaded(pairing: Pairing, path: str, model: Any, choice: Changes) -> MatchReport:
    pairing.left += paths_of(without_variables(model))
    report = pairing.load(path, choice)
    places = map(pairing.places.__getitem__, report.matched)
    derive(model, {id(one) for place in places for one in place.variables})
    return report


def _pairing(
    reader: Reader, by: By | None, model: Any, optimizer: bool, choice: Changes
) -> Pairing:
    graph = graph_of(reader)
    if by is None and graph is None:
        by = "h5" if any(map(is_variable_name, reader)) else "path"
    if by == "h5":
        return by_h5(reader, model, optimizer, choice)
    if by == "path":
        pairing = by_path(reader, graph, model, optimizer, choice)
    elif graph is None:
        raise InvalidError("there is no object graph: load by='path'", path=reader.prefix)
    else:
        stored = list(value_names(graph))  # before `rename` changes the graph
        pairing = by_graph(reader, graph, model, optimizer, choice)
        if by is None and pairing.places.keys().isdisjoint(pairing.new_names.values()):
            pairing = by_path(reader, graph, model, optimizer, choice)  # as of `model.export()`
        else:
            choice.chosen(stored, reader.prefix)  # refuses or notes keys that match none
    pairing.left += paths_of(beside_variables(model))
    return pairing


def save_weights(
    model: Any,
    prefix: Path,
    *,
    by: By | None = None,
    optimizer: bool = True,
    seeds: bool = False,
    metadata: Mapping[str, Any] | None = None,
    level: Level = "v2+",
    alignment: int | None = None,
    durability: Durability = "full",
    compression: str | None = None,
) -> str:
    """Save the weights of a model that is built, on any backend, all or nothing, and return the
    prefix as str.

    Args:
        model: the model.
        prefix: the checkpoint's prefix; or a file whose name ends with ".weights.h5", which is
            written as Keras 3 writes it.
        by: "graph" (default) saves the object graph that `tf.train.Checkpoint(model=model)` saves,
            with the names of Keras 2 and 3: `tf.train.Checkpoint(model=model).restore(prefix)`
            restores it. "path" names the tensors by `variable.path`, without a graph. "h5" names
            them as in `.weights.h5`.
        optimizer: whether to save the variables of the model's optimizer. The first step of a
            training builds it; before, a `.weights.h5` file has only its step and learning rate,
            and a checkpoint none.
        seeds: whether to save the states of random generators: the seed generators of the layers,
            as of Dropout, and those of the process that layers without one draw from (Keras's
            global one; torch's). TensorFlow does not know them, so that its `assert_consumed`
            reports them. Not with "h5". A CkptfmtWarning names layers that draw from others.
        metadata: a mapping of str to texts, finite numbers, bools and lists of these, stored as
            JSON and read back as `Reader.metadata`. Level "v2" cannot store it.
        level: "v2": exactly what TensorFlow writes; "v2+": with chunk checksums, which TensorFlow
            skips; "ckptfmt": with compressed values, which TensorFlow refuses. A `.weights.h5` file
            has only `durability`.
        alignment: bytes; every tensor starts at a multiple of it. None: 64, at level "v2" 1.
        durability: "full": synced; "rename": atomic, not synced; "none": also not read back.
        compression: "zstd", or "zstd:1" to "zstd:22", compresses tensors where that
            helps, which makes the level "ckptfmt". None: none, at that level "zstd".

    A CkptfmtWarning names layers with state that is not saved: vocabularies, bins, and what their
    own `save_own_variables` keeps beside variables, but for "h5".

    Raises:
        InvalidError: the model is not built; two variables have one path (by="path"); `seeds`, and
            a layer was called in a tf.data pipeline of another framework; the model has other
            optimizers, and `model.optimizer` is not built; an argument.
        What `ckptfmt.save` raises.
    """
    check_order("save_weights(model, prefix)", "prefix", prefix, model)
    text = path_text(prefix, "prefix", urls=True)
    if by is not None:
        check_choice("by", by, get_args(By))
    check_switch("optimizer", optimizer)
    check_switch("seeds", seeds)
    is_file = text.endswith(H5)
    by = by or ("h5" if is_file else "graph")
    options = SaveOptions(
        level=level, alignment=alignment, durability=durability, compression=compression
    )
    if is_file:
        given = {"metadata": metadata, "by": by != "h5"}
        for name in [*options.of_format(), *(name for name, value in given.items() if value)]:
            raise InvalidError(f"{name} cannot be used with a {H5} file", path=text)
    if seeds and by == "h5":
        raise InvalidError(f"seeds=True cannot be used with by='h5' or a {H5} file", path=text)
    if is_file:
        text = path_text(text, "prefix")
        Objects(model, optimizer=optimizer, seeds=False, saving=True)  # checks the model
        warn_of_rest(model, with_methods=True)
        write_h5(text, owners_of(model, optimizer), durability)
        return text
    wait_for_saves()
    target = prefix_text(text, urls=True)
    own = getattr(model, OPTIMIZER, None)
    if optimizer and (own is None or not own.built):  # a load would miss its moments
        optimizer = False
        if Objects(model, optimizer=True, seeds=False, saving=True).has_other_optimizers():
            raise invalid(
                "optimizer",
                "the model has other optimizers than `model.optimizer`, which is not built: pass "
                "optimizer=False, or save with a CheckpointManager of ckptfmt.keras.Checkpoint",
            )
    sources, stored = content_of(model, by, optimizer, seeds, metadata, level)
    write_sources(target, sources, None, options, metadata=stored)
    return target


def content_of(
    model: Any,
    by: By,
    optimizer: bool,
    seeds: bool,
    metadata: Mapping[str, Any] | None,
    level: Level,
) -> tuple[Sources, bytes | None]:
    """Return what `save_weights` writes: the tensors, and the metadata as they are stored."""
    objects = Objects(model, optimizer=optimizer, seeds=seeds, saving=True)
    warn_of_rest(model, with_methods=by == "h5")
    own = getattr(model, OPTIMIZER, None) if optimizer else None
    if own is not None and level != "v2":  # which has no metadata
        metadata = {CLASS: class_of(own), **(metadata or {})}
    text = metadata_json(metadata, level)
    states = generators_of_process() if seeds else {}
    if seeds:
        warn_of_layers(model)
    if by == "graph":
        tree = {**objects.below("model"), "save_counter": np.ones((), np.int64)}
        content = graph_content(TreeView({**tree, RANDOM_STATE: states} if seeds else tree))
        return content.sources(), text
    named = objects.by_path() if by == "path" else tensors_of(owners_of(model, optimizer))
    named |= {f"{RANDOM_STATE}/{name}": state for name, state in states.items()}
    return collect(named), text
