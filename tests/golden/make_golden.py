# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints of this folder with the real TensorFlow.

`python tests/golden/make_golden.py`, with the interop extra. The files are committed and not made
again when ckptfmt changes; TensorFlow 2.21 gives the same bytes every time. Each folder holds one
checkpoint and its expected.json, in the form of the corpus (interop/expected.py), plus
  "calls": the arguments of the SaveV2 calls behind it: for each bundle a list of
           [name, shape_and_slice]; absent where the files were altered by hand afterwards;
  "made": how.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from interop import table  # noqa: E402
from interop.expected import describe  # noqa: E402
from interop.generate import box, random_value  # noqa: E402
from interop.oracle import Oracle  # noqa: E402
from interop.values import CODES, KINDS, STRING, Value, element_count  # noqa: E402

Call = tuple[bytes, bytes, Value]


def whole(tensors: dict[bytes, Value]) -> list[Call]:
    return [(name, b"", value) for name, value in tensors.items()]


def small_value(rng: random.Random, code: int, shape: tuple[int, ...]) -> Value:
    if code == STRING:
        count = element_count(shape)
        return Value(code, shape, tuple(rng.randbytes(rng.randint(0, 9)) for _ in range(count)))
    return random_value(rng, code, shape, Counter())


def dtypes(rng: random.Random) -> dict[bytes, Value]:
    return {
        b"%02d/%s" % (code, KINDS[code].name.encode()): small_value(rng, code, (2, 3))
        for code in CODES
    }


def strings() -> dict[bytes, Value]:
    return {
        b"words": Value(STRING, (2, 2), (b"hello", b"", b"wor\0ld", b"\xff\xfe\x80")),
        b"lone": Value(STRING, (), (b"tail\0",)),
        b"blank": Value(STRING, (), (b"",)),
        b"none": Value(STRING, (0, 3), ()),
        b"long": Value(STRING, (3,), (b"x" * 127, b"y" * 128, b"z" * 300)),
        b"utf-8": Value(STRING, (1,), ("日本語".encode(),)),
    }


def shapes(rng: random.Random) -> dict[bytes, Value]:
    found = {}
    for code in (1, 14, STRING):
        for shape in ((), (0,), (2, 0, 4), (1, 1, 1), (1,) * 12):
            text = "x".join(map(str, shape)) or "scalar"
            found[f"{KINDS[code].name}/{text}".encode()] = small_value(rng, code, shape)
    return found


def odd_names(rng: random.Random) -> dict[bytes, Value]:
    names = [
        b"\x01",
        b" ",
        b"..",
        b"/",
        b"a",
        b"a\0",
        b"a\0b",
        b"a/b",
        b"ab",
        b"\0",
        b"\0\0\xff",
        b"\0v\0\1\1\2",
        b"\xff",
        b"\xff\xff\xff",
        b"\xc3\x28",
        "żółw/重み/\U0001f422".encode(),
        b"x" * 300,
        b"x" * 300 + b"y",
        b"new\nline\x1b[31m",
    ]
    rng.shuffle(names)
    return {name: Value(3, (), rng.randbytes(4)) for name in names}


def many(rng: random.Random) -> dict[bytes, Value]:
    """Shared beginnings and several restart points in one block."""
    return {
        b"model/layer_%02d/%s" % (layer, part): Value(4, (), rng.randbytes(1))
        for layer in range(18)
        for part in (b"bias", b"kernel")
    }


def partitioned(
    rng: random.Random, codes: tuple[int, ...]
) -> tuple[dict[bytes, Value], list[Call]]:
    """Each tensor in four slices, in three spellings, given out of order and mixed."""
    tensors = {}
    calls = []
    for code in codes:
        name = b"part/%s" % KINDS[code].name.encode()
        full = small_value(rng, code, (4, 3, 2))
        tensors[name] = full
        for spec, extents in (
            (b"4 3 2 2,2:-:-", ((2, 2), None, None)),
            (b"4 3 2 0,1:0,2:-", ((0, 1), (0, 2), None)),
            (b"4 3 2 1,+1:0,2:0,2", ((1, 1), (0, 2), (0, 2))),
            (b"4 3 2 0,2::2,1:-", ((0, 2), (2, 1), None)),
        ):
            calls.append((name, spec, full.box(box(extents))))
    tensors[b"full by slice"] = small_value(rng, 1, (2, 2))
    calls.append((b"full by slice", b"2 2 0,2:-", tensors[b"full by slice"]))
    rng.shuffle(calls)
    return tensors, calls


