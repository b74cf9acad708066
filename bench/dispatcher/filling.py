"""A long history, made up: partitions with everything that was written on their way, in bulk.

The source has so many partitions, and so has the job that reads it, as if every event had been routed and every task
had run. Nothing is asked of the dispatcher for it: a million would take it a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa

from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks.dedupe_keys import partition_prefix
from qo.dispatcher.versions import marks

FILLED = (
    schema.events,
    schema.deliveries,
    schema.tasks,
    schema.attempts,
    schema.task_inputs,
    schema.commits,
    schema.partitions,
)

_KEY = "'p' || CAST(i AS TEXT)"
_FILES = """'["part-00000-0b9e1a62-c000.zstd.parquet"]'"""
_AT = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 1735689600 + i, 'unixepoch')",
    "postgresql": "to_timestamp(1735689600 + i)",
}


def fill(state: State, count: int) -> None:
    """Fill a state where the pipeline is deployed and nothing has happened with so many partitions of each job."""
    with state.write() as tx, _unindexed(tx):
        tx.require_durable()  # See _vacuum.
        if tx.on_postgres:
            tx.execute(sa.text("SET LOCAL maintenance_work_mem = '512MB'"))
        live = topology.load(tx)
        by_name = {each.job.name: each for each in live.jobs.values()}
        _events(tx, by_name["orders"], by_name["clean"], count)
        _tasks(tx, by_name["orders"], by_name["clean"], count)
        _data(tx, by_name["orders"], by_name["clean"], count)
    _vacuum(state)


def add_rebuild(state: State, count: int) -> None:
    """Add the pending tasks that the newest version of the reader lacks, as if the reconciler had created them."""
    with state.write() as tx:
        tx.require_durable()  # See _vacuum.
        live = topology.load(tx)
        source = next(each for each in live.jobs.values() if each.dag == "shop" and each.job.name == "orders")
        readers = [each for each in live.jobs.values() if each.dag == "shop" and each.job.name == "clean"]
        reader = max(readers, key=lambda each: each.version_number)
        read = source.outputs[0]
        prefix = partition_prefix(read.dataset_id, read.generation_id)
        values = _task_values(tx, source, reader) | {
            "id": _id(tx, f"r{reader.version_number}"),
            "dedupe_key": f"'{prefix}' || {_KEY}",
            "status": "'pending'",
            "attempt": "0",
            "wakes": "0",
            **dict.fromkeys(("started_at", "completed_at", "released_at"), "NULL"),
        }
        columns = ", ".join(f'"{name}"' for name in values)
        chosen = _numbered(tx, count, ", ".join(values.values()))
        tx.execute(sa.text(f"INSERT INTO tasks ({columns}) {chosen} ON CONFLICT DO NOTHING"))
    _vacuum(state)


def add_correction(state: State, count: int, number: int) -> None:
    """Have all partitions made again, for the ``number``-th time: as tasks of invalidations that have ended."""
    maker = f"x{number}"
    with state.write() as tx:
        live = topology.load(tx)
        by_name = {each.job.name: each for each in live.jobs.values()}
        source, reader = by_name["orders"], by_name["clean"]
        later = f"to_timestamp(1735689600 + {86_400 * number} + i)"
        if not tx.on_postgres:
            later = f"strftime('%Y-%m-%d %H:%M:%f000', 1735689600 + {86_400 * number} + i, 'unixepoch')"
        times = dict.fromkeys(
            ("available_at", "created_at", "updated_at", "started_at", "completed_at", "released_at"), later
        )
        cause = _id(tx, f"v{number}")
        changed = {
            "id": _id(tx, maker),
            "dedupe_key": f"'invalidation:' || {cause}",
            "invalidation_id": cause,
            "event_seq": "NULL",
        }
        _insert(tx, schema.tasks, count, {**_task_values(tx, source, reader), **changed, **times})
        attempt = {"task_id": _id(tx, maker), "attempt": "1", "lease_id": _id(tx, "b"), "outcome": "'completed'"}
        _insert(tx, schema.attempts, count, {**attempt, "started_at": later, "ended_at": later})
        pin = {
            "task_id": _id(tx, maker),
            "position": "0",
            "partition_key": _KEY,
            "revision": "i + 1",
            **_of(source),
        }
        _insert(tx, schema.task_inputs, count, pin)
        over = {"reason": "'replaced'", "created_at": later, "spread_at": later, "processed_at": later}
        _insert(tx, schema.invalidations, count, {"id": cause, **_of(source), **_where(), **over})
        read = {"invalidation_id": cause, "edition_id": f"'{reader.edition_id}'", "task_id": _id(tx, maker)}
        _insert(tx, schema.invalidation_readers, count, {**read, "processed_at": later})
        event = {"id": _id(tx, f"g{number}"), "received_at": later, "state": "'filtered'", "fanout": "0"}
        _insert(tx, schema.events, count, {**event, **_of(reader), **_where(), "producer_task_id": _id(tx, maker)})
        latest = tx.value(sa.select(sa.func.max(schema.commits.c.revision)))
        made = {**_of(reader), **_where(), "rows": "10", "bytes": "100", "task_id": _id(tx, maker)}
        made |= {"location": f"'{maker}/' || i", "files": _FILES, "committed_at": later}
        _insert(tx, schema.commits, count, {**made, "attempt": "1"})
        tx.execute(
            sa.text(
                f"UPDATE commits SET replaced_by = revision + {count} WHERE revision > {latest - count} "
                f"AND revision <= {latest}"
            )
        )
        tx.execute(
            sa.text(
                f"UPDATE partitions SET revision = revision + {count}, task_id = "
                f"(SELECT c.task_id FROM commits c WHERE c.revision = partitions.revision + {count}) "
                f"WHERE generation_id = '{reader.outputs[0].generation_id}'"
            )
        )
    _vacuum(state)


def _vacuum(state: State) -> None:
    """Have the tables as autovacuum leaves them in time.

    PostgreSQL takes no row for visible to all while its commit, or one of those just after it, is not on disk: also
    VACUUM's own, one for each table.
    """
    if state.engine.dialect.name == "postgresql":
        with state.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("SET synchronous_commit = on"))
            connection.execute(sa.text("VACUUM ANALYZE"))
            connection.execute(sa.text("RESET synchronous_commit"))


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
    columns = ", ".join(f'"{name}"' for name in values)
    tx.execute(sa.text(f"INSERT INTO {table.name} ({columns}) {_numbered(tx, count, ', '.join(values.values()))}"))


def _numbered(tx: Tx, count: int, values: str) -> str:
    if tx.on_postgres:
        return f"SELECT {values} FROM generate_series(CAST(0 AS BIGINT), {count - 1}) AS n (i)"
    numbers = f"SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}"
    return f"WITH RECURSIVE n (i) AS ({numbers}) SELECT {values} FROM n"


def _id(tx: Tx, of: str) -> str:
    """In terms of the number i of a row. Ids are scattered, and as long as those of real tasks."""
    if tx.on_postgres:
        return f"CAST(CAST(md5('{of}' || i) AS uuid) AS text)"
    scattered = "(i * 2654435761) % 4294967296"
    return f"printf('%08x-0000-5000-8000-{of}%011x', {scattered}, i)"


def _of(job: LiveJob) -> dict[str, str]:
    made = job.outputs[0]
    return {"dataset_id": f"'{made.dataset_id}'", "generation_id": f"'{made.generation_id}'"}


def _where() -> dict[str, str]:
    return {"partition_key": _KEY, "start": "i", "end": "i + 1"}


def _at(tx: Tx) -> str:
    return _AT[tx.connection.dialect.name]


def _events(tx: Tx, source: LiveJob, reader: LiveJob, count: int) -> None:
    common = {**_where(), "received_at": _at(tx), "id": _id(tx, "e")}
    routed = {"state": "'routed'", "fanout": "1"}
    _insert(tx, schema.events, count, {**common, **_of(source), **routed})
    unread = {"state": "'filtered'", "reason": "'nobody reads it'", "fanout": "0", "id": _id(tx, "c")}
    _insert(tx, schema.events, count, {**common, **_of(reader), **unread, "producer_task_id": _id(tx, "a")})
    dataset = {"dataset_id": _of(source)["dataset_id"], "edition_id": f"'{reader.edition_id}'"}
    given = {"event_seq": "i + 1", "partition_key": _KEY, "outcome": "'consumed'", "task_id": _id(tx, "a")}
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
    _insert(tx, schema.tasks, count, _task_values(tx, source, reader))
    attempt = {"task_id": _id(tx, "a"), "attempt": "1", "lease_id": _id(tx, "b"), "outcome": "'completed'"}
    _insert(tx, schema.attempts, count, {**attempt, "started_at": at, "ended_at": at})
    pin = {"task_id": _id(tx, "a"), "position": "0", "partition_key": _KEY, "revision": "i + 1", **_of(source)}
    _insert(tx, schema.task_inputs, count, pin)


def _task_values(tx: Tx, source: LiveJob, reader: LiveJob) -> dict[str, str]:
    at = _at(tx)
    about = {"event_seq": "i + 1", **_of(source), **_where()}
    read = source.outputs[0]
    identity = {
        "id": _id(tx, "a"),
        "job_id": f"'{reader.id}'",
        "edition_id": f"'{reader.edition_id}'",
        "logical_id": f"'{reader.logical_id}'",
        "dag": f"'{reader.dag}'",
        "job": f"'{reader.job.name}'",
        "operator": f"'{reader.job.operator}'",
        "queue": f"'{reader.queue}'",
        "dedupe_key": f"'{partition_prefix(read.dataset_id, read.generation_id)}' || {_KEY}",
    }
    life = {
        "status": "'completed'",
        "token": _id(tx, "d"),
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
    return {**identity, **about, **life, **times}


def _data(tx: Tx, source: LiveJob, reader: LiveJob, count: int) -> None:
    for job, maker, offset in ((source, _id(tx, "f"), 1), (reader, _id(tx, "a"), count + 1)):
        made = job.outputs[0]
        common = {**_of(job), **_where(), "rows": "10", "bytes": "100", "task_id": maker, "committed_at": _at(tx)}
        if job is reader:
            place = f"'{made.dataset_id}/{made.generation_id}/' || {maker} || '/1'"
            common |= {"location": place, "files": _FILES}
        _insert(tx, schema.commits, count, {**common, "attempt": "1"})
        _insert(tx, schema.partitions, count, {**common, "revision": f"i + {offset}"})
        sums = {"partitions": count, "rows": 10 * count, "bytes": 100 * count, "revision": offset + count - 1}
        generations = schema.generation_rows
        tx.execute(sa.update(generations).where(generations.c.id == made.generation_id).values(**sums))
    compared = marks.Input(reader, reader.inputs[0], source.outputs[0].generation_id)
    marks.save(tx, compared, marks.Mark(compared.generation_id, count, 0, tx.now))
