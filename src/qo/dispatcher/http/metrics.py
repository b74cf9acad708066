"""The dispatcher's metrics, queried from the state database at each scrape, and the traffic of this process.

Each query uses an index and reads a bounded number of rows: a count of ``COUNT_MAX`` means "at least so many".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from qo.asgi.exposition import CONTENT_TYPE as CONTENT_TYPE
from qo.asgi.exposition import encode, traffic_families
from qo.core.pipeline.scaling import WorkerState
from qo.core.pipeline.states import EventState, OutboxState
from qo.core.task import Status
from qo.dispatcher.scaling import leases
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import failures
from qo.dispatcher.views import freshness_states

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from qo.dispatcher.http.app_context import Context

COUNT_MAX = 10_000

QUEUE_DEPTH = "qo_dispatcher_queue_depth"
QUEUE_AGE = "qo_dispatcher_queue_oldest_seconds"
QUEUE_TRIPPED = "qo_dispatcher_queue_tripped"
SCALED_WORKERS = "qo_dispatcher_scaled_workers"
SOURCES = "qo_dispatcher_sources"
DATASET_LATE = "qo_dispatcher_dataset_late_seconds"
REQUESTS = "qo_dispatcher_requests_total"
DURATION = "qo_dispatcher_request_seconds"


def _bounded_count(tx: Tx, table: sa.Table, *where: Any) -> int:
    some = sa.select(sa.literal(1)).select_from(table).where(*where).limit(COUNT_MAX).subquery()
    return int(tx.value(sa.select(sa.func.count()).select_from(some)) or 0)


def _is(table: sa.Table, column: str, value: str) -> Any:
    return table.c[column] == inline(value)


_TASKS, _OUTBOX, _EVENTS = schema.tasks, schema.outbox, schema.events

COUNTS: tuple[tuple[str, Callable[[Tx], int], str], ...] = (
    (
        "qo_dispatcher_tasks_running",
        lambda tx: _bounded_count(tx, _TASKS, _is(_TASKS, "status", Status.RUNNING)),
        "Running tasks.",
    ),
    (
        "qo_dispatcher_tasks_released",
        lambda tx: _bounded_count(
            tx, _TASKS, _is(_TASKS, "status", Status.PENDING), _TASKS.c.released_at.is_not(None)
        ),
        "Pending tasks whose wake-up is on its way.",
    ),
    (
        "qo_dispatcher_tasks_failed",
        lambda tx: failures.total(tx, topology.load(tx), COUNT_MAX),
        "Tasks that failed for good and were neither replayed nor superseded.",
    ),
    (
        "qo_dispatcher_leases_expired",
        lambda tx: _bounded_count(
            tx, _TASKS, _is(_TASKS, "status", Status.RUNNING), _TASKS.c.lease_expires_at < tx.now
        ),
        "Running tasks whose lease has run out; the reaper takes them back.",
    ),
    (
        "qo_dispatcher_events_pending",
        lambda tx: _bounded_count(tx, _EVENTS, _is(_EVENTS, "state", EventState.PENDING)),
        "Events that are not routed yet.",
    ),
    (
        "qo_dispatcher_outbox_pending",
        lambda tx: _bounded_count(tx, _OUTBOX, _is(_OUTBOX, "state", OutboxState.PENDING)),
        "Side effects that are not done yet.",
    ),
    (
        "qo_dispatcher_holds",
        lambda tx: _bounded_count(tx, schema.holds),
        "Editions of jobs whose tasks are withheld.",
    ),
)

NAMES = (
    *(name for name, _, _ in COUNTS),
    QUEUE_DEPTH,
    QUEUE_AGE,
    QUEUE_TRIPPED,
    SCALED_WORKERS,
    SOURCES,
    DATASET_LATE,
    REQUESTS,
    DURATION,
)


def exposition(context: Context) -> bytes:
    """Return the metrics in the Prometheus text format, version 0.0.4. Raises Unavailable without the database."""
    traffic = traffic_families(context.traffic, REQUESTS, DURATION)
    with context.state.read() as tx:
        return encode(
            [*_counts(tx), *_queues(tx), *_scaled(tx), *_sources(tx), *_late(tx), *context.families(tx), *traffic]
        )


def _counts(tx: Tx) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, query, text in COUNTS:
        yield GaugeMetricFamily(name, text, value=query(tx))


def _queues(tx: Tx) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    depth = GaugeMetricFamily(QUEUE_DEPTH, "Wake-ups that wait, as last measured.", labels=["queue"])
    age = GaugeMetricFamily(QUEUE_AGE, "How long the oldest wake-up has waited.", labels=["queue"])
    tripped = GaugeMetricFamily(QUEUE_TRIPPED, "1 while the producers of a queue are paused.", labels=["queue"])
    for row in tx.all(sa.select(schema.queues).order_by(schema.queues.c.name).limit(COUNT_MAX)):
        depth.add_metric([row["name"]], row["depth"])
        age.add_metric([row["name"]], row["oldest_s"])
        tripped.add_metric([row["name"]], row["tripped_at"] is not None)
    yield from (depth, age, tripped)


def _scaled(tx: Tx) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    text = "Workers of scaled runtimes, as their scaler reported last."
    family = GaugeMetricFamily(SCALED_WORKERS, text, labels=["runtime", "state"])
    for row in leases.list_runtimes(tx, COUNT_MAX):
        for state in WorkerState:
            family.add_metric([row["runtime"], state], row[state.value])
    yield family


def _late(tx: Tx) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    text = "By how much a dataset is less fresh than declared; 0: it is fresh enough."
    family = GaugeMetricFamily(DATASET_LATE, text, labels=["dag", "job", "output"])
    for job, output, seconds in freshness_states.count_late_seconds(tx, topology.load(tx)):
        family.add_metric([job.dag, job.job.name, str(output)], seconds)
    yield family


def _sources(tx: Tx) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    table = schema.sources
    family = GaugeMetricFamily(SOURCES, "Live sources, by kind and state.", labels=["kind", "state"])
    query = sa.select(table.c.kind, table.c.state, sa.func.count().label("n")).group_by(
        table.c.kind, table.c.state
    )
    for row in tx.all(query):
        family.add_metric([row["kind"], row["state"]], row["n"])
    yield family
