# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay. Only decisions: nothing here looks at a clock or a file.

A manager has a queue of checkpoints, oldest first, and the moment of the last one that was kept for
good. After each save the newest `max_to_keep` stay in the queue. Each older one, from the oldest
on,

    is kept for good, and leaves the queue, if it is at least n hours younger than the last such, or
      if its step is a multiple of n;
    stays in the queue as long as it is one of the best;
    else goes.

The hours, the restart and the order are TensorFlow's to the bit; steps and best are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ckptfmt.arguments import check_choice, wrong
from ckptfmt.errors import InvalidError

__all__ = ["Decision", "KeepBest", "Policy", "Queued", "decide", "recover"]

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class KeepBest:
    """Which checkpoints are the best.

    Attributes:
        metric: name of the metric of `CheckpointManager.save(metrics=...)`, or a function of these
            metrics that gives a number, or None where there is nothing to compare.
        mode: "max" or "min": what is better.
        number: how many stay.

    Raises:
        InvalidError: anything else.
    """

    metric: str | Callable[[Metrics], float | None]
    mode: str = "max"
    number: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) and not callable(self.metric):
            raise wrong("metric", "the name of a metric or a function", self.metric)
        check_choice("mode", self.mode, ("max", "min"))
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 1:
            raise InvalidError(f"number {self.number!r} is not a positive number of checkpoints")

    def score(self, metrics: Metrics | None) -> float | None:
        """What is compared, larger is better; None of a checkpoint that cannot be compared."""
        if metrics is None:
            return None
        value = metrics.get(self.metric) if isinstance(self.metric, str) else self.metric(metrics)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong("what keep_best compares", "a number or None", value) from None
        if math.isnan(number):
            return None
        return number if self.mode == "max" else -number


@dataclass(frozen=True, slots=True)
class Queued:
    """A checkpoint in the queue.

    Attributes:
        name: which.
        timestamp: when it was saved, seconds.
        step: its number; None if it has none.
        score: larger is better; None if it has none.
    """

    name: str
    timestamp: float
    step: int | None = None
    score: float | None = None


@dataclass(frozen=True)
class Policy:
    """What a manager was told.

    Attributes:
        max_to_keep: of the newest; None keeps all.
        every_n_hours: None or 0 keeps none for good by its time.
        every_n_steps: None keeps none for good by its step.
        best: how many of the best stay.
    """

    max_to_keep: int | None = None
    every_n_hours: float | None = None
    every_n_steps: int | None = None
    best: int = 0


@dataclass(frozen=True)
class Decision:
    """What becomes of a queue.

    Attributes:
        kept: the new queue, oldest first.
        preserved: kept for good.
        deleted: to be removed, oldest first.
        last_preserved: the moment of the last one kept for good by its time.
    """

    kept: list[Queued]
    preserved: list[Queued] = field(default_factory=list)
    deleted: list[Queued] = field(default_factory=list)
    last_preserved: float = 0.0


def best_of(queue: Sequence[Queued], number: int) -> list[Queued]:
    """The best, the very best first; of equals the newer one is better."""
    scored = [(one.score, row, one) for row, one in enumerate(queue) if one.score is not None]
    return [one for _, _, one in sorted(scored, key=lambda key: key[:2], reverse=True)[:number]]


def decide(queue: Sequence[Queued], last_preserved: float, policy: Policy) -> Decision:
    """What becomes of a queue now that its last one was saved.

    The newest one always stays.

    Args:
        queue: oldest first, each name once.
        last_preserved: the moment of the last one kept for good.
        policy: what to keep.
    """
    if not policy.max_to_keep:
        return Decision(list(queue), last_preserved=last_preserved)
    best = set(best_of(queue, policy.best))
    old, new = queue[: -policy.max_to_keep], queue[-policy.max_to_keep :]
    kept, preserved, deleted = [], [], []
    for one in old:
        if policy.every_n_hours and one.timestamp - policy.every_n_hours * 3600.0 >= last_preserved:
            last_preserved = one.timestamp
            preserved.append(one)
        elif policy.every_n_steps and one.step is not None and one.step % policy.every_n_steps == 0:
            preserved.append(one)
        elif one in best:
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
    """What a manager that starts takes over from the state file.

    A checkpoint is managed only if it is younger than the last one that was kept for good. Without
    timestamps none is: somebody else saved them, and they are never removed. A moment in the future
    counts as now.

    Args:
        paths: all_model_checkpoint_paths.
        timestamps: all_model_checkpoint_timestamps; those without a partner are ignored.
        last_preserved: last_preserved_timestamp, None if the file has none.
        now: the clock.
        ours: whether a path with a timestamp is managed whatever its time.

    Returns:
        The managed paths with their timestamps, oldest first; the moment of the last one kept for
        good; and by how many seconds the clock was before that moment, if it was, else 0.
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
