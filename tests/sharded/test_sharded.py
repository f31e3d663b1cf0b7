# SPDX-License-Identifier: Apache-2.0
"""sharded_save and sharded_restore: who writes what, and what happens when something is wrong."""

from __future__ import annotations

import random
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.arrays import bits
from support.files import contents, flip
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.bundle.staging import Staging
from ckptfmt.errors import (
    CheckpointNotFoundError,
    CkptfmtError,
    CorruptError,
    GenerationGoneError,
    InvalidError,
    StorageError,
    TensorNotFoundError,
)
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded import restore as sharded_restore
from ckptfmt.sharded import save as sharded_save
from ckptfmt.sharded import sharded
from ckptfmt.sharded.coordinator import SingleProcess

MESH = Mesh({"x": 2}, ["a", "b"])
ROWS = Layout(["x", None], MESH)
DEVICES = "ab"


def rows(whole: Any, rank: int) -> dict[str, Any]:
    """The part of a matrix that process `rank` of two has under ROWS."""
    half = -(-len(whole) // 2)
    return {DEVICES[rank]: whole[rank * half : (rank + 1) * half]}


def save_team(
    prefix: Path, give: Callable[[int], Any], layouts: Any, world_size: int = 2, **options: Any
) -> list[Any]:
    """What sharded_save gave or raised in each process; `give(rank)` makes its tensors."""

    def work(team: Any) -> None:
        chosen = layouts(team.rank) if callable(layouts) else layouts
        sharded_save(prefix, give(team.rank), chosen, team, durability="none", **options)

    return run_team(world_size, work)


def described(error: Any) -> tuple[type, str]:
    return type(error), str(error)


# ---- what is written -----------------------------------------------------------------------------


def test_bytes_are_those_of_save_v2(tmp_path: Path) -> None:
    """Slices are stored as DTensor writes them: `-` for whole dimensions, one entry a slice."""
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    other = np.arange(4, dtype=np.int64)
    tensors = {
        "w": {"a": whole[:2], "b": whole[2:]},
        "same": {"a": other, "b": other},
        "plain": other,
        "one": {"a": whole[:1], "b": whole[:0]},
    }
    layouts = {"w": ROWS, "same": Layout([None], MESH), "one": ROWS}
    all_good(save_team(tmp_path / "s" / "ck", lambda _: tensors, layouts, 1, level="v2"))
    ckptfmt.save_v2(
        tmp_path / "v" / "ck",
        ["one", "plain", "same", "w", "w"],
        ["", "", "", "4 6 0,2:-", "4 6 2,2:-"],
        [whole[:1], other, other, whole[:2], whole[2:]],
    )
    assert contents(tmp_path / "s") == contents(tmp_path / "v")


def test_replicas_are_spread(tmp_path: Path, seed: int) -> None:
    """Written once, by bytes evenly, the same way each time."""
    chance = random.Random(seed)
    whole = {f"t{i}": np.zeros(chance.randint(1, 3000), np.uint8) for i in range(200)}
    largest = max(array.nbytes for array in whole.values())
    mesh = Mesh({"x": 8})
    layouts = {name: Layout.replicated(mesh, 1) for name in list(whole)[::2]}

    def give(rank: int) -> dict[str, Any]:
        devices = mesh.local_devices(rank, 4)
        return {
            name: dict.fromkeys(devices, array) if name in layouts else array
            for name, array in whole.items()
        }

    def save(prefix: Path) -> list[int]:
        all_good(save_team(prefix, give, layouts, 4, level="v2"))
        return [path.stat().st_size for path in sorted(prefix.parent.glob("*.data-*"))]

    sizes = save(tmp_path / "1" / "ck")
    assert len(sizes) == 4
    assert sum(sizes) == sum(array.nbytes for array in whole.values())
    assert max(sizes) - min(sizes) <= largest
    save(tmp_path / "2" / "ck")
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_slices_of_two_processes_each(tmp_path: Path) -> None:
    """On a mesh of data x model each model slice is on two processes, and half of them fall to
    each; what only one process has, it writes."""
    mesh = Mesh([("data", 2), ("model", 2)])
    cut = Layout([None, "model"], mesh)
    own = Layout(["data"], mesh)
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    line = np.arange(8, dtype=np.int16)

    def give(rank: int) -> dict[str, Any]:  # process 0 has data=0, process 1 data=1
        devices = mesh.local_devices(rank, 2)
        return {
            **{f"w{i}": {devices[0]: whole[:, :4], devices[1]: whole[:, 4:]} for i in range(6)},
            "own": dict.fromkeys(devices, line[rank * 4 : rank * 4 + 4]),
        }

    layouts = {**{f"w{i}": cut for i in range(6)}, "own": own}
    all_good(save_team(tmp_path / "ck", give, layouts))
    with ckptfmt.open(tmp_path / "ck") as reader:
        shards = [part.shard for i in range(6) for part in reader[f"w{i}"].slices]
        assert [shards.count(shard) for shard in (0, 1)] == [6, 6]
        assert [(p.start, p.shape, p.shard) for p in reader["own"].slices] == [
            ((0,), (4,), 0),
            ((4,), (4,), 1),
        ]
        assert bits(reader["w3"].read()) == bits(whole)
        assert bits(reader["own"].read()) == bits(line)


def test_a_process_with_nothing_to_write_writes_no_bundle(tmp_path: Path) -> None:
    all_good(save_team(tmp_path / "ck", lambda _: {"step": 7}, {}, 3))
    assert sorted(contents(tmp_path)) == ["ck.data-00000-of-00001", "ck.index"]
    assert ckptfmt.load(tmp_path / "ck")["step"] == 7


def test_tensors_of_some_processes(tmp_path: Path) -> None:
    """Meshes over parts of the processes, plain tensors of some, {} and no entry for none."""
    left, right = Mesh({"x": 2}, ["a", "b"]), Mesh({"x": 1}, ["c"])
    layouts = {"l": Layout(["x"], left), "r": Layout(["x"], right), "e": Layout(["x"], left)}
    given: list[dict[str, Any]] = [
        {"l": {"a": [1, 2]}, "e": {"a": np.zeros(0, np.int8)}},
        {"r": {}, "l": {"b": [3]}, "e": {"b": np.zeros(0, np.int8)}, "only": "text"},
        {"r": {"c": [4.5]}, "l": {}, b"both": np.float16(1)},
        {"both": np.float16(1)},
    ]
    all_good(save_team(tmp_path / "ck", given.__getitem__, layouts, 4))
    loaded = ckptfmt.load(tmp_path / "ck")
    expected = {"both": 1, "e": [], "l": [1, 2, 3], "only": b"text", "r": [4.5]}
    assert {name: array.tolist() for name, array in loaded.items()} == expected
    assert loaded["e"].dtype == np.int8


def test_empty_tensors_keep_their_shape(tmp_path: Path) -> None:
    empty = np.zeros((0, 5), np.float16)
    layout = Layout([None, "x"], MESH)

    def give(rank: int) -> dict[str, Any]:
        return {"e": {DEVICES[rank]: empty[:, 3 * rank : 3 * rank + 3]}}

    all_good(save_team(tmp_path / "ck", give, {"e": layout}))
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert (reader["e"].shape, reader["e"].dtype, reader["e"].slices) == ((0, 5), "f2", ())
    results = all_good(
        run_team(2, lambda team: sharded_restore(tmp_path / "ck", {"e": layout}, team))
    )
    assert [bits(found["e"][d]) for found, d in zip(results, DEVICES, strict=True)] == [
        bits(empty[:, :3]),
        bits(empty[:, 3:]),
    ]


def test_metadata_and_the_empty_save(tmp_path: Path) -> None:
    def save(team: Any) -> None:
        sharded_save(tmp_path / "ck", {}, {}, team, metadata={"rank": team.rank})

    all_good(run_team(2, save))
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert (len(reader), reader.metadata) == (0, {"rank": 0})
    all_good(save_team(tmp_path / "none", lambda _: {}, {}))
    assert len(ckptfmt.open(tmp_path / "none")) == 0


def test_handles_and_other_orders(tmp_path: Path) -> None:
    """A TensorHandle is an array; quantized types and the other byte order keep their values."""
    with ckptfmt.Writer(tmp_path / "from") as writer:
        writer.add("q", np.arange(4, dtype=np.int8), dtype="qint8")
        writer.add("v", np.array([b"payload"], object), dtype="variant")
    with ckptfmt.open(tmp_path / "from") as reader:
        tensors = {"q": reader["q"], "v": reader["v"], "big": {"a": np.arange(3, dtype=">i4")}}
        all_good(save_team(tmp_path / "ck", lambda _: tensors, {"big": None}, 1))
    with ckptfmt.open(tmp_path / "ck") as reader:
        assert [handle.dtype_name for handle in reader.values()] == ["int32", "qint8", "variant"]
        assert reader["big"].read().tolist() == [0, 1, 2]


def test_arrays_go_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many crossings it takes, the file is the same."""
    whole = {f"t{i}": np.arange(i * 6).reshape(i, 6) for i in range(12)}
    layouts = dict.fromkeys(whole, ROWS)
    found = []
    for size in (1, 400, 1 << 20):
        monkeypatch.setattr(sharded, "BATCH_BYTES", size)

        def give(rank: int) -> dict[str, Any]:
            return {name: rows(array, rank) for name, array in whole.items()}

        all_good(save_team(tmp_path / f"{size}" / "ck", give, layouts))
        found.append(contents(tmp_path / f"{size}"))
    assert found[0] == found[1] == found[2]


def test_an_array_that_is_not_what_it_says(tmp_path: Path) -> None:
    class Odd:
        dtype, shape = np.dtype(np.int16), (3,)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.zeros(2, np.int16)

    [error] = save_team(tmp_path / "ck", lambda _: {"w": Odd()}, {}, 1)
    assert described(error) == (
        InvalidError,
        "tensor 'w': the array has shape (2,) and dtype int16 now, and was described as "
        "(3,), int16",
    )
    assert not list(tmp_path.glob("*"))


def test_one_process(tmp_path: Path) -> None:
    whole = np.arange(6).reshape(3, 2)
    with SingleProcess() as alone:
        sharded_save(tmp_path / "ck", {"w": {"a": whole[:2], "b": whole[2:]}}, {"w": ROWS}, alone)
        found = sharded_restore(tmp_path / "ck", {"w": None}, alone)
        assert bits(found["w"]) == bits(whole)


# ---- orphaned files ------------------------------------------------------------------------------


def test_stale_files_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles of a save that crashed, even under the very name that this one draws."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "f" * 16)
    for directory in ("ck_temp", "ck_temp_0123456789abcdef", "ck_temp_" + "f" * 16):
        ckptfmt.save(tmp_path / directory / "part-00001-of-00002", {"stale": [1]})
        ckptfmt.save(tmp_path / directory / "part-00000-of-00002", {"stale": [2]})
    all_good(save_team(tmp_path / "ck", lambda _: {"step": 7}, {}))
    assert list(ckptfmt.open(tmp_path / "ck")) == ["step"]
    assert not (tmp_path / ("ck_temp_" + "f" * 16)).exists()
    assert (tmp_path / "ck_temp_0123456789abcdef").exists()


def test_two_jobs_at_once(tmp_path: Path) -> None:
    """One of them wins, whole."""

    def job(number: int) -> None:
        whole = np.full((6, 3), number)
        all_good(save_team(tmp_path / "ck", lambda rank: {"w": rows(whole, rank)}, {"w": ROWS}))

    for _ in range(5):
        all_good(run_team(3, lambda team: job(team.rank)))
        assert len(np.unique(ckptfmt.load(tmp_path / "ck")["w"])) == 1
        assert not list(tmp_path.glob("*_temp_*"))


# ---- failures ------------------------------------------------------------------------------------

GOOD = np.arange(4, dtype=np.float32).reshape(2, 2)


@pytest.fixture
def before(tmp_path: Path) -> dict[str, bytes]:
    """A checkpoint that must survive; the files of the directory."""
    ckptfmt.save(tmp_path / "ck", {"old": GOOD})
    return contents(tmp_path)


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("value", [object(), np.array([object()], object)])
def test_a_process_that_fails(
    tmp_path: Path, before: dict[str, bytes], value: Any, bad: int
) -> None:
    """While it describes, and while it writes (an object among strings)."""

    def give(rank: int) -> dict[str, Any]:
        return {"w": rows(GOOD, 0), f"own{rank}": value if rank == bad else 1}

    outcomes = save_team(tmp_path / "ck", give, {"w": None}, 3)
    own = "object arrays can store bytes and str, not object"
    assert described(outcomes.pop(bad)) == (InvalidError, f"tensor 'own{bad}': {own}")
    told = f"tensor 'own{bad}': process {bad} of 3 failed: {own}"
    assert [described(error) for error in outcomes] == [(InvalidError, told)] * 2
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob("*_temp_*"))


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (StorageError("disk full", errno=28, path="/x"), StorageError, "OS in /x: {}disk full"),
        (OSError(5, "gone"), StorageError, "OS: {}OSError: [Errno 5] gone"),
        (MemoryError(), StorageError, "OS: {}MemoryError"),
        (KeyboardInterrupt(), StorageError, "OS: {}KeyboardInterrupt"),
        (ValueError("odd"), StorageError, "OS: {}ValueError: odd"),
    ],
)
def test_other_failures_while_writing(
    tmp_path: Path,
    before: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    bad: int,
    error: BaseException,
    kind: type[CkptfmtError],
    told: str,
) -> None:
    write = sharded._write_parts

    def failing(writer: Any, parts: Any, plan: Any, description: Any) -> None:
        write(writer, parts, plan, description)
        if f"part-{bad:05d}" in writer.prefix:
            raise error

    monkeypatch.setattr(sharded, "_write_parts", failing)
    outcomes = save_team(tmp_path / "ck", lambda rank: {"w": rows(GOOD, rank)}, {"w": ROWS})
    assert outcomes[bad] is error
    expected = told.format(f"process {bad} of 2 failed: ")
    assert described(outcomes[1 - bad]) == (kind, expected)
    if isinstance(error, OSError):
        assert outcomes[1 - bad].errno == error.errno
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob("*_temp_*"))


def test_a_merge_that_fails(
    tmp_path: Path, before: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle that is not there any more: all hear of it, and nothing remains."""
    merge = Staging.merge

    def late(staging: Staging, parts: list[str]) -> None:
        Path(parts[1] + ".index").unlink()
        merge(staging, parts)

    monkeypatch.setattr(Staging, "merge", late)
    outcomes = save_team(tmp_path / "ck", lambda rank: {"w": rows(GOOD, rank)}, {"w": ROWS})
    assert [type(error) for error in outcomes] == [CheckpointNotFoundError] * 2
    assert outcomes[1].message == f"process 0 of 2 failed: {outcomes[0].message}"
    assert outcomes[1].path == outcomes[0].path
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob("*_temp_*"))


