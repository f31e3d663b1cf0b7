# SPDX-License-Identifier: Apache-2.0
"""What is traced, and what must be found after a power cut.

A scenario has steps. Of each, marks say when it begins and when it has returned. A step writes one
prefix, with the generation that has its number; afterwards the prefix holds that generation or a
later one that has begun. A step of another durability than "full" promises nothing for its own
prefix until a later step has returned, and does no harm to others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.preload import serve
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.cli import main as command

__all__ = ["SCENARIOS", "Moment", "Scenario", "arrays", "main"]

Step = Callable[[int], Any]
CHANGE = 18  # of support/preload.c: any call that changes a file or directory
LAST = 99  # the generation of the save after the power cut


@dataclass(frozen=True)
class Moment:
    """How far a scenario was: the steps that had begun and that had returned."""

    begun: int
    done: int


def arrays(generation: int) -> dict[str, Any]:
    return {"x": np.full(5, generation, np.float64), "y": np.arange(3) + generation}


def sync(folder: Path) -> None:
    os.fsync(fd := os.open(folder, os.O_RDONLY))
    os.close(fd)


class Scenario:
    """Steps, each of which writes a prefix.

    Attributes:
        prefixes: by step, what it writes.
        weak: steps that promise nothing when they return.
    """

    prefixes: Mapping[int, str]
    weak: frozenset[int] = frozenset()

    def run(self, root: Path, step: int) -> None:
        """Run one step in `root`."""
        raise NotImplementedError

    def again(self, root: Path, step: int) -> None:
        """Run a step again that was killed, perhaps after its commit. Directories that exist are
        the caller's, who makes them durable."""
        for parent in {path.parent for path in root.rglob("*") if path.is_dir()}:
            sync(parent)
        self.run(root, step)

    def judge(self, root: Path, moment: Moment) -> None:
        """Raise an AssertionError or CkptfmtError if a promise is broken; the image may change."""
        for name in dict.fromkeys(self.prefixes.values()):
            with contextlib.suppress(
                *([ckptfmt.CkptfmtError] if self.unsure(name, moment) else [])
            ):
                self.look(root / name, self.least(name, moment), self.most(name, moment))
        for name in dict.fromkeys(self.prefixes.values()):
            self.go_on(root / name)

    def unsure(self, name: str, moment: Moment) -> bool:
        """Whether a weak step was the last to write a prefix, or may have been."""
        mine = [step for step, prefix in self.prefixes.items() if prefix == name]
        last = max(
            (step for step in mine if step <= moment.done and step not in self.weak), default=0
        )
        return any(last < step <= moment.begun and step in self.weak for step in mine)

    def least(self, name: str, moment: Moment) -> int:
        """The generation that a prefix holds at least; 0 if it may be missing."""
        sure = [
            step
            for step, prefix in self.prefixes.items()
            if prefix == name and step <= moment.done and step not in self.weak
        ]
        if self.unsure(name, moment):
            return 0
        return max(sure, default=0)

    def most(self, name: str, moment: Moment) -> int:
        begun = [step for step, prefix in self.prefixes.items() if prefix == name]
        return max((step for step in begun if step <= moment.begun), default=0)

    def look(self, prefix: Path, least: int, most: int) -> int:
        """Open, verify and load; returns the generation."""
        try:
            found = self.load(prefix)
        except ckptfmt.CheckpointNotFoundError:
            assert least == 0, f"{prefix.name}: generation {least} is lost"
            return 0
        generation = self.generation(found)
        assert least <= generation <= most, f"{prefix.name} holds {generation}, not {least}..{most}"
        report = ckptfmt.verify(prefix)
        if not report.ok:  # as a load would raise, which a weak step may be the reason for
            raise ckptfmt.CorruptError(str(report.problems))
        return generation

    def load(self, prefix: Path) -> dict[str, Any]:
        return dict(ckptfmt.load(prefix))

    def generation(self, found: dict[str, Any]) -> int:
        generation = int(found["x"].flat[0])
        expected = self.expected(generation)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
        return generation

    def expected(self, generation: int) -> dict[str, Any]:
        return arrays(generation)

    def go_on(self, prefix: Path) -> None:
        """Save once more, as the next process would."""
        ckptfmt.save(prefix, arrays(LAST), durability="none")
        np.testing.assert_array_equal(ckptfmt.load(prefix)["x"], arrays(LAST)["x"])