class Maker:
    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def save(self, prefix: Path, calls: list[Call]) -> None:
        names, specs, values = zip(*calls, strict=True)
        self.oracle.save_v2(prefix, names, specs, values)

    def finish(
        self, case: str, tensors: dict[bytes, Value], made: str, bundles: list[list[Call]] | None
    ) -> None:
        """Writes expected.json, after TensorFlow has read what it can put together."""
        prefix = HERE / case / "ckpt"
        readable = {
            name: value
            for name, value in tensors.items()
            if value.kind.stitchable or not name.startswith(b"part/")
        }
        if case != "big_endian":
            codes = [value.code for value in readable.values()]
            specs = [b""] * len(readable)
            found = self.oracle.restore_v2(prefix, list(readable), specs, codes)
            assert found == list(readable.values())
        document: dict[str, Any] = {
            "id": case,
            "prefix": f"{case}/ckpt",
            "kind": "complete",
            "tf": self.oracle.version(),
            "made": made,
            "open_error": None,
            "tensors": [describe(name, value) for name, value in sorted(tensors.items())],
            "n_tensors": len(tensors),
        }
        if bundles is not None:
            document["calls"] = [
                [
                    [name.decode("utf-8", "surrogateescape"), spec.decode()]
                    for name, spec, _ in calls
                ]
                for calls in bundles
            ]
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in document.pop("tensors"))
        head = json.dumps(document, separators=(",", ":"))
        text = f'{head[:-1]},\n"tensors":[\n{rows}\n]}}'
        (HERE / case / "expected.json").write_text(text + "\n", "utf-8")

    def bundle(self, case: str, tensors: dict[bytes, Value], calls: list[Call]) -> None:
        self.save(HERE / case / "ckpt", calls)
        self.finish(case, tensors, "SaveV2", [calls])

    def merged(self, case: str, tensors: dict[bytes, Value], bundles: list[list[Call]]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            prefixes = [Path(directory) / f"part-{row}" for row in range(len(bundles))]
            for prefix, calls in zip(prefixes, bundles, strict=True):
                self.save(prefix, calls)
            self.oracle.merge_v2_checkpoints(prefixes, HERE / case / "ckpt", delete_old_dirs=False)
        self.finish(case, tensors, "SaveV2, then MergeV2Checkpoints", bundles)

    def compressed(self, case: str, tensors: dict[bytes, Value], how: str, per_block: int) -> None:
        prefix = HERE / case / "ckpt"
        self.save(prefix, whole(tensors))
        index = table.index_path(prefix)
        compress = {"literals": table.snappy_literal, "copies": table.snappy_copies}[how]
        index.write_bytes(
            table.build_index(table.read_index(index), compress=compress, per_block=per_block)
        )
        self.finish(case, tensors, f"SaveV2, then its blocks as Snappy {how} by hand", None)

    def big_endian(self, case: str, tensors: dict[bytes, Value]) -> None:
        with tempfile.TemporaryDirectory() as directory:
            self.save(Path(directory) / "little", whole(tensors))
            table.to_big_endian(Path(directory) / "little", HERE / case / "ckpt")
        for name, value in tensors.items():
            if value.kind.swappable:
                found = self.oracle.restore_v2(HERE / case / "ckpt", [name], [b""], [value.code])
                assert found == [value]
        self.finish(case, tensors, "SaveV2, then every value's bytes swapped by hand", None)

    def old_header(self, case: str, tensors: dict[bytes, Value]) -> None:
        prefix = HERE / case / "ckpt"
        self.save(prefix, whole(tensors))
        index = table.index_path(prefix)
        entries = table.read_index(index)
        index.write_bytes(table.build_index([(b"", b"\x08\x01"), *entries[1:]]))
        self.finish(case, tensors, "SaveV2, then the version left out of the header by hand", None)


def main() -> None:
    for folder in HERE.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    cases = (
        "dtypes strings shapes names many partitioned merged "
        "snappy_literals snappy_copies big_endian old_header"
    )
    for case in cases.split():
        (HERE / case).mkdir()
    rng = random.Random("golden")
    with Oracle() as oracle:
        maker = Maker(oracle)
        for case, tensors in (
            ("dtypes", dtypes(rng)),
            ("strings", strings()),
            ("shapes", shapes(rng)),
            ("names", odd_names(rng)),
            ("many", many(rng)),
        ):
            maker.bundle(case, tensors, whole(tensors))
        maker.bundle("partitioned", *partitioned(rng, (1, 9, 10, 14, 17, 19, STRING)))
        tensors, calls = partitioned(rng, (1, 19, STRING))
        own = {b"own/%d" % row: Value(9, (1,), rng.randbytes(8)) for row in range(2)}
        middle = len(calls) // 2
        bundles = [
            [*whole({name: own[name]}), *part]
            for name, part in zip(own, (calls[:middle], calls[middle:]), strict=True)
        ]
        maker.merged("merged", tensors | own, bundles)
        maker.compressed("snappy_literals", dtypes(rng), "literals", 1000)
        maker.compressed("snappy_copies", many(rng), "copies", 17)
        maker.big_endian(
            "big_endian", dtypes(rng) | {b"words": strings()[b"words"], b"none": strings()[b"none"]}
        )
        maker.old_header(
            "old_header", {b"words": strings()[b"words"], b"x": Value(3, (1,), b"abcd")}
        )
    size = sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file())
    print(f"{size} bytes in {HERE}")


if __name__ == "__main__":
    main()