class GoneError(Exception):
    pass


def test_a_process_that_is_gone(tmp_path: Path, before: dict[str, bytes]) -> None:
    """The coordinator's own error comes through, and the last process leaves nothing behind."""
    both = threading.Barrier(2)  # else one finds, while it writes, that the other has left

    def save(team: Any) -> None:
        rounds = iter(range(10))
        gather = team.gather

        def counted(data: bytes, root: int = 0) -> Any:
            if next(rounds) == 1:
                both.wait(60)
                raise GoneError(f"{team.rank}")
            return gather(data, root)

        team.gather = counted
        sharded_save(tmp_path / "ck", {"w": rows(GOOD, team.rank)}, {"w": ROWS}, team)

    assert [described(error) for error in run_team(2, save)] == [(GoneError, "0"), (GoneError, "1")]
    assert contents(tmp_path) == before


@pytest.mark.parametrize("where", ["parts_of", "_write_parts"])
def test_a_process_that_writes_late(
    tmp_path: Path, before: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Process 0 gives up before the other writes, or before it has locked the directory. The other
    gets no decision, and removes what it wrote."""
    is_there, given_up = threading.Event(), threading.Event()
    real = getattr(sharded, where)

    def late(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() in others:
            is_there.set()
            assert given_up.wait(600)
        return real(*arguments, **options)

    others: set[threading.Thread] = set()
    monkeypatch.setattr(sharded, where, late)

    def save(team: Any) -> None:
        numbers = iter(range(10))
        gather, broadcast = team.gather, team.broadcast

        def gathered(data: bytes, root: int = 0) -> Any:
            if next(numbers) == 0:
                return gather(data, root)
            if team.rank == 0:
                assert is_there.wait(600)
                raise GoneError
            team.broadcast = gone
            return None

        def gone(_data: bytes | None, _root: int = 0) -> bytes:
            raise GoneError

        team.gather, team.broadcast = gathered, broadcast
        if team.rank == 1:
            others.add(threading.current_thread())
        try:
            sharded_save(tmp_path / "ck", {"w": rows(GOOD, team.rank)}, {"w": ROWS}, team)
        finally:
            if team.rank == 0:
                given_up.set()

    assert [type(error) for error in run_team(2, save)] == [GoneError] * 2
    assert contents(tmp_path) == before


def test_a_process_that_gets_no_decision_while_process_0_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the parts of the others alone."""
    has_given_up = threading.Event()
    merge = Staging.merge

    def late(staging: Staging, parts: list[str]) -> None:
        assert has_given_up.wait(600)
        merge(staging, parts)

    monkeypatch.setattr(Staging, "merge", late)

    def save(team: Any) -> None:
        numbers = iter(range(10))
        broadcast = team.broadcast

        def lost(data: bytes | None, root: int = 0) -> bytes:
            if next(numbers) == 0:
                return broadcast(data, root)
            if team.rank == 0:
                return data or b""
            raise GoneError

        team.broadcast = lost
        try:
            sharded_save(tmp_path / "ck", {"w": rows(GOOD, team.rank)}, {"w": ROWS}, team)
        finally:
            if team.rank == 1:
                has_given_up.set()

    outcomes = run_team(2, save)
    assert outcomes[0] is None
    assert type(outcomes[1]) is GoneError
    assert np.array_equal(ckptfmt.load(tmp_path / "ck")["w"], GOOD)
    assert not list(tmp_path.glob("*_temp_*"))


def disagreement(tmp_path: Path, given: list[dict[str, Any]], layouts: list[dict[str, Any]]) -> str:
    """The one message that all processes raise, as InvalidError."""
    outcomes = save_team(tmp_path / "ck", given.__getitem__, layouts.__getitem__, len(given))
    assert {type(error) for error in outcomes} == {InvalidError}
    [message] = {str(error) for error in outcomes}
    assert not list(tmp_path.glob("*"))
    return message


A, B = np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32)


