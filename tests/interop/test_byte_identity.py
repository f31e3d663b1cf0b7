# SPDX-License-Identifier: Apache-2.0
"""What we write equals TensorFlow's files byte for byte; what is read is the same to the bit."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptfmt

from . import ours, table
from .generate import (
    Save,
    Tensor,
    box,
    finish,
    fresh_name,
    generate,
    random_shape,
    random_value,
    seed_from_environment,
    sliced_tensor,
    spell,
)
from .oracle import Oracle, OracleDiedError, OracleError
from .values import CODES, Value

SAVES = int(os.environ.get("CKPTFMT_TEST_SAVES", "800"))
# How many of 2400 saves have a feature at least.
FLOORS = {
    **{f"dtype {code}": 50 for code in CODES},
    "slices": 200,
    "slices: several tensors mixed": 200,
    "several slices of one tensor": 200,
    "one slice that is the whole tensor": 50,
    "slices that leave a hole": 50,
    'spelling: "-"': 200,
    'spelling: "start,size"': 200,
    'spelling: a whole dimension as "0,size"': 200,
    "spelling: plain": 200,
    "spelling: plus": 200,
    "spelling: leading zeros": 200,
    "spelling: white space": 200,
    "spelling: minus zero": 200,
    "spelling: doubled separators": 200,
    "spelling: outer separators": 200,
    "strings": 50,
    "string: empty": 50,
    "string: nul": 50,
    "string: not utf-8": 50,
    "string: long": 50,
    "three or more blocks": 50,
    "an entry larger than two blocks": 5,
    "larger than a buffer": 5,
    "scalar": 50,
    "zero-size": 50,
    "rank above 8": 50,
    "name: nul": 50,
    "name: 0xff": 50,
    "name: utf-8": 50,
    "name: long": 50,
    "unsorted names": 500,
}


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def first_difference(left: bytes, right: bytes) -> int:
    for offset, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return offset
    return min(len(left), len(right))


def compare_files(expected: dict[str, bytes], found: dict[str, bytes]) -> None:
    assert sorted(found) == sorted(expected)
    for name, content in expected.items():
        if found[name] != content:
            at = first_difference(content, found[name])
            raise AssertionError(
                f"{name}: {len(found[name])} bytes of ours differ from TensorFlow's {len(content)} "
                f"at {at}: {found[name][at : at + 24].hex()} is not {content[at : at + 24].hex()}"
            )


def refusal(restore: Callable[..., list[Value]], *arguments: object) -> str:
    """How a restore was refused: the class of TensorFlow's error, or our failure."""
    try:
        restore(*arguments)
    except OracleError as error:
        return error.kind
    except ckptfmt.CorruptError as error:
        return str(error.failure)
    return "not refused"


def compare_values(oracle: Oracle, prefix: Path, tensors: list[Tensor]) -> None:
    """TensorFlow's files, read by TensorFlow and by us, through restore_v2."""
    names, specs, expected = [], [], []
    unstitchable: list[Tensor] = []
    holed: list[Tensor] = []
    for tensor in tensors:
        if not tensor.slices or (tensor.complete and tensor.full.kind.stitchable):
            names.append(tensor.name)
            specs.append(b"")
            expected.append(tensor.full)
        elif tensor.complete:
            unstitchable.append(tensor)
        else:
            holed.append(tensor)
        for extents, spec in tensor.slices:
            names.append(tensor.name)
            specs.append(spec)
            expected.append(tensor.full.box(box(extents)))
    codes = [value.code for value in expected]
    assert oracle.restore_v2(prefix, names, specs, codes) == expected
    assert ours.restore_v2(prefix, names, specs, codes) == expected
    # What TensorFlow cannot put together from slices, we can.
    names = [tensor.name for tensor in unstitchable]
    wholes = [tensor.full for tensor in unstitchable]
    codes = [value.code for value in wholes]
    assert ours.restore_v2(prefix, names, [b""] * len(names), codes) == wholes
    for tensor in holed:
        arguments = (prefix, [tensor.name], [b""], [tensor.full.code])
        if not tensor.full.content:
            # Slices of nothing leave no hole.
            assert ours.restore_v2(*arguments) == [tensor.full]
            if tensor.full.kind.stitchable:
                assert oracle.restore_v2(*arguments) == [tensor.full]
            continue
        # Its Python stumbles over messages that quote a name which is not UTF-8.
        kinds = ("InvalidArgumentError", "UnicodeDecodeError")
        assert refusal(oracle.restore_v2, *arguments) in kinds
        assert refusal(ours.restore_v2, *arguments) == "BAD_SLICE"


