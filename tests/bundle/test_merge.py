# SPDX-License-Identifier: Apache-2.0
"""Joining bundles: what is kept and what goes, and conflicts that change nothing."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import assert_same, bits
from support.files import contents
from support.forking import in_child
from support.process import Spent, obey_modes

import ckptfmt
from ckptfmt import CheckpointNotFoundError, InvalidError, StorageError, cli
from ckptfmt.errors import MergeConflictError

VALUE = np.arange(24, dtype=np.int16).reshape(4, 6)


def save(prefix: Path, tensors: Any, **options: Any) -> Path:
    ckptfmt.save(prefix, tensors, durability="none", **options)
    return prefix


def save_part(prefix: Path, part: Any, full: Any, start: Any, name: str = "cut") -> Path:
    with ckptfmt.Writer(prefix, durability="none") as writer:
        writer.add_slice(name, part, full, start)
    return prefix


def all_bits(tensors: Any) -> dict[str, Any]:
    return {name: bits(array) for name, array in tensors.items()}


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Three bundles in directories of their own: two have rows of `cut`, each one tensor more."""
    made = []
    for number, rows in enumerate((slice(0, 1), slice(1, 4), None)):
        made.append(tmp_path / f"in{number}" / "part")
        with ckptfmt.Writer(made[-1], durability="none") as writer:
            writer.add(f"own{number}", np.full(3, number))
            writer.add(f"text{number}", [f"s{number}"])
            if rows is not None:
                writer.add_slice("cut", VALUE[rows], VALUE.shape, (rows.start, 0))
    return made


MERGED = {f"own{n}": np.full(3, n) for n in range(3)}
MERGED |= {f"text{n}": np.array([f"s{n}".encode()], object) for n in range(3)} | {"cut": VALUE}


# ---- what comes out ------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "syncs"), [("full", 7), ("rename", 1), ("none", 0)])
def test_keep(tmp_path: Path, inputs: list[Path], durability: str, syncs: int) -> None:
    """The inputs stay as they are; the result has links to their data files. The directory that is
    made is synced into its parent, whatever else is not."""
    before = contents(tmp_path)
    with Spent() as spent:
        ckptfmt.merge(inputs, tmp_path / "out/m", durability=durability)
    assert spent.syncs == syncs
    assert {name: raw for name, raw in contents(tmp_path).items() if name in before} == before
    added = sorted(set(contents(tmp_path)) - set(before))
    data = [f"out/m.data-0000{i}-of-00003" for i in range(3)]
    assert added == [*data, "out/m.index"]
    for number, name in enumerate(data):
        source = tmp_path / f"in{number}/part.data-00000-of-00001"
        assert (tmp_path / name).samefile(source)
    assert all_bits(ckptfmt.load(tmp_path / "out/m", verify="full")) == all_bits(MERGED)
    assert ckptfmt.verify(tmp_path / "out/m", strict=True).ok
    # What is linked outlives its other name.
    for prefix in inputs:
        save(prefix, {"other": [1]})
    assert all_bits(ckptfmt.load(tmp_path / "out/m", verify="full")) == all_bits(MERGED)


def test_consume(tmp_path: Path, inputs: list[Path]) -> None:
    """The data files move, without a byte of them read; nothing is left of the inputs."""
    numbers = [path.with_name("part.data-00000-of-00001").stat().st_ino for path in inputs]
    ckptfmt.merge(inputs, tmp_path / "m", inputs="consume")
    data = [tmp_path / f"m.data-0000{i}-of-00003" for i in range(3)]
    assert [path.stat().st_ino for path in data] == numbers
    assert [path.stat().st_nlink for path in data] == [1, 1, 1]
    assert sorted(contents(tmp_path)) == [*(path.name for path in data), "m.index"]
    assert all_bits(ckptfmt.load(tmp_path / "m", verify="full")) == all_bits(MERGED)
    assert ckptfmt.verify(tmp_path / "m", strict=True).ok


def test_order_of_the_inputs(tmp_path: Path, inputs: list[Path]) -> None:
    """It decides the numbers of the data files and nothing else."""
    digests = set()
    for number, order in enumerate(itertools.permutations(range(3))):
        ckptfmt.merge([inputs[i] for i in order], tmp_path / f"m{number}", durability="none")
        with ckptfmt.open(tmp_path / f"m{number}") as reader:
            shards = [reader[f"own{i}"].shard for i in order]
            assert shards == [0, 1, 2] and reader.header.num_shards == 3
            digests.add(reader.digest())
    assert len(digests) == 1