@pytest.mark.parametrize(
    ("given", "layouts", "message"),
    [
        (
            [{"w": A}, {"w": A.astype(np.float64)}],
            [{}, {}],
            "tensor 'w': process 0 has it with dtype float32, process 1 with float64",
        ),
        (
            [{"w": A}, {"w": B}],
            [{}, {}],
            "tensor 'w': process 0 has it with shape (2, 3), process 1 with (1, 3)",
        ),
        (
            [{"w": {"a": A}}, {"w": {"b": A}}],
            [{"w": ROWS}, {"w": Layout([None, "x"], MESH)}],
            "tensor 'w': process 0 has it with layout (x, unsharded) on [x=2], process 1 with "
            "(unsharded, x) on [x=2]",
        ),
        (
            [{"w": {"a": A}}, {"w": {"b": A}}],
            [{"w": ROWS}, {"w": Layout(["x", None], Mesh({"x": 2}, ["b", "a"]))}],
            "tensor 'w': process 0 has it with layout (x, unsharded) on [x=2], with other "
            "devices, process 1 with (x, unsharded) on [x=2], with other devices",
        ),
        (
            [{"w": {"a": A}}, {"w": A}],
            [{"w": ROWS}, {}],
            "tensor 'w': process 0 has it with layout (x, unsharded) on [x=2], process 1 with none",
        ),
        (
            [{"w": {"a": B}}, {"w": {"b": A}}],
            [{"w": ROWS}] * 2,
            "tensor 'w': the blocks of dimension 0 have 1, 2 elements; a layout cuts 3 into 2, 1",
        ),
        (
            [{"w": {"a": A}}, {"w": {"b": A[:, :2]}}],
            [{"w": ROWS}] * 2,
            "tensor 'w': a has 3 elements in dimension 1, and b, which shares this block of it, 2",
        ),
        (
            [{"w": {"a": A}}, {"v": A}],
            [{"w": ROWS}] * 2,
            "no process has arrays for b, a device of the mesh [x=2]",
        ),
        (
            [{"w": {"a": A}}, {"w": {"a": A}}],
            [{"w": ROWS}] * 2,
            "process 0 and process 1 both have arrays for a, a device of the mesh [x=2]",
        ),
        (
            [{"w": {"a": A}, "v": {"a": A}}, {"w": {"b": A}}],
            [{"w": ROWS, "v": ROWS}] * 2,
            "tensor 'v': process 1 has no array for b",
        ),
        (
            [{"w": {"a": A}}, {"w": {"b": A}}],
            [{"w": ROWS, "ww": ROWS}] * 2,
            "tensor 'ww': it has a layout, but no process has an array of it",
        ),
        (
            [{"w": A}, {"w": A, "v": A}],
            [{"x": None}, {}],
            "tensor 'x': it has a layout, but no process has an array of it",
        ),
    ],
)
def test_processes_that_disagree(
    tmp_path: Path, given: list[Any], layouts: list[Any], message: str
) -> None:
    assert disagreement(tmp_path, given, layouts) == message


