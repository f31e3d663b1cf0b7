# SPDX-License-Identifier: Apache-2.0
"""Loading a checkpoint of other names and layouts into a module."""

from __future__ import annotations

from typing import Any

import torch

from ckptfmt.bundle import load as loading
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.load import MatchReport, Path
from ckptfmt.bundle.selecting import Rename
from ckptfmt.errors import InvalidError
from ckptfmt.objects.choice import Choice
from ckptfmt.torch import tensors

__all__ = ["load_renamed"]


def load_renamed(target: Any, path: Path, rename: Rename, **options: Any) -> MatchReport:
    """Load the tensors of a checkpoint into those of a module or state dict, by their new names.

    Tied tensors count as one: the checkpoint must have at least one of their names, and equal
    values for all of them that it has.

    Args:
        target: a module or a state dict.
        path, rename, options: as in `ckptfmt.load_into`.
    """
    is_module = isinstance(target, torch.nn.Module)
    own = target.state_dict(keep_vars=True) if is_module else target
    with reading.open(path) as reader:
        present = set(Choice(rename=rename).names(list(reader))[0].values())
    tied: dict[Any, list[str]] = {}
    for name, tensor in own.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidError("rename= loads tensors only", tensor=str(name))
        if tensor.is_meta:
            raise InvalidError(
                "the tensor is on the meta device: call module.to_empty(device=...) before loading "
                "with rename=",
                tensor=name,
            )
        tied.setdefault(tensors.identity(tensor), []).append(name)
    chosen = [[one for one in names if one in present] or names[:1] for names in tied.values()]
    targets = {name: own[name].detach() for names in chosen for name in names}
    staged = {name: one for name, one in targets.items() if one.device.type != "cpu"}
    places = targets | {name: one.to("cpu") for name, one in staged.items()}
    report = loading.load_into(path, places, **options, rename=rename)
    for name, tensor in staged.items():
        tensor.copy_(places[name])
    return report
