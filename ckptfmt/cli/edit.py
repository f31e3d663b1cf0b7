# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt edit`: rename, drop and cast tensors, and set metadata."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import ckptfmt
from ckptfmt import InvalidError
from ckptfmt.cli import text
from ckptfmt.cli.destination import check_destination
from ckptfmt.cli.options import add_cast, add_level, add_result_options, add_selection, cast
from ckptfmt.cli.progress import Progress
from ckptfmt.cli.renaming import renames
from ckptfmt.cli.results import changed, listed, names_of, print_result
from ckptfmt.files.locate import locate
from ckptfmt.naming.tensor_names import TensorNames
from ckptfmt.types import Edit

EPILOG = """
SOURCE is a path as for `ckptfmt inspect`; DESTINATION is a prefix. Data files whose bytes stay are
shared by hard links and not read: renaming writes an index only. A data file that loses more than a
tenth of its bytes is written again without them. An object graph of TensorFlow is edited as well.

A FILTER is a name, else a glob for the whole name (* matches / too), or /REGEX/ that is found
anywhere in it, of the stored name or of a path of the variable's object: `model/*` has the weights
that Keras 3 stores under `optimizer/`. Options can be repeated. All of them refer to the names
before the edit, so that two can be swapped.

Losses need an option: --drop-weights for weights of the model, --allow-loss for casts that change
values by more than rounding, which are counted. Which tensors are the state of an optimizer is
decided by the object graph, by the metadata of ckptfmt.torch or ckptfmt.jax, or by TensorFlow 1's
names; what cannot be decided stays. If tensors of the object graph, or of a state that
ckptfmt.torch saved, are missing, only metadata, level and compression can be changed, unless
--drop-missing is given.

In a state that ckptfmt.torch saved, the key of a renamed tensor changes with its name where the
rest of the path stays (model.conv.weight to model.c.weight); else the tensor keeps its place in
what ckptfmt.torch.load returns. --set-metadata ckptfmt.torch= removes the structure of the state:
the tensors are then loaded by their names.

rename:
  OLD=NEW             a whole name; each * of NEW stands for what the same * of OLD matched
  /REGEX/=NEW         as Python's re.sub; \\1 is the first group

--json prints {"schema": 2, "path", "tensors": how many, "renamed": {old: new}, "dropped":
[name, ...], "casts": {name: [before, after]}, "copied_nbytes", "losses", "zeros":
{name: elements that a cast changed by more than rounding, or that became 0}, "kept", "lost":
{role: [tensors, bytes]}, "undecided": [name, ...], "missing": [key of the graph, ...],
"uncast": [name of a tensor without a dimension, ...]}.

examples:
  ckptfmt edit model out/model --rename 'bert/*=encoder/*'
  ckptfmt edit model out/model --strip-optimizer
  ckptfmt edit model out/model --drop '*/Adam*' --cast bfloat16
  ckptfmt edit model out/model --keep 'encoder/*' --drop-weights -n

exit status:
  0  written
  1  the source is damaged; nothing has changed
  2  refused, and nothing has changed: wrong usage, a filter that matches nothing, weights that
     would be dropped without --drop-weights, no tensor or no weight left, tensors of the object
     graph that are missing without --drop-missing, a cast that is not possible, something at
     DESTINATION without --overwrite, no checkpoint at SOURCE; or the result could not be written
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a checkpoint")
    add("destination", metavar="DESTINATION", help="prefix of the result")
    add_selection(parser)
    add(
        "--strip-optimizer",
        action="store_true",
        help="leave out the state of optimizers, by the object graph, the metadata or "
        "TensorFlow 1's names",
    )
    add(
        "--drop-weights",
        action="store_true",
        help="allow --drop and --keep to leave out weights of the model",
    )
    add(
        "--drop-missing",
        action="store_true",
        help="remove what the object graph, or a state of ckptfmt.torch, says of missing tensors",
    )
    add_cast(parser)
    add(
        "--set-metadata",
        dest="metadata",
        metavar="KEY=VALUE",
        help="set a member of the metadata to a number, true, false, a JSON list, or a text; an "
        "empty VALUE removes it",
        action="append",
        default=[],
    )
    add(
        "--drop-metadata",
        action="store_true",
        help="leave the metadata out, damaged ones as well",
    )
    add(
        "--compact",
        action="store_true",
        help="write every data file that loses a tensor again, to free its space",
    )
    add_level(parser, None, "; default: that of the source, v2+ for metadata in v2")
    add_result_options(parser, reports=True)


def run(options: argparse.Namespace) -> int:
    """Edit and return the exit status.

    Raises:
        CkptfmtError: nothing has changed (after a DurabilityUnknownError: it has).
    """
    source = locate(options.source)
    check_destination(options.destination, overwrite=options.overwrite)
    metadata: dict[str, Any] | None = {} if options.drop_metadata else None
    shown, rename = names_of(source), None
    if options.rename or options.metadata:
        with ckptfmt.open(source) as reader:
            if options.rename:
                rename = renames(
                    options.rename, list(reader), reader.prefix, TensorNames(reader).shown
                )
            if options.metadata:
                stored = reader.metadata if metadata is None else metadata
                metadata = _metadata(options.metadata, stored)
    with Progress("editing", quiet=options.quiet or options.json) as progress:
        done = ckptfmt.editing.edit(
            source,
            options.destination,
            rename=rename,
            drop=options.drop or None,
            keep=options.keep or None,
            cast=cast(options.cast),
            allow_loss=options.allow_loss,
            metadata=metadata,
            strip_optimizer=options.strip_optimizer,
            drop_weights=options.drop_weights,
            drop_missing=options.drop_missing,
            compact=options.compact,
            level=options.level,
            compression=options.compression,
            dry_run=options.dry_run,
            progress=progress.update,
        )
    missing, dropped = ((), done.missing) if options.drop_missing else (done.missing, ())
    verb = "would write" if options.dry_run else "wrote"
    lines = [
        *_roles(done),
        *listed("renamed {}", done.renamed.items(), partial(_renamed, shown)),
        *listed("dropped {}", done.dropped, shown),
        *listed("cast {}", done.casts.items(), partial(changed, shown=shown)),
        *listed("dropped the names of {} that are missing", dropped, shown),
        f"{verb} {text.plural(done.tensors, 'tensor')} to {text.path(done.path)}",
    ]
    print_result(done, options, lines, missing=missing, shown=shown)
    return 0


# ---- options -------------------------------------------------------------------------------------


def _metadata(given: list[str], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata with these members set."""
    result = dict(stored)
    keys: set[str] = set()
    for one in given:
        key, equals, value = one.partition("=")
        if not (key and equals):
            raise InvalidError(f"--set-metadata {one!r}: expected KEY=VALUE")
        if key in keys:
            raise InvalidError(f"--set-metadata {one!r}: {key!r} is given twice")
        keys.add(key)
        if not value:
            if result.pop(key, None) is None:
                raise InvalidError(f"--set-metadata {one!r}: the metadata has no {key!r}")
            continue
        try:
            result[key] = json.loads(value)
        except ValueError:
            result[key] = value
    return result


# ---- printing ------------------------------------------------------------------------------------


_ROLES = {
    "weight": "weights",
    "optimizer": "state of optimizers",
    "other": "other tensors",
    "unknown": "weights or state of optimizers",
}


def _renamed(shown: Callable[[str], str], both: tuple[str, str]) -> str:
    before, after = shown(both[0]), text.name(both[1])
    return f"{before if before != after else text.name(both[0])} to {after}"


def _roles(done: Edit) -> list[str]:
    lines = []
    for role, what in _ROLES.items():
        both = ("kept", done.kept.get(role)), ("dropped", done.lost.get(role))
        counts = [
            f"{word} {text.count(pair[0])} ({text.size(pair[1])})" for word, pair in both if pair
        ]
        if counts:
            lines.append(f"{what}: {', '.join(counts)}")
    return lines