class Save(Scenario):
    """One prefix, saved several times."""

    def __init__(self, steps: int = 3, weak: tuple[int, ...] = (), **options: Any) -> None:
        self.prefixes = dict.fromkeys(range(1, steps + 1), "run/model")
        self.weak = frozenset(weak)
        self.options = options

    def run(self, root: Path, step: int) -> None:
        durability = "rename" if step in self.weak else "full"
        options = {"durability": durability, **self.options}
        (root / "run").mkdir(exist_ok=True)
        if step == 1:  # the directory is the caller's
            sync(root)
        ckptfmt.save(root / self.prefixes[step], arrays(step), **options)


class NewDirectory(Save):
    """The first save of a tree makes the directories above its prefix."""

    def __init__(self) -> None:
        self.prefixes = {1: "a/b/model", 2: "a/b/model", 3: "a/c/model"}

    def run(self, root: Path, step: int) -> None:
        ckptfmt.Checkpoint(**arrays(step)).write(root / self.prefixes[step])

    def load(self, prefix: Path) -> dict[str, Any]:
        return dict(ckptfmt.load_tree(prefix))


class Mixed(Save):
    """Weak saves of the same prefix and of one beside it."""

    def __init__(self) -> None:
        super().__init__(weak=(2, 4))
        self.prefixes = {1: "run/model", 2: "run/model", 3: "run/model", 4: "run/other"}


class Async(Save):
    def run(self, root: Path, step: int) -> None:
        ckptfmt.save_async(root / "model", arrays(step)).result()

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = dict.fromkeys((1, 2, 3), "model")


class Base(Scenario):
    """Checkpoints that share data files by hard links."""

    prefixes: Mapping[int, str] = {1: "a", 2: "b", 3: "b"}

    def run(self, root: Path, step: int) -> None:
        values = {**arrays(step), "same": np.arange(9)}
        base = None if step == 1 else root / self.prefixes[step - 1]
        ckptfmt.save(root / self.prefixes[step], values, base=base)

    def expected(self, generation: int) -> dict[str, Any]:
        return {**arrays(generation), "same": np.arange(9)}


class Tree(Scenario):
    """A tree with its object graph, in shards that are merged."""

    prefixes: Mapping[int, str] = {1: "tree", 2: "tree"}

    def __init__(self, policy: Any = None) -> None:
        self.options = ckptfmt.tf.CheckpointOptions(experimental_sharding_callback=policy)

    def run(self, root: Path, step: int) -> None:
        ckptfmt.Checkpoint(**arrays(step)).write(root / "tree", self.options)

    def load(self, prefix: Path) -> dict[str, Any]:
        found: dict[str, Any] = ckptfmt.load_tree(prefix)
        return dict(found)

    def go_on(self, prefix: Path) -> None:
        options = ckptfmt.tf.CheckpointOptions(durability="none")
        ckptfmt.Checkpoint(**arrays(LAST)).write(prefix, options)
        np.testing.assert_array_equal(ckptfmt.load_tree(prefix)["x"], arrays(LAST)["x"])


class Saver(Scenario):
    """Tensors of two devices, saved by two writers and merged."""

    prefixes: Mapping[int, str] = {1: "saver", 2: "saver"}

    def run(self, root: Path, step: int, durability: Any = "full") -> None:
        specs = {
            name: ckptfmt.SaveSpec(value, "", name, value.dtype, f"/job:w/task:{task}/device:CPU:0")
            for task, (name, value) in enumerate(arrays(step).items())
        }
        saver = ckptfmt.Saver({"all": {name: {"": spec} for name, spec in specs.items()}})
        saver.save(root / "saver", ckptfmt.tf.CheckpointOptions(durability=durability))

    def go_on(self, prefix: Path) -> None:
        self.run(prefix.parent, LAST, "none")
        np.testing.assert_array_equal(ckptfmt.load(prefix)["x"], arrays(LAST)["x"])


