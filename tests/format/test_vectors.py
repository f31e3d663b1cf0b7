# SPDX-License-Identifier: Apache-2.0
"""The test vectors of the format: they are made again to the same bytes, and the C core and the
reference decoder read the same values from them or refuse them by the same rule."""

from __future__ import annotations

import ast
import gc
import importlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import vectors
from support.process import memory_limit, open_files
from support.vectors import (
    CONSUMER,
    LEVELS,
    SPEC,
    VECTORS,
    Core,
    Reference,
    Refusal,
    Vector,
    rules_of_text,
    specification,
)

import ckptfmt
from ckptfmt.bundle.verify import verify_prefix
from ckptfmt.cli import main

REFERENCE = SPEC / "reference"
Merge = Callable[[list[str], Path, bool], Refusal | None]

# Rules of the reference decoder that no vector can show.
UNREACHABLE: dict[str, str] = {
    "CMT-12": "takes a writer that replaces the index between opening and reading"
}

# Rules that no vector names, and why.
WRITER = "binds writers only: what they write is compared with TensorFlow's in tests/interop"
COMMIT = "how files are put in place, which no file shows"
UNNAMED: dict[str, str] = {
    "BLK-15": "what a lookup need not check: a reader may refuse more or less there",
    "CMP-10": WRITER,
    "DAT-9": "what it says of bytes is DAT-3",
    "DTY-7": WRITER,
    "EXT-10": WRITER,
    "EXT-12": WRITER,
    "HDR-10": WRITER,
    "MRG-11": COMMIT,
    "MRG-12": COMMIT,
    "MRG-14": COMMIT,
    "NAM-7": "a reader may or may not",
    "OBJ-14": WRITER,
    "SLC-12": WRITER,
    "SLC-14": WRITER,
    "TXT-8": "printing, of which the C core has no call of its own",
    "TXT-9": "what a text is compared with, not the text",
    **{f"CMT-{number}": COMMIT for number in range(1, 22)},
}


def named(*lists: list[Any]) -> set[str]:
    return {
        rule
        for one in lists
        for vector in one
        for rule in (vector.rules if isinstance(vector, Vector) else vector["rules"])
    }


def test_one_version() -> None:
    """Both documents and the vectors are of one version."""
    found = re.findall(r"^Version (\d+\.\d+) of this specification", specification(), re.M)
    assert found == [vectors.FORMAT] * 2


# ---- the files


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_made_again(tmp_path: Path) -> None:
    """Running the script gives what is committed, nothing more and nothing less."""
    script = SPEC / "build_vectors.py"
    subprocess.run([sys.executable, "-B", str(script), str(tmp_path)], check=True)
    made, kept = contents(tmp_path), contents(vectors.DIRECTORY)
    assert sorted(made) == sorted(kept)
    assert [name for name in made if made[name] != kept[name]] == []


def test_script_uses_no_decoder() -> None:
    for path in [SPEC / "build_vectors.py", *(SPEC / "making").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"ckptfmt", "reference", "zstandard", "numpy"}


def test_files_are_listed_and_small() -> None:
    kept = contents(vectors.DIRECTORY)
    listed = {name for vector in VECTORS for name in vector.files}
    merged = {name for name in kept if name.startswith("merge/")}
    assert sorted(listed | merged | {"vectors.json"}) == sorted(kept)
    assert sum(map(len, kept.values())) < 600_000
    assert all(name.startswith(vector.kind + "/") for vector in VECTORS for name in vector.files)


def test_names_are_distinct() -> None:
    names = [vector.name for vector in VECTORS]
    assert sorted(set(names)) == sorted(names)
    assert {vector.kind for vector in VECTORS} == {"good", "deviation", "bad"}


def number_of(text: str) -> int:
    """`-3`, `2^34 + 5` and their like."""
    total = 0
    for sign, power, plain in re.findall(r"(-?) ?(?:2\^(\d+)|(\d+))", text.replace("+ ", "")):
        size = 2 ** int(power) if power else int(plain)
        total += -size if sign else size
    return total