def test_many_inputs_in_any_form(tmp_path: Path) -> None:
    """Directories of many inputs are listed; what is found otherwise is still found."""
    prefixes: list[str] = []
    for row in range(20):
        prefix = tmp_path / "many" / f"part-{row:02d}"
        ckptfmt.save(prefix, {f"x{row}": np.float32(row)}, durability="none")
        prefixes.append(f"{prefix}")
    (tmp_path / "many" / "folder.index").mkdir()
    prefixes[3] += ".index"
    prefixes[4] = prefixes[4].replace("/part", "//part")
    prefixes[5] += ".data-00000-of-00001"
    ckptfmt.merge(prefixes, tmp_path / "all")
    with ckptfmt.open(tmp_path / "all") as reader:
        assert sorted(reader) == sorted(f"x{row}" for row in range(20))
    with pytest.raises(ckptfmt.CheckpointNotFoundError):
        ckptfmt.merge([*prefixes, f"{tmp_path}/many/folder"], tmp_path / "more")


def test_merging_merged(tmp_path: Path, inputs: list[Path]) -> None:
    ckptfmt.merge(inputs[:2], tmp_path / "m1", durability="none")
    ckptfmt.merge([inputs[2], tmp_path / "m1"], tmp_path / "m2", durability="none")
    with ckptfmt.open(tmp_path / "m2") as reader:
        assert reader.header.num_shards == 3
        assert_same(reader["cut"].read(), VALUE)
        assert [reader[f"own{i}"].shard for i in range(3)] == [1, 2, 0]
        assert {part.shard for part in reader["cut"].slices} == {1, 2}


def test_a_bundle_without_tensors(tmp_path: Path) -> None:
    """Has no part in the result; alone it makes an empty one."""
    empty, full = save(tmp_path / "empty", {}), save(tmp_path / "full", {"x": VALUE})
    ckptfmt.merge([empty, full, save(tmp_path / "empty2", [])], tmp_path / "m")
    with ckptfmt.open(tmp_path / "m") as reader:
        assert list(reader) == ["x"] and reader.header.num_shards == 1
        assert_same(reader["x"].read(), VALUE)
    ckptfmt.merge([empty], tmp_path / "none")
    assert ckptfmt.load(tmp_path / "none") == {}
    assert ckptfmt.verify(tmp_path / "none").ok and ckptfmt.verify(tmp_path / "m").ok
    ckptfmt.merge([empty, full], tmp_path / "m", inputs="consume")
    assert list(ckptfmt.load(tmp_path / "m")) == ["x"]
    assert not list(tmp_path.glob("full.*")) and not list(tmp_path.glob("empty.*"))


def test_the_destination_is_replaced(tmp_path: Path, inputs: list[Path]) -> None:
    """Whole, generation after generation; a reader of the old one keeps it."""
    target = save(tmp_path / "m", {"old": VALUE})
    with ckptfmt.open(target) as reader:
        for chosen in (inputs[:1], inputs, inputs[1:], inputs[2:]):
            ckptfmt.merge(chosen, target, durability="none", partial=True)
            with ckptfmt.open(target) as merged:
                names = {name for prefix in chosen for name in ckptfmt.open(prefix)}
                assert set(merged) == names
                count = merged.header.num_shards
            files = [f"m.data-{i:05d}-of-{count:05d}" for i in range(count)]
            assert sorted(path.name for path in tmp_path.glob("m.*")) == [*files, "m.index"]
            # `cut` is whole or absent where both of its parts are there or none.
            assert ckptfmt.verify(target).ok == ((inputs[0] in chosen) == (inputs[1] in chosen))
        assert_same(reader["old"].read(), VALUE)
    save(target, {"x": [1]})
    assert ckptfmt.load(target)["x"].tolist() == [1]
    assert len(list(tmp_path.glob("m.*"))) <= 3


# ---- metadata ------------------------------------------------------------------------------------


