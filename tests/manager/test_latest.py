# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint of a directory is the newest, with a correct state file and with a wrong one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index
from support.dict_client import mount
from support.files import flip

import ckptfmt
from ckptfmt import tf
from ckptfmt.bundle import completeness
from ckptfmt.bundle.completeness import why_incomplete
from ckptfmt.files.state_file import CheckpointState, format_state
from ckptfmt.manager import latest

SECOND = 10**9
BEGUN = 1_700_000_000 * SECOND


def save(directory: Path, name: str, at: int | None = None) -> str:
    """A checkpoint, written `at` this many seconds after the first."""
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    ckptfmt.save(directory / name, {"x": np.arange(4)}, durability="rename")
    if at is not None:
        touch(directory / f"{name}.index", at)
    return f"{directory}/{name}"


def touch(path: Path, at: int) -> None:
    os.utime(path, ns=(BEGUN, BEGUN + at * SECOND))


def record(directory: Path, *oldest_first: str, at: int | None = None) -> None:
    state = CheckpointState(oldest_first[-1], oldest_first)
    (directory / "checkpoint").write_bytes(format_state(state))
    if at is not None:
        touch(directory / "checkpoint", at)


def newest(directory: Path | str) -> str | None:
    """What is found without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ckptfmt.latest_checkpoint(directory)


def fallback(directory: Path | str) -> tuple[str | None, str]:
    """The name that is found, and the warning without the path at its beginning."""
    with pytest.warns(ckptfmt.CkptfmtWarning) as caught:
        found = ckptfmt.latest_checkpoint(directory)
    (warning,) = caught
    assert warning.filename == __file__
    begin = f"{os.path.join(directory, 'checkpoint')}: "
    assert str(warning.message).startswith(begin)
    message = str(warning.message).removeprefix(begin)
    end = f"'{found}' is taken" if found else "no checkpoint is complete"
    assert message.endswith(f"; {end}")
    name = None if found is None else os.path.relpath(found, directory)
    return name, message.removesuffix(f"; {end}").replace(f"{directory}/", "")


def damage_data(prefix: str) -> None:
    os.truncate(f"{prefix}.data-00000-of-00001", 3)


# ---- a correct state file ------------------------------------------------------------------------


def test_the_newest_recorded(tmp_path: Path) -> None:
    """Not the highest number, and not the youngest file."""
    for number in (1, 2, 3):
        save(tmp_path, f"ckpt-{number}", number)
    record(tmp_path, "ckpt-3", "ckpt-2", at=0)
    assert newest(tmp_path) == f"{tmp_path}/ckpt-2"
    assert ckptfmt.latest_checkpoint(os.fsencode(tmp_path)) == f"{tmp_path}/ckpt-2"


def test_another_state_file(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b")
    record(tmp_path, "a")
    os.rename(tmp_path / "checkpoint", tmp_path / "other")
    record(tmp_path, "b")
    assert ckptfmt.latest_checkpoint(tmp_path, "other") == f"{tmp_path}/a"
    assert tf.latest_checkpoint(tmp_path, "other") == f"{tmp_path}/a"
    assert newest(tmp_path) == f"{tmp_path}/b"


@pytest.mark.parametrize(
    "name", ["ck*", "[a-z]", "ck?", "größe", "line\nbreak", "'", '"', "\udcff"]
)
def test_names_are_literal(tmp_path: Path, name: str) -> None:
    save(tmp_path, "ck")
    record(tmp_path, name)
    assert fallback(tmp_path)[0] == "ck"
    save(tmp_path, name)
    assert newest(tmp_path) == f"{tmp_path}/{name}"


def test_nothing_there(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "none") is None
    (tmp_path / "file").touch()
    assert newest(tmp_path / "file") is None


# ---- a wrong state file --------------------------------------------------------------------------


def test_a_dead_name(tmp_path: Path) -> None:
    save(tmp_path, "ckpt-1", 9)
    save(tmp_path, "ckpt-2", 1)
    record(tmp_path, "ckpt-2", "ckpt-1", "ckpt-3", at=20)
    assert fallback(tmp_path) == (
        "ckpt-1",
        "'ckpt-3', the newest it names, is not complete: it has no index",
    )
    os.unlink(tmp_path / "ckpt-1.index")
    assert fallback(tmp_path)[0] == "ckpt-2"
    os.unlink(tmp_path / "ckpt-2.index")
    assert fallback(tmp_path)[0] is None


@pytest.mark.parametrize("place", ["directory", "store"])
@pytest.mark.parametrize("named", [[], [1000], [8, 1000], [9, 1000], [8, 99, 1000]])
def test_numbers_are_not_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, named: list[int]
) -> None:
    """One after the other is lost, and each time the highest number that is left is the newest,
    whatever the state file names, and although the files are younger the lower the number is."""
    numbers = [8, 9, 10, 99, 100, 1000]
    for number in numbers:
        save(tmp_path, f"ckpt-{number}", -number)
    if named:
        record(tmp_path, *[f"ckpt-{number}" for number in named])
    client, directory = mount(monkeypatch), str(tmp_path)
    if place == "store":
        directory = "dict://bucket/run"
        for path in tmp_path.iterdir():
            client.set(f"run/{path.name}", path.read_bytes())
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(), directory, max_to_keep=None)
    for number in reversed(numbers):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
            expected = f"{directory}/ckpt-{number}"
            assert ckptfmt.latest_checkpoint(directory) == expected
            assert manager.restore_latest().path == expected
        name = f"ckpt-{number}.data-00000-of-00001"
        (tmp_path / name).unlink()
        client.objects.pop(f"run/{name}", None)


def test_a_number_of_many_digits(tmp_path: Path) -> None:
    """Python's int refuses more than 4300 digits."""
    expected = save(tmp_path, "m-1")
    record(tmp_path, f"m-{'9' * 5000}")
    with pytest.warns(ckptfmt.CkptfmtWarning, match="is not complete"):
        assert ckptfmt.latest_checkpoint(tmp_path) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
        manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(), tmp_path, max_to_keep=2)
        assert manager.save() == f"{tmp_path}/ckpt-1"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "model_checkpoint_path is missing"),
        (b"\0" * 4096, "expected a line 'field: value' of a CheckpointState, found '\\x00"),
        (b"\xff", "not UTF-8"),
        (b'model_checkpoint_path: "ckpt-1', "expected a line 'field: value'"),
        (b'model_checkpoint_path: "a\\0b"', "model_checkpoint_path 'a\0b' leads outside the "),
        (b'model_checkpoint_path: "."', "model_checkpoint_path '.' leads outside the directory"),
        (b'model_checkpoint_path: "s/"', "model_checkpoint_path 's/' leads outside the directory"),
    ],
)
def test_a_damaged_state_file(tmp_path: Path, content: bytes, expected: str) -> None:
    """As a power cut leaves it behind, among others."""
    save(tmp_path, "ckpt-1")
    save(tmp_path, "ckpt-2")
    (tmp_path / "checkpoint").write_bytes(content)
    name, message = fallback(tmp_path)
    assert name == "ckpt-2"
    assert message.startswith(expected)