@pytest.mark.parametrize(
    ("tensors", "layouts", "message"),
    [
        ({"w": {"c": A}}, {"w": ROWS}, "tensor 'w': device 'c' is not in the mesh [x=2]"),
        ({"w": {}}, {"w": None}, "tensor 'w': it has no array for any device"),
        (
            {"w": {"a": A}},
            {"ww": ROWS},
            "tensor 'w': there are local arrays, {device: array}, but it has no entry in layouts; "
            "one that is replicated outside any mesh has the layout None",
        ),
        (
            {"w": {"a": A, "b": A + 1}},
            {"w": None},
            "tensor 'w': a and b hold the same part of it, but their arrays differ",
        ),
        (
            {"w": {"a": A, "b": A + 1}},
            {"w": Layout.replicated(MESH, 2)},
            "tensor 'w': a and b hold the same part of it, but their arrays differ",
        ),
        (
            {"w": A},
            {"w": ROWS},
            "tensor 'w': its layout (x, unsharded) on [x=2] divides it: give its local arrays, "
            "{device: array}, not one array",
        ),
        (
            {"w": {"a": A, "b": A.astype(np.int8)}},
            {"w": ROWS},
            "tensor 'w': the array of a has dtype float32, that of b int8",
        ),
        (
            {"w": {"a": A, "b": B}},
            {"w": None},
            "tensor 'w': without layout it is replicated, but the array of a has shape (2, 3), "
            "that of b (1, 3)",
        ),
        (
            {"w": {"a": A[0]}},
            {"w": ROWS},
            "tensor 'w': an array of shape (3,) does not fit the layout (x, unsharded) on [x=2]",
        ),
        (
            {"v": {"a": A, "b": A}, "w": {"a": A}},
            {"v": ROWS, "w": ROWS},
            "tensor 'w': there is no array for b, but other tensors of its mesh have one",
        ),
        (
            {"v": {"a": A}, "w": {"a": A, "b": A}},
            {"v": ROWS, "w": ROWS},
            "tensor 'w': there is an array for b, but other tensors of its mesh have none",
        ),
        ({"": A}, {}, "tensor '': TAB-12: a tensor's name is empty"),
        (
            {"_CKPTFMT_X": A},
            {},
            "tensor '_CKPTFMT_X': names beginning with _CKPTFMT_ are reserved",
        ),
        ({"w": A, b"w": A}, {}, "tensor 'w': the name is given twice"),
        ({3: A}, {}, "a tensor name must be str or bytes, not int"),
        (
            {"w": A},
            {"w": 3},
            "tensor 'w': layout must be a Layout, or TensorFlow's, or its text, not int",
        ),
        ([A], {}, "tensors must be a mapping from names to {device: local array}, not list"),
        ({"w": A}, None, "layouts must be a mapping from names to Layouts or None, not NoneType"),
    ],
)
def test_wrong_arguments(tmp_path: Path, tensors: Any, layouts: Any, message: str) -> None:
    """Found before anything is written; the other process hears of it too."""
    outcomes = save_team(
        tmp_path / "ck",
        lambda rank: tensors if rank == 1 else {},
        lambda rank: layouts if rank == 1 else {},
    )
    assert described(outcomes[1]) == (InvalidError, message)
    head, found, rest = message.partition("': ")
    told = f"process 1 of 2 failed: {rest or head}"
    assert described(outcomes[0]) == (InvalidError, f"{head}{found}{told}" if found else told)
    assert not list(tmp_path.glob("*"))