class Merge(Scenario):
    """Two parts, each saved, and their merge."""

    prefixes: Mapping[int, str] = {1: "part-0", 2: "part-1", 3: "whole"}

    def __init__(self, inputs: str, over: bool = False) -> None:
        self.inputs = inputs
        self.over = over
        if over:
            self.prefixes = {1: "part-0", 2: "part-1", 3: "whole", 4: "whole"}

    def run(self, root: Path, step: int) -> None:
        if step <= 2:
            ckptfmt.save(root / f"part-{step - 1}", self.part(step))
        elif self.over and step == 3:
            ckptfmt.save(root / "whole", {"x": np.full(5, 3.0)})
        else:
            self.merge(root)

    def again(self, root: Path, step: int) -> None:
        try:
            self.run(root, step)
        except ckptfmt.CheckpointNotFoundError:
            assert self.merged(root), "the inputs are gone, and the merge is not there"

    def part(self, step: int) -> dict[str, Any]:
        return {"a" if step == 1 else "b": np.full(4, step)}

    def merge(self, root: Path) -> None:
        parts = [root / "part-0", root / "part-1"]
        if self.inputs == "v2":
            ckptfmt.merge_v2_checkpoints(parts, root / "whole", delete_old_dirs=False)
        else:
            ckptfmt.merge(parts, root / "whole", inputs=self.inputs)  # type: ignore[arg-type]

    def judge(self, root: Path, moment: Moment) -> None:
        last = max(self.prefixes)
        merged = self.merged(root)
        assert merged or moment.done < last, "the merge is lost"
        if self.over and moment.done >= 3 and not merged:
            assert ckptfmt.load(root / "whole").keys() == {"x"}, "what it replaces is lost"
        if not merged or self.inputs == "keep":
            for step in (1, 2):
                there = self.sound(root / f"part-{step - 1}", self.part(step))
                assert there or moment.done < step, f"part {step - 1} is lost"
        if moment.begun >= last:  # the same call finishes it
            if merged and self.inputs != "keep":
                for step in (1, 2):
                    ckptfmt.save(root / f"part-{step - 1}", self.part(step), durability="none")
            self.merge(root)
            assert self.merged(root)
        ckptfmt.save(root / "whole", arrays(LAST), durability="none")
        assert self.sound(root / "whole", arrays(LAST))

    def merged(self, root: Path) -> bool:
        try:
            found = ckptfmt.load(root / "whole")
        except ckptfmt.CheckpointNotFoundError:
            return False
        if found.keys() == {"x"} and self.over:
            return False
        return self.sound(root / "whole", {**self.part(1), **self.part(2)})

    @staticmethod
    def sound(prefix: Path, expected: dict[str, Any]) -> bool:
        try:
            found = ckptfmt.load(prefix)
        except ckptfmt.CheckpointNotFoundError:
            return False
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
        assert not ckptfmt.verify(prefix).problems
        return True


class Move(Scenario):
    """A checkpoint that gets another name, over an older one."""

    prefixes: Mapping[int, str] = {1: "old", 2: "new", 3: "new"}

    def run(self, root: Path, step: int) -> None:
        if step == 3:
            words = ["mv", "-q", "--overwrite", str(root / "old"), str(root / "new")]
            assert command(words) == 0
        else:
            ckptfmt.save(root / self.prefixes[step], arrays(step))

    def again(self, root: Path, step: int) -> None:
        if step < 3 or (root / "old.index").exists():
            self.run(root, step)
        sync(root)

    def judge(self, root: Path, moment: Moment) -> None:
        new = self.look(root / "new", 0, 2)
        # Once the move is there, the rest of the source is being removed.
        old = 0 if new == 1 else self.look(root / "old", 0, 1)
        assert new == 1 or moment.done < 3, "the move is lost"
        assert new == 1 or old == 1 or moment.done < 1, "the source is lost"
        assert new == 2 or moment.done < 2 or (new == 1 and moment.begun == 3), "new is lost"
        ckptfmt.save(root / "new", arrays(LAST), durability="none")
        assert Merge.sound(root / "new", arrays(LAST))


