"""Ranges of partitions over jobs: the grid of a pipeline with more partitions than anybody looks at one by one.

Each range has about as many keys of the job that has the most. What is committed is counted from the primary key of the
partitions alone; an answer counts a bounded number of them, the newest, and says where the older ones begin. Keys are
compared by the database only: its order need not be that of Python.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.api.contract.first_pages import GridRange, GridRangesAnswer, RangeCounts
from qo.core.pipeline.topology import LiveJob
from qo.core.task import Status
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backlog, failures
from qo.dispatcher.views.partition_grid import JOBS_MAX, list_jobs

RANGES_MAX = 200
COUNTED_MAX = 2_500_000  # Partitions of all jobs: counting so many takes a good part of a second.
OPEN_MAX = 10_000  # Tasks of one job and one status.

_tasks, _partitions = schema.tasks, schema.partitions


@dataclass(frozen=True, slots=True)
class _Span:
    """Which keys are asked for."""

    from_key: str | None
    before: str | None

    def within(self, key: sa.ColumnElement[Any]) -> list[sa.ColumnElement[bool]]:
        low = [] if self.from_key is None else [key >= self.from_key]
        return low if self.before is None else [*low, key < self.before]


def show_ranges(
    tx: Tx,
    dag: str,
    *,
    version: int | None = None,
    from_key: str | None = None,
    before: str | None = None,
    ranges: int = 60,
) -> GridRangesAnswer:
    """Show how far each job is with ranges of keys, of all or of those between two. Raises NotFound."""
    row, members = list_jobs(tx, dag, version)
    jobs = members[:JOBS_MAX]
    span = _Span(from_key, before)
    most = max(1, COUNTED_MAX // max(1, len(jobs)))
    keys = _spine(tx, jobs, span)
    count = 0 if keys is None else _count(tx, keys, most + 1)
    length = min(count, most)
    parts = [] if keys is None else _split(tx, keys, length, min(ranges, RANGES_MAX), span, is_all=count <= most)
    counts = _Counting(tx, parts)
    open_work = backlog.counts(tx, [job.edition_id for job in jobs]) if parts else {}
    rows = [counts.row(job, open_work.get(job.edition_id, {})) for job in jobs] if parts else []
    return GridRangesAnswer(
        dag=dag,
        version=row["number"],
        keys=length,
        ranges=parts,
        rows=[each for each in rows if any(map(any, (each.done, each.running, each.waiting, each.failed)))],
        older=parts[0].from_key if count > most else None,
        more_jobs=len(members) > JOBS_MAX,
    )


def _spine(tx: Tx, jobs: Sequence[LiveJob], span: _Span) -> sa.Select[Any] | None:
    """Select the keys of the job that has the most, or if nothing is committed, those that one works on."""
    table = schema.generations
    generations = {output.generation_id: output for job in jobs for output in job.outputs[:1]}
    query = sa.select(table.c.id, table.c.partitions).where(table.c.id.in_(sorted(generations)))
    sizes = {id_: partitions for id_, partitions in tx.execute(query) if partitions}
    for id_ in sorted(sizes, key=lambda each: (-sizes[each], each)):
        output = generations[id_]
        key = _partitions.c.partition_key
        keys = sa.select(key.label("key")).where(
            _partitions.c.dataset_id == output.dataset_id, _partitions.c.generation_id == id_, *span.within(key)
        )
        if tx.one(keys.limit(1)) is not None:
            return keys
    for job in jobs:
        key = _tasks.c.partition_key
        keys = (
            sa.select(key.label("key"))
            .where(_tasks.c.edition_id == job.edition_id, key.is_not(None), *span.within(key))
            .distinct()
        )
        if tx.one(keys.limit(1)) is not None:
            return keys
    return None


def _count(tx: Tx, keys: sa.Select[Any], most: int) -> int:
    return int(tx.value(sa.select(sa.func.count()).select_from(keys.limit(most).subquery())))


def _split(tx: Tx, keys: sa.Select[Any], count: int, ranges: int, span: _Span, *, is_all: bool) -> list[GridRange]:
    """Split the newest keys into ranges of equal length; only the first one may be shorter."""
    step = -(-count // ranges)
    key = keys.selected_columns[0]
    newest = keys.order_by(key.desc()).limit(count).subquery()
    number = (sa.func.row_number().over(order_by=newest.c.key.desc()) - 1).label("number")
    numbered = sa.select(newest.c.key, number).subquery()
    place = numbered.c.number % step
    ends = sa.or_(place == 0, place == step - 1, numbered.c.number == count - 1)
    rows = list(tx.execute(sa.select(numbered.c.key, numbered.c.number).where(ends).order_by(numbered.c.number)))
    by_number = {n: name for name, n in rows}
    parts: list[GridRange] = []
    following = span.before
    for begin in range(0, count, step):
        end = min(begin + step, count) - 1
        first = by_number[end]
        # What other jobs have before the first key belongs to the first range.
        is_open = end == count - 1 and is_all
        parts.append(
            GridRange(
                first=first,
                last=by_number[begin],
                keys=end - begin + 1,
                from_key=span.from_key if is_open else first,
                before=following,
            )
        )
        following = first
    return parts[::-1]


class _Counting:
    """Counts of partitions and of open work in each of some ranges."""

    def __init__(self, tx: Tx, ranges: Sequence[GridRange]) -> None:
        self._tx = tx
        self._length = len(ranges)
        self._live = topology.load(tx)
        # The empty text comes before all keys. Whether anything comes after all of them depends on the order.
        self._bounds = json.dumps([[each.from_key or "", each.before] for each in ranges])

    def row(self, job: LiveJob, open_work: Any) -> RangeCounts:
        committed, is_all = (
            self._committed(job) if job.outputs else self._in_status(job, Status.COMPLETED, open_work)
        )
        counted = [
            self._in_status(job, status, open_work) for status in (Status.RUNNING, Status.PENDING, Status.FAILED)
        ]
        running, waiting, failed = (counts for counts, _ in counted)
        return RangeCounts(
            job=job.job.name,
            edition_id=job.edition_id,
            done=committed,
            running=running,
            waiting=waiting,
            failed=failed,
            at_least=not (is_all and all(each for _, each in counted)),
        )

    def _committed(self, job: LiveJob) -> tuple[list[int], bool]:
        output = job.outputs[0]
        values = {"dataset": output.dataset_id, "generation": output.generation_id, "bounds": self._bounds}
        return self._fill(self._tx.execute(_COMMITTED[self._tx.on_postgres], values).all()), True

    def _in_status(self, job: LiveJob, status: Status, open_work: Any) -> tuple[list[int], bool]:
        there = open_work.get(status, 0)
        if not there:
            return [0] * self._length, True
        if status is Status.FAILED:
            some = failures.open_keys(self._live, job.edition_id)
            most = failures.LOOKED_AT_MAX
        else:
            some = sa.select(_tasks.c.partition_key).where(
                _tasks.c.edition_id == job.edition_id, _tasks.c.status == status
            )
            some, most = some.limit(OPEN_MAX), OPEN_MAX
        keys = some.subquery()
        bounds = self._bounds_table()
        query = (
            sa.select(bounds.c.n, sa.func.count(sa.distinct(keys.c.partition_key)))
            .select_from(keys)
            .join(
                bounds,
                sa.and_(
                    keys.c.partition_key >= bounds.c.low,
                    sa.or_(bounds.c.high.is_(None), keys.c.partition_key < bounds.c.high),
                ),
            )
            .group_by(bounds.c.n)
        )
        return self._fill(self._tx.execute(query).all()), there < most

    def _bounds_table(self) -> Any:
        text = _BOUNDS[self._tx.on_postgres]
        columns = (sa.column("n", sa.Integer), sa.column("low", sa.String), sa.column("high", sa.String))
        return sa.text(text).bindparams(bounds=self._bounds).columns(*columns).subquery("bounds")

    def _fill(self, rows: Collection[Any]) -> list[int]:
        counts = [0] * self._length
        for n, count in rows:
            counts[n] = count
        return counts


# By whether the database is PostgreSQL.
_BOUNDS = {
    False: "SELECT key AS n, json_extract(value, '$[0]') AS low, json_extract(value, '$[1]') AS high "
    "FROM json_each(:bounds)",
    True: "SELECT CAST(n - 1 AS integer) AS n, value ->> 0 AS low, value ->> 1 AS high "
    "FROM json_array_elements(CAST(:bounds AS json)) WITH ORDINALITY AS each (value, n)",
}
_OWN = "dataset_id = :dataset AND generation_id = :generation AND partition_key >= b.low"


def _committed_query(bounds: str) -> sa.TextClause:
    """Count from the primary key. The last range has no end, and a condition for both would read all that follow."""
    closed = f"SELECT count(*) FROM partitions WHERE {_OWN} AND partition_key < b.high"
    last = f"SELECT count(*) FROM partitions WHERE {_OWN}"
    return sa.text(
        f"SELECT b.n, ({closed}) FROM ({bounds}) AS b WHERE b.high IS NOT NULL "
        f"UNION ALL SELECT b.n, ({last}) FROM ({bounds}) AS b WHERE b.high IS NULL"
    )


_COMMITTED = {on_postgres: _committed_query(bounds) for on_postgres, bounds in _BOUNDS.items()}
