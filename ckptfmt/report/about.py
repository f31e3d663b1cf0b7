# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint is: what wrote it, and what it has beside its tensors."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from ckptfmt._base.names import index_name, printable
from ckptfmt._core import version
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.graph import OBJECT_CONFIG_JSON, Node
from ckptfmt.bundle.meanings import PRNG_KEYS
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import CkptfmtError
from ckptfmt.files.places import modified
from ckptfmt.naming.roles import MODEL_VARIABLES
from ckptfmt.naming.states import state_of, value_text
from ckptfmt.naming.tensor_names import TensorNames

# Lines of each kind, and characters of one.
LINES_MAX, TEXT_MAX = 200, 500
# Objects that only Keras has.
_OF_KERAS = {"keras_api", "layer-0", MODEL_VARIABLES, "_layers"}


def about_data(people: TensorNames, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a checkpoint.

    Args:
        people: the checkpoint.
        metadata: those of it; empty if they cannot be read.
    """
    state = state_of(metadata)
    values = {} if state is None else state.values
    structures = (state_tree.KEY, state_tree.PYTREE)
    others = {key: one for key, one in metadata.items() if key not in structures}
    return {
        "framework": _framework(people.nodes, metadata),
        "written": _written(people.reader),
        "version": version(),
        "digest": None,
        "values": _lines({path: value_text(one) for path, one in values.items()}),
        "values_count": len(values),
        "random": [printable(path) for path in (state.random if state else ())][:LINES_MAX],
        "metadata": _lines({key: json.dumps(one) for key, one in others.items()}),
    }


def _lines(texts: Mapping[str, str]) -> list[list[str]]:
    return [[printable(name), cut(one)] for name, one in islice(texts.items(), LINES_MAX)]


def cut(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."


def _framework(nodes: Sequence[Node], metadata: Mapping[str, Any]) -> str | None:
    """Return the framework, where something that only it writes is stored."""
    if state_tree.KEY in metadata or state_tree.WHOLE in metadata:
        return "PyTorch"
    if PRNG_KEYS in metadata or state_tree.PYTREE in metadata:
        return "JAX"
    for node in nodes:
        if not _OF_KERAS.isdisjoint(name for name, _ in node.children) or any(
            one.name == OBJECT_CONFIG_JSON for one in node.attributes
        ):
            return "Keras"
    return None  # graphs of TensorFlow and of ckptfmt's own Checkpoint may be the same


def _written(reader: Reader) -> str | None:
    """Return when the index was written; None of a store that does not say."""
    with contextlib.suppress(CkptfmtError, OSError):
        seconds = modified(index_name(reader.prefix))
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return None