def test_wrong_options(tmp_path: Path) -> None:
    for options, message in (
        ({"level": "v3"}, "level must be one of 'v2', 'v2+', 'ckptfmt', not 'v3'"),
        ({"level": "v2", "metadata": {}}, "level 'v2' cannot store metadata: use 'v2+'"),
        ({"alignment": 0}, "alignment 0 is not a positive number of bytes"),
    ):
        [error] = save_team(tmp_path / "ck", lambda _: {"w": A}, {}, 1, **options)
        assert described(error) == (InvalidError, message)
    odd: Any = 3
    with pytest.raises(InvalidError, match=r"^coordinator must be a Coordinator, not int$"):
        sharded_save(tmp_path / "ck", {}, {}, odd)
    assert not list(tmp_path.glob("*_temp_*"))


# ---- failures of a restore -----------------------------------------------------------------------


def restore_team(
    prefix: Any, layouts: Any, world_size: int = 2, **options: Any
) -> list[tuple[type, str]]:
    def work(team: Any) -> Any:
        given = options
        if callable(options.get("devices")):
            given = {**options, "devices": options["devices"](team.rank)}
        path = prefix(team.rank) if callable(prefix) else prefix
        return sharded_restore(path, layouts, team, **given)

    return [described(outcome) for outcome in run_team(world_size, work)]


