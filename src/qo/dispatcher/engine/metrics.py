"""Prometheus metrics of the dispatcher: tasks in flight, the outbox, and the health of its loops.

They are collected at each scrape, from the database or from this process. Queries use partial indexes and are bounded:
a count of ``COUNT_MAX`` means "at least as many".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from qo.dispatcher.engine.loop import Loop
from qo.dispatcher.outbox import outbox
from qo.dispatcher.state import scans
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import outbox as effects

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COUNT_MAX = 10_000

IN_FLIGHT_OPERATORS = "qo_dispatcher_operator_in_flight"
IN_FLIGHT_JOBS = "qo_dispatcher_job_in_flight"
OUTBOX_LATE = "qo_dispatcher_outbox_late_seconds"
OUTBOX_DEAD = "qo_dispatcher_outbox_dead_total"
LOOP_TICKS = "qo_dispatcher_loop_ticks_total"
LOOP_DONE = "qo_dispatcher_loop_done_total"
LOOP_FAILURES = "qo_dispatcher_loop_failures_total"
LOOP_SECONDS = "qo_dispatcher_loop_tick_seconds"
LOOP_IDLE = "qo_dispatcher_loop_idle_seconds"

NAMES = (
    IN_FLIGHT_OPERATORS,
    IN_FLIGHT_JOBS,
    OUTBOX_LATE,
    OUTBOX_DEAD,
    LOOP_TICKS,
    LOOP_DONE,
    LOOP_FAILURES,
    LOOP_SECONDS,
    LOOP_IDLE,
)


@dataclass(slots=True)
class Counters:
    """Counts of this process since its start."""

    dead: int = 0  # Wake-ups that were given up.


class Metrics:
    """The metrics of one dispatcher, independent of others in the same process."""

    def __init__(self, loops: Sequence[Loop], counters: Counters) -> None:
        self._loops = loops
        self._counters = counters

    def families(self, tx: Tx) -> Iterator[Metric]:
        """Yield the metrics, for a caller that renders them together with others."""
        yield from _in_flight(tx)
        yield from _outbox(tx, self._counters)
        yield from _loops(self._loops)

    def exposition(self, state: State) -> bytes:
        """Return the Prometheus text format, version 0.0.4. Raises Unavailable without the database."""
        from prometheus_client import CollectorRegistry, generate_latest

        with state.read() as tx:
            families = list(self.families(tx))
        registry = CollectorRegistry()
        registry.register(_Collector(families))
        return generate_latest(registry)


class _Collector:
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _in_flight(tx: Tx) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    rows = scans.in_flight_jobs(tx, COUNT_MAX)
    operators: dict[str, int] = {}
    help_text = "Tasks that run or whose wake-up is on its way, by"
    jobs = GaugeMetricFamily(IN_FLIGHT_JOBS, f"{help_text} job.", labels=["dag", "job"])
    for (dag, job), count in _sum_by_job(rows).items():
        jobs.add_metric([dag, job], count)
    for row in rows:
        operators[row["operator"]] = operators.get(row["operator"], 0) + row["n"]
    by_operator = GaugeMetricFamily(IN_FLIGHT_OPERATORS, f"{help_text} operator.", labels=["operator"])
    for operator, count in sorted(operators.items()):
        by_operator.add_metric([operator], count)
    yield from (by_operator, jobs)


def _sum_by_job(rows: Sequence[sa.RowMapping]) -> dict[tuple[str, str], int]:
    """Sum by job: a job whose operator was changed while tasks ran has two rows."""
    counts: dict[tuple[str, str], int] = {}
    for row in sorted(rows, key=lambda row: (row["dag"], row["job"])):
        key = (row["dag"], row["job"])
        counts[key] = counts.get(key, 0) + row["n"]
    return counts


def _outbox(tx: Tx, counters: Counters) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    earliest = sa.func.min(effects.c.available_at, type_=effects.c.available_at.type)
    oldest = tx.value(sa.select(earliest).where(outbox.PENDING))
    late_s = 0.0 if oldest is None else max((tx.now - oldest).total_seconds(), 0.0)
    yield GaugeMetricFamily(OUTBOX_LATE, "How late the side effect is that should be done first.", value=late_s)
    yield CounterMetricFamily(OUTBOX_DEAD, "Wake-ups that this process gave up.", value=counters.dead)


def _loops(loops: Sequence[Loop]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    ticks = CounterMetricFamily(LOOP_TICKS, "Ticks of each loop.", labels=["loop"])
    did = CounterMetricFamily(LOOP_DONE, "What the ticks of each loop did.", labels=["loop"])
    failures = CounterMetricFamily(LOOP_FAILURES, "Ticks that failed.", labels=["loop"])
    took = GaugeMetricFamily(LOOP_SECONDS, "How long the last tick took.", labels=["loop"])
    idle = GaugeMetricFamily(LOOP_IDLE, "How long ago the last tick ended.", labels=["loop"])
    for loop in loops:
        health = loop.health
        ticks.add_metric([loop.name], health.ticks)
        did.add_metric([loop.name], health.processed)
        failures.add_metric([loop.name], health.failures)
        took.add_metric([loop.name], health.took_s)
        if (idle_s := loop.idle_s) is not None:
            idle.add_metric([loop.name], idle_s)
    yield from (ticks, did, failures, took, idle)
