"""What a worker counts, and what others are told of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qo.worker.loop.outcome import Acked, Dead, Lost, Released, Retried
from qo.worker.loop.state import State
from qo.worker.observe import depth_board, metrics
from qo.worker.observe.metrics import Metrics
from qo.worker.observe.stats import BUCKETS_S, OTHER, TYPES_MAX, Histogram, Stats, StatsSnapshot, snapshot
from qo.worker.observe.status import Health, find_problems

pytestmark = pytest.mark.fast

WELL = {"state": State.RUNNING, "loop_beat_s": 0.1, "keeper_beat_s": 1.0}


def seen(stats: Stats, **changes: Any) -> StatsSnapshot:
    parts: dict[str, Any] = {
        "worker_id": "w",
        "state": State.RUNNING,
        "uptime_s": 60.5,
        "slots": 4,
        "busy": 2,
        "waiting": 1,
        "settling": 1,
        "stuck": 0,
        "oldest_held_s": None,
        "kinds": {"async": 2},
        "paused_types": [],
        "shards": [],
    }
    return snapshot(stats, **{**parts, **changes})


def scraped(stats: Stats, **changes: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels, as Prometheus would read it."""
    text = Metrics(stats, lambda: seen(stats, **changes)).exposition().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series was told twice"
    return found


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_a_quantile_is_an_upper_bound_even_beyond_the_last_bucket():
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    for seconds in (0.002, 0.03, 9_000.0):
        histogram.add(seconds)
    assert histogram.quantile(0.1) == 0.0025
    assert histogram.quantile(0.5) == 0.05
    assert histogram.quantile(1.0) == 9_000.0


def test_a_wait_that_two_clocks_make_negative_counts_as_none():
    histogram = Histogram()
    histogram.add(-0.4)
    assert (histogram.counts[0], histogram.total_s) == (1, 0.0)


def test_a_snapshot_does_not_change_when_the_worker_goes_on():
    stats = Stats()
    stats.count_claim()
    stats.count_run("t", 0, 0.2, Acked())
    before = seen(stats)
    text = msgspec.json.encode(before)
    stats.count_outcome(Acked())
    stats.count_run("u", 0, 0.3, Retried("no"))
    assert msgspec.json.encode(before) == text
    assert (before.processed, before.succeeded, before.failed, before.last_latency_s) == (1, 1, 0, 0.2)
    assert seen(stats).latency_s["u"]["p99"] == 0.3


def test_times_are_told_in_plain_seconds():
    stats = Stats()
    stats.count_run("t", 0, 4_000.0, Acked())
    told = msgspec.json.decode(msgspec.json.encode(seen(stats, oldest_held_s=1.5)))
    assert (told["uptime_s"], told["oldest_held_s"]) == (60.5, 1.5)
    assert told["latency_s"]["t"] == {"count": 1, "mean": 4_000.0, "p50": 4_000.0, "p95": 4_000.0, "p99": 4_000.0}


def test_the_number_of_task_types_told_apart_is_bounded():
    stats = Stats()
    for n in range(TYPES_MAX + 50):
        for _ in range(2):
            stats.count_run(f"type-{n}", 0, 0.1, Acked())
    assert len(stats.latency) == TYPES_MAX + 1
    assert stats.latency[OTHER].count == 100
    found = scraped(stats)
    types = {dict(labels)["task_type"] for name, labels in found if name == f"{metrics.TASK_DURATION}_count"}
    assert len(types) == TYPES_MAX + 1
    assert value(found, f"{metrics.TASK_DURATION}_count", task_type=OTHER) == 100


@pytest.mark.parametrize(
    "task_type",
    [
        'say "hi"',
        "two\nlines",
        "back\\slash",
        "\\n",
        "größe-税-🙂",
        "x" * 200,
        "{a=b,c}",
        " ",
        "\r\t",
        "=,}",
        "le",
    ],
)
def test_a_strange_task_type_is_told_as_it_is(task_type: str):
    stats = Stats()
    stats.count_run(task_type, 0, 0.1, Acked())
    assert value(scraped(stats), f"{metrics.TASK_DURATION}_count", task_type=task_type) == 1