def test_a_state_file_of_a_gigabyte(tmp_path: Path) -> None:
    save(tmp_path, "ckpt-1")
    (tmp_path / "checkpoint").touch()
    os.truncate(tmp_path / "checkpoint", 1 << 30)
    assert fallback(tmp_path) == ("ckpt-1", "more than 67108864 bytes")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_state_file_that_is_none(tmp_path: Path, make: Callable[[Path], None]) -> None:
    save(tmp_path, "ckpt-1")
    make(tmp_path / "checkpoint")
    assert fallback(tmp_path) == ("ckpt-1", "not a regular file")


def test_a_state_file_that_leads_nowhere(tmp_path: Path) -> None:
    save(tmp_path, "ckpt-1")
    (tmp_path / "checkpoint").symlink_to("none")
    assert fallback(tmp_path) == ("ckpt-1", "not a regular file")


def test_very_many_dead_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is looked for in the file system."""
    save(tmp_path, "alive")
    record(tmp_path, *(f"ckpt-{number}" for number in range(10**5)))
    real = os.stat
    seen: list[Any] = []

    def noted(path: Any, **more: Any) -> os.stat_result:
        seen.append(path)
        return real(path, **more)

    monkeypatch.setattr(os, "stat", noted)
    name, message = fallback(tmp_path)
    assert name == "alive"
    assert message == "'ckpt-99999', the newest it names, is not complete: it has no index"
    assert len(seen) < 20


# ---- outside -------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checkpoints that were looked at."""
    seen: list[str] = []

    def noted(prefix: str) -> str | None:
        seen.append(prefix)
        return why_incomplete(prefix)

    monkeypatch.setattr(latest, "why_incomplete", noted)
    return seen