def test_hex_examples_are_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of the text is in a file of the vectors. Short ones, which could be there by
    chance, are compared with what the rules give."""
    monkeypatch.syspath_prepend(str(SPEC))
    parts = importlib.import_module("making.parts")
    short = {
        "varint-300": parts.varint(300),
        "masked-crc-of-nothing": parts.u32(parts.mask(parts.crc32c(b""))),
        "data-int4": bytes(number & 15 for number in (-1, -8, 7)),
        "string-value-empty-scalar": parts.string_value([b""])[0],
        "header-one-shard": parts.header(),
        "header-three-shards": parts.header(3),
        "header-big-endian": parts.header(endianness=1),
        "header-compressed": parts.COMPRESSED_HEADER,
    }
    kept = [one for name, one in contents(vectors.DIRECTORY).items() if name != "vectors.json"]
    keys = [bytes.fromhex(one["key"]) for one in vectors.KEYS]
    blocks = re.findall(r"^```hex name=(\S+)\n(.*?)^```$", specification(), re.M | re.S)
    assert len(blocks) > 30
    assert {"signed-numbers", *short} <= {name for name, _ in blocks}
    for name, body in blocks:
        lines = [line.partition("#") for line in body.splitlines()]
        example = b"".join(bytes.fromhex(line[0]) for line in lines)
        if name == "signed-numbers":
            for code, _, number in lines:
                assert parts.key_signed(number_of(number)) == bytes.fromhex(code), number
                assert any(bytes.fromhex(code) in key for key in keys), number
        else:
            assert example == short.get(name, example), name
            assert len(example) > 7 or name in short, name
            assert any(example in one for one in kept + keys), name


# ---- the two readers


# A strict reader may report these under MSG-15; the core does.
MAY_DEVIATE = {
    *("msg-14-unpacked", "ext-2-twice", "ext-2-compressed", "cmp-20"),
    *("cmp-4-no-crcs", "cmp-4-no-sizes", "cmp-4-bomb"),
}


def compare(vector: Vector, reader: type[Core] | type[Reference]) -> list[Any]:
    """Check the outcomes of the steps, and return them."""
    outcomes = vectors.outcomes(vector, reader)
    for step, outcome in zip(vector.steps, outcomes, strict=True):
        wanted = vectors.expected(step)
        if step["step"] == "verify" and reader is Core and "deviations" in wanted:
            wanted["deviations"] = bool(wanted["deviations"]) or vector.name in MAY_DEVIATE
        where = f"{vector.name}, {step['step']} {step.get('tensor', '')}: {outcome!r:.500}"
        if isinstance(wanted, Refusal) and isinstance(outcome, Refusal):
            assert agree(wanted, outcome), where
        else:
            assert outcome == wanted, where
    return outcomes


def agree(wanted: Refusal, found: Refusal) -> bool:
    """The same failure and the same rule. The rule is optional where the failure is not damage."""
    if not found.rule and found.failure not in ckptfmt.CorruptError.failures:
        return found.failure == wanted.failure
    return found == wanted


def families(every: list[Vector]) -> list[Any]:
    """Parameters: the vectors of each family of rules, by its name. A test of each vector would
    take longer than what it tests."""
    found: dict[str, list[Vector]] = {}
    for one in every:
        found.setdefault(one.name.partition("-")[0], []).append(one)
    return [pytest.param(some, id=name) for name, some in found.items()]


def of_core() -> list[Vector]:
    """Vectors of the levels that the C core reads, for readers of its consumer version."""
    return [one for one in VECTORS if one.level in LEVELS and one.consumer == CONSUMER]


@pytest.mark.parametrize("family", families(of_core()))
def test_core(family: list[Vector]) -> None:
    """Within bounds of memory and time, and with no file left open."""
    for vector in family:
        files, began = open_files(), time.process_time()
        with memory_limit(64 << 20):
            compare(vector, Core)
        assert time.process_time() - began < 5, vector.name
        if open_files() != files:  # perhaps what an earlier test left was collected meanwhile
            gc.collect()
            files = open_files()
            compare(vector, Core)
        assert open_files() == files, vector.name


PLACES = Path(__file__).with_name("vector_places.json")


def places_of(vector: Vector) -> list[list[Any]]:
    """What the core reports: step, failure, rule, file, offset and tensor of each."""
    core = Core(vector)
    try:
        for step in vector.steps:
            core.run(step)
    finally:
        core.close()
    return core.places


def test_places() -> None:
    """Every error and finding names the file, offset and tensor that it did before.

    `PYTHONPATH=tests python tests/format/test_vectors.py` writes the file anew; read what changes.
    """
    assert json.loads(PLACES.read_text()) == {one.name: places_of(one) for one in of_core()}


def test_load() -> None:
    """What is listed and read one by one is what `load` gives."""
    for vector in of_core():
        if vector.kind != "bad" and not vector.limits:
            check_load(vector)


def check_load(vector: Vector) -> None:
    read = {one["tensor"]: one["gives"] for one in vector.steps if one["step"] == "read"}
    (listed,) = (one["gives"] for one in vector.steps if one["step"] == "list")
    visible = {name for name in listed if not name.startswith("_CKPTFMT_")}
    if visible <= set(read):
        loaded = ckptfmt.load(f"{vectors.DIRECTORY}/{vector.prefix}.index")
        found = {
            name.encode("utf-8", "surrogateescape").decode("latin-1"): array
            for name, array in loaded.items()
        }
        assert set(found) == visible
        for name, array in found.items():
            code, shape = listed[name]
            assert vectors.array_value(code, shape, array) == vectors.normal(read[name]), name


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_command(step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`ckptfmt verify` exits with 0 if nothing is wrong, `--strict` if nothing deviates either.
    Of one vector in `step`, and those with an object graph."""
    for number, vector in enumerate(of_core()):
        if number % step == 0 or any(one["step"] == "objects" for one in vector.steps):
            check_command(vector)
            capsys.readouterr()


