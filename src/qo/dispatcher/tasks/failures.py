"""Failed tasks: which of them are open, and which are superseded.

A failure is superseded once another task of the same edition has done its work from a state that is at least as new,
or when no live version has its edition. Nothing is stored for that: each failed task is compared with the tasks of its
own partition, by an index, and every query looks at a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task_view import Superseded
from qo.core.pipeline.dag import UpdateStrategy
from qo.core.pipeline.topology import Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.state import scans, schema, topology
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backlog

LOOKED_AT_MAX = 2_000  # Failed tasks of one edition that one page looks at.
STEP_MIN = 200  # At least so many of these by one statement.

_tasks, _later, _cursors, _inputs = schema.tasks, schema.tasks.alias("later"), schema.cursors, schema.task_inputs
_COLUMNS = (
    "id",
    "edition_id",
    "dataset_id",
    "generation_id",
    "partition_key",
    "start",
    "cursor",
    "invalidation_id",
    "started_at",
    "completed_at",
    "created_at",
)
_ENDED_AS = {
    VersionStatus.RETIRED: "replaced",
    VersionStatus.ROLLED_BACK: "rolled back",
    VersionStatus.ABANDONED: "abandoned",
}

Place = tuple[datetime, str]  # Of a task in a list, newest first.
FailedTasks = sa.Subquery | sa.Alias


@dataclass(frozen=True, slots=True)
class LastVersion:
    """The newest version that has had an edition."""

    version: int
    ended_as: str  # In words, for "version 2 was ...".


@dataclass(frozen=True, slots=True)
class Page:
    places: list[Place]
    after: Place | None = None  # Where to go on; None: that was all.


def open_page(tx: Tx, live: Topology, editions: Iterable[str], after: Place | None, limit: int) -> Page:
    """Return the newest open failures of these editions. A page may be short or empty although more follow."""
    places: list[Place] = []
    ends: list[Place] = []
    for edition in _with_failures(tx, [each for each in editions if each in live.jobs]):
        some, end = _scan(tx, live, edition, after, limit + 1)
        places += some
        ends += [end] if end is not None else []
    # Beyond the place where the first scan stopped, the list would lack failures of that edition.
    reached = max(ends, default=None)
    listed = sorted((each for each in places if reached is None or each >= reached), reverse=True)
    if len(listed) > limit:
        return Page(listed[:limit], listed[limit - 1])
    return Page(listed, reached)


def _scan(
    tx: Tx, live: Topology, edition: str, after: Place | None, limit: int
) -> tuple[list[Place], Place | None]:
    """Return open failures of an edition, newest first, and where the scan stopped; None: at the end."""
    places: list[Place] = []
    step, looked_at = min(max(limit, STEP_MIN), LOOKED_AT_MAX), 0
    while len(places) < limit and looked_at < LOOKED_AT_MAX:
        rows = sorted(tx.all(open_of(live, edition, after, step)), key=_place, reverse=True)
        places += [_place(row) for row in rows if not row["mended"]]
        if len(rows) < step:
            return places, None
        after = _place(rows[-1])
        looked_at += step
    return places, after


def open_of(live: Topology, edition: str, after: Place | None, limit: int) -> sa.Select[*tuple[Any, ...]]:
    """Select the newest failed tasks of an edition, each with whether it was ``mended``."""
    some = _failed_of(edition, after, limit)
    return sa.select(some.c.id, some.c.created_at, _mended(some, _appending(live)).label("mended"))


def open_keys(live: Topology, edition: str) -> sa.Select[Any]:
    """Select the partition keys of the open failures among the newest failed tasks of an edition."""
    some = _failed_of(edition, None, LOOKED_AT_MAX)
    return sa.select(some.c.partition_key).where(sa.not_(_mended(some, _appending(live))))


def _place(row: sa.RowMapping) -> Place:
    return row["created_at"], row["id"]


def first_open(tx: Tx, live: Topology, edition: str) -> str | None:
    """Return an open failure of an edition, if there is one among the oldest."""
    failed = sa.select(*(_tasks.c[name] for name in _COLUMNS)).where(_failed(edition))
    some = failed.order_by(_tasks.c.created_at).limit(LOOKED_AT_MAX).subquery()
    return tx.value(sa.select(some.c.id).where(sa.not_(_mended(some, _appending(live)))).limit(1))


def _failed(edition: str) -> sa.ColumnElement[bool]:
    return sa.and_(_tasks.c.edition_id == edition, scans.failed())


def counts(tx: Tx, editions: Collection[str]) -> dict[str, dict[str, int]]:
    """As ``backlog.counts``, but count only the open ones of the failed tasks.

    Does not check whether a version is live: the caller chooses the editions.
    """
    by_edition = backlog.counts(tx, editions)
    for edition, by_status in by_edition.items():
        if by_status.get(Status.FAILED):
            by_status[Status.FAILED] = _count(tx, topology.load(tx), edition)
            if not by_status[Status.FAILED]:
                del by_status[Status.FAILED]
    return by_edition


def _count(tx: Tx, live: Topology, edition: str) -> int:
    """Count open failures up to ``backlog.COUNT_MAX``. With more failed tasks, 0 is exact, other numbers are minima."""
    after: Place | None = None
    while True:
        some = _failed_of(edition, after, backlog.COUNT_MAX)
        mended = sa.func.coalesce(sa.func.sum(sa.case((_mended(some, _appending(live)), 1), else_=0)), 0)
        looked_at, superseded_ = tx.execute(sa.select(sa.func.count(), mended).select_from(some)).one()
        if looked_at > superseded_ or looked_at < backlog.COUNT_MAX:
            return int(looked_at - superseded_)
        last = tx.one(sa.select(some.c.created_at, some.c.id).order_by(some.c.created_at, some.c.id).limit(1))
        assert last is not None
        after = (last["created_at"], last["id"])


def total(tx: Tx, live: Topology, most: int) -> int:
    """Count the open failures of live versions, up to ``most``."""
    counted = 0
    for edition in _with_failures(tx, live.jobs):
        counted += _count(tx, live, edition)
        if counted >= most:
            return most
    return counted


def superseded(tx: Tx, live: Topology, rows: Iterable[Mapping[str, Any] | sa.RowMapping]) -> dict[str, Superseded]:
    """Return which of these tasks are superseded failures, by id, and why."""
    failed = [row for row in rows if row["status"] == Status.FAILED]
    abandoned = [row for row in failed if row["edition_id"] not in live.jobs]
    versions = _last_versions(tx, {row["edition_id"] for row in abandoned})
    reasons = {
        row["id"]: _given_up(last) for row in abandoned if (last := versions.get(row["edition_id"])) is not None
    }
    for some in batches([row["id"] for row in failed if row["id"] not in reasons]):
        reasons |= _menders(tx, live, some)
    return reasons


def _menders(tx: Tx, live: Topology, ids: Sequence[str]) -> dict[str, Superseded]:
    failed = sa.select(*(_tasks.c[name] for name in _COLUMNS)).where(_tasks.c.id.in_(ids)).subquery()
    by = sa.func.coalesce(*(each.scalar_subquery() for each in _menders_of(failed, _appending(live))))
    query = sa.select(failed.c.id, by.label("by_task")).where(_mended(failed, _appending(live)))
    return {row["id"]: _done_by(row["by_task"]) for row in tx.all(query)}


def _done_by(task_id: str | None) -> Superseded:
    text = "a later task has read beyond its cursor" if task_id is None else f"committed later by task {task_id}"
    return Superseded(by_task=task_id, text=text)


def _given_up(last: LastVersion) -> Superseded:
    return Superseded(version=last.version, text=f"its version {last.version} was {last.ended_as}")


def last_version(tx: Tx, edition: str) -> LastVersion | None:
    return _last_versions(tx, {edition}).get(edition)


def _last_versions(tx: Tx, editions: Collection[str]) -> dict[str, LastVersion]:
    jobs, versions = schema.jobs, schema.dag_versions
    versions_by_edition: dict[str, LastVersion] = {}
    for some in batches(sorted(editions)):
        query = (
            sa.select(jobs.c.edition_id, versions.c.number, versions.c.status)
            .join(versions, versions.c.id == jobs.c.version_id)
            .where(jobs.c.edition_id.in_(some))
            .order_by(versions.c.number)
        )
        for row in tx.execute(query):
            ended_as: str = _ENDED_AS.get(VersionStatus(row.status)) or row.status
            versions_by_edition[row.edition_id] = LastVersion(row.number, ended_as)
    return versions_by_edition


def _with_failures(tx: Tx, editions: Iterable[str]) -> list[str]:
    """Return the editions that have failed tasks: the cost grows with these, not with all editions."""
    candidates = set(editions)
    return [edition for edition in scans.distinct(tx, scans.FAILED_EDITIONS) if edition in candidates]


def _failed_of(edition: str, after: Place | None, limit: int) -> sa.Subquery:
    query = sa.select(*(_tasks.c[name] for name in _COLUMNS)).where(_failed(edition))
    if after is not None:
        place = sa.tuple_(sa.literal(after[0], schema.Instant()), sa.literal(after[1]))
        query = query.where(sa.tuple_(_tasks.c.created_at, _tasks.c.id) < place)
    return query.order_by(_tasks.c.created_at.desc(), _tasks.c.id.desc()).limit(limit).subquery()


def _appending(live: Topology) -> list[str]:
    return [id_ for id_, each in live.jobs.items() if each.job.update_strategy is UpdateStrategy.APPEND]


def _mended(failed: FailedTasks, appending: Collection[str]) -> sa.ColumnElement[bool]:
    by_partition, by_range, _ = _menders_of(failed, appending)
    read = sa.select(_cursors.c.value).where(
        _cursors.c.edition_id == failed.c.edition_id,
        _cursors.c.generation_id == failed.c.generation_id,
        _cursors.c.value >= failed.c.cursor,
        _follows_cursor(failed),
    )
    return sa.or_(by_partition.exists(), by_range.exists(), read.exists())


def _menders_of(
    failed: FailedTasks, appending: Collection[str]
) -> tuple[sa.Select[Any], sa.Select[Any], sa.Select[Any]]:
    """Select the tasks that did a failed one's work: by partition, by a range that is read again, and by cursor.

    Each uses an index that leads to a few rows.
    """
    # Keeps planners from the index of the status, which leads to all that the edition ever completed.
    completed = _later.c.status + inline("") == Status.COMPLETED
    began_later = sa.func.coalesce(_later.c.started_at, _later.c.completed_at) >= sa.func.coalesce(
        failed.c.started_at, failed.c.completed_at
    )  # Then it read a state of its inputs that is no older.
    another = sa.and_(_later.c.edition_id == failed.c.edition_id, _later.c.id != failed.c.id, completed)
    # Rows appended for one input do not replace those that were to be appended for another.
    same_work = sa.or_(_later.c.dataset_id == failed.c.dataset_id, failed.c.edition_id.not_in(appending))
    by_partition = sa.select(_later.c.id).where(
        another, began_later, same_work, _later.c.partition_key == failed.c.partition_key
    )
    by_range = sa.select(_later.c.id).where(
        another,
        began_later,
        failed.c.partition_key.is_(None),
        failed.c.invalidation_id.is_not(None),
        _later.c.invalidation_id.is_not(None),
        _later.c.generation_id == failed.c.generation_id,
        _later.c.cursor >= failed.c.cursor,
        sa.func.coalesce(_later.c.start, 0) <= sa.func.coalesce(failed.c.start, 0),
    )
    by_cursor = (
        sa.select(_later.c.id)
        .join(_inputs, _inputs.c.task_id == _later.c.id)
        .where(
            another,
            _follows_cursor(failed),
            _inputs.c.generation_id == failed.c.generation_id,
            _inputs.c.cursor_upto >= failed.c.cursor,
            sa.text("cursor_upto IS NOT NULL"),
        )
    )
    by_cursor = by_cursor.order_by(_inputs.c.cursor_upto).limit(1)
    return by_partition.limit(1), by_range.limit(1), by_cursor


def _follows_cursor(failed: FailedTasks) -> sa.ColumnElement[bool]:
    return sa.and_(
        failed.c.cursor.is_not(None), failed.c.partition_key.is_(None), failed.c.invalidation_id.is_(None)
    )