@pytest.mark.parametrize(
    "named", ["../out", "s/../../out", "{t}/out", "{t}/d/../out", "{t}/dd/out", "link/out", "/out"]
)
@pytest.mark.parametrize("older", [False, True])
def test_a_name_that_leads_outside(
    tmp_path: Path, opened: list[str], named: str, older: bool
) -> None:
    """Though a checkpoint is there: neither as the newest nor as another is it looked at."""
    directory = tmp_path / "d"
    for place in ("", "dd", "elsewhere"):
        save(tmp_path / place, "out")
    save(directory, "s/x")
    inside = save(directory, "ckpt-1")
    (directory / "link").symlink_to(tmp_path / "elsewhere")
    named = named.format(t=tmp_path)
    if older:
        record(directory, named, "dead")
        reason = "'dead', the newest it names, is not complete: it has no index"
    else:
        record(directory, named)
        reason = f"model_checkpoint_path '{named}' leads outside the directory"
    name, message = fallback(directory)
    assert name == "ckpt-1"
    assert message == reason.replace(f"{directory}/", "")
    assert opened == ([f"{directory}/dead"] if older else []) + [inside]


# ---- complete or not -----------------------------------------------------------------------------


def cut_index(prefix: str) -> None:
    os.truncate(f"{prefix}.index", 20)


def flip_index(prefix: str) -> None:
    with open(f"{prefix}.index", "r+b") as stream:
        content = bytearray(stream.read())
        content[5] ^= 1
        stream.seek(0)
        stream.write(content)


def no_data(prefix: str) -> None:
    os.unlink(f"{prefix}.data-00000-of-00001")


def only_data(prefix: str) -> None:
    os.unlink(f"{prefix}.index")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (cut_index, "TRUNCATED in {}.index"),
        (flip_index, "CHECKSUM in {}.index"),
        (no_data, "{}.data-00000-of-00001: No such file or directory"),
        (damage_data, "{}.data-00000-of-00001 has 3 bytes of "),
        (only_data, "it has no index"),
    ],
)
def test_the_newest_is_damaged(tmp_path: Path, harm: Callable[[str], None], expected: str) -> None:
    for number in (1, 2, 3):
        save(tmp_path, f"ckpt-{number}", number)
    record(tmp_path, "ckpt-1", "ckpt-2", "ckpt-3", at=9)
    prefix = f"{tmp_path}/ckpt-3"
    assert why_incomplete(prefix) is None
    harm(prefix)
    why = why_incomplete(prefix)
    assert why is not None and why.startswith(expected.format(prefix))
    name, message = fallback(tmp_path)
    assert name == "ckpt-2"
    assert message == (
        f"'ckpt-3', the newest it names, is not complete: {why.replace(f'{tmp_path}/', '')}"
    )
    damage_data(f"{tmp_path}/ckpt-2")
    assert fallback(tmp_path)[0] == "ckpt-1"


def test_every_data_file_counts(tmp_path: Path) -> None:
    for number in range(3):
        with ckptfmt.Writer(tmp_path / f"p{number}", level="v2", alignment=1) as writer:
            if number < 2:
                writer.add(f"t{number}", np.arange(8 * (number + 1)))
            else:
                writer.add_slice("s", np.arange(4), shape=(8,), offset=(0,))
    ckptfmt.merge([tmp_path / f"p{number}" for number in range(3)], tmp_path / "m", partial=True)
    prefix = f"{tmp_path}/m"
    assert why_incomplete(prefix) is None
    for number in range(3):
        path = f"{prefix}.data-0000{number}-of-00003"
        content = Path(path).read_bytes()
        os.unlink(path)
        assert why_incomplete(prefix) == f"{path}: No such file or directory"
        Path(path).write_bytes(content[:-1])
        assert why_incomplete(prefix) == f"{path} has {len(content) - 1} bytes of {len(content)}"
        Path(path).write_bytes(content + b"more")
        assert why_incomplete(prefix) is None


def test_a_checkpoint_of_nothing(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "m", durability="rename"):
        pass
    assert why_incomplete(f"{tmp_path}/m") is None


def test_a_size_beyond_64_bits(tmp_path: Path) -> None:
    built = index.index_of(
        [
            (b"", index.header()),
            (b"x", index.stored_entry(index.UINT8, (4,), b"abcd", offset=2**63 - 2)),
        ],
    )
    index.write(tmp_path / "m", built, b"abcd")
    assert why_incomplete(f"{tmp_path}/m") is not None