def check_command(vector: Vector) -> None:
    (step,) = [one for one in vector.steps if one["step"] == "verify"] or [None]
    if step is not None and not vector.limits:
        path = f"{vectors.DIRECTORY}/{vector.prefix}.index"
        # The object graph is checked beside the bytes.
        graph = any(one["step"] == "objects" and one.get("fails") for one in vector.steps)
        bad = bool(step.get("among") or step["problems"] or graph)
        assert (main(["verify", path]) != 0) == bad, vector.name
        if not bad and step["deviations"]:
            assert main(["verify", "--strict", path]) != 0, vector.name


@pytest.mark.parametrize("family", families(VECTORS))
def test_reference(family: list[Vector]) -> None:
    """Nothing is wrong with what is sound; what is bad has a problem, or a step that is refused."""
    for vector in family:
        outcomes = compare(vector, Reference)
        with vectors.reference_limits(vector.limits):
            prefix = f"{vectors.DIRECTORY}/{vector.prefix}"
            problems, _ = vectors.load_reference().verify(prefix, vector.consumer)
        if vector.kind == "bad":
            assert problems or any(isinstance(one, Refusal) for one in outcomes), vector.name
        else:
            assert problems == [], vector.name


# A whole tensor, strings, variants, slices, checksums of chunks, and compressed values.
DAMAGED = [
    *("minimal", "str-1", "var-1", "slices", "ext-4", "hdr-11-old-header"),
    *("cmp-17-rotated", "cmp-16-one-raw", "cmp-strings", "cmp-slices"),
]


@pytest.mark.parametrize(
    "vector", [one for one in VECTORS if one.name in DAMAGED], ids=lambda one: one.name
)
def test_no_byte_changes_unseen(vector: Vector, tmp_path: Path) -> None:
    """Both readers report any flipped bit of the index or of a value."""
    module = vectors.load_reference()
    bundle = module.Bundle(f"{vectors.DIRECTORY}/{vector.prefix}")
    bundle.names()
    values = {
        (Path(bundle.data_path(entry)).name, pos)
        for entry in bundle.entries.values()
        for pos in range(entry.offset, entry.offset + entry.size)
    }
    for name in vector.files:
        shutil.copy(vectors.DIRECTORY / name, tmp_path)
    copied = str(tmp_path / Path(vector.prefix).name)
    sound = module.verify(copied)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        for pos, byte in enumerate(content):
            if path.suffix == ".index" or (path.name, pos) in values:
                changed = bytes([byte ^ 1 << pos % 8])
                path.write_bytes(content[:pos] + changed + content[pos + 1 :])
                assert module.verify(copied) != sound, (path.name, pos)
                report = verify_prefix(copied)
                assert report.problems or report.notes, (path.name, pos)
        path.write_bytes(content)


def reference_text(text: str) -> Any:
    found = vectors.load_reference().parse_slice_text(text)
    return found and [list(found[0]), pairs(found[1])]


