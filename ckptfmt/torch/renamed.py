# SPDX-License-Identifier: Apache-2.0
"""The structure of a checkpoint of other names and layouts, by the names of a module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ckptfmt.bundle.selecting import Rename, by_text, check_distinct, renamed
from ckptfmt.errors import InvalidError
from ckptfmt.torch.structure import Stored, leaves, path_name


def renamed_structure(
    structure: Any, rename: Rename, target: Any
) -> tuple[dict[str, Stored], tuple[str, ...]]:
    """Return the stored tensors by their new names, of those that the target has, and the stored
    names of the others.

    Args:
        structure: of the checkpoint.
        rename: as in `ckptfmt.load_into`.
        target: a module or a dict of tensors.

    Raises:
        InvalidError: `rename` is malformed or gives two tensors one name; the target has other
            values than tensors.
    """
    own = target if isinstance(target, dict) else target.state_dict(keep_vars=True)
    for name, value in own.items():
        if not isinstance(value, torch.Tensor):
            raise InvalidError("rename= loads tensors only", tensor=str(name))
    stored = {path_name(path): leaf for path, leaf in leaves(structure)}
    rename = by_text("rename", rename) if isinstance(rename, dict) else rename
    new_names, transforms = renamed(list(stored), rename)
    found: dict[str, str] = {}  # by stored name
    unexpected = []
    for old, new in zip(stored, new_names, strict=True):
        if new is not None and new in own:
            found[old] = new
        elif new is not None:
            unexpected.append(old)
    check_distinct(list(found), list(found.values()))
    chosen = {
        new: replace(stored[old], transform=transforms.get(old)) for old, new in found.items()
    }
    return chosen, tuple(unexpected)
