# SPDX-License-Identifier: Apache-2.0
"""Compressed checkpoints: what is saved comes back bit for bit, whole and in parts, and a part
costs the chunks that it touches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.arrays import CODES, assert_same, narrow_bits, random_array, random_key

import ckptfmt
from ckptfmt import CorruptError, InvalidError
from ckptfmt._core import counters
from ckptfmt.bundle.codec import Zstd

CHUNK = 256 << 10
ROUND = settings(
    deadline=None,
    database=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def weights(seed: int, *shape: int) -> NDArray[np.float32]:
    """Numbers as in a trained layer: normal, each row on a scale of its own."""
    chance = np.random.default_rng(seed)
    scales = np.exp(chance.normal(0, 0.5, (shape[0], *[1] * (len(shape) - 1))))
    return (chance.normal(0, 0.02, shape) * scales).astype(np.float32)


@st.composite
def values(draw: st.DrawFn) -> Any:
    """An array of any dtype, large enough to be compressed, with repeated elements."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    shape = tuple(draw(st.lists(st.integers(0, 90), min_size=1, max_size=3)))
    few = random_array(chance, draw(st.sampled_from(CODES)), (draw(st.integers(1, 300)),))
    picks = np.random.default_rng(chance.getrandbits(64)).integers(0, len(few), shape)
    array = few[picks]
    return array.T if draw(st.booleans()) else array


@given(models=st.lists(values(), max_size=4), keys=st.integers(0, 2**32))
@ROUND
def test_what_is_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, models: list[Any], keys: int
) -> None:
    prefix = tmp_path_factory.mktemp("c") / "a"
    tensors = {f"t{row}": array for row, array in enumerate(models)}
    ckptfmt.save(prefix, tensors, compression="zstd", durability="rename")
    chance = random.Random(keys)
    for verify in ("auto", "full", "off"):
        loaded = ckptfmt.load(prefix, verify=verify)
        assert list(loaded) == sorted(tensors)
        for name, array in tensors.items():
            assert narrow_bits(loaded[name]) == narrow_bits(array)
    with ckptfmt.open(prefix) as reader:
        for name, array in tensors.items():
            key = random_key(chance, array.shape)
            assert narrow_bits(reader[name][key]) == narrow_bits(array[key])
        assert reader.verify().findings == []


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "bfloat16", "c8", "c16"])
def test_odd_numbers_keep_their_bits(tmp_path: Path, dtype: str, seed: int) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    unit = kind.itemsize // (2 if kind.kind == "c" else 1)
    # Patterns of NaN with payloads, -0, infinities and denormals, of whatever width.
    ones = (1 << 8 * unit) - 1
    patterns = [0, 1 << 8 * unit - 1, 1, ones, ones >> 1, ones - 1, (1 << 8 * unit - 1) + 1]
    patterns += [0x7F << 8 * (unit - 1), 0xFF << 8 * (unit - 1), (0x7C << 8 * (unit - 1)) + 1]
    chance = np.random.default_rng(seed)
    raw = np.array(patterns, f"u{unit}")[chance.integers(0, len(patterns), 1 << 17)]
    array = raw.view(kind)
    ckptfmt.save(tmp_path / "a", {"x": array}, compression="zstd")
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader["x"].compressed
        assert_same(reader["x"].read(), array)
        assert_same(reader["x"][1000:70000:3], array[1000:70000:3])