def test_restores_that_fail(tmp_path: Path) -> None:
    prefix = tmp_path / "ck"
    ckptfmt.save(prefix, {"w": A})
    for layouts, kind, text in (
        ({"v": ROWS}, TensorNotFoundError, None),
        (
            {"w": Layout(["x"], MESH)},
            InvalidError,
            "tensor 'w': {}the layout (x) on [x=2] does not fit the shape (2, 3) in the checkpoint",
        ),
        (
            {"w": 3},
            InvalidError,
            "tensor 'w': {}layout must be a Layout, or TensorFlow's, or its text, not int",
        ),
    ):
        outcomes = restore_team(prefix, layouts)
        # All fail in the same way, each with its own error.
        assert [one for one, _ in outcomes] == [kind] * 2
        if text:
            assert [message for _, message in outcomes] == [text.format("")] * 2
        else:
            assert all("'v'" in message for _, message in outcomes)
    outcomes = restore_team(prefix, {"w": ROWS}, devices=lambda rank: ["a", "c"][rank])
    assert outcomes == [
        (InvalidError, "devices must be a list of names of devices, not one"),
        (InvalidError, "devices must be a list of names of devices, not one"),
    ]
    outcomes = restore_team(prefix, {"w": ROWS}, devices=lambda rank: [["a"], ["c"]][rank])
    unknown = "'c' is not a device of any mesh of these layouts"
    assert outcomes == [
        (InvalidError, f"process 1 of 2 failed: {unknown}"),
        (InvalidError, unknown),
    ]
    kinds = restore_team(lambda rank: [prefix, tmp_path / "none"][rank], {"w": ROWS})
    assert [kind for kind, _ in kinds] == [CheckpointNotFoundError] * 2
    assert "process 1 of 2 failed: " in kinds[0][1]


