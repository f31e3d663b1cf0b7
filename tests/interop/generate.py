# SPDX-License-Identifier: Apache-2.0
"""Seeded random saves: names, values and slice texts of SaveV2, in every spelling it accepts."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from .values import CODES, KINDS, STRING, Value, element_count

# One dimension of a stored slice: (start, size), or None for the text "-".
Extent = tuple[int, int] | None


def seed_from_environment() -> int:
    """The seed of this run, printed so that a failure can be repeated with CKPTFMT_TEST_SEED."""
    seed = int(os.environ["CKPTFMT_TEST_SEED"], 0)
    print(f"CKPTFMT_TEST_SEED={seed}")
    return seed


@dataclass
class Tensor:
    """One tensor of a checkpoint: its full value, and how it is given to SaveV2."""

    name: bytes
    full: Value
    slices: list[tuple[tuple[Extent, ...], bytes]] = field(default_factory=list)
    complete: bool = True

    def boxes(self) -> list[tuple[slice, ...]]:
        return [box(extents) for extents, _ in self.slices]


@dataclass
class Save:
    """The arguments of one SaveV2, and the tensors behind them."""

    names: list[bytes]
    specs: list[bytes]
    values: list[Value]
    tensors: list[Tensor]
    features: Counter[str]


def box(extents: tuple[Extent, ...]) -> tuple[slice, ...]:
    return tuple(
        slice(None) if extent is None else slice(extent[0], extent[0] + extent[1])
        for extent in extents
    )


# ---- values ------------------------------------------------------------------------------------


def random_string(rng: random.Random, features: Counter[str]) -> bytes:
    kind = rng.choice(("empty", "nul", "not utf-8", "text", "text", "utf-8", "long"))
    features[f"string: {kind}"] += 1
    if kind == "empty":
        return b""
    if kind == "nul":
        return rng.choice((b"\0", b"a\0b", b"\0\0\0", b"tail\0", b"\0head"))
    if kind == "not utf-8":
        return bytes(rng.choice((0xFF, 0xFE, 0x80, 0xC0)) for _ in range(rng.randint(1, 9)))
    if kind == "utf-8":
        return rng.choice(("żółw", "日本語", "é", "\U0001f422")).encode()
    if kind == "long":
        # Around the sizes at which the varint of the size grows.
        return rng.randbytes(rng.choice((127, 128, 129, 500, 2000, 16383, 16384)))
    return b"text %d" % rng.randrange(1000)


def random_value(
    rng: random.Random, code: int, shape: tuple[int, ...], features: Counter[str]
) -> Value:
    count = element_count(shape)
    if code == STRING:
        return Value(code, shape, tuple(random_string(rng, features) for _ in range(count)))
    kind = KINDS[code]
    content = rng.randbytes(count * kind.size)
    if kind.used_bits:
        # TensorFlow itself never makes an element with other bits set.
        mask = (1 << kind.used_bits) - 1
        content = content.translate(bytes(byte & mask for byte in range(256)))
    elif rng.random() < 0.2 and count:
        # All ones: -1 of the integers, a NaN with a payload of the floats.
        content = b"\xff" * kind.size + content[kind.size :]
    return Value(code, shape, content)


def random_shape(rng: random.Random, features: Counter[str]) -> tuple[int, ...]:
    kind = rng.random()
    if kind < 0.15:
        shape: tuple[int, ...] = ()
    elif kind < 0.25:
        sizes = [rng.randint(0, 4) for _ in range(rng.randint(1, 4))]
        sizes[rng.randrange(len(sizes))] = 0
        shape = tuple(sizes)
    elif kind < 0.28:
        shape = tuple(rng.choice((1, 1, 1, 2)) for _ in range(rng.randint(6, 10)))
    elif kind < 0.30:
        shape = (1,) * rng.randint(9, 32)
    else:
        shape = tuple(rng.randint(1, 7) for _ in range(rng.randint(1, 4)))
    if shape == ():
        features["scalar"] += 1
    if 0 in shape:
        features["zero-size"] += 1
    if len(shape) > 8:
        features["rank above 8"] += 1
    return shape


# ---- names -------------------------------------------------------------------------------------


def random_name(rng: random.Random, features: Counter[str]) -> bytes:
    kind = rng.choice(("path", "path", "path", "utf-8", "nul", "0xff", "bytes", "long", "short"))
    features[f"name: {kind}"] += 1
    if kind == "path":
        parts = (rng.choice(("layer", "kernel", "bias", "w", ".ATTRIBUTES")) for _ in range(3))
        return b"/".join(part.encode() for part in parts) + b"_%d" % rng.randrange(100)
    if kind == "utf-8":
        return rng.choice(("schicht_ä", "層/重み", "\U0001f422")).encode() + b"%d" % rng.randrange(
            99
        )
    if kind == "nul":
        return rng.choice((b"\0%d", b"a\0%d", b"%d\0", b"\0\0\xff%d\0")) % rng.randrange(1000)
    if kind == "0xff":
        return b"\xff" * rng.randint(1, 5) + rng.randbytes(rng.randint(0, 2))
    if kind == "bytes":
        return rng.randbytes(rng.randint(1, 12))
    if kind == "long":
        return rng.randbytes(2) * rng.randint(30, 400)
    return bytes([rng.randrange(1, 256)])


def fresh_name(rng: random.Random, taken: set[bytes], features: Counter[str]) -> bytes:
    while True:
        name = random_name(rng, features)
        if rng.random() < 0.1 and taken:
            # One name the beginning of another.
            name = rng.choice(sorted(taken)) + bytes([rng.randrange(256)])
        if name not in taken:
            taken.add(name)
            return name


# ---- slice texts -------------------------------------------------------------------------------


def number(rng: random.Random, value: int, style: str) -> str:
    if style == "plus" and rng.random() < 0.7:
        return f"+{value}"
    if style == "leading zeros":
        return "0" * rng.randint(1, 3) + str(value)
    if style == "white space":
        return rng.choice(("\t", "\n", "\v", "\f", "\r", "")) + str(value) + rng.choice("\t\n\r")
    if style == "minus zero" and value == 0:
        return "-0"
    return str(value)


STYLES = (
    "plain",
    "plus",
    "leading zeros",
    "white space",
    "minus zero",
    "doubled separators",
    "outer separators",
)


def spell(
    rng: random.Random,
    shape: tuple[int, ...],
    extents: tuple[Extent, ...],
    features: Counter[str],
) -> bytes:
    """A shape_and_slice text for one slice, in one of the spellings that SaveV2 takes for it."""
    style = rng.choice(STYLES)
    comma, colon = ",", ":"
    if style == "doubled separators":
        comma, colon = rng.choice(((",,", "::"), (",", "::"), (",,,", ":"), (",,", ":::")))
    pieces = []
    for extent in extents:
        if extent is None:
            pieces.append("-")
        else:
            pair = [number(rng, value, style) for value in extent]
            piece = comma.join(pair)
            if style == "outer separators" and rng.random() < 0.5:
                piece = rng.choice((f",{piece}", f"{piece},", f",{piece},"))
            pieces.append(piece)
    text = colon.join(pieces)
    if style == "outer separators":
        text = rng.choice((f":{text}", f"{text}:", f"::{text}::"))
    dims = [number(rng, size, style) for size in shape]
    spec = " ".join((*dims, text))
    features[
        f"spelling: {style}" if spec != spell_plainly(shape, extents) else "spelling: plain"
    ] += 1
    if None in extents:
        features['spelling: "-"'] += 1
    if any(extent is not None for extent in extents):
        features['spelling: "start,size"'] += 1
    return spec.encode()


def spell_plainly(shape: tuple[int, ...], extents: tuple[Extent, ...]) -> str:
    texts = ("-" if extent is None else f"{extent[0]},{extent[1]}" for extent in extents)
    return " ".join((*map(str, shape), ":".join(texts)))


def cuts(rng: random.Random, size: int) -> list[tuple[int, int]]:
    """`size` cut into one to three runs."""
    inner = sorted(rng.sample(range(1, size), min(size - 1, rng.randint(0, 2)))) if size > 1 else []
    edges = [0, *inner, size]
    return [(begin, end - begin) for begin, end in pairwise(edges)]


def sliced_tensor(rng: random.Random, name: bytes, code: int, features: Counter[str]) -> Tensor:
    """A tensor cut along a grid, its cells in random order, each in a spelling of its own."""
    shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.05:
        # Nothing can be cut from a dimension of size zero, but beside it.
        shape = (0, *shape)
        features["slices of a zero-size tensor"] += 1
    full = random_value(rng, code, shape, features)
    cells: list[list[tuple[int, int]]] = [[]]
    for size in shape:
        cells = [[*cell, run] for cell in cells for run in (cuts(rng, size) if size else [(0, 0)])]
    rng.shuffle(cells)
    tensor = Tensor(name, full)
    kept = cells if rng.random() < 0.8 else cells[: rng.randint(1, len(cells))]
    for cell in kept[:24]:
        extents: list[Extent] = []
        for (start, count), size in zip(cell, shape, strict=True):
            whole = count == size
            if whole and (size == 0 or rng.random() < 0.6):
                extents.append(None)
            else:
                if whole:
                    features['spelling: a whole dimension as "0,size"'] += 1
                extents.append((start, count))
        chosen = tuple(extents)
        tensor.slices.append((chosen, spell(rng, shape, chosen, features)))
    tensor.complete = len(tensor.slices) == len(cells)
    if not tensor.complete:
        features["slices that leave a hole"] += 1
    if len(tensor.slices) > 1:
        features["several slices of one tensor"] += 1
    elif tensor.complete:
        features["one slice that is the whole tensor"] += 1
    return tensor


# ---- saves -------------------------------------------------------------------------------------


def finish(
    rng: random.Random, tensors: list[Tensor], features: Counter[str], *, shuffled: bool = True
) -> Save:
    arguments = []
    for tensor in tensors:
        if tensor.slices:
            arguments += [
                (tensor.name, spec, tensor.full.box(box(extents)))
                for extents, spec in tensor.slices
            ]
        else:
            arguments.append((tensor.name, b"", tensor.full))
    if shuffled:
        rng.shuffle(arguments)
    names = [name for name, _, _ in arguments]
    if names != sorted(names):
        features["unsorted names"] += 1
    partitioned = [tensor for tensor in tensors if tensor.slices]
    if partitioned:
        features["slices"] += 1
        if len(tensors) > 1:
            features["slices: several tensors mixed"] += 1
    for code in {tensor.full.code for tensor in tensors}:
        features[f"dtype {code}"] += 1
    return Save(
        names,
        [spec for _, spec, _ in arguments],
        [value for _, _, value in arguments],
        tensors,
        features,
    )


def mixed_save(rng: random.Random, codes: list[int]) -> Save:
    features: Counter[str] = Counter()
    taken: set[bytes] = set()
    tensors = []
    for code in codes:
        name = fresh_name(rng, taken, features)
        tensors.append(Tensor(name, random_value(rng, code, random_shape(rng, features), features)))
    return finish(rng, tensors, features)


def sliced_save(rng: random.Random, codes: list[int]) -> Save:
    features: Counter[str] = Counter()
    taken: set[bytes] = set()
    tensors = []
    for position, code in enumerate(codes):
        name = fresh_name(rng, taken, features)
        if position == 0 or rng.random() < 0.6:
            tensors.append(sliced_tensor(rng, name, code, features))
        else:
            shape = random_shape(rng, features)
            tensors.append(Tensor(name, random_value(rng, code, shape, features)))
    return finish(rng, tensors, features)


def string_save(rng: random.Random) -> Save:
    features: Counter[str] = Counter(strings=1)
    taken: set[bytes] = set()
    tensors = []
    for _ in range(rng.randint(1, 4)):
        name = fresh_name(rng, taken, features)
        tensors.append(
            Tensor(name, random_value(rng, STRING, random_shape(rng, features), features))
        )
    return finish(rng, tensors, features)


def many_blocks_save(rng: random.Random, codes: list[int]) -> Save:
    """Enough bytes of names for three or more blocks of 256 KiB; few tensors, which are dear."""
    features: Counter[str] = Counter()
    features["three or more blocks"] += 1
    count = rng.choice((120, 300, 700))
    size = 900_000 // count
    names = {rng.randbytes(rng.randint(size * 9 // 10, size * 11 // 10)) for _ in range(count)}
    if rng.random() < 0.5:
        # Shared beginnings, so that the prefix compression and the separators are at work too.
        shared = rng.randbytes(size // 2)
        names |= {shared + rng.randbytes(size) for _ in range(16)}
    if rng.random() < 0.3:
        features["an entry larger than two blocks"] += 1
        names.add(rng.choice((b"\x01", b"m", b"\xff")) * 600_000)
    tensors = [
        Tensor(name, random_value(rng, rng.choice(codes), (), features)) for name in sorted(names)
    ]
    features["scalar"] += len(tensors)
    rng.shuffle(tensors)
    return finish(rng, tensors, features, shuffled=False)


def large_save(rng: random.Random) -> Save:
    """Tensors around TensorFlow's 8 MiB write buffer and 1 MiB read buffer."""
    features: Counter[str] = Counter()
    features["larger than a buffer"] += 1
    tensors = [
        Tensor(b"a", random_value(rng, 4, (3,), features)),
        Tensor(b"b", random_value(rng, 1, ((8 << 18) + rng.randint(0, 1) + 1,), features)),
        Tensor(b"c", random_value(rng, 19, (1 << 19, 1), features)),
        Tensor(b"d", random_value(rng, 9, (131073,), features)),
    ]
    return finish(rng, tensors, features)


def generate(rng: random.Random, count: int) -> list[Callable[[], Save]]:
    """`count` saves to be made one after the other; dtypes go round so that each has its share."""
    upcoming: list[int] = []

    def codes(largest: int) -> list[int]:
        chosen = []
        for _ in range(rng.randint(1, largest)):
            if not upcoming:
                upcoming.extend(rng.sample(CODES, len(CODES)))
            chosen.append(upcoming.pop())
        return chosen

    blocks = max(1, count * 3 // 100)
    large = max(1, count // 400)
    sliced = count * 35 // 100
    strings = count * 5 // 100
    makers: list[Callable[[], Save]] = []
    makers += [lambda: many_blocks_save(rng, list(CODES))] * blocks
    makers += [lambda: large_save(rng)] * large
    makers += [lambda: sliced_save(rng, codes(4))] * sliced
    makers += [lambda: string_save(rng)] * strings
    makers += [lambda: mixed_save(rng, codes(8))] * (count - len(makers))
    rng.shuffle(makers)
    return makers
