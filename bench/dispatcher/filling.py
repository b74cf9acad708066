"""A long history, made up: partitions with everything that was written on their way, in bulk.

Half of the rows of ``partitions`` are of the source and half of the job that reads it, as if every event had been
routed and every task had run. Nothing is asked of the dispatcher for it: a million would take it a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa

from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx

FILLED = (
    schema.events,
    schema.deliveries,
    schema.tasks,
    schema.attempts,
    schema.task_inputs,
    schema.commits,
    schema.partitions,
)

# In terms of the number i of a row. Ids are scattered, as those of real tasks are.
_SCATTERED = "CAST((i * 2654435761) % 4294967296 AS TEXT) || '-' || CAST(i AS TEXT)"
_TASK = f"'t' || {_SCATTERED}"
_EVENT = f"'e' || {_SCATTERED}"
_KEY = "'p' || CAST(i AS TEXT)"
_AT = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 1735689600 + i, 'unixepoch')",
    "postgresql": "to_timestamp(1735689600 + i)",
}


def fill(state: State, partitions: int) -> int:
    """Into a state where the pipeline is deployed and nothing has happened; how many keys there are."""
    count = partitions // 2
    with state.write() as tx, _unindexed(tx):
        live = topology.load(tx)
        by_name = {each.job.name: each for each in live.jobs.values()}
        _events(tx, by_name["orders"], by_name["clean"], count)
        _tasks(tx, by_name["orders"], by_name["clean"], count)
        _data(tx, by_name["orders"], by_name["clean"], count)
    if state.engine.dialect.name == "postgresql":
        with state.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM ANALYZE"))
    return count


@contextmanager
def _unindexed(tx: Tx) -> Iterator[None]:
    """Indexes are made at the end, which is much quicker than row by row."""
    indexes = [index for table in FILLED for index in sorted(table.indexes, key=lambda each: str(each.name))]
    for index in indexes:
        index.drop(tx.connection)
    yield
    for index in indexes:
        index.create(tx.connection)


def _insert(tx: Tx, table: sa.Table, count: int, values: Mapping[str, str]) -> None:
    """Rows 0 to ``count``; the values are SQL."""
    numbers = f"SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}"
    columns = ", ".join(f'"{name}"' for name in values)
    chosen = f"WITH RECURSIVE n (i) AS ({numbers}) SELECT {', '.join(values.values())} FROM n"
    tx.execute(sa.text(f"INSERT INTO {table.name} ({columns}) {chosen}"))


def _of(job: LiveJob) -> dict[str, str]:
    made = job.outputs[0]
    return {"dataset_id": f"'{made.dataset_id}'", "generation_id": f"'{made.generation_id}'"}


def _where() -> dict[str, str]:
    return {"partition_key": _KEY, "start": "i", "end": "i + 1"}


def _at(tx: Tx) -> str:
    return _AT[tx.connection.dialect.name]


def _events(tx: Tx, source: LiveJob, reader: LiveJob, count: int) -> None:
    common = {**_where(), "received_at": _at(tx), "id": _EVENT}
    routed = {"state": "'routed'", "fanout": "1"}
    _insert(tx, schema.events, count, {**common, **_of(source), **routed})
    unread = {"state": "'filtered'", "reason": "'nobody reads it'", "fanout": "0", "id": f"{_EVENT} || 'c'"}
    _insert(tx, schema.events, count, {**common, **_of(reader), **unread, "producer_task_id": _TASK})
    dataset = {"dataset_id": _of(source)["dataset_id"], "edition_id": f"'{reader.edition_id}'"}
    given = {"event_seq": "i + 1", "partition_key": _KEY, "outcome": "'consumed'", "task_id": _TASK}
    _insert(tx, schema.deliveries, count, {**dataset, **given})
    tallies = [(source, "", "routed"), (source, reader.edition_id, "consumed"), (reader, "", "filtered")]
    tx.insert(
        schema.tallies,
        [
            {
                "dataset_id": of.outputs[0].dataset_id,
                "edition_id": edition,
                "outcome": outcome,
                "share": 0,
                "n": count,
            }
            for of, edition, outcome in tallies
        ],
    )


def _tasks(tx: Tx, source: LiveJob, reader: LiveJob, count: int) -> None:
    at = _at(tx)
    about = {"event_seq": "i + 1", **_of(source), **_where()}
    identity = {
        "id": _TASK,
        "job_id": f"'{reader.id}'",
        "edition_id": f"'{reader.edition_id}'",
        "logical_id": f"'{reader.logical_id}'",
        "dag": f"'{reader.dag}'",
        "job": f"'{reader.job.name}'",
        "operator": f"'{reader.job.operator}'",
        "queue": f"'{reader.queue}'",
        "dedupe_key": f"'partition:' || {_KEY}",
    }
    life = {
        "status": "'completed'",
        "token": "'token'",
        "attempt": "1",
        "lease_s": "60.0",
        "retry_count": "0",
        "max_retries": "4",
        "deliveries": "0",
        "max_deliveries": "6",
        "cancel_requested": "FALSE",
        "wakes": "1",
    }
    times = dict.fromkeys(
        ("available_at", "created_at", "updated_at", "started_at", "completed_at", "released_at"), at
    )
    _insert(tx, schema.tasks, count, {**identity, **about, **life, **times})
    attempt = {"task_id": _TASK, "attempt": "1", "lease_id": "'lease'", "outcome": "'completed'"}
    _insert(tx, schema.attempts, count, {**attempt, "started_at": at, "ended_at": at})
    pin = {"task_id": _TASK, "position": "0", "partition_key": _KEY, "revision": "i + 1", **_of(source)}
    _insert(tx, schema.task_inputs, count, pin)


def _data(tx: Tx, source: LiveJob, reader: LiveJob, count: int) -> None:
    for job, maker, offset in ((source, "'s' || CAST(i AS TEXT)", 1), (reader, _TASK, count + 1)):
        common = {**_of(job), **_where(), "rows": "10", "bytes": "100", "task_id": maker, "committed_at": _at(tx)}
        _insert(tx, schema.commits, count, {**common, "attempt": "1"})
        _insert(tx, schema.partitions, count, {**common, "revision": f"i + {offset}"})
        generations = schema.generation_rows
        this = generations.c.id == job.outputs[0].generation_id
        tx.execute(sa.update(generations).where(this).values(partitions=count, rows=10 * count, bytes=100 * count))
