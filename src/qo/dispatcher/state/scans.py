"""Queries about tasks that stay cheap however many there are: each uses a partial index.

Their conditions are constants in the text, not parameters: a planner uses a partial index only where it can see that
the condition holds, and neither SQLite nor a prepared statement of PostgreSQL looks at parameters for that.

The conditions of withheld and of failed tasks have ``status || ''``, so that planners do not use the index of the
status. PostgreSQL with statistics from when nothing was pending would, and read all pending tasks for every edition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from qo.core.pipeline.states import CancelCode
from qo.core.task import Status
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import Id, Instant, tasks
from qo.dispatcher.state.work import BACKFILL, DEFERRED, FAILED, GIVEN_UP, IN_FLIGHT, RELEASED, WITHHELD


def withheld(table: Any = tasks) -> sa.ColumnElement[bool]:
    """The task is pending, and no wake-up is on its way."""
    return sa.and_(table.c.status + inline("") == inline(Status.PENDING), table.c.released_at.is_(None))


def released(table: Any = tasks) -> sa.ColumnElement[bool]:
    """The task is pending, and a wake-up is on its way."""
    return sa.and_(table.c.status == inline(Status.PENDING), table.c.released_at.is_not(None))


def running(table: Any = tasks) -> sa.ColumnElement[bool]:
    return table.c.status == inline(Status.RUNNING)


def deferred(table: Any = tasks) -> sa.ColumnElement[bool]:
    """Cancelled because another edition is at work on the same effects: see ``effects.deferred``."""
    # Without the status, which adds nothing, and for which PostgreSQL would at times rather read all cancelled tasks.
    return table.c.cancel_code == inline(CancelCode.EFFECTS_DEFERRED)


def failed(table: Any = tasks) -> sa.ColumnElement[bool]:
    return table.c.status + inline("") == inline(Status.FAILED)


def given_up(table: Any = tasks) -> sa.ColumnElement[bool]:
    """Cancelled, or asked to stop, because its version was rolled back or abandoned."""
    return table.c.cancel_code == inline(CancelCode.VERSION_GIVEN_UP)


def of_backfill(prefix: str) -> sa.ColumnElement[bool]:
    """The task's key begins with this, which ends with a character: see ``dedupe_keys.backfill_prefix``.

    A range of bytes, because an index serves ``LIKE`` only in a database whose order of text is that of bytes.
    """
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return sa.and_(sa.literal_column(f"({BACKFILL})", sa.Boolean), _InRange(tasks.c.dedupe_key, prefix, after))


class _InRange(FunctionElement[bool]):
    """The text is not before the first bound, and before the second, in the order of bytes."""

    name = "in_range"
    type = sa.Boolean()
    inherit_cache = True


@compiles(_InRange)
def _compile_range(element: _InRange, compiler: SQLCompiler, **options: Any) -> str:
    text, low, high = (compiler.process(each, **options) for each in element.clauses)
    return f"({text} >= {low} AND {text} < {high})"


@compiles(_InRange, "postgresql")
def _compile_pattern_range(element: _InRange, compiler: SQLCompiler, **options: Any) -> str:
    text, low, high = (compiler.process(each, **options) for each in element.clauses)
    return f"({text} ~>=~ {low} AND {text} ~<~ {high})"  # The operators of varchar_pattern_ops.


@dataclass(frozen=True, slots=True)
class IndexedCondition:
    """A condition in SQL, with the partial index that contains exactly its rows."""

    index: str
    column: str  # The first of the index.
    where: str
    table: str = "tasks"


WITHHELD_EDITIONS = IndexedCondition("ix_tasks_withheld", "edition_id", WITHHELD)
RELEASED_QUEUES = IndexedCondition("ix_tasks_released", "queue", RELEASED)
DEFERRED_EDITIONS = IndexedCondition("ix_tasks_deferred", "edition_id", DEFERRED)
GIVEN_UP_EDITIONS = IndexedCondition("ix_tasks_given_up", "edition_id", GIVEN_UP)
FAILED_EDITIONS = IndexedCondition("ix_tasks_failed", "edition_id", FAILED)
OPEN_READERS = IndexedCondition(
    "ix_invalidation_readers_open", "edition_id", "processed_at IS NULL", table="invalidation_readers"
)


def distinct(tx: Tx, condition: IndexedCondition) -> list[str]:
    """Return the distinct values of the index's first column, in order, by one index step for each.

    A plain DISTINCT would read every row.
    """
    return list(tx.execute(_distinct(tx.on_postgres, condition)).scalars())


# Building a statement takes longer than executing it, so these are built once.


@cache
def _distinct(on_postgres: bool, condition: IndexedCondition) -> sa.TextClause:
    return sa.text(f"{_steps(on_postgres, condition)} SELECT value FROM steps WHERE value IS NOT NULL")


def _steps(on_postgres: bool, condition: IndexedCondition) -> str:
    # Without statistics SQLite prefers a wider index.
    hint = "" if on_postgres else f" INDEXED BY {condition.index}"
    step = f"SELECT min({condition.column}) FROM {condition.table}{hint} WHERE {condition.where}"
    return (
        f"WITH RECURSIVE steps (value) AS ({step} UNION ALL SELECT ({step} AND {condition.column} > steps.value) "
        "FROM steps WHERE steps.value IS NOT NULL)"
    )


def counted(tx: Tx, *conditions: sa.ColumnElement[bool], along: str, most: int) -> int:
    """Count the tasks that meet the conditions, up to ``most``. ``along``: the next column of the index."""
    return int(tx.value(_count(*conditions, along=along, most=sa.literal(most))))


def _count(
    *conditions: sa.ColumnElement[bool], along: str, most: sa.ColumnElement[int]
) -> sa.Select[*tuple[Any, ...]]:
    some = sa.select(tasks.c.id).where(*conditions).order_by(tasks.c[along]).limit(most).subquery()
    return sa.select(sa.func.count()).select_from(some)


def depth(tx: Tx, queue: str, most: int) -> int:
    """Count the tasks of a queue that were woken and wait to be claimed, up to ``most``."""
    [(counted_,)] = tx.rows(_DEPTH, {"queue": queue, "most": most})
    return int(counted_)


def backlog(tx: Tx, edition_id: str, most: int) -> tuple[int, datetime | None]:
    """Count the due tasks of an edition that nobody has claimed, up to ``most``, and return since when the oldest of
    them is due. It makes no difference whether a wake-up was sent."""
    [(counted_, oldest)] = tx.rows(_BACKLOG, {"edition": edition_id, "now": tx.now, "most": most})
    return int(counted_), oldest


def earliest_withheld(tx: Tx) -> dict[str, datetime]:
    """Return when the first withheld task of each edition is due, by one statement."""
    return {edition: first for edition, first in tx.rows(_earliest(tx.on_postgres))}


@cache
def _earliest(on_postgres: bool) -> Prepared:
    first = f"SELECT min(available_at) FROM {_withheld_of(on_postgres)}"
    steps = _steps(on_postgres, WITHHELD_EDITIONS)
    query = sa.text(f"{steps} SELECT value, ({first}) AS first FROM steps WHERE value IS NOT NULL")
    return Prepared(query.columns(value=Id, first=Instant()))


def due(tx: Tx, editions: Sequence[str], most: int) -> dict[str, int]:
    """Count the due withheld tasks of each of these editions, up to ``most``."""
    counted_: dict[str, int] = {}
    for some in batches(editions):
        rows = tx.rows(_due(tx.on_postgres), {"now": tx.now, "most": most, "these": some})
        counted_ |= {edition: int(n) for edition, n in rows}
    return counted_


@cache
def _due(on_postgres: bool) -> Prepared:
    some = f"SELECT 1 FROM {_withheld_of(on_postgres)} AND available_at <= :now ORDER BY available_at LIMIT :most"
    steps = _steps(on_postgres, WITHHELD_EDITIONS)
    query = f"{steps} SELECT value, (SELECT count(*) FROM ({some}) AS first_ones) AS n FROM steps"
    bound = sa.text(f"{query} WHERE value IN :these").bindparams(
        sa.bindparam("now", type_=Instant()), sa.bindparam("these", expanding=True)
    )
    return Prepared(bound)


def _withheld_of(on_postgres: bool) -> str:
    hint = "" if on_postgres else f" INDEXED BY {WITHHELD_EDITIONS.index}"
    return f"tasks{hint} WHERE {WITHHELD_EDITIONS.where} AND edition_id = steps.value"


def has_withheld(tx: Tx, edition_id: str) -> bool:
    """Whether a task of the edition is pending and no wake-up of it is on its way."""
    return bool(tx.rows(_has_withheld(tx.on_postgres), {"edition": edition_id}))


@cache
def _has_withheld(on_postgres: bool) -> Prepared:
    hint = "" if on_postgres else f" INDEXED BY {WITHHELD_EDITIONS.index}"
    return Prepared(
        sa.text(f"SELECT 1 FROM tasks{hint} WHERE {WITHHELD_EDITIONS.where} AND edition_id = :edition LIMIT 1")
    )


def has_in_flight(tx: Tx, logical_id: str, edition_id: str) -> bool:
    """Whether a task of the edition, which belongs to that logical job, runs or was woken."""
    return bool(tx.rows(_has_in_flight(tx.on_postgres), {"logical": logical_id, "edition": edition_id}))


@cache
def _has_in_flight(on_postgres: bool) -> Prepared:
    own = "logical_id = :logical AND edition_id || '' = :edition"  # No index of the edition: it has more to read.
    return Prepared(sa.text(f"SELECT 1 FROM {_in_flight(on_postgres)} AND {own} LIMIT 1"))


def in_flight_ids(tx: Tx, logical_ids: Collection[str], editions: Collection[str]) -> dict[str, list[str]]:
    """Return the tasks in flight of these editions, which belong to these logical jobs, by status."""
    ids: dict[str, list[str]] = {}
    for some in batches(sorted(logical_ids)):
        query = f"SELECT id, status, edition_id FROM {_in_flight(tx.on_postgres)} AND logical_id IN :these"
        bound = sa.text(query).bindparams(sa.bindparam("these", some, expanding=True))
        for id_, status, edition in tx.execute(bound):
            if edition in editions:
                ids.setdefault(status, []).append(id_)
    return ids


def unspread(tx: Tx, generations: Collection[str]) -> set[str]:
    """Return which of the generations have invalidations that were not spread to readers yet."""
    unspread_ones: set[str] = set()
    for some in batches(sorted(generations)):
        unspread_ones |= {generation for (generation,) in tx.rows(_unspread(tx.on_postgres), {"these": some})}
    return unspread_ones


@cache
def _unspread(on_postgres: bool) -> Prepared:
    hint = "" if on_postgres else " INDEXED BY ix_invalidations_unspread"
    open_ = f"invalidations{hint} WHERE spread_at IS NULL AND generation_id || '' IN :these"
    query = f"SELECT generation_id FROM {open_} ORDER BY created_at"  # As the index has them.
    return Prepared(sa.text(query).bindparams(sa.bindparam("these", expanding=True)))


def in_flight_by(tx: Tx, column: str, values: Sequence[str]) -> Mapping[str, int]:
    """Count tasks in flight by a column with these values. Reads all tasks in flight."""
    if not values:
        return {}
    query = f"SELECT {column}, count(*) FROM {_in_flight(tx.on_postgres)} AND {column} IN :these GROUP BY {column}"
    bound = sa.text(query).bindparams(sa.bindparam("these", list(values), expanding=True))
    return {row[0]: int(row[1]) for row in tx.execute(bound)}


def in_flight_of_queues(tx: Tx, queues: Sequence[str]) -> Mapping[tuple[str, str], int]:
    """Count tasks in flight by queue and operator, in these queues. Reads all tasks in flight."""
    rows = f"{_in_flight(tx.on_postgres)} AND queue IN :these GROUP BY queue, operator"
    query = sa.text(f"SELECT queue, operator, count(*) FROM {rows}")
    bound = query.bindparams(sa.bindparam("these", list(queues), expanding=True))
    return {(row[0], row[1]): int(row[2]) for row in tx.execute(bound)}


def in_flight_jobs(tx: Tx, most: int) -> Sequence[sa.RowMapping]:
    """Count the first ``most`` tasks in flight by ``operator``, ``dag`` and ``job``."""
    some = f"SELECT operator, dag, job FROM {_in_flight(tx.on_postgres)} LIMIT :most"
    query = f"SELECT operator, dag, job, count(*) AS n FROM ({some}) AS first_ones GROUP BY operator, dag, job"
    return tx.execute(sa.text(query).bindparams(most=most)).mappings().all()


def _in_flight(on_postgres: bool) -> str:
    hint = "" if on_postgres else " INDEXED BY ix_tasks_inflight"
    return f"tasks{hint} WHERE ({IN_FLIGHT})"


_DEPTH = Prepared(
    _count(
        tasks.c.queue == sa.bindparam("queue"),
        released(),
        along="released_at",
        most=sa.bindparam("most", type_=sa.Integer),
    )
)

_FIRST_DUE = (
    sa.select(tasks.c.available_at)
    .where(
        tasks.c.edition_id == sa.bindparam("edition"),
        tasks.c.status == inline(Status.PENDING),
        tasks.c.available_at <= sa.bindparam("now", type_=Instant()),
    )
    .order_by(tasks.c.created_at)  # As ix_tasks_edition has them.
    .limit(sa.bindparam("most", type_=sa.Integer))
    .subquery()
)
_BACKLOG = Prepared(
    sa.select(sa.func.count(), sa.func.min(_FIRST_DUE.c.available_at, type_=Instant())).select_from(_FIRST_DUE)
)
