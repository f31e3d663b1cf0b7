# SPDX-License-Identifier: Apache-2.0
"""Compression: ratio and speed of coding and decoding, beside zstd alone and others.

    python bench/compression.py [--mib 64] [--runs 5] [--threads 1] [--clock cpu]
                                [--kinds bf16,fp32,...] [--weights FILE] [--save-mib 2,32,256]
                                [--folder FOLDER] [--tensorflow PYTHON]

All sides work on the same chunks of 256 KiB, in memory, with the same number of threads, in turn in
one process, so that whatever slows the machine slows all of them:

  ckptfmt         what a checkpoint of level "ckptfmt" stores. Coding is that of a save: it always
                  chooses, and sums both raw and stored chunks. Decoding is the codec alone
  zstd 1          each chunk as it is, level 1; no checksums
  shuffle+zstd 1  byte planes (by the same code, nothing rotated), one frame a chunk, level 1; no
                  checksums
  ckptfmt +sums, shuffle+zstd 1 +sums
                  the same with the checksums of both sides: a CRC-32C of each stored and of each
                  raw chunk, by one function, taken when coding and compared when decoding
  blosc2, zipnn   where they are installed (extra `peers`); no checksums

Quotients are against shuffle+zstd 1, of a side with checksums against that with checksums.

Data: synthetic weights, normal with log-normal scales for each row, cast to each type; Adam's
moments made of such gradients; `--weights`, a .safetensors or .npz file, gives real ones. Then
whole saves and loads, into and from the page cache, with and without compression, of arrays of
several sizes that do and do not compress: pairs right after one another, now one first and now the
other, many of small arrays.

Prints Markdown tables of medians, and in brackets the middle half. What is compared, as times as
fast or longer by a part, is the median of the quotients of each run or pair: whatever else the
machine does slows both. Speeds are GB/s of raw bytes; of `--clock cpu` by the time that this
process had a processor, all threads together, which others on the machine hardly change, of
`--clock wall` by the time that went by. Saves and loads are by the latter.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import zstandard
from ckptfmt.compression import coding, encoding
from ckptfmt.compression.choosing import choose

import ckptfmt
from ckptfmt import _core
from ckptfmt.arrays import Sources
from ckptfmt.threads import Stop, share

CHUNK = encoding.CHUNK_SIZE
JOB = encoding.JOB_BYTES
Job = Callable[[int], Any]
Clock = Callable[[], float]


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


class Side:
    """One way to compress: `encode` a stretch of raw bytes, `decode` what came of it."""

    def __init__(self, array: np.ndarray) -> None:
        sources = Sources()
        sources.add(b"x", np.ascontiguousarray(array))
        self.table, self.owners = sources.table()
        self.packer = _core.Packer(self.table)
        data = self.packer.data
        assert data is not None
        self.raw, self.info = data, self.packer.info
        self.stretches = [self.raw[at : at + JOB] for at in range(0, len(self.raw), JOB)]
        self.made: list[Any] = [None] * len(self.stretches)
        self.out = np.zeros(len(self.raw), np.uint8)

    def prepare(self) -> None:
        """What is done once a value."""

    def encode(self, number: int) -> None:
        raise NotImplementedError

    def decode(self, number: int) -> None:
        raise NotImplementedError

    def size(self) -> int:
        raise NotImplementedError


def sums(data: np.ndarray, sizes: Any) -> list[int]:
    """The CRC-32C of each of the pieces of these sizes."""
    ends = np.cumsum(np.asarray(sizes, np.int64)).tolist()
    starts = [0, *ends[:-1]]
    return [_core.crc32c(data[at:end]) for at, end in zip(starts, ends, strict=True)]


class Ours(Side):
    """As a save and a load do it, but for the files."""

    def prepare(self) -> None:
        self.choice = None
        if _core.sources_dense(self.table)[0]:
            return
        self.dense = _core.chunks_dense(self.raw, CHUNK, self.info.unit, self.info.rotates)
        self.choice = choose(self.raw, self.info, 1, self.dense)

    def encode(self, number: int) -> None:
        raw = self.stretches[number]
        if self.choice is None:
            _core.crc32c(raw)
            return
        dense = self.dense[number * JOB // CHUNK :][: JOB // CHUNK]
        self.made[number] = encoding._coded(raw, self.info.unit, self.choice, 1, dense)

    def size(self) -> int:
        if self.choice is None:
            return len(self.raw)
        return sum(len(part.chunks) + 8 * len(part.sizes) for part in self.made)

    def save(self, folder: Path) -> None:
        """A checkpoint with what was coded, to decode from."""
        handle = _core.WriterHandle(str(folder / "side"), 64, CHUNK, _core.DURABILITY["none"])
        if self.choice is None:
            handle.add(self.table)
        else:
            handle.begin_value(self.table)
            for part in self.made:
                handle.put_chunks(part.chunks, part.sizes, part.crcs)
            handle.end_value(len(self.raw), _core.crc32c(self.raw))
        handle.commit()
        self.reader = ckptfmt.open(folder / "side")
        self.handle = self.reader["x"]

        self.read = []
        if self.choice is None:
            return
        reader, selection = self.reader._handle, self.handle._selection
        runs = reader.plan_chunks(selection, 0, None, 0, JOB)
        for number in range(len(runs)):
            run = runs[number : number + 1]
            stored = np.empty(int(run["stored_size"][0]), np.uint8)
            self.read.append((run, stored, reader.read_chunks(selection, 0, run, 0, stored)))

    def decode(self, number: int) -> None:
        """As a load does it once the chunks are read and their checksums compared."""
        self.place(number, None)

    def place(self, number: int, crcs: np.ndarray | None) -> None:
        """Decodes, with the checksums of the raw chunks where there is room for them."""
        if self.choice is None:
            at = number * JOB
            self.out[at : at + JOB] = self.raw[at : at + JOB]
            return
        run, stored, frames = self.read[number]
        pieces = np.column_stack((frames["offset"], frames["size"]))
        contents = coding.decompress(stored, pieces, frames["raw_size"].tolist())
        assert not isinstance(contents, int)
        where = (_core.address(self.out), len(self.out))
        self.reader._handle.place_chunks(
            self.handle._selection, 0, run, stored, contents, None, where, crcs
        )


class OursSummed(Ours):
    """The same, with the checksums of both sides compared: coding has taken them."""

    def decode(self, number: int) -> None:
        if self.choice is None:
            self.place(number, None)
            _core.crc32c(self.out[number * JOB : (number + 1) * JOB])
            return
        part, (_, stored, _) = self.made[number], self.read[number]
        assert sums(stored, part.sizes) == part.crcs.tolist()
        raw_crcs = np.zeros(len(part.sizes), np.uint32)
        self.place(number, raw_crcs)
        assert np.array_equal(raw_crcs, part.raw_crcs)


class Plain(Side):
    """zstd level 1 of each chunk as it is."""

    def _pieces(self, size: int) -> np.ndarray:
        begins = np.arange(0, size, CHUNK, dtype=np.uint64)
        return np.column_stack((begins, np.minimum(CHUNK, size - begins.astype(np.int64))))

    def encode(self, number: int) -> None:
        raw = self.stretches[number]
        made = coding.compress(raw, self._pieces(len(raw)).astype(np.uint64), 1)
        self.made[number] = b"".join(memoryview(frame) for frame in made), list(map(len, made))

    def _decoded(self, number: int) -> list[Any]:
        stored, sizes = self.made[number]
        ends = np.cumsum(sizes)
        pieces = np.column_stack((ends - sizes, sizes)).astype(np.uint64)
        raw = self.stretches[number]
        lengths = self._pieces(len(raw))[:, 1].astype(int).tolist()
        contents = coding.decompress(np.frombuffer(stored, np.uint8), pieces, lengths)
        assert not isinstance(contents, int)
        return list(contents)

    def decode(self, number: int) -> None:
        at = number * JOB
        for content in self._decoded(number):
            self.out[at : at + len(content)] = np.frombuffer(content, np.uint8)
            at += len(content)

    def size(self) -> int:
        return sum(len(stored) for stored, _ in self.made)


class Shuffled(Plain):
    """zstd level 1 of the byte planes of each chunk, all in one frame."""

    def encode(self, number: int) -> None:
        raw = self.stretches[number]
        planes = np.empty_like(raw)
        _core.chunks_split(raw, CHUNK, self.info.unit, _core.CHUNK_PLANES, planes)
        made = coding.compress(planes, self._pieces(len(raw)).astype(np.uint64), 1)
        self.made[number] = b"".join(memoryview(frame) for frame in made), list(map(len, made))

    def decode(self, number: int) -> None:
        at = number * JOB
        for content in self._decoded(number):
            to = self.out[at : at + len(content)]
            _core.chunks_join(content, CHUNK, self.info.unit, _core.CHUNK_PLANES, to)
            at += len(content)


class ShuffledSummed(Shuffled):
    """The same, with the checksums of both sides."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array)
        self.crcs: list[Any] = [None] * len(self.stretches)

    def _sums(self, number: int, raw: np.ndarray) -> Any:
        stored, sizes = self.made[number]
        pieces = self._pieces(len(raw))[:, 1].astype(int).tolist()
        return sums(np.frombuffer(stored, np.uint8), sizes), sums(raw, pieces)

    def encode(self, number: int) -> None:
        super().encode(number)
        self.crcs[number] = self._sums(number, self.stretches[number])

    def decode(self, number: int) -> None:
        super().decode(number)
        size = len(self.stretches[number])
        found = self._sums(number, self.out[number * JOB : number * JOB + size])
        assert found == self.crcs[number]