def compare_handles(rng: random.Random, prefix: Path, tensors: list[Tensor]) -> None:
    with ckptfmt.open(prefix) as reader:
        assert [name.encode("utf-8", "surrogateescape") for name in reader] == sorted(
            tensor.name for tensor in tensors
        )
        for tensor in tensors:
            handle = reader[tensor.name]
            full = tensor.full
            assert tuple(handle.shape) == full.shape
            if tensor.complete:
                assert ours.part(handle, full.code, ...) == full
                key = tuple(
                    slice(*sorted((rng.randint(0, size), rng.randint(0, size))))
                    for size in full.shape
                )
                assert ours.part(handle, full.code, key) == full.box(key)
            for key in tensor.boxes():
                assert ours.part(handle, full.code, key) == full.box(key)


def check_save(oracle: Oracle, rng: random.Random, directory: Path, save: Save) -> None:
    theirs, mine = directory / "tensorflow", directory / "ckptfmt"
    theirs.mkdir()
    mine.mkdir()
    oracle.save_v2(theirs / "p", save.names, save.specs, save.values)
    ours.save_v2(mine / "p", save.names, save.specs, save.values)
    compare_files(files(theirs), files(mine))
    if save.features["three or more blocks"]:
        assert table.block_count(theirs / "p.index") >= 3
    sample = save.tensors if len(save.tensors) < 60 else rng.sample(save.tensors, 40)
    compare_values(oracle, theirs / "p", sample)
    if all(tensor.complete for tensor in save.tensors):
        report = ckptfmt.verify(theirs / "p", strict=True)
        assert not report.findings, report.findings[:3]
    if len(save.tensors) == len(sample):
        compare_handles(rng, theirs / "p", sample)


def report(totals: Counter[str], floors: dict[str, int]) -> None:
    """Prints the distribution; a generator that misses what it is there for has failed."""
    for feature, count in sorted(totals.items()):
        print(f"{count:7d} saves  {feature}")
    missed = {
        feature: totals[feature]
        for feature, floor in floors.items()
        if totals[feature] < floor * SAVES // 2400
    }
    assert not missed, f"too few saves with: {missed}"


def check_all(failures: list[str], total: int, seed: int) -> None:
    if failures:
        shown = "\n\n".join(failures[:8])
        pytest.fail(f"{len(failures)} of {total} differ, CKPTFMT_TEST_SEED={seed}:\n{shown}")


def test_save_v2(oracle: Oracle, tmp_path: Path) -> None:
    seed = seed_from_environment()
    rng = random.Random(seed)
    totals: Counter[str] = Counter()
    failures: list[str] = []
    for number, make in enumerate(generate(rng, SAVES)):
        save = make()
        directory = tmp_path / "save"
        directory.mkdir()
        try:
            check_save(oracle, rng, directory, save)
        except (AssertionError, ckptfmt.CkptfmtError, OracleError, OracleDiedError) as error:
            failures.append(
                f"save {number}: {type(error).__name__}: {str(error)[:1500]}\n"
                f"  names {[name[:40] for name in save.names[:8]]}\n  specs {save.specs[:8]}\n"
                f"  tensors {[(value.kind.name, value.shape) for value in save.values[:8]]}"
            )
        except Exception as error:  # anything untyped is a failure of ours; say at which save
            raise AssertionError(f"save {number} of seed {seed}: {error!r}") from error
        shutil.rmtree(directory)
        totals.update(list(save.features))
    print(f"{SAVES} saves, {oracle.seconds:.1f} s in TensorFlow, {oracle.starts} starts of it")
    check_all(failures, SAVES, seed)
    report(totals, FLOORS)


