# SPDX-License-Identifier: Apache-2.0
"""numpy's own files: a few arrays as a .npy file each, many as one .npz. No checksums for .npy;
the CRC-32 of zip for .npz."""

from __future__ import annotations

from typing import Any

import numpy as np

from sides import Call, Side, key_of, then_synced

FEW = 100


def version() -> str:
    return np.__version__


def first(folder: str, name: str) -> Any:
    return np.load(f"{folder}/{name}.npy")


class Here(Side):
    def save(self, folder: str, durable: bool) -> Call:
        def few() -> None:
            for name, array in self.data.items():
                np.save(f"{folder}/{name}.npy", array)

        def many() -> None:
            np.savez(f"{folder}/all.npz", **self.data)

        return then_synced(few if len(self.names) <= FEW else many, folder, durable)

    def _load(self, folder: str, mode: Any) -> dict[str, Any]:
        return {name: np.load(f"{folder}/{name}.npy", mmap_mode=mode) for name in self.names}

    def load(self, folder: str) -> Call:
        def many() -> dict[str, Any]:
            with np.load(f"{folder}/all.npz") as file:
                return {name: file[name] for name in file}

        return (lambda: self._load(folder, None)) if len(self.names) <= FEW else many

    def load_lazy(self, folder: str) -> Call:
        return lambda: self._load(folder, "r")

    def box(self, folder: str, name: str, box: list[list[int]], opened: bool) -> Call:
        key = key_of(box)
        if opened:
            mapped = np.load(f"{folder}/{name}.npy", mmap_mode="r")
            return lambda: np.array(mapped[key])
        return lambda: np.array(np.load(f"{folder}/{name}.npy", mmap_mode="r")[key])
