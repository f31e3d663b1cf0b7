# SPDX-License-Identifier: Apache-2.0
"""HDF5 through h5py: contiguous datasets in one file, no checksums. Tuned is the newest layout."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from sides import Call, Side, key_of, then_synced


def version() -> str:
    return str(h5py.__version__)


def first(folder: str, name: str) -> Any:
    with h5py.File(f"{folder}/all", "r") as file:
        return file[name][...]


class Here(Side):
    def save(self, folder: str, durable: bool) -> Call:
        def call() -> None:
            with h5py.File(f"{folder}/all", "w", libver="latest" if self.tuned else None) as file:
                for name, array in self.data.items():
                    file.create_dataset(name, data=array)

        return then_synced(call, folder, durable)

    def load(self, folder: str) -> Call:
        def call() -> dict[str, Any]:
            with h5py.File(f"{folder}/all", "r") as file:
                return {name: file[name][...] for name in file}

        return call

    def load_out(self, folder: str) -> Call:
        out = {name: np.ones(self.shape, np.float32) for name in self.names}

        def call() -> dict[str, Any]:
            with h5py.File(f"{folder}/all", "r") as file:
                for name, array in out.items():
                    file[name].read_direct(array)
            return out

        return call

    def box(self, folder: str, name: str, box: list[list[int]], opened: bool) -> Call:
        key = key_of(box)
        if opened:
            held = h5py.File(f"{folder}/all", "r")
            return lambda: held[name][key]

        def call() -> Any:
            with h5py.File(f"{folder}/all", "r") as file:
                return file[name][key]

        return call

    def gets(self, folder: str, names: list[str], together: bool) -> Call:
        if together:
            raise NotImplementedError
        held = h5py.File(f"{folder}/all", "r")
        return lambda: [held[name][...] for name in names]

    def list_names(self, folder: str) -> Call:
        def call() -> list[str]:
            with h5py.File(f"{folder}/all", "r") as file:
                return list(file)

        return call

    def one(self, folder: str, name: str) -> Call:
        return lambda: first(folder, name)

    def list_prefix(self, folder: str, prefix: str) -> Call:
        def call() -> list[str]:
            with h5py.File(f"{folder}/all", "r") as file:
                return [name for name in file if name.startswith(prefix)]

        return call