def random_bundles(rng: random.Random) -> tuple[list[Save], list[Tensor]]:
    """One to eight saves whose merge is one checkpoint; the slices of a tensor lie anywhere."""
    features: Counter[str] = Counter()
    taken: set[bytes] = set()
    tensors = []
    for _ in range(rng.randint(1, 10)):
        name = fresh_name(rng, taken, features)
        code = rng.choice(CODES)
        if rng.random() < 0.5:
            tensors.append(sliced_tensor(rng, name, code, features))
        else:
            tensors.append(
                Tensor(name, random_value(rng, code, random_shape(rng, features), features))
            )
    everything = finish(rng, tensors, features)
    count = min(rng.randint(1, 8), len(everything.names))
    homes = list(range(count)) + [
        rng.randrange(count) for _ in range(len(everything.names) - count)
    ]
    rng.shuffle(homes)
    saves = []
    for home in range(count):
        mine = [row for row, where in enumerate(homes) if where == home]
        saves.append(
            Save(
                [everything.names[row] for row in mine],
                [everything.specs[row] for row in mine],
                [everything.values[row] for row in mine],
                [],
                features,
            )
        )
    return saves, tensors


def test_merge_v2_checkpoints(oracle: Oracle, tmp_path: Path) -> None:
    seed = seed_from_environment()
    rng = random.Random(f"merge {seed}")
    failures: list[str] = []
    shards: Counter[int] = Counter()
    nested = 0
    total = 200
    for number in range(total):
        saves, tensors = random_bundles(rng)
        theirs, mine = tmp_path / "tensorflow", tmp_path / "ckptfmt"
        temporary = [f"p_temp/part-{i:05d}-of-{len(saves):05d}" for i in range(len(saves))]
        delete = rng.random() < 0.7
        allow_missing = rng.random() < 0.3
        listed = rng.sample(temporary, len(temporary))
        # Inputs with several data files come from a merge before this one.
        first = listed[: rng.randint(2, 4)] if len(listed) > 2 and rng.random() < 0.4 else []
        if first:
            listed = ["p_temp/merged", *listed[len(first) :]]
            rng.shuffle(listed)
            nested += 1
        if allow_missing:
            listed.insert(rng.randint(0, len(listed)), "p_temp/not-there")
        try:
            (theirs / "p_temp").mkdir(parents=True)
            for save, name in zip(saves, temporary, strict=True):
                oracle.save_v2(theirs / name, save.names, save.specs, save.values)
            if first:
                oracle.merge_v2_checkpoints(
                    [theirs / name for name in first],
                    theirs / "p_temp/merged",
                    delete_old_dirs=False,
                    allow_missing_files=False,
                )
            shutil.copytree(theirs, mine)
            oracle.merge_v2_checkpoints(
                [theirs / name for name in listed],
                theirs / "p",
                delete_old_dirs=delete,
                allow_missing_files=allow_missing,
            )
            ckptfmt.merge_v2_checkpoints(
                [str(mine / name) for name in listed],
                str(mine / "p"),
                delete_old_dirs=delete,
                allow_missing_files=allow_missing,
            )
            compare_files(files(theirs), files(mine))
            assert (theirs / "p_temp").exists() == (mine / "p_temp").exists()
            compare_values(oracle, theirs / "p", tensors)
            compare_handles(rng, mine / "p", tensors)
        except (AssertionError, ckptfmt.CkptfmtError, OracleError, OracleDiedError) as error:
            failures.append(f"merge {number} of {listed}: {type(error).__name__}: {error}")
        shards[len(saves)] += 1
        shutil.rmtree(theirs, ignore_errors=True)
        shutil.rmtree(mine, ignore_errors=True)
    check_all(failures, total, seed)
    print(f"merges by number of inputs: {dict(sorted(shards.items()))}; of merges: {nested}")
    assert all(shards[count] >= 8 for count in range(1, 9)) and nested >= 20


