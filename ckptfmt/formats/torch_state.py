# SPDX-License-Identifier: Apache-2.0
"""A state of torch in another format: what its metadata say that the format can say as well.

`safetensors.torch` stores tied tensors once, and in the metadata the other names of each with the
name that it is stored under. Names are known to be tied from the state that `ckptfmt.torch` stores,
which a conversion from such a file makes. A state that says no more than that is not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ckptfmt._base.hints import some
from ckptfmt._base.renaming import Rename, renamed
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.meanings import E8M0, FP4
from ckptfmt.bundle.state_tree import KEY
from ckptfmt.errors import UnsupportedError

# The member of safetensors' metadata that says whose tensors a file has. accelerate refuses
# metadata without it.
FORMAT = {"format": "pt"}


def ties_of(metadata: Mapping[str, Any], rename: Rename | None = None) -> dict[str, str]:
    """Return the names of tensors that are stored under others, with these; none of a state that
    cannot be read.

    Args:
        metadata: of a checkpoint, with the new names of its tensors.
        rename: what gave these names, and gives new ones to the others.
    """
    paths: dict[str, list[str]] = {}
    try:
        whole = state_tree.parse(metadata[KEY])
        for one in state_tree.leaves(whole["state"]):
            paths.setdefault(one.name, []).extend([] if one.is_part else [one.path])
    except (UnsupportedError, *state_tree.DAMAGED):
        return {}
    found: dict[str, str] = {}
    for name, all_paths in paths.items():
        # Where the path of the stored name has its new name, those of the others have theirs.
        rule = None if name in all_paths else rename
        given = [new for new in renamed(all_paths, rule)[0] if new is not None]
        if name not in given:  # after an edit that has moved the tensor alone
            above = next((one.removesuffix(name) for one in given if one.endswith(f".{name}")), "")
            given = [one.removeprefix(above) for one in given]
        if len(all_paths) > 1:
            found |= {one: name for one in given if one != name}
    return found


def with_ties(tensors: Iterable[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a safetensors file with a state in the place of the names of tied
    tensors. In a file with a state, or with other metadata than torch's, texts only look like such
    names."""
    if KEY in metadata:
        known = ties_of(metadata)
        return {one: text for one, text in metadata.items() if known.get(one) != text}
    stored = set(tensors)
    ties = {
        one: name
        for one, name in metadata.items()
        if isinstance(name, str) and name in stored and one not in stored and one not in FORMAT
    }
    # safetensors.torch.save_model writes nothing else.
    if not ties or not (metadata.items() >= FORMAT.items() or len(ties) == len(metadata)):
        return dict(metadata)
    rest = {one: text for one, text in metadata.items() if one not in ties}
    return {**rest, KEY: state_tree.text_of(state=_state(tensors, ties))}


def exported(
    tensors: Iterable[str], metadata: Mapping[str, Any], rename: Rename | None
) -> tuple[dict[str, Any], list[str]]:
    """Return metadata as safetensors has them, with `format` and the names of tied tensors; and in
    words what they cannot have.

    Args:
        tensors: names of the tensors.
        metadata, rename: as in `ties_of`.
    """
    if KEY not in metadata:
        return dict(metadata), []
    ties = ties_of(metadata, rename)
    own = {one: text for one, text in metadata.items() if one != KEY}
    # A text that is the name of a tensor would be read as a tie without the state.
    if not _is_flat(metadata, tensors, ties) or not {*tensors}.isdisjoint(map(str, own.values())):
        own[KEY] = metadata[KEY]
    texts = FORMAT | own
    return ties | texts, _named({one: of for one, of in ties.items() if one in texts})


def left_out(tensors: Iterable[str], metadata: Mapping[str, Any]) -> list[str]:
    """Return in words what a result without metadata lacks."""
    found = ["the metadata"] if metadata else []
    if KEY in metadata:
        ties = ties_of(metadata)
        if not _is_flat(metadata, tensors, ties):
            found.append("the structure of the torch state, and its values other than tensors")
        found += _named(ties)
    return found


def _named(ties: Mapping[str, str]) -> list[str]:
    pairs = [f"{name!r} ({of!r})" for name, of in ties.items()]
    return [f"the names of tied tensors: {some(pairs, quote='')}"] if ties else []


def _is_flat(metadata: Mapping[str, Any], tensors: Iterable[str], ties: Mapping[str, str]) -> bool:
    """Return whether a state is a dict of tensors with these ties, and of dtypes that are in a
    header of safetensors."""
    try:
        whole = state_tree.parse(metadata[KEY])
        for one in state_tree.leaves(whole["state"]):
            if len(one.node) == 2 and one.node.get("dtype") in (E8M0, FP4):
                del one.node["dtype"]
    except (UnsupportedError, *state_tree.DAMAGED):
        return False
    return bool(whole == json.loads(state_tree.text_of(state=_state(tensors, ties))))


def _state(tensors: Iterable[str], ties: Mapping[str, str]) -> Any:
    leaves: dict[str, Any] = {name: {"$tensor": True} for name in tensors}
    leaves |= {name: {"$tensor": of} for name, of in ties.items()}
    return state_tree.dict_node([[name, one] for name, one in leaves.items()])