@pytest.mark.parametrize("task_type", ["a\udcffb", "nul\0", "y" * 5_000])
def test_a_task_type_that_cannot_be_told_spoils_no_scrape(task_type: str):
    stats = Stats()
    for _ in range(2):
        stats.count_run(task_type, 0, 0.1, Acked())
    [(_, count)] = [item for item in scraped(stats).items() if item[0][0] == f"{metrics.TASK_DURATION}_count"]
    assert count == 2
    assert msgspec.json.encode(seen(stats))


def test_every_counter_of_the_worker_is_a_metric():
    gauges = {"held", "loop_lag_s", "unhandled_types", "orphan_types"}
    counted = {each.name for each in fields(Stats) if each.type in ("int", "float")} - gauges
    assert counted == {counter for _, counter, _ in metrics.COUNTERS} | set(metrics.ENDS)


def test_metrics_say_what_the_counters_say():
    stats = Stats(looks=7, requests=11, dollars=0.25, loop_lag_s=0.125)
    for outcome in (Acked(), Acked(), Retried("e", timed_out=True), Dead("e"), Released("r"), Lost("l")):
        stats.count_claim()
        stats.count_outcome(outcome)
    stats.count_claim()
    found = scraped(stats, oldest_held_s=3.5)
    assert value(found, "qo_worker_claims_total") == 7
    ends = {end: value(found, "qo_worker_outcomes_total", outcome=end) for end in metrics.ENDS}
    assert ends == {"acked": 2, "retried": 1, "dead": 1, "released": 1, "lost": 1}
    assert value(found, "qo_worker_held") == 1
    assert value(found, "qo_worker_timeouts_total") == 1
    assert value(found, "qo_worker_looks_total") == 7
    assert value(found, "qo_worker_store_requests_total") == 11
    assert value(found, "qo_worker_store_dollars_total") == 0.25
    assert value(found, "qo_worker_loop_lag_seconds") == 0.125
    assert value(found, "qo_worker_oldest_held_seconds") == 3.5
    assert value(found, "qo_worker_slots_busy") == 2


def test_a_worker_is_in_exactly_one_state():
    for state in State:
        found = scraped(Stats(), state=state)
        one_hot = {each.value: value(found, "qo_worker_state", state=each.value) for each in State}
        assert one_hot == {each.value: float(each is state) for each in State}


def test_the_queues_depth_is_told_once_it_is_known():
    assert ("qo_worker_queue_depth", frozenset()) not in scraped(Stats())
    assert value(scraped(Stats(queue_depth=0)), "qo_worker_queue_depth") == 0
    assert value(scraped(Stats(queue_depth=12)), "qo_worker_queue_depth") == 12


def test_buckets_are_cumulative_and_end_with_the_count():
    stats = Stats()
    for seconds in (0.0001, 0.3, 0.3, 7_200.0):
        stats.queue_wait.add(seconds)
    found = scraped(stats)
    buckets = [value(found, f"{metrics.QUEUE_WAIT}_bucket", le=le) for le in [*map(str, BUCKETS_S), "+Inf"]]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-2], buckets[-1]) == (1, 3, 4)
    assert value(found, f"{metrics.QUEUE_WAIT}_count") == 4
    assert value(found, f"{metrics.QUEUE_WAIT}_sum") == pytest.approx(7_200.6001)


def test_every_name_in_the_tables_is_told_and_no_other():
    stats = Stats(queue_depth=1)
    stats.count_run("t", 0, 0.1, Acked())
    text = Metrics(stats, lambda: seen(stats)).exposition().decode()
    told = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    counted = set(depth_board.NAMES)  # These come with a count of the queue.
    assert sorted(told) == sorted(set(metrics.NAMES) - counted)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"state": State.FAILED}, "failed"),
        ({"loop_beat_s": 10.1}, "event loop"),
        ({"keeper_beat_s": 30.1}, "lease thread"),
    ],
)
def test_a_worker_is_ill_for_a_reason(changes: dict[str, Any], word: str):
    [reason] = find_problems(Health(**{**WELL, **changes}))
    assert word in reason


@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
def test_a_worker_that_works_rests_or_leaves_is_well(state: State):
    assert find_problems(Health(**{**WELL, "state": state, "loop_beat_s": 10.0, "keeper_beat_s": 30.0})) == []


def test_all_reasons_are_given():
    assert len(find_problems(Health(State.FAILED, loop_beat_s=99, keeper_beat_s=99))) == 3