SPECS = (
    b"4 6 0,2:-",
    b"4 6 -:-",
    b"4 6 0,4:0,6",
    b"4 6 0,2",
    b"4 6",
    b"6",
    b" ",
    b"-",
    b"4 6 ",
    b"4 6 0,2:-:-",
    b"4 6 :::",
    b"4 6 3,2:-",
    b"4 6 0,0:-",
    b"4 6 -1,2:-",
    b"-4 6 0,2:-",
    b"-0 6 -:-",
    b"0 6 -:-",
    b"4 6 0,2:--",
    b"4 6 0,2:,-",
    b"4 6 0,2:-,",
    b"4 6 ++0,2:-",
    b"4 6 0x0,2:-",
    b"4 6 0,2.0:-",
    b"4 6 \xd9\xa0,2:-",
    b"4 6 0,2\x00:-",
    b"4 6\x00 0,2:-",
    b"\t4 6 0,2:-",
    b"4\t6 0,2:-",
    b"4  6 0,2:-",
    b" 4 6 0,2:-",
    b"4 6 0,2:- ",
    b"4 6 9223372036854775807,1:-",
    b"4 6 9223372036854775807,9223372036854775807:-",
    b"4 6 9223372036854775808,1:-",
    b"9223372036854775807 6 9223372036854775800,2:-",
    b"4611686018427387904 6 0,2:-",
    b"99999999999999999999 6 0,2:-",
    b"2 6 -:-",
    b"+2 06 -:-",
    b"2 6 0,2:-",
    b"2 6 -:0,6",
    b"2 6 -:-:",
)


def mutated(rng: random.Random, spec: bytes) -> bytes:
    out = bytearray(spec)
    for _ in range(rng.randint(1, 2)):
        at = rng.randint(0, len(out))
        kind = rng.random()
        if kind < 0.3:
            out.insert(at, rng.choice(b"::,+0\t\n"))
        elif kind < 0.5:
            out.insert(at, rng.choice(b"0123456789 ,:-+\v\f\r\0x"))
        elif kind < 0.7 and out:
            del out[at - 1]
        elif out:
            out[at - 1] = rng.choice(b"0123456789 ,:-+\t")
    return bytes(out)


def test_spec_texts(oracle: Oracle, tmp_path: Path) -> None:
    """We take the slice texts that TensorFlow takes, and refuse what it refuses or dies of."""
    seed = seed_from_environment()
    rng = random.Random(f"specs {seed}")
    value = Value(1, (2, 6), rng.randbytes(48))
    specs = dict.fromkeys(SPECS)
    while len(specs) < 400:
        start = rng.randint(0, 2)
        sound = spell(rng, (4, 6), ((start, 2), rng.choice((None, (0, 6)))), Counter())
        specs[sound if rng.random() < 0.5 else mutated(rng, sound)] = None
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for number, spec in enumerate(specs):
        theirs, mine = tmp_path / f"t{number}", tmp_path / f"c{number}"
        try:
            oracle.save_v2(theirs / "p", [b"v"], [spec], [value], isolated=True)
            expected = "accepted"
        except OracleError:
            expected = "refused"
        except OracleDiedError:
            expected = "died"
        try:
            text = spec.decode("utf-8", "surrogateescape")
            ckptfmt.save_v2(mine / "p", [b"v"], [text], [value.array()])
            found = "accepted"
        except ckptfmt.InvalidError:
            found = "refused"
            if mine.exists() and files(mine):
                failures.append(f"{spec!r}: refused, and {sorted(files(mine))} left behind")
        outcomes[expected] += 1
        if (expected == "accepted") != (found == "accepted"):
            failures.append(f"{spec!r}: TensorFlow {expected}, ckptfmt {found}")
        elif expected == "accepted" and files(theirs) != files(mine):
            failures.append(f"{spec!r}: the files differ")
    print("TensorFlow on slice texts:", dict(outcomes))
    check_all(failures, len(specs), seed)
    assert min(outcomes[kind] for kind in ("accepted", "refused")) >= 50
    assert outcomes["died"] >= 1