class Blosc(Side):
    """blosc2 with shuffle and zstd level 1."""

    def prepare(self) -> None:
        import blosc2  # noqa: PLC0415

        self.library = blosc2
        blosc2.set_nthreads(1)

    def encode(self, number: int) -> None:
        raw = self.stretches[number].tobytes()
        self.made[number] = self.library.compress(
            raw, typesize=self.info.unit, clevel=1, codec=self.library.Codec.ZSTD
        )

    def decode(self, number: int) -> None:
        content = self.library.decompress(self.made[number])
        self.out[number * JOB : number * JOB + len(content)] = np.frombuffer(content, np.uint8)

    def size(self) -> int:
        return sum(map(len, self.made))


class Zipnn(Side):
    """zipnn by bytes, for the types that it knows."""

    def prepare(self) -> None:
        import zipnn  # noqa: PLC0415

        names = {2: "bfloat16", 4: "float32", 1: "float8_e4m3fn"}
        kind = names.get(self.info.unit, "float32")
        self.coder = zipnn.ZipNN(input_format="byte", bytearray_dtype=kind, threads=1)

    def encode(self, number: int) -> None:
        self.made[number] = self.coder.compress(bytearray(self.stretches[number].tobytes()))

    def decode(self, number: int) -> None:
        content = self.coder.decompress(self.made[number])
        self.out[number * JOB : number * JOB + len(content)] = np.frombuffer(content, np.uint8)

    def size(self) -> int:
        return sum(map(len, self.made))


