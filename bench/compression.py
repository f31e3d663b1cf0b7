# SPDX-License-Identifier: Apache-2.0
"""Compressed saves and loads beside plain ones: whole saves, not synced, and verified loads into
memory that is there, interleaved."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import zstandard

import ckptfmt


def weights(count: int, seed: int) -> np.ndarray:
    """Normal numbers, each row of 4096 on a scale of its own."""
    rng = np.random.Generator(np.random.SFC64(seed))
    rows = -(-count // 4096)
    scales = np.exp(rng.normal(0, 0.5, (rows, 1))).astype("f4")
    return (rng.standard_normal((rows, 4096), np.float32) * scales * 0.02).reshape(-1)[:count]


def kinds(size: int, given: np.ndarray | None) -> dict[str, np.ndarray]:
    """The data of each kind, as many bytes of each."""
    base = weights(size, 7) if given is None else np.resize(given, size)
    other = weights(size // 4, 8)
    words = b"the of and to in is that model layer attention norm bias kernel weight ".split()
    picks = np.random.default_rng(3).zipf(1.4, size // 5) % len(words)
    text = b" ".join(words[pick] for pick in picks.tolist())[:size]
    moments = base[: size // 4] * 0.1 + other * 0.03
    return {
        "bf16": base[: size // 2].astype(ml_dtypes.bfloat16),
        "fp16": base[: size // 2].astype(np.float16),
        "fp32": base[: size // 4],
        "Adam m": moments,
        "Adam v": np.square(moments) * np.float32(0.001) + np.square(other) * np.float32(0.01),
        "fp8": base.astype(ml_dtypes.float8_e4m3fn),
        "int8": np.clip(np.round(base * 600), -127, 127).astype(np.int8),
        "text": np.frombuffer(text, np.uint8),
        "noise": np.random.default_rng(5).integers(0, 256, size, np.uint8),
    }


def real_weights(path: str) -> np.ndarray:
    """All numbers of a file, as float32."""
    if path.endswith(".npz"):
        with np.load(path) as loaded:
            return np.concatenate([loaded[name].astype("f4").reshape(-1) for name in loaded])
    content = Path(path).read_bytes()
    size = int.from_bytes(content[:8], "little")
    types = {"F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16}
    found = []
    for name, told in json.loads(content[8 : 8 + size]).items():
        if name != "__metadata__" and told["dtype"] in types:
            first, last = told["data_offsets"]
            raw = content[8 + size + first : 8 + size + last]
            found.append(np.frombuffer(raw, types[told["dtype"]]).astype("f4"))
    return np.concatenate(found)


# ---- sides: a coder gives what it made of the data; a decoder fills a destination ---------------


def versions() -> str:
    """The processor, and what takes part."""
    told = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in told if line.startswith("model name")]
    found = [
        *(names[:1] or [platform.machine()]),
        f"Python {platform.python_version()}",
        f"numpy {np.__version__}",
        f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}",
    ]
    return ", ".join(found)


# ---- measuring -----------------------------------------------------------------------------------


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    if len(values) < 4:
        return f"{middle:.2f}"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} .. {high:.2f})"


def measure_files(name: str, array: np.ndarray, pairs: int, folder: Path) -> None:
    """Whole saves, not synced, and verified loads into memory that is there."""
    saves: dict[bool, list[float]] = {False: [], True: []}
    loads: dict[bool, list[float]] = {False: [], True: []}
    sizes: dict[bool, int] = {}
    out = {"x": np.zeros_like(array)}
    for pair in range(pairs + 1):
        for compressed in (pair % 2 == 0, pair % 2 == 1):
            prefix = folder / "save"
            options: dict[str, Any] = {"compression": "zstd"} if compressed else {}
            began = time.perf_counter()
            ckptfmt.save(prefix, {"x": array}, durability="none", **options)
            saved = time.perf_counter()
            ckptfmt.load_into(prefix, out)
            loaded = time.perf_counter()
            if pair:
                saves[compressed].append(1e3 * (saved - began))
                loads[compressed].append(1e3 * (loaded - saved))
            files = list(folder.glob(f"{prefix.name}.*"))
            sizes[compressed] = sum(path.stat().st_size for path in files)
            for path in files:
                path.unlink()
    gained = f"{100 * (sizes[True] / sizes[False] - 1):+.3f} %"
    for what, times in (("save", saves), ("load", loads)):
        longer = [100 * (b / a - 1) for a, b in zip(times[False], times[True], strict=True)]
        print(
            f"| {name} | {array.nbytes >> 20} | {what} | {pairs} | {spread(times[False])} | "
            f"{spread(times[True])} | {spread(longer)} | {gained} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--weights", help="a .safetensors or .npz file with real weights")
    parser.add_argument("--save-mib", default="2,32,256", help="sizes of arrays saved and loaded")
    parser.add_argument("--folder", help="where to save; default: that of temporary files")
    parser.add_argument("--tensorflow", help="not used: TensorFlow does not compress")
    given = parser.parse_args()
    real = real_weights(given.weights) if given.weights else None
    print(f"{'real' if given.weights else 'synthetic'} weights, {given.runs} runs; {versions()}")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        print("\n| data | MiB | what | pairs | plain ms | compressed ms | longer % | bytes |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for mib in map(int, given.save_mib.split(",")):
            noise = np.random.default_rng(5).integers(0, 256, mib << 20, np.uint8)
            saved = {"noise": noise, "noise as fp32": noise.view(np.float32)}
            saved["bf16"] = kinds(mib << 20, real)["bf16"]
            for kind, array in saved.items():
                pairs = given.runs * max(4, 128 // mib)
                measure_files(kind, array, pairs, Path(name))


if __name__ == "__main__":
    main()
