# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load, on tensors that share the memory of the arrays. The CRC-32 of zip is
written and not verified."""

from __future__ import annotations

from typing import Any

import torch

from sides import Call, Side, key_of, then_synced


def version() -> str:
    return str(torch.__version__)


def first(folder: str, name: str) -> Any:
    return torch.load(f"{folder}/all", mmap=True, weights_only=True)[name].clone().numpy()


class Here(Side):
    def hold(self, arrays: dict[str, Any]) -> Any:
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def arrays(self, result: Any) -> Any:
        if isinstance(result, dict):
            return {name: tensor.numpy() for name, tensor in result.items()}
        return result.numpy()

    def save(self, folder: str, durable: bool) -> Call:
        return then_synced(lambda: torch.save(self.data, f"{folder}/all"), folder, durable)

    def load(self, folder: str) -> Call:
        return lambda: torch.load(f"{folder}/all", weights_only=True)

    def load_lazy(self, folder: str) -> Call:
        return lambda: torch.load(f"{folder}/all", mmap=True, weights_only=True)

    def box(self, folder: str, name: str, box: list[list[int]], opened: bool) -> Call:
        key = key_of(box)
        if opened:
            held = torch.load(f"{folder}/all", mmap=True, weights_only=True)[name]
            return held[key].clone

        def call() -> Any:
            return torch.load(f"{folder}/all", mmap=True, weights_only=True)[name][key].clone()

        return call