def sides() -> dict[str, type[Side]]:
    found: dict[str, type[Side]] = {
        "ckptfmt": Ours,
        "shuffle+zstd 1": Shuffled,
        "ckptfmt +sums": OursSummed,
        "shuffle+zstd 1 +sums": ShuffledSummed,
        "zstd 1": Plain,
    }
    for name, side in (("blosc2", Blosc), ("zipnn", Zipnn)):
        if importlib.util.find_spec(name):
            found[name] = side
    return found


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
    for name in ("blosc2", "zipnn"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)


# ---- measuring -----------------------------------------------------------------------------------


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    if len(values) < 4:
        return f"{middle:.2f}"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} .. {high:.2f})"


def measure_kind(
    name: str, array: np.ndarray, runs: int, threads: int, folder: Path, clock: Clock
) -> None:
    made = {label: side(array) for label, side in sides().items()}
    speeds: dict[str, tuple[list[float], list[float]]] = {label: ([], []) for label in made}
    raw = next(iter(made.values())).raw

    def work(side: Side, job: Job) -> None:
        share(len(side.stretches), job, threads, "bench", Stop())

    for run in range(runs + 1):
        for label, side in made.items():
            began = clock()
            side.prepare()
            work(side, side.encode)
            seconds = clock() - began
            if run:
                speeds[label][0].append(len(raw) / seconds / 1e9)
        for side in made.values():
            if not run and isinstance(side, Ours):
                side.save(Path(tempfile.mkdtemp(dir=folder)))
        for label, side in made.items():
            began = clock()
            work(side, side.decode)
            seconds = clock() - began
            assert np.array_equal(side.out, raw), f"{label} lost something"
            if run:
                speeds[label][1].append(len(raw) / seconds / 1e9)
            side.out[:: 1 << 12] = 0
    for label, side in made.items():
        base = speeds["shuffle+zstd 1 +sums" if label.endswith("+sums") else "shuffle+zstd 1"]
        encoded, decoded = speeds[label]
        against = [
            spread([a / b for a, b in zip(mine, theirs, strict=True)])
            for mine, theirs in ((encoded, base[0]), (decoded, base[1]))
        ]
        print(
            f"| {name} | {label} | {len(raw) / side.size():.3f} | {spread(encoded)} | "
            f"{spread(decoded)} | {against[0]} | {against[1]} |",
            flush=True,
        )


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
    parser.add_argument("--mib", type=int, default=64, help="raw bytes of each kind")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--kinds", help="some of them, with commas between")
    parser.add_argument("--weights", help="a .safetensors or .npz file with real weights")
    parser.add_argument("--save-mib", default="2,32,256", help="sizes of arrays saved and loaded")
    parser.add_argument("--folder", help="where to save; default: that of temporary files")
    parser.add_argument("--tensorflow", help="not used: TensorFlow does not compress")
    given = parser.parse_args()
    coding.THREADS_MAX = given.threads
    real = real_weights(given.weights) if given.weights else None
    data = kinds(given.mib << 20, real)
    if given.kinds:
        data = {name: data[name] for name in given.kinds.split(",")}
    clock = time.process_time if given.clock == "cpu" else time.perf_counter
    print(
        f"{given.mib} MiB of each kind, {'real' if given.weights else 'synthetic'} weights, "
        f"{given.threads} thread(s), {given.runs} runs, {given.clock} time; {versions()}\n"
    )
    print("| data | side | ratio | coding GB/s | decoding GB/s | coding x | decoding x |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for kind, array in data.items():
            measure_kind(kind, array, given.runs, given.threads, Path(name), clock)
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
