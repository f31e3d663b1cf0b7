# SPDX-License-Identifier: Apache-2.0
"""Ours. Checksums are written and verified, except where a verb says that it is lazy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import ckptfmt
from ckptfmt import _core
from sides import Call, Side, key_of

ENDING = "/.ATTRIBUTES/VARIABLE_VALUE"


def version() -> str:
    return ckptfmt.__version__


def first(folder: str, name: str) -> Any:
    with ckptfmt.open(f"{folder}/ck") as reader:
        return reader.read(name)


class Model:
    """What a manager saves: these arrays."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays

    def write(self, prefix: str, options: Any) -> str:
        ckptfmt.save(prefix, self.arrays, durability=options.durability)
        return prefix


class Here(Side):
    def __init__(self, tuned: bool) -> None:
        super().__init__(tuned)
        self._kept: tuple[list[str], ckptfmt.Saver] | None = None
        # A name of the package brings its module when it is first used: that is part of importing.
        for name in ckptfmt.__all__:
            getattr(ckptfmt, name)

    def arrays(self, result: Any) -> Any:
        if isinstance(result, np.ndarray) and result.dtype.names:  # a table
            rows = zip(*(result[name] for name in ("name", "shape", "dtype_code")), strict=True)
            return [f"{name} {list(shape)} {code}" for name, shape, code in rows]
        return result

    def save(self, folder: str, durable: bool, level: str = "v2+") -> Call:
        durability = "full" if durable else "none"
        return lambda: ckptfmt.save(f"{folder}/ck", self.data, durability=durability, level=level)

    def load(self, folder: str) -> Call:
        return lambda: ckptfmt.load(f"{folder}/ck")

    def load_cast(self, folder: str) -> Call:
        return lambda: ckptfmt.load(f"{folder}/ck", cast="bfloat16")

    def load_out(self, folder: str) -> Call:
        out = {name: np.ones(self.shape, np.float32) for name in self.names}

        def call() -> dict[str, Any]:
            ckptfmt.load_into(f"{folder}/ck", out)
            return out

        return call

    def _map(self, folder: str, verify: str) -> dict[str, Any]:
        with ckptfmt.open(f"{folder}/ck", verify=verify) as reader:
            return {name: handle.map() for name, handle in reader.items()}

    def load_map(self, folder: str) -> Call:
        return lambda: self._map(folder, "auto")

    def load_lazy(self, folder: str) -> Call:
        return lambda: self._map(folder, "off")

    def box(self, folder: str, name: str, box: list[list[int]], opened: bool) -> Call:
        key = key_of(box)
        if opened:
            handle = ckptfmt.open(f"{folder}/ck")[name]
            return lambda: handle[key]

        def call() -> Any:
            with ckptfmt.open(f"{folder}/ck") as reader:
                return reader[name][key]

        return call

    def gets(self, folder: str, names: list[str], together: bool) -> Call:
        if together:
            return lambda: list(ckptfmt.load(f"{folder}/ck", names).values())
        reader = ckptfmt.open(f"{folder}/ck")
        return lambda: [reader.read(name) for name in names]

    def list_names(self, folder: str) -> Call:
        def call() -> list[str]:
            with ckptfmt.open(f"{folder}/ck") as reader:
                return list(reader)

        return call

    def list_shapes(self, folder: str) -> Call:
        def call() -> Any:
            with ckptfmt.open(f"{folder}/ck") as reader:
                return reader.table()

        return call

    def one(self, folder: str, name: str) -> Call:
        return lambda: first(folder, name)

    def list_prefix(self, folder: str, prefix: str) -> Call:
        def call() -> list[str]:
            with ckptfmt.open(f"{folder}/ck") as reader:
                return list(reader.keys(prefix=prefix))

        return call

    def make_shards(self, folder: str, inputs: int, keys: int, blocked: bool) -> Call:
        """The inputs of a merge, whose names follow one another in one of two orders."""

        def call() -> None:
            for i in range(inputs):
                places = [(i, k) if blocked else (k, i) for k in range(keys)]
                tensors = {
                    f"model/layer_{layer:05d}/variable_{variable:05d}{ENDING}": np.float32(
                        i * keys + k
                    )
                    for k, (layer, variable) in enumerate(places)
                }
                prefix = f"{folder}/part-{i:05d}"
                ckptfmt.save(prefix, tensors, level="v2", durability="none")

        return call

    def merge(self, folder: str, inputs: int, durable: bool) -> Call:
        prefixes = [f"{folder}/part-{i:05d}" for i in range(inputs)]
        durability = "full" if durable else "none"
        return lambda: ckptfmt.merge(
            prefixes, f"{folder}/ck", inputs="consume", durability=durability
        )

    def merged(self, folder: str, name: str, count: int) -> Call:
        """One value of a merged checkpoint that must hold so many."""

        def call() -> Any:
            with ckptfmt.open(f"{folder}/ck") as reader:
                if len(reader) != count:
                    raise RuntimeError(f"{len(reader)} names, not {count}")
                return reader.read(name)

        return call

    def _saver(self) -> ckptfmt.Saver:
        """One for all saves, as a training loop has it: the memory for its copies is its own."""
        if self._kept is None or self._kept[0] != self.names:

            def spec(name: str) -> ckptfmt.SaveSpec:
                return ckptfmt.SaveSpec(lambda: self.data[name], "", name, np.float32, "")

            tensors = {name: spec(name) for name in self.names}
            self._kept = self.names, ckptfmt.Saver({"model": tensors})
        return self._kept[1]

    def loop(self, folder: str, mode: str, durable: bool) -> dict[str, Any]:
        """The parts of a training loop, for `stall.measure`."""
        ones = np.ones(self.shape, np.float32)
        held = list(self.data.values())

        def update() -> None:
            for array in held:
                np.add(array, ones, out=array)

        durability = "full" if durable else "rename"
        options = ckptfmt.tf.CheckpointOptions(durability=durability)
        saver = self._saver()

        def save() -> Any:
            if mode == "async":
                return saver.save_async(f"{folder}/ck", options)
            return ckptfmt.save(f"{folder}/ck", self.data, durability=durability)

        return {
            "update": update,
            "save": save,
            "in_place": lambda _result: os.path.exists(f"{folder}/ck.index"),
            "finish": lambda result: result.result() if mode == "async" else None,
        }

    def save_changed(self, folder: str, durable: bool, changed: int, base: str = "") -> Call:
        """A save of arrays of which every so many-th has changed since the base was saved."""
        changes = {name: self.data[name] + 1 for name in self.names[::changed]}
        arrays = {**self.data, **changes}
        options: dict[str, Any] = {"base": f"{base}/ck"} if base else {}
        durability = "full" if durable else "none"
        written = _core.counters()["bytes_written"]

        def call() -> dict[str, int]:
            ckptfmt.save(f"{folder}/ck", arrays, durability=durability, **options)
            return {"written": _core.counters()["bytes_written"] - written}

        return call
