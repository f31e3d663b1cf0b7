# SPDX-License-Identifier: Apache-2.0
"""Runs an operation in a process whose calls fail, with preload.c in LD_PRELOAD: see `main`."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.preload import serve

import ckptfmt
from ckptfmt.manager.latest import newest_sound

# In the order of preload.c.
KINDS = [
    *("open", "read", "write", "sync", "rename", "link", "unlink", "close", "stat", "lock", "map"),
    *("reserve", "mkdir", "list", "random", "truncate", "thread"),
]
# By kind, the errors that it is known to give.
ERRORS = {
    "open": ("EMFILE", "ENFILE", "EACCES", "EIO", "ENOMEM", "EINTR"),
    "read": ("EIO", "EINTR", "ESTALE"),
    "write": ("ENOSPC", "EDQUOT", "EIO", "EFBIG", "EINTR"),
    "sync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "rename": ("EIO", "ENOSPC", "EACCES"),
    "link": ("EMLINK", "EPERM", "EIO", "ENOSPC"),
    "unlink": ("EIO", "EACCES", "EBUSY"),
    "close": ("EIO", "ENOSPC", "EINTR"),
    "stat": ("EIO", "EACCES", "ENOMEM", "ESTALE"),
    "lock": ("EIO", "ENOLCK", "EINTR"),
    "map": ("ENOMEM", "ENODEV", "EACCES"),
    "reserve": ("ENOSPC", "EOPNOTSUPP", "EINTR"),
    "mkdir": ("ENOSPC", "EACCES", "EIO"),
    "list": ("EIO", "ESTALE"),
    "random": ("EIO",),
    "truncate": ("EIO",),
    "thread": ("EAGAIN",),
}
ALWAYS, STORM = 1 << 30, 50  # an int of C
# An operation that calls more often than this in one run is no longer followed.
CALLS_MAX = 400


def arrays(generation: int) -> dict[str, Any]:
    return {"x": np.full(2000, generation, np.float64), "y": np.arange(3) + generation}


def generation(prefix: Path) -> int:
    found = ckptfmt.load(prefix)
    number = int(found["x"][0])
    for name, value in arrays(number).items():
        np.testing.assert_array_equal(found[name], value)
    return number


@dataclass(frozen=True)
class Operation:
    """What is done in a directory, and what must hold afterwards.

    Attributes:
        prepare: makes what is there before.
        run: what is tried.
        check: raises an AssertionError; called with the directory and whether `run` returned.
        writes: whether it leaves temporary files to look for.
    """

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    check: Callable[[Path, bool], object]
    writes: bool = True


def old(root: Path) -> None:
    ckptfmt.save(root / "model", arrays(1), durability="none")


def nothing(root: Path) -> None:
    del root


def parts(root: Path) -> None:
    for number in (0, 1):
        ckptfmt.save(root / f"part-{number}", {f"p{number}": np.ones(9)}, durability="none")


def manager(root: Path, value: float = 0) -> Any:
    return ckptfmt.CheckpointManager(
        ckptfmt.Checkpoint(x=np.full(3, float(value))), root / "runs", max_to_keep=1
    )


def managed(root: Path) -> None:
    manager(root, 1).save()


def twice(root: Path) -> None:
    """Two checkpoints, of which the newer counts."""
    values = np.zeros(3)
    kept = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=values), root / "runs", max_to_keep=2)
    kept.save()
    values[...] = 1
    kept.save()


def model_is(*allowed: int) -> Callable[[Path, bool], object]:
    def check(root: Path, returned: bool) -> None:
        there = (root / "model.index").exists()
        assert there or (not returned and 0 in allowed), "nothing is there"
        if there:
            found = generation(root / "model")
            assert found == allowed[-1] if returned else found in allowed, f"{found} is there"

    return check


def merged(root: Path, returned: bool) -> None:
    there = (root / "whole.index").exists()
    assert there or not returned
    if there:
        assert ckptfmt.load(root / "whole").keys() == {"p0", "p1"}
    else:
        for number in (0, 1):
            assert ckptfmt.load(root / f"part-{number}").keys() == {f"p{number}"}


def restored(root: Path, returned: bool) -> None:
    values = np.zeros(3)
    again = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=values), root / "runs", max_to_keep=1)
    assert not again.restore_latest().rejected
    assert values[0] == 2 if returned else values[0] in (1, 2), values


def restore(root: Path) -> None:
    values = np.zeros(3)
    again = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=values), root / "runs", max_to_keep=1)
    result = again.restore_latest()
    assert values[0] == 1 and not result.rejected, "a sound checkpoint was rejected"


def verify(root: Path) -> None:
    report = ckptfmt.verify(root / "model")
    assert all(finding.status == "IO" for finding in report.problems), report.problems
    if not report.ok:
        raise ckptfmt.StorageError("it says that it could not read")


def load(root: Path) -> None:
    assert generation(root / "model") == 1


def some(root: Path) -> None:
    with ckptfmt.open(root / "model") as reader:
        assert reader["x"][5:9].tolist() == [1] * 4
        assert reader["y"].map()[0] == 1


def newest(root: Path) -> None:
    found = ckptfmt.latest_checkpoint(root / "runs")
    assert found is not None and found.endswith("ckpt-2"), found


def sound(root: Path) -> None:
    found = newest_sound(str(root / "runs"))
    assert found is not None and found.endswith("ckpt-2"), f"{found} is older"


def saved_again(root: Path) -> None:
    again = manager(root, 2)
    again.save()


def converted(root: Path, returned: bool) -> None:
    there = (root / "c.safetensors").exists()
    assert there or not returned
    if there:
        ckptfmt.convert(root / "c.safetensors", root / "back", durability="none")
        assert generation(root / "back") == 1


def edited(root: Path, returned: bool) -> None:
    there = (root / "b.index").exists()
    assert there or not returned
    if there:
        assert ckptfmt.load(root / "b").keys() == {"z", "y"}
    assert generation(root / "model") == 1


def removed(root: Path, returned: bool) -> None:
    there = (root / "model.index").exists()
    assert not (there and returned)
    if there:
        assert generation(root / "model") == 1


OPERATIONS = {
    "load": Operation(old, load, model_is(1), writes=False),
    "slice and map": Operation(old, some, model_is(1), writes=False),
    "verify": Operation(old, verify, model_is(1), writes=False),
    "restore latest": Operation(twice, restore, lambda *_: None, writes=False),
    "latest": Operation(twice, newest, lambda *_: None, writes=False),
    "newest sound": Operation(twice, sound, lambda *_: None, writes=False),
    "save": Operation(
        nothing, lambda root: ckptfmt.save(root / "model", arrays(2)), model_is(0, 2)
    ),
    "overwrite": Operation(
        old, lambda root: ckptfmt.save(root / "model", arrays(2)), model_is(1, 2)
    ),
    "compressed": Operation(
        old,
        lambda root: ckptfmt.save(root / "model", arrays(2), compression="zstd", shards=2),
        model_is(1, 2),
    ),
    "async": Operation(
        old, lambda root: ckptfmt.save_async(root / "model", arrays(2)).result(), model_is(1, 2)
    ),
    "base": Operation(
        old,
        lambda root: ckptfmt.save(root / "model", arrays(2), base=root / "model"),
        model_is(1, 2),
    ),
    "merge": Operation(
        parts,
        lambda root: ckptfmt.merge(
            [root / "part-0", root / "part-1"], root / "whole", inputs="consume"
        ),
        merged,
    ),
    "manager": Operation(managed, saved_again, restored),
    "convert": Operation(
        old, lambda root: ckptfmt.convert(root / "model", root / "c.safetensors"), converted
    ),
    "edit": Operation(
        old,
        lambda root: ckptfmt.editing.edit(root / "model", root / "b", rename={"x": "z"}),
        edited,
    ),
    "remove": Operation(old, lambda root: ckptfmt.tf.remove_checkpoint(root / "model"), removed),
}


def modes(kind: str, name: str) -> Iterator[tuple[str, int, int]]:
    """Yield names, how many calls fail, and whether they are cut short instead."""
    yield "once", 1, 0
    if name == "EINTR":
        yield "storm", STORM, 0
    else:
        yield "always", ALWAYS, 0
    if kind in ("read", "write") and name == "EIO":
        yield "short", 1, 1
        yield "all short", ALWAYS, 1


class Driver:
    """Runs one operation under faults.

    Attributes:
        runs: how many runs had a fault, by kind.
        wrong: what went wrong.
    """

    def __init__(self, operation: Operation, scratch: Path) -> None:
        self.operation = operation
        self.scratch = scratch
        self.prepared = scratch / "prepared"
        self.prepared.mkdir()
        operation.prepare(self.prepared)
        self.library = ctypes.CDLL(None)
        self.runs = dict.fromkeys(KINDS, 0)
        self.raised = 0
        self.wrong: list[str] = []

    def all(self, step: int, chance: random.Random) -> None:
        """Every call fails, or one in `step`, from a random one on."""
        self.once("open", errno.EIO, 0, 1, 0)  # what is imported late is imported now
        for kind in KINDS:
            calls = CALLS_MAX
            if step > 1:
                self.once(kind, errno.EIO, ALWAYS, 1, 0)
                calls = self.library.fault_count() + 1
            for name in ERRORS[kind]:
                for mode, times, short in modes(kind, name):
                    first = chance.randint(1, max(1, min(step, calls - 1)))
                    for at in range(first, calls, step):
                        if short == 0 and times == ALWAYS and at > 60:
                            break  # from there on nearly the same as once
                        hits, wrong = self.once(kind, getattr(errno, name), at, times, short)
                        if wrong:
                            self.wrong.append(f"{kind} {at}, {name}, {mode}: {wrong}")
                        if not hits:
                            break
                        self.runs[kind] += 1

    def once(self, kind: str, number: int, at: int, times: int, short: int) -> tuple[int, str]:
        """Returns how many calls failed, and what went wrong."""
        root = self.scratch / "root"
        shutil.copytree(self.prepared, root)
        before = descriptors()
        files = names(root)
        returned, wrong = False, ""
        self.library.fault_arm(KINDS.index(kind), at, times, number, short)
        try:
            self.operation.run(root)
            returned = True
        except (ckptfmt.CorruptError, AssertionError) as error:
            wrong = f"taken for damage: {type(error).__name__}: {error}"
        except (ckptfmt.CkptfmtError, MemoryError):
            self.raised += 1
        except Exception as error:
            wrong = f"untyped: {type(error).__name__}: {error}"
        finally:
            hits = self.library.fault_disarm()
        if short and not returned:
            wrong = wrong or "a short transfer is no error"
        if descriptors() != before:
            gc.collect()  # an exception may be in a cycle with what it was raised in
        if descriptors() != before:
            wrong = wrong or f"descriptors leaked: {descriptors() - before}"
        try:
            self.operation.check(root, returned)
        except (ckptfmt.CkptfmtError, AssertionError) as error:
            wrong = wrong or f"returned: {returned}; {type(error).__name__}: {error}"
        left = [name for name in names(root) - files if "temp" in name]
        if left and self.operation.check is removed:
            self.operation.run(root)  # finishes a removal that failed, by the index that it left
            left = [name for name in left if name in names(root)]
        if left and times == 1 and kind not in ("unlink", "list", "stat"):
            wrong = wrong or f"left: {left}"
        if not self.operation.writes and names(root) != files:
            wrong = wrong or f"changed: {names(root) ^ files}"
        shutil.rmtree(root)
        return hits, wrong


def descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:  # the listing's own
            continue
    return found


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def main(name: str, scratch: str, step: str) -> None:
    """Print to the file `printed` what went wrong, and a last line with the number of runs."""
    warnings.simplefilter("ignore")
    driver = Driver(OPERATIONS[name], Path(scratch))
    driver.all(int(step), random.Random(f"{os.environ['CKPTFMT_TEST_SEED']} {name}"))
    counts = ", ".join(f"{kind} {count}" for kind, count in driver.runs.items() if count)
    last = (
        f"faults: {name}: {sum(driver.runs.values()):,} runs ({counts}), {driver.raised:,} raised, "
        f"{len(driver.wrong)} wrong"
    )
    Path(scratch, "printed").write_text("\n".join([*driver.wrong[:40], last]))


if __name__ == "__main__":
    serve(main)