def test_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal ones become one, one alone is kept, different ones are a conflict."""
    a = save(tmp_path / "a", {"a": [1]}, metadata={"step": 1, "k": "\u00e9"})
    b = save(tmp_path / "b", {"b": [1]}, metadata={"k": "\u00e9", "step": 1})
    c = save(tmp_path / "c", {"c": [1]})
    ckptfmt.merge([c, a, b], tmp_path / "m")
    with ckptfmt.open(tmp_path / "m") as reader:
        assert reader.metadata == {"step": 1, "k": "\u00e9"}
        assert list(reader) == ["a", "b", "c"] and reader.level == "v2+"
    assert ckptfmt.verify(tmp_path / "m").ok
    other = save(tmp_path / "other", {"d": [1]}, metadata={"step": 2, "k": "\u00e9"})
    before = contents(tmp_path)
    with pytest.raises(MergeConflictError) as caught:
        ckptfmt.merge([a, c, other], tmp_path / "m")
    assert caught.value.tensor == "_CKPTFMT_METADATA"
    assert caught.value.rule == "MRG-16" and caught.value.argument == "metadata_from"
    assert f"the metadata differ in {a} and {other}" in caught.value.message
    assert contents(tmp_path) == before
    words = [os.fspath(one) for one in (a, c, other, tmp_path / "m")]
    assert cli.main(["merge", *words, "--overwrite"]) == 1
    assert "; --metadata-from says" in capsys.readouterr().err
    assert cli.main(["merge", *words, "--overwrite", "--metadata-from", words[2]]) == 0
    with ckptfmt.open(tmp_path / "m") as reader:
        assert reader.metadata["step"] == 2


@pytest.mark.parametrize("inputs", ["keep", "consume"])
@pytest.mark.parametrize("chosen", "abc")
def test_metadata_from(tmp_path: Path, chosen: str, inputs: Any) -> None:
    """The result has the metadata of that input, or none, wherever it is among the inputs."""
    given: dict[str, Any] = {"a": {"step": 1}, "b": {"step": 2}, "c": None, "d": {"step": 3}}
    for order in ("abcd", "dcba"):
        parts = [save(tmp_path / name, {name: [1]}, metadata=one) for name, one in given.items()]
        parts = [parts["abcd".index(name)] for name in order]
        with pytest.raises(InvalidError) as caught:
            ckptfmt.merge(parts, tmp_path / "m", metadata_from=tmp_path / "e")
        assert caught.value.argument == "metadata_from"
        ckptfmt.merge(parts, tmp_path / "m", inputs=inputs, metadata_from=tmp_path / chosen)
        with ckptfmt.open(tmp_path / "m") as reader:
            assert list(reader) == [*"abcd"] and reader.metadata == (given[chosen] or {})
        assert ckptfmt.verify(tmp_path / "m").ok


@pytest.mark.parametrize("key", ["ckptfmt.torch", "ckptfmt.optimizer_states", "jax_prng_impls"])
def test_notes_on_tensors(tmp_path: Path, key: str) -> None:
    """They are not lost with the metadata of an input: they must be equal in all that have some."""
    a = save(tmp_path / "a", {"a": [1]}, metadata={key: "1", "step": 1})
    same = save(tmp_path / "b", {"b": [1]}, metadata={key: "1", "step": 2})
    other = save(tmp_path / "c", {"c": [1]}, metadata={"step": 1})
    none = save(tmp_path / "d", {"d": [1]})
    for parts, chosen in (([a, other], a), ([a, other], other), ([a, none], none)):
        with pytest.raises(InvalidError) as caught:
            ckptfmt.merge(parts, tmp_path / "m", metadata_from=chosen)
        assert caught.value.argument == "metadata_from" and repr(key) in caught.value.message
    ckptfmt.merge([a, same, none], tmp_path / "m", metadata_from=same)
    with ckptfmt.open(tmp_path / "m") as reader:
        assert reader.metadata == {key: "1", "step": 2}


# ---- conflicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["keep", "consume"])
@pytest.mark.parametrize(
    ("second", "message"),
    [
        (("whole", np.arange(4.0)), "MRG-3: Duplicate tensor keyed by this name"),
        (("cut", np.arange(2.0), (4,), (0,)), "MRG-3: Duplicate tensor keyed by this name"),
        (("cut", np.arange(3.0), (4,), (1,)), "MRG-5: slices overlap"),
        (("cut", np.arange(2, dtype=np.float32), (4,), (2,)), "MRG-4: dtype or shape differ"),
        (("cut", np.arange(2.0), (5,), (2,)), "MRG-4: dtype or shape differ"),
        (("cut", np.arange(4.0).reshape(2, 2), (4, 2), (2, 0)), "MRG-4: dtype or shape differ"),
    ],
    ids=["whole and cut", "twice", "overlap", "dtype", "shape", "rank"],
)
def test_conflicts(tmp_path: Path, second: Any, message: str, inputs: str) -> None:
    """Both inputs and the tensor are named, whichever comes first, and nothing changes."""
    a = save_part(tmp_path / "a", np.arange(2.0), (4,), (0,), "x")
    kind, *rest = second
    b = save(tmp_path / "b", {"x": rest[0]}) if kind == "whole" else tmp_path / "b"
    if kind == "cut":
        save_part(b, *rest, "x")
    free = save(tmp_path / "free", {"y": [1]})
    target = save(tmp_path / "m", {"old": [1]})
    before = contents(tmp_path)
    for x, y in ((a, b), (b, a)):
        with pytest.raises(MergeConflictError) as caught:
            ckptfmt.merge([free, x, y], target, inputs=inputs)
        error = caught.value
        assert error.message == f"{message} in {x} and {y}"
        assert (error.tensor, error.path, error.failure) == ("x", f"{y}.index", "MERGE_CONFLICT")
        assert isinstance(error, ValueError)
        assert contents(tmp_path) == before


def test_the_same_whole_tensor(tmp_path: Path) -> None:
    """Is a conflict even where both hold the same."""
    a, b = save(tmp_path / "a", {"x": VALUE}), save(tmp_path / "b", {"x": VALUE, "y": VALUE})
    before = contents(tmp_path)
    with pytest.raises(MergeConflictError) as caught:
        ckptfmt.merge_v2_checkpoints([a, b], tmp_path / "m")
    assert caught.value.message == f"MRG-3: Duplicate tensor keyed by this name in {a} and {b}"
    assert caught.value.tensor == "x" and contents(tmp_path) == before


# ---- what is refused -----------------------------------------------------------------------------


def test_refused(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", {"x": [1]}), save(tmp_path / "b", {"y": [1]})
    target = tmp_path / "m"
    before = contents(tmp_path)
    cases: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
        (a, target, {}, InvalidError, "prefixes must be a list of prefixes, not one"),
        (str(a), target, {}, InvalidError, "prefixes must be a list of prefixes, not one"),
        ([a], target, {"inputs": "move"}, InvalidError, "inputs must be one of 'keep', 'con"),
        ([a], target, {"durability": ""}, InvalidError, "durability must be one of 'full', 'ren"),
        ([a, b, a], target, {}, InvalidError, f"MRG-10: input {a} is given twice"),
        ([a, b], b, {}, InvalidError, f"MRG-10: the destination is also an input: {b}"),
        ([a, b], f"{target}\0", {}, InvalidError, "a path cannot contain a NUL byte"),
        ([a, tmp_path / "z"], target, {}, CheckpointNotFoundError, "Failed to find any matching"),
        (
            [a],
            target,
            {"limits": {"entries_max": 1}},
            ckptfmt.errors.LimitError,
            "TAB-13: more entries than limit entries_max",
        ),
    ]
    for prefixes, destination, options, kind, message in cases:
        for inputs in ("keep", "consume"):
            with pytest.raises(kind) as caught:
                ckptfmt.merge(prefixes, destination, **{"inputs": inputs, **options})
            assert caught.value.message.startswith(message)
            assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


def test_nothing_to_merge(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="prefixes is empty: there is nothing to merge"):
        ckptfmt.merge([], tmp_path / "m")
    assert contents(tmp_path) == {}


def test_a_missing_data_file(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", {"x": [1]}), save(tmp_path / "b", {"y": [1]})
    (tmp_path / "b.data-00000-of-00001").unlink()
    before = contents(tmp_path)
    with pytest.raises(ckptfmt.errors.ShardMissingError) as caught:
        ckptfmt.merge([a, b], tmp_path / "m", inputs="consume")
    assert caught.value.path == f"{b}.data-00000-of-00001"
    assert contents(tmp_path) == before


# ---- merge_v2_checkpoints ------------------------------------------------------------------------


def test_merge_v2(tmp_path: Path, inputs: list[Path]) -> None:
    """The inputs go, their directories as well unless something else is in them."""
    (inputs[1].parent / "note").write_text("mine")
    ckptfmt.merge_v2_checkpoints(inputs, tmp_path / "m")
    assert all_bits(ckptfmt.load(tmp_path / "m", verify="full")) == all_bits(MERGED)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in1",
        *(f"m.data-0000{i}-of-00003" for i in range(3)),
        "m.index",
    ]
    assert [path.name for path in inputs[1].parent.iterdir()] == ["note"]


def test_merge_v2_keeps_directories(tmp_path: Path, inputs: list[Path]) -> None:
    ckptfmt.merge_v2_checkpoints(inputs, tmp_path / "m", delete_old_dirs=False)
    assert [list(prefix.parent.iterdir()) for prefix in inputs] == [[], [], []]
    assert all_bits(ckptfmt.load(tmp_path / "m")) == all_bits(MERGED)


def test_merge_v2_into_a_directory_of_the_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination's own directory stays, however it is spelled."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        save(Path(f"d/{name}"), {name: [1]})
    ckptfmt.merge_v2_checkpoints(["d/a", tmp_path / "d/b"], "./d/../d/m")
    assert sorted(ckptfmt.load(tmp_path / "d/m")) == ["a", "b"]
    assert len(list((tmp_path / "d").iterdir())) == 3


def test_allow_missing_files(tmp_path: Path, inputs: list[Path]) -> None:
    missing = tmp_path / "nowhere/part"
    before = contents(tmp_path)
    with pytest.raises(CheckpointNotFoundError) as caught:
        ckptfmt.merge_v2_checkpoints([*inputs, missing], tmp_path / "m")
    assert caught.value.message == "MRG-1: an input of the merge did not exist"
    assert caught.value.path == str(missing) and contents(tmp_path) == before
    for prefixes in ([missing], [missing, tmp_path / "other"]):
        with pytest.raises(CheckpointNotFoundError) as caught:
            ckptfmt.merge_v2_checkpoints(prefixes, tmp_path / "m", allow_missing_files=True)
        assert caught.value.message == (
            "MRG-1: At least one prefix checkpoint file must exist, but none existed"
        )
    assert contents(tmp_path) == before
    ckptfmt.merge_v2_checkpoints(
        [missing, *inputs, tmp_path / "other"], tmp_path / "m", allow_missing_files=True
    )
    assert all_bits(ckptfmt.load(tmp_path / "m")) == all_bits(MERGED)
    with pytest.raises(
        InvalidError, match="checkpoint_prefixes must be a list of prefixes, not one"
    ):
        ckptfmt.merge_v2_checkpoints(inputs[0], tmp_path / "m")


def test_merge_v2_takes_prefixes_literally(tmp_path: Path, inputs: list[Path]) -> None:
    for form in (inputs[0].parent, f"{inputs[0]}.index", tmp_path / "in*/part"):
        with pytest.raises(CheckpointNotFoundError, match="MRG-1: an input of the merge did not"):
            ckptfmt.merge_v2_checkpoints([form], tmp_path / "m")


# ---- killed --------------------------------------------------------------------------------------


def test_finish_what_was_killed(tmp_path: Path, inputs: list[Path]) -> None:
    """The same call again finishes a merge that was killed while its inputs went, whatever form the
    inputs' paths have. A call that was not killed cannot be made again."""
    program = """
import sys, ckptfmt
destination, *inputs = sys.argv[1:]
ckptfmt.merge(inputs, destination, inputs="consume")
"""
    # An index, a data file, a directory.
    paths = [f"{inputs[0]}.index", f"{inputs[1]}.data-00000-of-00001", str(inputs[2].parent)]
    target = tmp_path / "out" / "m"
    # The merge takes the lock of each input's directory to remove the input: it stops at the last.
    lock = os.open(inputs[2].parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with subprocess.Popen([sys.executable, "-c", program, str(target), *paths]) as process:
        while os.path.exists(f"{inputs[1]}.index"):
            assert process.poll() is None
        process.kill()
    os.close(lock)
    assert [os.path.exists(f"{prefix}.index") for prefix in inputs] == [False, False, True]
    assert Path(f"{target}.merge-intent").exists()
    ckptfmt.merge(paths, target, inputs="consume")
    assert sorted(contents(tmp_path)) == [
        *(f"out/m.data-0000{i}-of-00003" for i in range(3)),
        "out/m.index",
    ]
    assert all_bits(ckptfmt.load(target, verify="full")) == all_bits(MERGED)
    with pytest.raises(CheckpointNotFoundError):
        ckptfmt.merge(paths, target, inputs="consume")


@pytest.mark.parametrize("call", [0, 1, 2], ids=["merge", "merge_v2_checkpoints", "mv"])
def test_an_input_that_cannot_be_removed(tmp_path: Path, inputs: list[Path], call: int) -> None:
    """It is named, the result is in place, and the same call finishes when it can."""
    given, target = [str(inputs[0])] if call == 2 else inputs, tmp_path / "out" / "m"
    source = inputs[-1] if call < 2 else inputs[0]

    def merge() -> None:
        if call == 2:
            assert cli.main(["mv", "--overwrite", *given, str(target)]) == 0
        elif call == 1:
            ckptfmt.merge_v2_checkpoints(given, target, delete_old_dirs=False)
        else:
            ckptfmt.merge(given, target, inputs="consume")

    def refused() -> None:
        obey_modes()
        if call == 2:
            assert cli.main(["mv", *given, str(target)]) == 2
            return
        with pytest.raises(StorageError) as caught:
            merge()
        assert (caught.value.failure, caught.value.path) == ("NOT_REMOVED", f"{source}.index")

    source.parent.chmod(0o500)
    assert in_child(refused) == 0
    with ckptfmt.open(target) as result, ckptfmt.open(source) as left:
        assert set(result) >= set(left)
    source.parent.chmod(0o700)
    merge()
    assert not list(source.parent.iterdir())
    assert not Path(f"{target}.merge-intent").exists()


@pytest.mark.parametrize("where", ["{}", "memory://merge-again"])
def test_a_call_that_finished_made_again(tmp_path: Path, where: str) -> None:
    """Its error says that the result is there, if that is sure."""
    root = where.format(tmp_path)
    parts, target = [f"{root}/a", f"{root}/b"], f"{root}/m"
    missing = f"; {parts[0]}, {parts[1]} do not exist"
    reported = f"{missing}; {target} exists and is whole; an earlier call may have finished"

    def save_parts() -> None:
        for prefix in parts:
            ckptfmt.save(prefix, {prefix[-1]: VALUE}, level="v2", shards=1)

    def refused(prefixes: list[str], *, missing: str, consume: bool = True) -> str:
        with pytest.raises(CheckpointNotFoundError) as caught:
            ckptfmt.merge(prefixes, target, inputs="consume" if consume else "keep")
        assert caught.value.path == missing
        assert caught.value.args == (caught.value.message,)
        return caught.value.message

    assert "whole" not in refused(parts, missing=parts[0])
    save_parts()
    ckptfmt.merge(parts, target, inputs="consume")
    assert refused(parts, missing=parts[0]).endswith(reported)
    for allow_missing in (False, True):
        with pytest.raises(CheckpointNotFoundError, match="MRG-1") as caught:
            ckptfmt.merge_v2_checkpoints(parts, target, allow_missing_files=allow_missing)
        assert caught.value.message.endswith(reported)
    # An earlier call that removes its inputs is meant, and all of them.
    assert "whole" not in refused(parts, missing=parts[0], consume=False)
    ckptfmt.save(parts[1], {"b": VALUE}, level="v2", shards=1)
    assert "whole" not in refused(parts, missing=parts[0])
    assert sorted(ckptfmt.load(target)) == ["a", "b"] and sorted(ckptfmt.load(parts[1])) == ["b"]
    if where == "{}":
        os.unlink(f"{parts[1]}.index")
        os.truncate(f"{target}.data-00001-of-00002", VALUE.nbytes - 1)
        assert "whole" not in refused(parts, missing=parts[0])
