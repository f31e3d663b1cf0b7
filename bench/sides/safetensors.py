# SPDX-License-Identifier: Apache-2.0
"""safetensors with numpy arrays; lazily with torch's, which are views of the mapped file. No
checksums."""

from __future__ import annotations

import importlib.util
from typing import Any

import safetensors
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sides import Call, Side, key_of, then_synced


def version() -> str:
    return safetensors.__version__


def first(folder: str, name: str) -> Any:
    with safe_open(f"{folder}/all", "np") as file:
        return file.get_tensor(name)


class Here(Side):
    def arrays(self, result: Any) -> Any:
        if isinstance(result, dict):
            return {
                name: getattr(value, "numpy", lambda v=value: v)() for name, value in result.items()
            }
        return result

    def save(self, folder: str, durable: bool) -> Call:
        return then_synced(lambda: save_file(self.data, f"{folder}/all"), folder, durable)

    def load(self, folder: str) -> Call:
        return lambda: load_file(f"{folder}/all")

    def load_lazy(self, folder: str) -> Call:
        if importlib.util.find_spec("torch") is None:
            raise NotImplementedError
        import torch  # noqa: F401, PLC0415 (the first import is not timed)
        from safetensors.torch import load_file as load_torch  # noqa: PLC0415

        return lambda: load_torch(f"{folder}/all")

    def box(self, folder: str, name: str, box: list[list[int]], opened: bool) -> Call:
        key = key_of(box)
        if any(step != 1 for *_, step in box):
            raise NotImplementedError
        if opened:
            held = safe_open(f"{folder}/all", "np")
            return lambda: held.get_slice(name)[key]

        def call() -> Any:
            with safe_open(f"{folder}/all", "np") as file:
                return file.get_slice(name)[key]

        return call

    def gets(self, folder: str, names: list[str], together: bool) -> Call:
        if together:

            def call() -> list[Any]:
                with safe_open(f"{folder}/all", "np") as file:
                    return [file.get_tensor(name) for name in names]

            return call
        held = safe_open(f"{folder}/all", "np")
        return lambda: [held.get_tensor(name) for name in names]

    def list_names(self, folder: str) -> Call:
        def call() -> list[str]:
            with safe_open(f"{folder}/all", "np") as file:
                return list(file.keys())

        return call

    def one(self, folder: str, name: str) -> Call:
        return lambda: first(folder, name)

    def list_prefix(self, folder: str, prefix: str) -> Call:
        def call() -> list[str]:
            with safe_open(f"{folder}/all", "np") as file:
                return [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118

        return call