def test_damage_in_one_part_stops_all(tmp_path: Path) -> None:
    whole = np.arange(20, dtype=np.float32).reshape(4, 5)
    all_good(save_team(tmp_path / "ck", lambda rank: {"w": rows(whole, rank)}, {"w": ROWS}))
    [data] = tmp_path.glob("ck.data-00001-*")
    flip(data, 3)
    first, second = restore_team(tmp_path / "ck", {"w": ROWS})
    assert (first[0], second[0]) == (CorruptError, CorruptError)
    assert re.search(r"tensor 'w'", second[1])
    assert "process 1 of 2 failed: " in first[1]
    assert "process" not in second[1]
    good = run_team(
        2, lambda team: sharded_restore(tmp_path / "ck", {"w": ROWS}, team, verify="off")
    )
    assert [type(one) for one in good] == [dict, dict]


def test_a_checkpoint_replaced_meanwhile(tmp_path: Path) -> None:
    """Two processes that see different contents find out; copies of one are fine."""
    ckptfmt.save(tmp_path / "1" / "ck", {"w": A})
    ckptfmt.save(tmp_path / "2" / "ck", {"w": A + 1})
    shutil.copytree(tmp_path / "1", tmp_path / "0")
    outcomes = restore_team(lambda rank: tmp_path / f"{rank}" / "ck", {"w": ROWS}, 3)
    assert [kind for kind, _ in outcomes] == [GenerationGoneError] * 3
    assert all(
        message.endswith(
            "/0/ck: process 0 and process 2 found different checkpoints here: it was replaced "
            "while it was being restored; restore it again"
        )
        for _, message in outcomes
    )
    outcomes = restore_team(lambda rank: tmp_path / f"{rank}" / "ck", {"w": ROWS}, 2)
    assert [kind for kind, _ in outcomes] == [dict] * 2
