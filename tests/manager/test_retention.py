# SPDX-License-Identifier: Apache-2.0
"""Retention, compared with a step-by-step model of TensorFlow's manager, and our own rules."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfmt.errors import InvalidError
from ckptfmt.manager import retention
from ckptfmt.manager.retention import Decision, KeepBest, Policy, Queued, best_of, recover

HOUR = 3600.0
NUMBER: Any = 3
times = st.floats(-1e5, 1e6) | st.sampled_from([0.0, HOUR, 2 * HOUR])


class Model:
    """The rules of format-facts as an imperative: a queue that is popped from its old end."""

    def __init__(self, queue: list[tuple[str, float]], preserved: float) -> None:
        self.queue = OrderedDict(queue)
        self.preserved = preserved
        self.deleted: list[str] = []

    def sweep(self, max_to_keep: int | None, hours: float | None) -> None:
        while max_to_keep and len(self.queue) > max_to_keep:
            name, moment = self.queue.popitem(last=False)
            if hours and moment - hours * 3600.0 >= self.preserved:
                self.preserved = moment
            else:
                self.deleted.append(name)


queues = st.lists(times, max_size=12).map(
    lambda moments: [Queued(f"c-{row}", moment, row) for row, moment in enumerate(moments)]
)


def decide(
    queue: list[Queued], preserved: float, policy: Policy, others: Sequence[Queued] = ()
) -> Decision:
    best = {one.name for one in best_of([*others, *queue], policy.best)}
    return retention.decide(queue, preserved, policy, best)


@given(
    queues,
    times,
    st.none() | st.integers(1, 6),
    st.none() | st.just(0) | st.floats(0.1, 100),
)
def test_the_queue_and_the_hours_are_tensorflows(
    queue: list[Queued], preserved: float, max_to_keep: int | None, hours: float | None
) -> None:
    model = Model([(one.name, one.timestamp) for one in queue], preserved)
    model.sweep(max_to_keep, hours)
    decided = decide(queue, preserved, Policy(max_to_keep, hours))
    assert [one.name for one in decided.deleted] == model.deleted
    assert [(one.name, one.timestamp) for one in decided.kept] == list(model.queue.items())
    assert decided.last_preserved == model.preserved


scored = st.lists(
    st.tuples(times, st.none() | st.integers(-3, 20), st.none() | st.integers(0, 5)), max_size=15
).map(
    lambda rows: [
        Queued(f"c-{row}", moment, step, None if score is None else float(score))
        for row, (moment, step, score) in enumerate(rows)
    ]
)
policies = st.builds(
    Policy,
    st.none() | st.integers(1, 5),
    st.none() | st.floats(0.1, 50),
    st.none() | st.integers(1, 7),
    st.integers(0, 4),
)


@given(scored, times, policies)
def test_every_checkpoint_has_one_fate(
    queue: list[Queued], preserved: float, policy: Policy
) -> None:
    decided = decide(queue, preserved, policy)
    fates = [*decided.kept, *decided.preserved, *decided.deleted]
    assert sorted(one.name for one in fates) == sorted(one.name for one in queue)
    assert decided.kept == [one for one in queue if one in decided.kept]
    assert decided.kept[-1:] == queue[-1:]
    newest = queue if policy.max_to_keep is None else queue[-policy.max_to_keep :]
    assert decided.kept[len(decided.kept) - len(newest) :] == newest
    assert not set(best_of(queue, policy.best)) & set(decided.deleted)
    if policy.every_n_steps and policy.max_to_keep:
        assert all(one.step is None or one.step % policy.every_n_steps for one in decided.deleted)


@given(scored, times, policies)
def test_deciding_again_changes_nothing(
    queue: list[Queued], preserved: float, policy: Policy
) -> None:
    first = decide(queue, preserved, policy)
    again = decide(first.kept, first.last_preserved, policy, first.preserved)
    assert again == Decision(first.kept, last_preserved=first.last_preserved)


@given(scored, times, policies)
def test_at_most_the_newest_and_the_best_stay_in_the_queue(
    queue: list[Queued], preserved: float, policy: Policy
) -> None:
    """However many are kept permanently, which count among the best."""
    decided = decide(queue, preserved, policy)
    if policy.max_to_keep:
        rest = decide(decided.kept, decided.last_preserved, policy, decided.preserved)
        best = best_of([*decided.preserved, *rest.kept], policy.best)
        assert len(rest.kept) <= policy.max_to_keep + len([one for one in best if one in rest.kept])


@given(scored, times, policies)
def test_more_that_is_asked_for_keeps_more(
    queue: list[Queued], preserved: float, policy: Policy
) -> None:
    less = Policy(policy.max_to_keep, policy.every_n_hours)
    assert set(decide(queue, preserved, policy).deleted) <= set(
        decide(queue, preserved, less).deleted
    )


def test_best() -> None:
    queue = [Queued(f"c-{row}", row, row, score) for row, score in enumerate([3.0, 1, 3, None, 2])]
    assert [one.name for one in best_of(queue, 2)] == ["c-2", "c-0"]
    assert [one.name for one in best_of(queue, 9)] == ["c-2", "c-0", "c-4", "c-1"]
    decided = decide(queue, 0.0, Policy(1, best=1))
    assert [one.name for one in decided.kept] == ["c-2", "c-4"]
    assert [one.name for one in decided.deleted] == ["c-0", "c-1", "c-3"]


@pytest.mark.parametrize(
    ("keep", "metrics", "score"),
    [
        (KeepBest("a", "max"), {"a": 2}, 2.0),
        (KeepBest("a", "min"), {"a": 2}, -2.0),
        (KeepBest("a", "max"), {"b": 2}, None),
        (KeepBest("a", "max"), {"a": math.nan}, None),
        (KeepBest("a", "max"), None, None),
        (KeepBest(lambda m: m["a"] + m["b"], "max"), {"a": 1, "b": 2}, 3.0),
        (KeepBest(lambda m: m.get("a"), "max"), {"b": 2}, None),
        (KeepBest("a", "min"), {"a": math.inf}, -math.inf),
    ],
)
def test_scores(keep: KeepBest, metrics: dict[str, float] | None, score: float | None) -> None:
    assert keep.score(metrics) == score


@pytest.mark.parametrize(
    ("argument", "value"), [("metric", NUMBER), ("mode", "most"), ("number", 0), ("number", True)]
)
def test_what_is_no_rule(argument: str, value: Any) -> None:
    with pytest.raises(InvalidError) as caught:
        KeepBest(**{"metric": "a", "mode": "max", argument: value})
    assert caught.value.argument == argument


# ---- restart -------------------------------------------------------------------------------------

odd_times = times | st.sampled_from([math.nan, math.inf, -math.inf, 1e300])


@given(st.lists(odd_times, max_size=8), odd_times.filter(lambda t: not math.isnan(t)), times)
def test_a_restart_is_tensorflows(moments: list[float], preserved: float, now: float) -> None:
    names = [f"c-{row % 5}" for row in range(len(moments))]
    expected: dict[str, float] = {}
    last = min(preserved, now)
    for name, moment in zip(names, moments, strict=True):
        then = min(moment, now)
        if then > last:
            expected[name] = then
    managed, kept, behind = recover(names, moments, preserved, now)
    assert managed == expected
    assert list(managed) == list(expected)
    assert kept == last
    assert behind == max(preserved - now, 0.0)


def test_states_that_managers_did_not_write() -> None:
    """Those of `Checkpoint.save` have no timestamps: nothing of theirs is managed."""
    assert recover(["a", "b"], [], None, 5.0) == ({}, 0.0, 0.0)
    assert recover(["a", "b"], [], 3.0, 5.0) == ({}, 3.0, 0.0)
    assert recover(["a", "b"], [4.0], 3.0, 5.0) == ({"a": 4.0}, 3.0, 0.0)
    assert recover([], [4.0], 3.0, 5.0) == ({}, 3.0, 0.0)


def test_moments_that_are_none() -> None:
    """Future ones count as now; what is not a number is never managed, nor kept as a moment."""
    assert recover(["a"], [99.0], 3.0, 5.0) == ({"a": 5.0}, 3.0, 0.0)
    assert recover(["a"], [math.nan], 3.0, 5.0) == ({}, 3.0, 0.0)
    assert recover(["a", "b"], [4.0, 5.0], math.nan, 5.0) == ({}, 5.0, 0.0)
    assert recover(["a"], [4.0], math.inf, 5.0) == ({}, 5.0, math.inf)


def test_what_is_known_to_be_ours() -> None:
    """One of the best may be older than one that was kept permanently later."""
    known = recover(["a", "b", "c"], [1.0, 2.0, 4.0], 3.0, 5.0, lambda name: name == "a")
    assert known == ({"a": 1.0, "c": 4.0}, 3.0, 0.0)
    assert recover(["a"], [math.nan], 3.0, 5.0, lambda _: True)[0] == {}