class Sharded(Scenario):
    """Two processes, as threads, that save rows of a matrix together."""

    prefixes: Mapping[int, str] = {1: "sharded", 2: "sharded"}

    def run(self, root: Path, step: int, durability: Any = "full") -> None:
        mesh = ckptfmt.sharded.Mesh({"rows": 2}, ["a", "b"])
        layouts = {"x": ckptfmt.sharded.Layout(["rows"], mesh), "y": None}
        values = self.expected(step)

        def work(member: Any) -> None:
            part = values["x"][2 * member.rank : 2 * member.rank + 2]
            tensors = {"x": {"ab"[member.rank]: part}, "y": values["y"]}
            ckptfmt.sharded.save(root / "sharded", tensors, layouts, member, durability=durability)

        all_good(run_team(2, work))

    def expected(self, generation: int) -> dict[str, Any]:
        return {"x": np.full(4, generation, np.float64), "y": np.arange(3) + generation}

    def go_on(self, prefix: Path) -> None:
        self.run(prefix.parent, LAST, "none")
        np.testing.assert_array_equal(ckptfmt.load(prefix)["x"], self.expected(LAST)["x"])


class Convert(Scenario):
    """Conversions of one checkpoint to another level and to another format."""

    prefixes: Mapping[int, str] = {1: "a", 2: "b", 3: "c.safetensors"}

    def run(self, root: Path, step: int) -> None:
        if step == 1:
            ckptfmt.save(root / "a", arrays(1))
        else:
            ckptfmt.convert(root / "a", root / self.prefixes[step])

    def judge(self, root: Path, moment: Moment) -> None:
        for step, name in self.prefixes.items():
            there = (root / name).exists() or (root / f"{name}.index").exists()
            assert there or moment.done < step, f"{name} is lost"
            if there and step < 3:
                assert Merge.sound(root / name, arrays(1))
            elif there:
                ckptfmt.convert(root / name, root / "back", durability="none")
                assert Merge.sound(root / "back", arrays(1))


class Edit(Scenario):
    """A renamed copy, which shares data files, and an edit in place."""

    prefixes: Mapping[int, str] = {1: "a", 2: "b", 3: "b"}

    def run(self, root: Path, step: int) -> None:
        if step == 1:
            ckptfmt.save(root / "a", arrays(1))
        elif step == 2:
            ckptfmt.editing.edit(root / "a", root / "b", rename={"x": "z"})
        else:
            ckptfmt.editing.edit(root / "b", root / "b", rename={"z": "w"}, cast="float32")

    def again(self, root: Path, step: int) -> None:
        if step < 3 or "w" not in ckptfmt.load(root / "b"):
            self.run(root, step)
        sync(root)  # what is there already may not be durable

    def judge(self, root: Path, moment: Moment) -> None:
        assert Merge.sound(root / "a", arrays(1)) or moment.done < 1
        try:
            names = ckptfmt.load(root / "b").keys()
        except ckptfmt.CheckpointNotFoundError:
            assert moment.done < 2, "the copy is lost"
        else:
            assert names == {"z", "y"} or (names == {"w", "y"} and moment.begun == 3), names
            assert moment.done < 3 or "w" in names
            assert not ckptfmt.verify(root / "b").problems
        ckptfmt.save(root / "b", arrays(LAST), durability="none")
        assert Merge.sound(root / "b", arrays(LAST))


