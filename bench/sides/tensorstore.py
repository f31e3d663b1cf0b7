# SPDX-License-Identifier: Apache-2.0
"""TensorStore with zarr 3 arrays, raw codec: large ones in files of 16 MiB chunks, many small ones
in one OCDBT database and one transaction. No checksums for the former."""

from __future__ import annotations

from typing import Any

import tensorstore as ts

from sides import Call, Side, key_of, then_synced

FEW = 100
CHUNK_BYTES = 16 << 20


def version() -> str:
    try:
        from importlib.metadata import version as found  # noqa: PLC0415

        return found("tensorstore")
    except ImportError:
        return "?"


def context(durable: bool = False) -> Any:
    return ts.Context(
        {
            "data_copy_concurrency": {"limit": 2},
            "file_io_concurrency": {"limit": 8},
            "file_io_sync": durable,
        }
    )


def spec(folder: str, name: str, shape: list[int] | None, few: bool) -> dict[str, Any]:
    base = {"driver": "file", "path": folder + "/"}
    store = (
        {**base, "path": f"{folder}/{name}/"}
        if few
        else {"driver": "ocdbt", "base": base, "path": name + "/"}
    )
    found: dict[str, Any] = {"driver": "zarr3", "kvstore": store}
    if shape is not None:
        row = 4
        for size in shape[1:]:
            row *= size
        chunk = [max(min(CHUNK_BYTES // row, shape[0]), 1), *shape[1:]]
        found["metadata"] = {
            "shape": shape,
            "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }
    return found


def first(folder: str, name: str) -> Any:
    return ts.open(spec(folder, name, None, True), read=True).result().read().result()


class Here(Side):
    def save(self, folder: str, durable: bool) -> Call:
        few = len(self.names) <= FEW

        def call() -> None:
            shared, batch = context(durable), None if few else ts.Transaction()
            opened = [
                ts.open(
                    spec(folder, name, self.shape, few),
                    create=True,
                    open=True,
                    context=shared,
                    transaction=batch,
                )
                for name in self.names
            ]
            written = [
                store.result().write(array)
                for store, array in zip(opened, self.data.values(), strict=True)
            ]
            if batch is not None:
                batch.commit_async().result()
            else:
                for one in written:
                    one.result()

        return then_synced(call, folder, durable)

    def load(self, folder: str) -> Call:
        few = len(self.names) <= FEW

        def call() -> dict[str, Any]:
            shared = context()
            opened = [
                ts.open(spec(folder, name, None, few), read=True, context=shared)
                for name in self.names
            ]
            read = [store.result().read() for store in opened]
            return {name: one.result() for name, one in zip(self.names, read, strict=True)}

        return call

    def box(self, folder: str, name: str, box: list[list[int]], opened: bool) -> Call:
        key = key_of(box)
        if opened:
            held = ts.open(spec(folder, name, None, True), read=True, context=context()).result()
            return lambda: held[key].read().result()
        shared = context()
        return lambda: (
            ts.open(spec(folder, name, None, True), read=True, context=shared)
            .result()[key]
            .read()
            .result()
        )
