# SPDX-License-Identifier: Apache-2.0
"""Decide which checkpoints are retained. Pure functions: no clock, no files.

Managers and `prune` ask here. A directory has a queue of checkpoints, oldest first, and the time of
the last one that was kept permanently. After each save the newest `max_to_keep` stay in the queue,
by `prune` as many as it takes for the sound ones that it keeps. Each older one, from the oldest on,

    is kept permanently, and leaves the queue, if it was saved at least n hours after the last such
      one, or if its step is a multiple of n;
    stays in the queue as long as it is one of the best;
    else is removed.

The hours, the restart and the order are TensorFlow's to the bit; steps and best are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptfmt._base.arguments import check_choice, invalid, wrong

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class KeepBest:
    """Which checkpoints are the best: the `keep_best` of a CheckpointManager.

    >>> checkpoint = ckptfmt.Checkpoint(step=0)
    >>> best = ckptfmt.KeepBest("loss", mode="min")
    >>> manager = ckptfmt.CheckpointManager(checkpoint, "run", max_to_keep=1, keep_best=best)
    >>> [manager.save(metrics={"loss": loss}) for loss in (3, 1, 2)]
    ['run/ckpt-1', 'run/ckpt-2', 'run/ckpt-3']
    >>> manager.all_steps(), manager.best_checkpoint
    ([2, 3], 'run/ckpt-2')

    Attributes:
        metric: name of a metric of `CheckpointManager.save(metrics=...)`, or a function of these
            metrics that returns a number, or None if there is nothing to compare.
        mode: "min" if a smaller value is better, as of a loss; "max" if a larger one is.
        number: how many are retained.

    Raises:
        InvalidError: an argument of another type or value.
    """

    metric: str | Callable[[Metrics], float | None]
    mode: Literal["min", "max"]
    number: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) and not callable(self.metric):
            raise wrong("metric", "the name of a metric or a function", self.metric)
        check_choice("mode", self.mode, ("min", "max"))
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 1:
            raise invalid("number", f"number must be a positive integer, not {self.number!r}")

    def check(self, metrics: Metrics | None) -> None:
        """Check the metrics of a checkpoint that is about to be saved.

        Raises:
            InvalidError: there are metrics, and the one to compare is not among them; or it is not
                a number.
            Exception: what the function `metric` raises.
        """
        if metrics is None:
            return
        if isinstance(self.metric, str) and self.metric not in metrics:
            known = ", ".join(sorted(map(repr, metrics))) or "none"
            raise invalid(
                "metrics",
                f"keep_best compares the metric {self.metric!r}, which metrics does not have; "
                f"it has {known}",
            )
        self.score(metrics)

    def score(self, metrics: Metrics | None) -> float | None:
        """Return what is compared, larger is better; None if the checkpoint cannot be compared."""
        if metrics is None:
            return None
        value = metrics.get(self.metric) if isinstance(self.metric, str) else self.metric(metrics)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong("the result of keep_best's function", "a number or None", value) from None
        if math.isnan(number):
            return None
        return number if self.mode == "max" else -number


KeepBest.__module__ = "ckptfmt"


@dataclass(frozen=True, slots=True)
class Queued:
    """A checkpoint in the queue.

    Attributes:
        name: its name.
        timestamp: when it was saved, seconds since 1970.
        step: its number; None if it has none.
        score: larger is better; None if it has none.
    """

    name: str
    timestamp: float
    step: int | None = None
    score: float | None = None


@dataclass(frozen=True)
class Policy:
    """The options of a manager. All but the first are recorded in the directory.

    Attributes:
        max_to_keep: how many of the newest; None keeps all.
        every_n_hours: None or 0 keeps none permanently by time.
        every_n_steps: None keeps none permanently by step.
        best: how many of the best.
    """

    max_to_keep: int | None = None
    every_n_hours: float | None = None
    every_n_steps: int | None = None
    best: int = 0


@dataclass(frozen=True)
class Decision:
    """The fate of the checkpoints of a queue.

    Attributes:
        kept: the new queue, oldest first.
        preserved: those kept permanently.
        deleted: those to remove, oldest first.
        last_preserved: the time of the last one kept permanently because of its time.
    """

    kept: list[Queued]
    preserved: list[Queued] = field(default_factory=list)
    deleted: list[Queued] = field(default_factory=list)
    last_preserved: float = 0.0


def best_of(checkpoints: Sequence[Queued], number: int) -> list[Queued]:
    """Return the best, the very best first; of equal ones the later is better."""
    scored = [(one.score, at, one) for at, one in enumerate(checkpoints) if one.score is not None]
    return [one for _, _, one in sorted(scored, key=lambda key: key[:2], reverse=True)[:number]]


def extremes(metrics: Mapping[str, Metrics]) -> set[str]:
    """Return the checkpoints with the smallest or the largest value of any metric: the best, where
    nothing says which value is better."""
    found: set[str] = set()
    for metric in {name for one in metrics.values() for name in one}:
        values = {
            name: one[metric]
            for name, one in metrics.items()
            if metric in one and not math.isnan(one[metric])
        }
        # Of equal ones the later is better.
        later = list(reversed(values))
        for choose in (min, max) if values else ():
            found.add(choose(later, key=values.__getitem__))
    return found


def decide(
    queue: Sequence[Queued],
    last_preserved: float,
    policy: Policy,
    stay: Collection[str] = (),
) -> Decision:
    """Decide what happens to the checkpoints of a queue after its last one was saved.

    The newest one always stays.

    Args:
        queue: oldest first, each name once.
        last_preserved: the time of the last one kept permanently.
        policy: which to keep, besides the best.
        stay: names of those that stay, such as the best.
    """
    if not policy.max_to_keep:
        return Decision(list(queue), last_preserved=last_preserved)
    old, new = queue[: -policy.max_to_keep], queue[-policy.max_to_keep :]
    kept, preserved, deleted = [], [], []
    for one in old:
        if policy.every_n_hours and one.timestamp - policy.every_n_hours * 3600.0 >= last_preserved:
            last_preserved = one.timestamp
            preserved.append(one)
        elif policy.every_n_steps and one.step is not None and one.step % policy.every_n_steps == 0:
            preserved.append(one)
        elif one.name in stay:
            kept.append(one)
        else:
            deleted.append(one)
    return Decision([*kept, *new], preserved, deleted, last_preserved)


def recover(
    paths: Iterable[str],
    timestamps: Sequence[float],
    last_preserved: float | None,
    now: float,
    ours: Callable[[str], bool] = lambda _: False,
) -> tuple[dict[str, float], float, float]:
    """Return what a manager that starts takes over from the state file.

    A checkpoint is managed only if it is newer than the last one that was kept permanently. One
    without a timestamp is not managed: a manager did not save it, so it is never removed. A time in
    the future counts as now.

    Args:
        paths: all_model_checkpoint_paths.
        timestamps: all_model_checkpoint_timestamps; those without a path are ignored.
        last_preserved: last_preserved_timestamp, None if the file has none.
        now: the current time.
        ours: whether a path with a timestamp is managed regardless of its time.

    Returns:
        The managed paths with their timestamps, oldest first; the time of the last one kept
        permanently; and by how many seconds the clock is behind that time, else 0.
    """
    preserved = 0.0 if last_preserved is None else last_preserved
    behind = 0.0
    if math.isnan(preserved):
        preserved = now
    elif now < preserved:
        behind, preserved = preserved - now, now
    managed: dict[str, float] = {}
    for path, timestamp in zip(paths, timestamps, strict=False):
        then = min(timestamp, now)
        if then > preserved or (ours(path) and not math.isnan(then)):
            managed[path] = then
    return managed, preserved, behind