def reference_key(key: str) -> Any:
    name, extents = vectors.load_reference().decode_slice_key(bytes.fromhex(key))
    return [name.hex(), pairs(extents)]


def pairs(extents: Any) -> list[list[int]]:
    return [[start, -1 if length is None else length] for start, length in extents]


def of_reference(call: Callable[[], Any]) -> Any:
    """What the call gives, or how the reference decoder refuses."""
    try:
        return call()
    except vectors.load_reference().Violation as violation:
        return Refusal(violation.failure, violation.rule)


def demanded(one: dict[str, Any]) -> Any:
    return Refusal(*one["fails"]) if "fails" in one else one["gives"]


def test_slice_texts() -> None:
    module = vectors.load_reference()
    for one in vectors.TEXTS:
        assert vectors.core_text(one["text"]) == demanded(one), one
        assert of_reference(partial(reference_text, one["text"])) == demanded(one), one
        if one.get("gives"):
            found = module.parse_slice_text(one["text"])
            assert module.parse_slice_text(module.print_slice_text(*found)) == found


def test_slice_keys() -> None:
    for one in vectors.KEYS:
        assert of_reference(partial(reference_key, one["key"])) == demanded(one), one


# ---- the writer of the reference


NUMBERS = np.arange(3 * 70000).reshape(3, 70000)  # more bytes than a chunk
WRITTEN: list[tuple[str, Any, str, str]] = [  # name, array, slice, a type that numpy does not have
    ("z", NUMBERS.astype(np.float32), "", ""),
    ("cut", NUMBERS.astype(np.int16), "3 140000 -:0,70000", ""),
    ("a", np.array([b"one", b"", b"three"], object), "", ""),
    ("cut", NUMBERS.astype(np.int16), "3 140000 -:70000,70000", ""),
    ("one", np.array(7, np.int64), "", ""),
    ("none", np.zeros((0, 3), bool), "", ""),
    ("small", np.array([-1, -8, 7], ml_dtypes.int4), "", ""),
    ("quantized", np.arange(4, dtype=np.int8), "", "qint8"),
    ("variant", np.array([b"payload", b""], object), "", "variant"),
]


@pytest.mark.parametrize("level", ["v2", "v2+", "ckptfmt"])
def test_reference_writes(level: str, tmp_path: Path) -> None:
    """What the reference writes the C core reads; but for compression both write the same bytes."""
    module, codes = vectors.load_reference(), {"qint8": 11, "variant": 21, "": 0}
    metadata = None if level == "v2" else {"step": 3, "name": "\u00e9"}
    pieces = [(name, module.Piece(array, text, codes[kind])) for name, array, text, kind in WRITTEN]
    module.write(tmp_path / "reference", pieces, level=level, metadata=metadata)
    with ckptfmt.Writer(tmp_path / "core", level=level, metadata=metadata) as writer:
        for name, array, text, kind in WRITTEN:
            writer.add_slice(name, array, spec=text, dtype=kind or None)
    if level != "ckptfmt":
        for suffix in (".index", ".data-00000-of-00001"):
            made = (tmp_path / f"reference{suffix}").read_bytes()
            assert made == (tmp_path / f"core{suffix}").read_bytes()
    expected = {name: array for name, array, text, _ in WRITTEN if not text}
    expected["cut"] = np.concatenate([expected["z"].astype(np.int16)] * 2, 1)
    for prefix in ("core", "reference"):
        assert module.verify(tmp_path / prefix) == ([], [])
        assert not verify_prefix(str(tmp_path / prefix)).problems
        assert module.Bundle(tmp_path / prefix).metadata == (metadata or {})
        loaded = ckptfmt.load(tmp_path / prefix)
        read = {one.decode(): array for one, array in module.read_all(tmp_path / prefix).items()}
        read.pop("_CKPTFMT_METADATA", None)
        for found in (loaded, read):
            assert set(found) == set(expected)
            for name, array in expected.items():
                one = found[name] if array.dtype == object else found[name].view(array.dtype)
                assert np.array_equal(one, array), name


# ---- merges


def merged_by_core(inputs: list[str], target: Path, allow_missing: bool) -> Refusal | None:
    try:
        if allow_missing:
            ckptfmt.merge_v2_checkpoints(inputs, target, False, True)
        else:
            ckptfmt.merge(inputs, target, partial=True)
    except ckptfmt.CkptfmtError as error:
        return Refusal(error.failure, vectors.rule_of(error.message))
    return None