def test_a_checkpoint_replaced_while_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is of one generation, the data files of the next: that is no fault."""
    prefix = save(tmp_path, "m")
    real = completeness.missing_data
    replaced: list[bool] = []

    def judge(given: str, *rest: Any) -> str | None:
        if len(replaced) < times:
            replaced.append(True)
            os.utime(f"{prefix}.index", ns=(len(replaced), len(replaced)))
            return "a data file is gone"
        return real(given, *rest)

    monkeypatch.setattr(completeness, "missing_data", judge)
    times = 2
    assert why_incomplete(prefix) is None
    times = 10**9
    assert why_incomplete(prefix) == "it is being replaced"


# ---- the order of those that no state file orders ------------------------------------------------


def order(directory: Path) -> list[str]:
    """The names found, each removed before the next look."""
    found: list[str] = []
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prefix = ckptfmt.latest_checkpoint(directory)
        if prefix is None:
            return found
        found.append(os.path.relpath(prefix, directory))
        ckptfmt.tf.remove_checkpoint(prefix)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # Numbers of one name go by number, not by time nor by letters.
        ({"ckpt-9": 3, "ckpt-10": 2, "ckpt-100": 1}, ["ckpt-100", "ckpt-10", "ckpt-9"]),
        # Names without numbers go by time.
        ({"a": 2, "b": 3, "c": 1}, ["b", "a", "c"]),
        # Several names: the time of each one's highest number.
        (
            {"a-1": 9, "a-2": 5, "b-1": 6, "b-7": 4, "c": 3},
            ["a-2", "a-1", "b-7", "b-1", "c"],
        ),
        ({"m-5": 1, "m-6": 3, "m": 2}, ["m-6", "m", "m-5"]),
        # Of equal numbers the younger.
        ({"m-5": 1, "m-05": 2}, ["m-05", "m-5"]),
        # Not numbers.
        ({"m--1": 2, "m-1x": 3, "-7": 1}, ["m-1x", "m--1", "-7"]),
        ({"m-" + "9" * 200: 1, "m-8": 2}, ["m-" + "9" * 200, "m-8"]),
    ],
)
def test_order(tmp_path: Path, written: dict[str, int], expected: list[str]) -> None:
    for name, at in written.items():
        save(tmp_path, name, at)
    assert order(tmp_path) == expected


@pytest.mark.parametrize("later", [False, True])
def test_saves_that_are_faster_than_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """What the state file named is always gone. A later one of its name is taken without a warning,
    another checkpoint only with one."""
    save(tmp_path, "ckpt-1", 1)
    taken = save(tmp_path, "ckpt-200" if later else "other-200", 2)
    save(tmp_path, "other", 3 if later else 1)
    monkeypatch.setattr(latest, "LOOKS_MAX", 3)
    read = latest._read_state
    number = itertools.count(100)

    def changing(path: str) -> Any:
        found = read(path)
        name = f"ckpt-{next(number)}"
        (tmp_path / "checkpoint").write_bytes(format_state(CheckpointState(name, (name,))))
        return found

    changing(str(tmp_path / "checkpoint"))
    monkeypatch.setattr(latest, "_read_state", changing)
    with contextlib.nullcontext() if later else pytest.warns(ckptfmt.CkptfmtWarning, match="taken"):
        assert ckptfmt.latest_checkpoint(tmp_path) == taken
    assert next(number) == (102 if later else 104)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, "m-1", 1)
    (tmp_path / "m-9.index").mkdir()
    (tmp_path / "m-8.index").touch()
    (tmp_path / ".index").touch()
    (tmp_path / "m-7.index.tmp").touch()
    save(tmp_path, "s/m-10")
    name, message = fallback(tmp_path)
    assert name == "m-1"
    assert message.startswith("there is no state file; 'm-8' is not complete: TRUNCATED in")


def test_a_crash_before_the_state_file(tmp_path: Path) -> None:
    """Saved and not recorded: what the state file names comes first."""
    for number in (1, 2, 3):
        save(tmp_path, f"ckpt-{number}", number * 10)
    record(tmp_path, "ckpt-1", "ckpt-2", at=25)
    assert newest(tmp_path) == f"{tmp_path}/ckpt-2"
    damage_data(f"{tmp_path}/ckpt-2")
    assert fallback(tmp_path)[0] == "ckpt-1"
    damage_data(f"{tmp_path}/ckpt-1")
    assert fallback(tmp_path)[0] == "ckpt-3"


TRANSIENT = [errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES]


def once(number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """A call that fails the first time."""
    calls: list[int] = []

    def call(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    return call


@pytest.mark.parametrize("number", TRANSIENT)
@pytest.mark.parametrize("where", ["index", "data", "listing", "state file"])
def test_a_transient_error_does_not_lead_to_an_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    for name in ("ckpt-1", "ckpt-2"):
        save(tmp_path, name)
    record(tmp_path, "ckpt-1", "ckpt-2")
    newest_path = f"{tmp_path}/ckpt-2"
    if where == "index":

        def opened(prefix: str) -> Any:
            raise ckptfmt.StorageError("cannot open it", path=prefix, errno=number)

        monkeypatch.setattr(completeness, "Reader", opened)
    elif where == "data":
        real = os.stat

        def stat(path: Any, **more: Any) -> os.stat_result:
            if str(path).endswith("ckpt-2.data-00000-of-00001"):
                raise OSError(number, os.strerror(number))
            return real(path, **more)

        monkeypatch.setattr(os, "stat", stat)
    elif where == "listing":
        os.unlink(tmp_path / "checkpoint")
        monkeypatch.setattr(os, "scandir", once(number, os.scandir))
    else:
        monkeypatch.setattr(os, "lstat", once(number, os.lstat))
    with pytest.raises(ckptfmt.StorageError) as caught:
        ckptfmt.latest_checkpoint(tmp_path)
    assert caught.value.errno == number
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ckptfmt.latest_checkpoint(tmp_path) == newest_path


def test_what_was_left_out_of_the_state_file(tmp_path: Path) -> None:
    """Older ones that are kept for ever come after those recorded, whatever their numbers; so do
    those that were there before the numbers began anew."""
    save(tmp_path, "ckpt-3", 1)  # preserved
    save(tmp_path, "ckpt-900", 2)  # of an earlier run
    save(tmp_path, "ckpt-4", 50)  # written late, with a number that came before
    save(tmp_path, "other-1000", 51)
    for number in (8, 7, 9):
        save(tmp_path, f"ckpt-{number}", 40 - number)
    record(tmp_path, "ckpt-7", "ckpt-8", "ckpt-9", at=45)
    assert order(tmp_path) == [
        *("ckpt-9", "ckpt-8", "ckpt-7"),
        *("other-1000", "ckpt-900", "ckpt-4", "ckpt-3"),
    ]


@pytest.mark.parametrize("times", [(float("nan"),) * 3, (-1.0, -5.0, -9.0), (9e99, 8e99, 7e99)])
def test_times_in_the_state_file_are_not_believed(tmp_path: Path, times: tuple[float, ...]) -> None:
    names = ("ckpt-1", "ckpt-2", "ckpt-3")
    for name in names:
        save(tmp_path, name)
    state = CheckpointState("ckpt-3", names, times, times[0])
    (tmp_path / "checkpoint").write_bytes(format_state(state))
    assert order(tmp_path) == ["ckpt-3", "ckpt-2", "ckpt-1"]


def test_every_complete_one_is_found_sometime(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for round_number in range(20):
        directory = tmp_path / str(round_number)
        directory.mkdir()
        names = [
            *(f"a-{number}" for number in rng.sample(range(50), 4)),
            *(f"b-{number}" for number in rng.sample(range(50), 2)),
            *("c", "s/d-5"),
        ]
        sound = set()
        for name in names:
            prefix = save(directory, name, rng.randrange(5))
            if rng.random() < 0.3:
                damage_data(prefix)
                sound.discard(name)
            else:
                sound.add(name)
        recorded = rng.sample([*names, "dead", "../outside"], rng.randint(1, 6))
        record(directory, *recorded, at=rng.randrange(5))
        if "s/d-5" not in recorded:
            sound.discard("s/d-5")
        assert set(order(directory)) == sound


@pytest.mark.parametrize("run", range(40))
def test_what_is_kept_for_good_counts_by_its_number(tmp_path: Path, run: int) -> None:
    """The best ones stay in the state file, those of every n steps do not; the newest sound one of
    either is found."""
    source = random.Random(f"{os.environ['CKPTFMT_TEST_SEED']} {run}")
    step = np.zeros((), np.int64)

    def manager() -> ckptfmt.CheckpointManager:
        return ckptfmt.CheckpointManager(
            ckptfmt.Checkpoint(step=step),
            tmp_path,
            max_to_keep=1 + run % 3,
            keep_every_n_steps=2 + run % 4,
            keep_best=ckptfmt.KeepBest("loss", "min", 1 + run % 2),
        )

    saving = manager()
    for _ in range(source.randint(2, 9)):
        step += 1
        saving.save(metrics={"loss": step * 10 if source.random() < 0.8 else source.random()})
    there = saving.all_steps()
    lost = there[-1:] * (len(there) > 1) + source.sample(there[1:-1], len(there) // 4)
    for number in lost:
        if source.random() < 0.5:
            (tmp_path / f"ckpt-{number}.index").unlink()
        else:
            flip(tmp_path / f"ckpt-{number}.data-00000-of-00001", 3)
    expected = max({*there} - {*lost})
    step[...] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
        found = manager().restore_latest().path
    assert found == str(tmp_path / f"ckpt-{expected}") and step == expected