def test_strings(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    words = [chance.randbytes(chance.randint(0, 30)) for _ in range(50)] + [b""]
    array = np.array([chance.choice(words) for _ in range(60_000)], object).reshape(300, 200)
    payloads = np.array([chance.choice(words[:5]) for _ in range(2000)], object)
    with ckptfmt.Writer(tmp_path / "a", compression="zstd") as writer:
        writer.add("s", array)
        writer.add("v", payloads, "variant")
        writer.add_slice("p", array[:100], (300, 200), (0, 0))
        writer.add_slice("p", array[100:], (300, 200), (100, 0))
    with ckptfmt.open(tmp_path / "a") as reader:
        assert all(reader[name].compressed for name in reader)
        assert_same(reader["s"].read(), array)
        assert_same(reader["s"][250:, 7], array[250:, 7])
        assert_same(reader["v"].read(), payloads)
        assert_same(reader["p"].read(), array)
        assert_same(reader["p"][90:110:3, ::9], array[90:110:3, ::9])
        assert reader["s"].nbytes > reader["s"].stored_nbytes
        assert reader.digest() == _digest_plain(tmp_path, reader)


def _digest_plain(directory: Path, reader: ckptfmt.Reader) -> str:
    with ckptfmt.Writer(directory / "plain") as writer:
        for name, handle in reader.items():
            writer.add(name, handle.read(), handle.dtype_name)
    with ckptfmt.open(directory / "plain") as plain:
        assert plain.level in {"v2+", "v2"}
        return plain.digest()


def test_every_way_to_read(tmp_path: Path, seed: int) -> None:
    array = weights(seed, 700, 900)
    ckptfmt.save(tmp_path / "a", {"w": array, "x": np.arange(3)}, compression="zstd")
    with ckptfmt.open(tmp_path / "a") as reader:
        handle = reader["w"]
        assert reader.level == "ckptfmt" and reader.header.producer == 2
        assert handle.compressed and not reader["x"].compressed
        assert handle.nbytes == array.nbytes > handle.stored_nbytes
        assert_same(np.asarray(handle), array)
        into = np.empty((900, 700), np.float32).T
        assert_same(handle.read_into(into), array)
        assert_same(handle[..., -1], array[..., -1])
        assert handle.partial_reads_verified
        with pytest.raises(InvalidError, match="a compressed tensor cannot be mapped"):
            handle.map()
    out = {"w": np.empty_like(array)}
    ckptfmt.load_into(tmp_path / "a", out, strict=False)
    assert_same(out["w"], array)
    found = ckptfmt.restore_v2(tmp_path / "a", ["w", "x"], ["700 900 10,5:-", ""])
    assert_same(found[0], array[10:15])
    assert_same(found[1], np.arange(3))


def test_slices_that_are_and_are_not_compressed(tmp_path: Path, seed: int) -> None:
    array = weights(seed, 600, 500)
    array[:200] = np.random.default_rng(seed).integers(0, 2**32, (200, 500), np.uint32).view("f4")
    with ckptfmt.Writer(tmp_path / "a", compression="zstd") as writer:
        for start in (0, 200, 400):
            writer.add_slice("w", array[start : start + 200], (600, 500), (start, 0))
    with ckptfmt.open(tmp_path / "a") as reader:
        assert [part.compressed for part in reader["w"].slices] == [False, True, True]
        assert_same(reader["w"].read(), array)
        assert_same(reader["w"][150:450:7, 3:90], array[150:450:7, 3:90])


def test_what_gains_nothing_is_stored_as_it_is(tmp_path: Path, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, 1 << 20, np.uint8)
    tensors = {"noise": noise, "small": np.zeros(100)}
    ckptfmt.save(tmp_path / "a", tensors, compression="zstd")
    ckptfmt.save(tmp_path / "b", tensors)
    for suffix in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def _samples(seed: int) -> dict[str, Any]:
    """Bytes that can and that cannot be compressed, and what is between. What repeats itself are
    eight bytes or more, within 8 KiB: samples cannot tell of others."""
    generator = np.random.default_rng(seed)
    noise = generator.integers(0, 256, 1 << 19, np.uint8)
    found = {
        f"below {top}": generator.integers(0, top, 1 << 19, np.uint8) for top in range(96, 257, 8)
    }
    for count in (50, 300, 1000):
        for size in [size for size in (8, 16, 24, 100) if count * size <= 8192]:
            few = generator.integers(0, 256, (count, size), np.uint8)
            picks = generator.integers(0, count, (1 << 19) // size)
            found[f"{count} of {size}"] = few[picks].reshape(-1)[: 1 << 18]
    for part in (2, 3, 5, 10, 20, 100):
        found[f"zeros in {part}"] = np.where(np.arange(1 << 19) % part, noise, 0).astype(np.uint8)
        found[f"rows of zeros in {part}"] = np.where(
            np.arange(1 << 19) // 1000 % part, noise, 0
        ).astype(np.uint8)
    for period in (3, 100, 1001, 4000):
        found[f"period {period}"] = np.tile(noise[:period], (1 << 19) // period)[: 1 << 18]
    for kind in ("f4", "f2", "f8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        found[f"normal {kind}"] = weights(seed, 256, 256).astype(kind).view(np.uint8).reshape(-1)
    found["noise"] = noise
    return found


def _planes(raw: NDArray[np.uint8], unit: int) -> NDArray[np.uint8]:
    """The byte planes of each chunk, of units rotated left by one bit."""
    bits, units = 8 * unit, raw.view(f"<u{unit}")
    rotated = (units << 1 | units >> (bits - 1)).astype(f"<u{unit}").view(np.uint8)
    chunks = [rotated[at : at + CHUNK] for at in range(0, len(rotated), CHUNK)]
    return np.concatenate([chunk.reshape(-1, unit).T.reshape(-1) for chunk in chunks])


@pytest.mark.parametrize("kind", ["u1", "u2", "f4", "f8"])
def test_what_is_not_tried_gains_nothing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Incompressible values are recognised without encoding anything; zstd agrees."""
    tried, encode = False, Zstd.encode

    def noting(coder: Zstd, items: Any) -> None:
        nonlocal tried
        tried = True
        encode(coder, items)

    monkeypatch.setattr(Zstd, "encode", noting)
    untried = set()
    zstd = zstandard.ZstdCompressor(level=1)
    for name, raw in _samples(seed).items():
        array = raw[: len(raw) // 8 * 8].view(kind)
        tried = False
        ckptfmt.save(tmp_path / "a", {"x": array}, compression="zstd", durability="none")
        if tried:
            continue
        untried.add(name)
        for cut in (raw, _planes(raw, array.itemsize)):
            coded = sum(
                len(zstd.compress(cut[at : at + CHUNK])) for at in range(0, len(cut), CHUNK)
            )
            assert coded > 0.93 * len(raw), name
    assert "noise" in untried


@pytest.mark.parametrize(
    ("kind", "least"),
    [("bfloat16", 1.45), ("f4", 1.17), ("f2", 1.12), ("float8_e4m3fn", 1.15), ("i8", 4.0)],
)
def test_how_much_is_gained(tmp_path: Path, kind: str, least: float, seed: int) -> None:
    array = weights(seed, 1024, 1024)
    if kind == "i8":
        tensor: Any = np.round(array * 1000).astype("i8")
    else:
        tensor = array.astype(getattr(ml_dtypes, kind) if hasattr(ml_dtypes, kind) else kind)
    ckptfmt.save(tmp_path / "a", {"w": tensor}, compression="zstd")
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader["w"].nbytes >= least * reader["w"].stored_nbytes


@pytest.mark.parametrize("mib", [16, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_mebibyte_of_a_large_tensor_costs_two_chunks_more_at_most(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, mib: int
) -> None:
    columns, frames = 2048, 0  # a row is 4 KiB
    decode = Zstd.decode

    def counting(coder: Zstd, items: Any) -> None:
        nonlocal frames
        frames += len(items)
        decode(coder, items)

    few = weights(seed, 2048, columns).astype(ml_dtypes.bfloat16)
    array = np.tile(few, (mib // 8, 1))
    assert array.nbytes == mib << 20
    ckptfmt.save(tmp_path / "a", {"w": array}, compression="zstd", durability="none")
    monkeypatch.setattr(Zstd, "decode", counting)
    with ckptfmt.open(tmp_path / "a") as reader:
        handle = reader["w"]
        stored_chunk = handle.stored_nbytes * CHUNK / array.nbytes
        chance = random.Random(seed)
        ends = [0, 1, 63, 64, len(array) - 257, len(array) - 256]
        for start in [*ends, *(chance.randrange(len(array) - 256) for _ in range(50))]:
            frames, before = 0, counters()["bytes_read"]
            found = handle[start : start + 256]
            # One frame a chunk: the exponents.
            assert 4 <= frames <= 6
            assert counters()["bytes_read"] - before <= 6 * stored_chunk * 1.05
            assert_same(found, array[start : start + 256])
        frames = 0
        assert_same(handle[len(array) // 2, 5:9], array[len(array) // 2, 5:9])
        assert frames == 1
        frames = 0
        assert_same(handle[::64, 7], array[::64, 7])
        assert frames == array.nbytes // CHUNK
        frames = 0
        assert_same(handle[5:5], array[5:5])
        assert frames == 0


def test_a_flipped_bit_is_found_where_it_is_read(tmp_path: Path, seed: int) -> None:
    array = weights(seed, 1280, 512)  # ten chunks of 128 rows
    ckptfmt.save(tmp_path / "a", {"w": array}, compression="zstd")
    data = tmp_path / "a.data-00000-of-00001"
    sound = data.read_bytes()
    with ckptfmt.open(tmp_path / "a") as reader:
        handle = reader["w"]
        selection = handle._selection
        ends = np.diff([0, *(selection._columns.chunk_ends[row] for row in range(10))]).tolist()
        place = handle.offset or 0
        chance = random.Random(seed)
        for row, size in enumerate(ends):
            broken = bytearray(sound)
            where = place + chance.randrange(size)
            broken[where] ^= 1 << chance.randrange(8)
            data.write_bytes(bytes(broken))
            with ckptfmt.open(tmp_path / "a") as damaged:
                for other in range(10):
                    part = slice(other * 128, other * 128 + 128)
                    if other != row:
                        assert_same(damaged["w"][part], array[part])
                        continue
                    with pytest.raises(CorruptError, match="CMP-11: Checksum") as caught:
                        damaged["w"][part]
                    assert caught.value.failure == "CHECKSUM" and caught.value.tensor == "w"
                    assert caught.value.offset == place and caught.value.path == str(data)
                with pytest.raises(
                    CorruptError, match=f"CMP-11: Checksum does not match for chunk {row}:"
                ):
                    damaged["w"].read()
                problems = damaged.verify().problems
                assert [(one.failure, one.offset) for one in problems] == [("CHECKSUM", place)]
            place += size
        assert selection.rows["stored"]["size"][0] == sum(ends)


def test_values_of_two_kinds_of_chunks(tmp_path: Path, seed: int) -> None:
    """Planes that stop gaining, or begin to, half way."""
    chance = np.random.default_rng(seed)
    noise = chance.integers(0, 2**32, 1 << 20, np.uint32).view("f4")
    ordered = weights(seed, 1024, 1024).reshape(-1)
    for name, array in (("a", np.r_[ordered, noise]), ("b", np.r_[noise, ordered])):
        ckptfmt.save(tmp_path / name, {"w": array}, compression="zstd")
        with ckptfmt.open(tmp_path / name) as reader:
            assert reader["w"].compressed
            assert_same(reader["w"].read(), array)
            assert reader["w"].stored_nbytes < array.nbytes * 0.95


@pytest.mark.parametrize(
    ("order", "apart"),
    [
        *[("first", True), ("last", False), ("amid", False)],
        pytest.param("first", False, marks=pytest.mark.slow),
        pytest.param("last", True, marks=pytest.mark.slow),
        pytest.param("amid", True, marks=pytest.mark.slow),
    ],
)
def test_each_stretch_is_judged_by_itself(
    tmp_path: Path, seed: int, order: str, apart: bool
) -> None:
    """Noise of more than one stretch (32 MiB), and what gains, contiguous in memory and not."""
    noise = np.random.default_rng(seed).integers(0, 2**32, 8_500_000, np.uint32).view("f4")
    ordered = weights(seed, 1000, 1024).reshape(-1)
    array = {
        "first": np.r_[ordered, noise],
        "last": np.r_[noise, ordered],
        "amid": np.r_[noise, ordered, noise],
    }[order]
    if apart:
        array = np.repeat(array, 2)[::2]
    told: list[int] = []
    ckptfmt.save(
        tmp_path / "a",
        {"w": array},
        compression="zstd",
        durability="rename",
        progress=lambda done, total: told.append(done * 1000 // total),
    )
    assert told == sorted(told) and told[-1] == 1000
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader["w"].compressed
        assert_same(reader["w"].read(), array)
        assert array.nbytes - reader["w"].stored_nbytes > 0.13 * ordered.nbytes


@pytest.mark.parametrize("mib", [8, 40])
def test_some_zeros_in_much_noise_are_found(tmp_path: Path, seed: int, mib: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, mib << 20, np.uint8)
    array = np.r_[noise, np.zeros(1 << 20, np.uint8), noise]
    ckptfmt.save(tmp_path / "a", {"w": array}, compression="zstd")
    with ckptfmt.open(tmp_path / "a") as reader:
        assert reader["w"].compressed
        assert_same(reader["w"].read(), array)
        assert reader["w"].stored_nbytes < 2 * len(noise) + 1000


def test_stretches_of_noise_are_stored_as_they_are(tmp_path: Path, seed: int) -> None:
    """What is gained at some place does not pay for the chunks of all."""
    noise = np.random.default_rng(seed).integers(0, 256, 36 << 20, np.uint8)
    noise[-5000:-4800] = 0
    for case, array in (("together", noise), ("apart", np.repeat(noise, 2)[::2])):
        ckptfmt.save(tmp_path / case / "a", {"w": array}, compression="zstd")
        ckptfmt.save(tmp_path / case / "b", {"w": array})
        for suffix in (".index", ".data-00000-of-00001"):
            saved, plain = (tmp_path / case / f"{name}{suffix}" for name in "ab")
            assert saved.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize("text", ["zstd:0", "zstd:23", "zstd:", "lz4", "", "zstd:1 "])
def test_refused_compressions(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidError, match="is neither 'zstd' nor 'zstd:1' to 'zstd:22'"):
        ckptfmt.save(tmp_path / "a", {"x": np.ones(3)}, compression=text)
    assert not list(tmp_path.iterdir())


def test_upon_a_base_values_stay_as_they_are(tmp_path: Path, seed: int) -> None:
    array = weights(seed, 512, 512)
    ckptfmt.save(tmp_path / "a", {"w": array, "x": array[:2]})
    ckptfmt.save(
        tmp_path / "b", {"w": array, "y": array + 1}, base=tmp_path / "a", compression="zstd"
    )
    with ckptfmt.open(tmp_path / "b") as reader:
        assert not reader["w"].compressed and reader["y"].compressed
        assert_same(reader["w"].read(), array)
    # The other way round a checkpoint that TensorFlow reads takes over no compressed value.
    ckptfmt.save(tmp_path / "c", {"w": array, "y": array + 1}, base=tmp_path / "b")
    with ckptfmt.open(tmp_path / "c") as reader:
        assert reader.header.min_consumer == 0 and not reader["y"].compressed
        assert_same(reader["y"].read(), array + 1)


def test_merging_levels(tmp_path: Path, seed: int) -> None:
    array = weights(seed, 512, 512)
    ckptfmt.save(tmp_path / "a", {"a": array}, compression="zstd")
    ckptfmt.save(tmp_path / "b", {"b": array}, level="v2")
    for order in (("a", "b"), ("b", "a")):
        joined = tmp_path / "-".join(order)
        ckptfmt.merge([tmp_path / name for name in order], joined)
        with ckptfmt.open(joined) as reader:
            assert (reader.header.producer, reader.header.min_consumer) == (2, 2)
            assert reader["a"].compressed and not reader["b"].compressed
            assert_same(reader["a"].read(), array)
            assert reader.verify().ok