def merged_by_reference(inputs: list[str], target: Path, allow_missing: bool) -> Refusal | None:
    merge = partial(vectors.load_reference().merge, allow_missing=allow_missing)
    found: Refusal | None = of_reference(partial(merge, inputs, str(target)))
    return found


def merged(one: dict[str, Any], directory: Path, merge: Merge) -> bytes | Refusal:
    """The index that merging gives, or the failure."""
    shutil.copytree(vectors.DIRECTORY / "merge", directory / "merge")
    inputs = [str(directory / name) for name in one["inputs"]]
    refused = merge(inputs, directory / "merged", one.get("allow_missing", False))
    if refused:
        assert not list(directory.glob("merged*"))
        return refused
    return (directory / "merged.index").read_bytes()


def check_merge(one: dict[str, Any], found: bytes | Refusal) -> None:
    if "fails" in one:
        assert isinstance(found, Refusal)
        assert agree(Refusal(*one["fails"]), found), (one["name"], found)
    else:
        assert found == (vectors.DIRECTORY / one["gives"]).read_bytes(), one["name"]


def test_core_merges(tmp_path: Path) -> None:
    for one in vectors.MERGES:
        if one.get("level", "v2") in LEVELS:
            check_merge(one, merged(one, tmp_path / one["name"], merged_by_core))


def test_reference_merges(tmp_path: Path) -> None:
    for one in vectors.MERGES:
        check_merge(one, merged(one, tmp_path / one["name"], merged_by_reference))


# ---- rules


def checked_rules() -> list[str]:
    """The rules of the checks of the reference decoder, and of its merge, but not its writer."""
    modules = sorted(path for path in REFERENCE.glob("*.py") if path.name != "writer.py")
    texts = "".join(path.read_text(encoding="utf-8") for path in modules)
    return sorted(set(re.findall(r'"([A-Z]{3}-\d+)"', texts)))


def concerned(rule: str, directory: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The vectors of the rule: each one's name, and a call that gives its outcome."""
    for vector in VECTORS:
        refused = any(rule in step.get("fails", ()) for step in vector.steps)
        if refused or rule in vector.rules:
            yield vector.name, partial(vectors.outcomes, vector, Reference)
    for one in vectors.TEXTS:
        if rule in one["rules"]:
            yield one["text"], partial(of_reference, partial(reference_text, one["text"]))
    for one in vectors.KEYS:
        if rule in one["rules"]:
            yield one["key"], partial(of_reference, partial(reference_key, one["key"]))
    for number, one in enumerate(vectors.MERGES):
        if rule in one["rules"]:
            places = (directory / f"{number}-{attempt}" for attempt in itertools.count())
            yield (
                one["name"],
                lambda one=one, places=places: merged(one, next(places), merged_by_reference),
            )


@pytest.mark.parametrize("rule", checked_rules())
def test_every_check_is_shown(rule: str, tmp_path: Path) -> None:
    """Without the check behind a rule, a vector has another outcome."""
    disabled = vectors.load_reference().DISABLED
    changed = []
    for name, run in concerned(rule, tmp_path):
        with_check = run()
        disabled.add(rule)
        try:
            without = run()
        except Exception as error:  # the check may have guarded anything
            without = error
        finally:
            disabled.clear()
        if without != with_check:
            changed.append(name)
    assert bool(changed) != (rule in UNREACHABLE), changed


def test_every_deviation_is_met() -> None:
    names = re.findall(r"^\| \d+ \| ([A-Z_]+) \|", specification(), re.M)
    assert len(names) >= 20
    met = {
        name for vector in VECTORS for step in vector.steps for name in step.get("deviations", ())
    }
    assert met == set(names)


def test_every_rule_is_named() -> None:
    rules = rules_of_text()
    assert len(rules) > 200
    known = named(VECTORS, vectors.MERGES, vectors.TEXTS, vectors.KEYS)
    assert known <= set(rules)
    assert set(UNNAMED) <= set(rules)
    assert not set(UNNAMED) & known
    assert sorted(set(rules) - known - set(UNNAMED)) == []


if __name__ == "__main__":
    lines = (
        f"{json.dumps(one.name)}: {json.dumps(places_of(one), separators=(',', ':'))}"
        for one in of_core()
    )
    PLACES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
