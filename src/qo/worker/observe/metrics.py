"""The worker's counters for Prometheus, read from ``Stats`` and a snapshot at each scrape: nothing is counted twice.

The tables below name every metric; docs/reference/metrics.md explains them, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from qo.worker.loop.state import State
from qo.worker.observe import depth_board
from qo.worker.observe.stats import BUCKETS_S, ENDS, Histogram, Stats, StatsSnapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import HistogramMetricFamily, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OUTCOMES = "qo_worker_outcomes_total"
STATE = "qo_worker_state"
TASK_DURATION = "qo_task_duration_seconds"
QUEUE_WAIT = "qo_task_queue_wait_seconds"

# The metric, the counter of ``Stats``, and its description.
COUNTERS = (
    ("qo_worker_claims_total", "claimed", "Tasks claimed."),
    (
        "qo_worker_claims_missed_total",
        "claims_missed",
        "Candidates that another worker took, or that could not be claimed.",
    ),
    ("qo_worker_started_total", "started", "Attempts started."),
    (
        "qo_worker_timeouts_total",
        "timeouts",
        "Attempts that ran out of time; among the retried and the dead.",
    ),
    ("qo_worker_cancelled_total", "cancelled", "Attempts stopped on request; these are among the dead."),
    ("qo_worker_shed_total", "shed", "Tasks given back for want of room; these are among the released."),
    ("qo_worker_terminal_failures_total", "terminal_failures", "Tasks that failed for good."),
    (
        "qo_worker_unsuccessful_total",
        "unsuccessful",
        "Wake-ups of pipeline tasks whose run failed; these are among the acked.",
    ),
    ("qo_worker_renewals_total", "renewals", "Leases renewed."),
    ("qo_worker_renew_failures_total", "renew_failures", "Renewals of a lease that failed."),
    ("qo_worker_settle_retries_total", "settle_retries", "Reports of an outcome that had to be sent again."),
    ("qo_worker_enqueued_total", "enqueued", "Tasks that handlers put in the queue."),
    ("qo_worker_looks_total", "looks", "Looks for ready tasks."),
    ("qo_worker_empty_looks_total", "empty_looks", "Looks for ready tasks that found none."),
    ("qo_worker_pushed_total", "pushed", "Tasks that wake-ups have named."),
    ("qo_worker_store_requests_total", "requests", "Requests sent to the store."),
    ("qo_worker_store_dollars_total", "dollars", "What S3 would charge for these requests, in US dollars."),
)

# The metric, how it is read, and its description. A value of None is not known yet, and left out.
GAUGES: tuple[tuple[str, Callable[[StatsSnapshot], float | None], str], ...] = (
    ("qo_worker_held", lambda snapshot: snapshot.counts["held"], "Claims that are not settled yet."),
    ("qo_worker_slots", lambda snapshot: snapshot.slots, "How many tasks can run at a time."),
    ("qo_worker_slots_busy", lambda snapshot: snapshot.busy, "Slots that run a task."),
    (
        "qo_worker_slots_stuck",
        lambda snapshot: snapshot.stuck,
        "Slots whose handler was given up but cannot be stopped.",
    ),
    ("qo_worker_inbox_waiting", lambda snapshot: snapshot.waiting, "Claimed tasks that wait for a slot."),
    ("qo_worker_settling", lambda snapshot: snapshot.settling, "Claims whose outcome is being reported."),
    (
        "qo_worker_oldest_held_seconds",
        lambda snapshot: snapshot.oldest_held_s or 0.0,
        "How long the oldest claim is held.",
    ),
    (
        "qo_worker_loop_lag_seconds",
        lambda snapshot: snapshot.counts["loop_lag_s"],
        "How late the event loop runs.",
    ),
    ("qo_worker_queue_depth", lambda snapshot: snapshot.queue_depth, "Ready tasks that the last look saw."),
    (
        "qo_worker_unhandled_types",
        lambda snapshot: snapshot.counts["unhandled_types"],
        "Types of tasks that waited, and that this worker has no handler for.",
    ),
    (
        "qo_worker_orphan_types",
        lambda snapshot: snapshot.counts["orphan_types"],
        "Types of tasks that wait, and that no running worker has a handler for.",
    ),
    ("qo_worker_up_seconds", lambda snapshot: snapshot.uptime_s, "For how long the worker has been up."),
)

NAMES = (
    *(name for name, _, _ in COUNTERS),
    OUTCOMES,
    *(name for name, _, _ in GAUGES),
    STATE,
    TASK_DURATION,
    QUEUE_WAIT,
    *depth_board.NAMES,
)


class Metrics:
    """Collects the metrics of one worker, in a registry of its own: other metrics of the process are not mixed in."""

    def __init__(self, stats: Stats, snapshot: Callable[[], StatsSnapshot]) -> None:
        self._stats = stats
        self._snapshot = snapshot
        self._registry: CollectorRegistry | None = None

    def exposition(self) -> bytes:
        """Return the metrics in the Prometheus text format, version 0.0.4. Any thread may call this."""
        # Imported by the first scrape: it would slow down the start of workers, many of which are never scraped.
        from prometheus_client import CollectorRegistry, generate_latest

        if self._registry is None:
            registry = CollectorRegistry()
            registry.register(self)
            self._registry = registry  # If two first scrapes race, either registry will do.
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called by the registry."""
        snapshot = self._snapshot()
        yield from _counters(snapshot)
        yield from _gauges(snapshot)
        yield from _histograms(self._stats)
        yield from depth_board.depth_families(self._stats.depths.read())


def _counters(snapshot: StatsSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, counter, description in COUNTERS:
        yield CounterMetricFamily(name, description, value=snapshot.counts[counter])
    outcomes = CounterMetricFamily(OUTCOMES, "What became of claims.", labels=["outcome"])
    for end in ENDS:
        outcomes.add_metric([end], snapshot.counts[end])
    yield outcomes


def _gauges(snapshot: StatsSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, read, description in GAUGES:
        if (value := read(snapshot)) is not None:
            yield GaugeMetricFamily(name, description, value=value)
    states = GaugeMetricFamily(STATE, "1 for the state that the worker is in, 0 for the others.", labels=["state"])
    for state in State:
        states.add_metric([state.value], snapshot.state is state)
    yield states


def _histograms(stats: Stats) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    description = "How long attempts took, by task type; the types after the first 200 are counted as other."
    durations = HistogramMetricFamily(TASK_DURATION, description, labels=["task_type"])
    for task_type, histogram in sorted(stats.latency.copy().items()):
        _add(durations, [task_type], histogram)
    yield durations
    waits = HistogramMetricFamily(QUEUE_WAIT, "From the moment a task was due to its start.", labels=[])
    _add(waits, [], stats.queue_wait)
    yield waits


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    total_s = histogram.total_s
    family.add_metric(labels, list(zip(bounds, accumulate(list(histogram.counts)), strict=True)), total_s)
