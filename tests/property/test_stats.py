"""The worker's books: every claim has one outcome, whatever the order, and whoever looks meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from qo.worker.loop.outcome import Acked, Dead, Lost, Outcome, Released, Retried
from qo.worker.loop.state import State
from qo.worker.observe.metrics import TASK_DURATION, Metrics
from qo.worker.observe.stats import Histogram, Stats, is_balanced, plain_counts, printable_type, snapshot

pytestmark = pytest.mark.fast

CALM = settings(deadline=None)  # A slow machine is not a broken law.
OUTCOMES = [Acked(), Retried("e"), Retried("e", timed_out=True), Dead("e"), Released("r"), Lost("l")]
steps = st.lists(st.none() | st.sampled_from(OUTCOMES), max_size=60)  # None: one more is taken.
seconds = st.floats(0, 1e5) | st.sampled_from([0.001, 0.0025, 1800.0])


@CALM
@given(steps)
def test_every_claim_has_one_outcome_after_every_step(history: list[Outcome | None]) -> None:
    stats, held = Stats(), 0
    seen: list[bool] = []
    stats.on_change = lambda: seen.append(stats.is_balanced)
    for step in history:
        if step is None:
            stats.count_claim()
            held += 1
        elif held:
            stats.count_outcome(step)
            held -= 1
        assert stats.held == held
        assert is_balanced(plain_counts(stats))
    assert all(seen)
    assert stats.claimed == sum(step is None for step in history)


@CALM
@given(st.integers(1, 20), st.sampled_from(["claimed", "acked", "retried", "dead", "released", "lost", "held"]))
def test_books_with_one_wrong_count_are_out_of_balance(claims: int, wrong: str) -> None:
    stats = Stats()
    for _ in range(claims):
        stats.count_claim()
        stats.count_outcome(Acked())
    setattr(stats, wrong, getattr(stats, wrong) + 1)
    assert not stats.is_balanced


@CALM
@given(st.lists(seconds, min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_never_below_the_true_one_and_never_above_the_longest(values: list[float], q: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    rank = max(0, -int(-q * len(values) // 1) - 1)  # How many of them lie below.
    answer = histogram.quantile(q)
    assert answer is not None
    assert sorted(values)[rank] <= answer <= max(values)


@CALM
@given(st.lists(seconds, min_size=1, max_size=50))
def test_quantiles_grow_with_their_share(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    answers = [histogram.quantile(q) or 0.0 for q in (0.0, 0.5, 0.95, 0.99, 1.0)]
    assert all(low <= high for low, high in pairwise(answers))


@CALM
@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=220), max_size=8))
def test_any_task_types_give_an_exposition_that_parses(task_types: list[str]) -> None:
    stats = Stats()
    for task_type in task_types:
        stats.count_run(task_type, 0, 0.1, Acked())
    seen = snapshot(
        stats, worker_id="w", state=State.RUNNING, uptime_s=1.0, slots=1, busy=0, waiting=0, settling=0, stuck=0,
        oldest_held_s=None, kinds={}, paused_types=[], shards=[],
    )  # fmt: skip
    text = Metrics(stats, lambda: seen).exposition().decode()
    told = {
        sample.labels["task_type"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{TASK_DURATION}_count"
    }
    assert set(told) == {printable_type(task_type) for task_type in task_types}
    assert sum(told.values()) == len(task_types)