class Manager(Scenario):
    """A training loop: a manager saves and removes."""

    def __init__(self, steps: int = 4, **policy: Any) -> None:
        self.prefixes = dict.fromkeys(range(1, steps + 1), "runs")
        self.policy = {"max_to_keep": 2, **policy}
        self.kept: Any = None

    def manager(self, root: Path, value: float, **more: Any) -> Any:
        values = {name: np.asarray(one, np.float64) for name, one in arrays(0).items()}
        for one in values.values():
            one[...] = value
        policy = {**self.policy, **more}
        self.values = values
        return ckptfmt.CheckpointManager(ckptfmt.Checkpoint(**values), root / "runs", **policy)

    def run(self, root: Path, step: int) -> None:
        if self.kept is None:
            self.kept = self.manager(root, 1)
        for value in self.values.values():
            value[...] = step
        metrics = {"metrics": {"loss": -step}} if "keep_best" in self.policy else {}
        self.kept.save(checkpoint_number=step, **metrics)

    def judge(self, root: Path, moment: Moment) -> None:
        manager = self.manager(root, 0, options=ckptfmt.tf.CheckpointOptions(durability="none"))
        restored = manager.restore_latest()
        assert not restored.rejected, restored.rejected
        found = int(self.values["x"][0])
        assert moment.done <= found <= moment.begun, f"{found}, not {moment}"
        assert (self.values["x"] == found).all() and (self.values["y"] == found).all()
        latest = ckptfmt.latest_checkpoint(root / "runs")
        if latest is not None:
            assert ckptfmt.verify(latest).ok
        assert latest is not None or moment.done == 0
        for value in self.values.values():
            value[...] = LAST
        metrics = {"metrics": {"loss": 0}} if "keep_best" in self.policy else {}
        manager.save(**metrics)
        again = self.manager(root, 0, options=ckptfmt.tf.CheckpointOptions(durability="none"))
        again.restore_latest()
        assert (self.values["x"] == LAST).all()


class Training(Scenario):
    """TrainingState: a model and its position."""

    prefixes: Mapping[int, str] = {1: "state", 2: "state", 3: "state"}
    kept: Any = None

    def state(self, root: Path, durability: Any) -> Any:
        self.weights = np.zeros(4)
        options = ckptfmt.tf.CheckpointOptions(durability=durability)
        return ckptfmt.tf.TrainingState({"w": self.weights}, root / "state", options=options)

    def run(self, root: Path, step: int) -> None:
        if self.kept is None:
            self.kept = self.state(root, "full")
        self.weights[...] = step
        self.kept.back_up(step)

    def judge(self, root: Path, moment: Moment) -> None:
        state = self.state(root, "none")
        there = state.restore()
        found = int(self.weights[0])
        assert there == (found > 0) and (self.weights == found).all()
        assert moment.done <= found <= moment.begun, f"{found}, not {moment}"
        self.weights[...] = LAST
        state.back_up(LAST)
        again = self.state(root, "none")
        assert again.restore() and (self.weights == LAST).all()


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "save": Save,
    "shards": lambda: Save(shards=3),
    "compressed": lambda: Save(compression="zstd"),
    "v2": lambda: Save(level="v2"),
    "mixed": Mixed,
    "new directory": NewDirectory,
    "base": Base,
    "async": Async,
    "tree": Tree,
    "tree in shards": lambda: Tree(ckptfmt.tf.MaxShardSizePolicy(16)),
    "saver": Saver,
    "merge keep": lambda: Merge("keep"),
    "merge consume": lambda: Merge("consume"),
    "merge v2": lambda: Merge("v2"),
    "merge over": lambda: Merge("consume", over=True),
    "move": Move,
    "sharded": Sharded,
    "convert": Convert,
    "edit": Edit,
    "manager": Manager,
    "manager of one": lambda: Manager(steps=3, max_to_keep=1),
    "manager of the best": lambda: Manager(steps=3, keep_best=ckptfmt.KeepBest("loss", "min", 1)),
    "manager by steps": lambda: Manager(steps=3, max_to_keep=1, keep_every_n_steps=2),
    "training state": Training,
    # Must fail: the renames of unsynced files are taken for durable.
    "canary": lambda: Save(durability="rename"),
}


def main(name: str, root: str, kill: str, killed: str) -> None:
    """Run a scenario, with marks that the trace shows; from the step that was killed, if any.

    Args:
        kill: the change before which the process is killed, unless 0.
    """
    scenario, marks = SCENARIOS[name](), os.open(os.devnull, os.O_WRONLY)
    ctypes.CDLL(None).fault_arm(CHANGE, int(kill), int(kill != "0"), -1, 0)
    for step in scenario.prefixes:
        if step < int(killed):
            continue
        os.write(marks, f"mark begin {step}".encode())
        (scenario.again if step == int(killed) else scenario.run)(Path(root), step)
        os.write(marks, f"mark done {step}".encode())


if __name__ == "__main__":
    serve(main)
