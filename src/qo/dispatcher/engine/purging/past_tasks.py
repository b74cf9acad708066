"""Which ended tasks are history, by ``core.pipeline.purge_rules``, and deleting them with all that is about them alone.

Everything is looked up for a few hundred tasks at a time, by index. The ids of purged tasks stay (``purged_tasks``): an
emission that is repeated creates no second task, and files of their attempts are known to be garbage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.purge_rules import KeepReason, PastTask, reason_to_keep_task
from qo.core.pipeline.states import BackfillState, CancelCode
from qo.core.task import Status
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tables import table_retention
from qo.dispatcher.tasks.dedupe_keys import DedupeKey, KeyKind

_tasks, _attempts, _inputs, _purged = schema.tasks, schema.attempts, schema.task_inputs, schema.purged_tasks
_commits, _loans, _partitions, _generations = (
    schema.commits,
    schema.loans,
    schema.partitions,
    schema.generation_rows,
)
_invalidations, _readers, _backfills = schema.invalidations, schema.invalidation_readers, schema.backfills
_events = schema.events
_later = _tasks.alias("later")

_ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
_WITHHELD = (CancelCode.VERSION_GIVEN_UP, CancelCode.EFFECTS_DEFERRED)
_COLUMNS = tuple(
    _tasks.c[name]
    for name in (
        "id",
        "edition_id",
        "generation_id",
        "dedupe_key",
        "status",
        "token",
        "cancel_code",
        "late_lease_id",
        "invalidation_id",
        "updated_at",
        "completed_at",
    )
)

Row = sa.RowMapping


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found out about some tasks, in the order of their ids."""

    after: str | None  # Where to go on; None: that was all.
    purgeable: Sequence[Row]
    given_up: Collection[str]  # Generations.
    given_up_editions: Collection[str]
    reasons: Counter[KeepReason]  # Why the others are kept.


def examine(
    tx: Tx, after: str, before: datetime | None, limit: int, also_given_up: Collection[str] = ()
) -> Examined:
    """Examine the next ``limit`` tasks. ``also_given_up``: generations that are to count as given up."""
    query = sa.select(*_COLUMNS).where(_tasks.c.id > after).order_by(_tasks.c.id).limit(limit)
    rows = tx.all(query)
    facts = _Facts(tx, rows, before, also_given_up)
    purgeable: list[Row] = []
    reasons = Counter[KeepReason]()
    for row in rows:
        reason = facts.reason_to_keep(row)
        if reason is None:
            purgeable.append(row)
        else:
            reasons[reason] += 1
    return Examined(
        rows[-1]["id"] if len(rows) == limit else None, purgeable, facts.given_up, facts.given_up_editions, reasons
    )


def purge(tx: Tx, examined: Examined) -> int:
    """Delete the purgeable tasks that nobody has moved since; return how many."""
    tokens = {row["id"]: row["token"] for row in examined.purgeable}
    deleted = 0
    for some in batches(examined.purgeable):
        query = sa.select(_tasks.c.id, _tasks.c.token).where(_tasks.c.id.in_([row["id"] for row in some]))
        locked = {id_ for id_, token in tx.execute(tx.lock(query, skip=True)) if tokens[id_] == token}
        if locked:
            _delete(
                tx, [row for row in some if row["id"] in locked], examined.given_up, examined.given_up_editions
            )
            deleted += len(locked)
    return deleted


class _Facts:
    """The facts about some tasks that decide whether they are kept."""

    def __init__(
        self, tx: Tx, rows: Sequence[Row], before: datetime | None, also_given_up: Collection[str]
    ) -> None:
        self._before = before
        generations = _load_generations(tx, {row["edition_id"] for row in rows})
        collected = {row["id"] for row in generations if row["collected_at"] is not None} | set(also_given_up)
        collected |= _collected(tx, {row["generation_id"] for row in rows} - {None})
        self.given_up = frozenset(collected - _in_use(tx, collected) if collected else ())
        self._with_outputs = {row["edition_id"] for row in generations}
        in_use = {row["edition_id"] for row in generations if row["id"] not in self.given_up}
        self.given_up_editions = self._with_outputs - in_use
        # Most tasks are kept for a reason that the row itself shows: only of the others the rest is looked up.
        doubtful = [row for row in rows if self.reason_to_keep_at_most(row) in (None, KeepReason.LAST)]
        self._holding = _holding_data(tx, [row["id"] for row in doubtful], self.given_up)
        self._unsettled = _unsettled(tx, doubtful)
        self._succeeded = _succeeded(tx, doubtful, self.given_up)
        self._announcing = _announcing(tx, [row["id"] for row in doubtful])

    def reason_to_keep_at_most(self, row: Row) -> KeepReason | None:
        """As ``reason_to_keep``, as far as the row shows; it may have other reasons."""
        return reason_to_keep_task(self._past(row), self._before)

    def reason_to_keep(self, row: Row) -> KeepReason | None:
        if self.reason_to_keep_at_most(row) not in (None, KeepReason.LAST):
            return self.reason_to_keep_at_most(row)
        id_ = row["id"]
        looked_up = self._past(
            row,
            announces=id_ in self._announcing,
            holds_data=id_ in self._holding,
            can_recur=id_ in self._unsettled,
            is_succeeded=id_ in self._succeeded,
        )
        return reason_to_keep_task(looked_up, self._before)

    def _is_past_partition(self, row: Row, kind: KeyKind | None) -> bool:
        """Tell whether it is about a partition of a generation that nothing reads any more."""
        return kind is KeyKind.PARTITION and row["generation_id"] in self.given_up

    def _past(self, row: Row, *, can_recur: bool = False, **looked_up: bool) -> PastTask:
        key = DedupeKey.parse(row["dedupe_key"])
        kind = None if key is None else key.kind
        ended = row["status"] in _ENDED
        return PastTask(
            ended_at=(row["completed_at"] or row["updated_at"]) if ended else None,
            is_late=row["late_lease_id"] is not None,
            is_withheld=row["cancel_code"] in _WITHHELD,
            is_given_up=row["edition_id"] in self.given_up_editions,
            has_outputs=row["edition_id"] in self._with_outputs,
            can_recur=can_recur or not (kind in _CHECKS or self._is_past_partition(row, kind)),
            needs_successor=kind is not KeyKind.EMISSION,
            **looked_up,
        )


def _load_generations(tx: Tx, editions: Collection[str]) -> Sequence[Row]:
    columns = (_generations.c.id, _generations.c.edition_id, _generations.c.collected_at)
    query = sa.select(*columns)
    return [
        row
        for some in batches(sorted(editions))
        for row in tx.all(query.where(_generations.c.edition_id.in_(some)))
    ]


def _collected(tx: Tx, ids: Collection[str]) -> set[str]:
    query = sa.select(_generations.c.id).where(_generations.c.collected_at.is_not(None))
    return _column_values(tx, query, _generations.c.id, ids)


def _announcing(tx: Tx, ids: Sequence[str]) -> set[str]:
    return _column_values(tx, sa.select(_events.c.producer_task_id), _events.c.producer_task_id, ids)


def _in_use(tx: Tx, given_up: Collection[str]) -> set[str]:
    """Return the generations that attempts read which run, or may still finish, and those that open tables show: their
    snapshots are dropped when files are collected."""
    datasets = _column_values(tx, sa.select(_generations.c.dataset_id), _generations.c.id, given_up)
    pinned = set(table_retention.listed_revisions(tx, datasets))
    for which in (scans.running(), _tasks.c.late_lease_id.is_not(None)):
        ids = list(tx.execute(sa.select(_tasks.c.id).where(which)).scalars())
        for some in batches(ids):
            query = sa.select(_inputs.c.generation_id).where(_inputs.c.task_id.in_(some))
            pinned.update(tx.execute(query.distinct()).scalars())
    return pinned


def _holding_data(tx: Tx, ids: Sequence[str], given_up: Collection[str]) -> set[str]:
    """Return the tasks with current commits; of generations that were given up, with commits whose files are shared.

    Commits that were replaced stay when their tasks go, unless their generation was given up.
    """
    holding = set[str]()
    # Its number would be given out again (on SQLite): the last commit of all stays.
    last = tx.value(sa.select(sa.func.max(_commits.c.revision)))
    shared = sa.select(_loans.c.made_by).where(_loans.c.made_by == _commits.c.revision).exists()
    for some in batches(ids):
        query = sa.select(
            _commits.c.task_id,
            _commits.c.generation_id,
            sa.or_(shared, _commits.c.revision == last).label("shared"),
            _commits.c.replaced_by.is_(None).label("current"),
        )
        for task_id, generation, is_shared, is_current in tx.execute(query.where(_commits.c.task_id.in_(some))):
            if is_shared if generation in given_up else is_current:
                holding.add(task_id)
    return holding


def _unsettled(tx: Tx, rows: Sequence[Row]) -> set[str]:
    """Return the tasks whose cause is not over, so that they could be created once more."""
    by_kind: dict[KeyKind, dict[str, list[str]]] = {}
    for row in rows:
        key = DedupeKey.parse(row["dedupe_key"])
        if key is not None:
            by_kind.setdefault(key.kind, {}).setdefault(key.subject, []).append(row["id"])
    return {
        id_
        for kind, check in _CHECKS.items()
        for subject in check(tx, by_kind.get(kind, {}))
        for id_ in by_kind[kind][subject]
    }


def _open_invalidations(tx: Tx, ids: Iterable[str]) -> set[str]:
    query = sa.select(_invalidations.c.id).where(_invalidations.c.processed_at.is_(None))
    return _column_values(tx, query, _invalidations.c.id, ids)


def _current_commits(tx: Tx, revisions: Iterable[str]) -> set[str]:
    """Return those that are current, and whatever is no revision: the state of the parts of a partition, which may be
    the same once more."""
    numbers, others = set[int](), set[str]()
    for each in revisions:
        numbers.add(int(each)) if each.isdecimal() else others.add(each)
    query = sa.select(_commits.c.revision).where(_commits.c.replaced_by.is_(None))
    return others | {str(each) for each in _column_values(tx, query, _commits.c.revision, numbers)}


def _running_backfills(tx: Tx, ids: Iterable[str]) -> set[str]:
    query = sa.select(_backfills.c.id).where(_backfills.c.state == BackfillState.RUNNING)
    return _column_values(tx, query, _backfills.c.id, ids)


def _never(_: Tx, __: Iterable[str]) -> set[str]:
    return set()


# By kind of task, which subjects of keys are not over. Tasks of all other kinds could be created again at any time:
# the reconciler compares every partition and cursor once a day, and looks for their tasks.
_CHECKS: Mapping[KeyKind, Callable[[Tx, Iterable[str]], set[str]]] = {
    KeyKind.INVALIDATION: _open_invalidations,
    KeyKind.REFRESH: _current_commits,
    KeyKind.BACKFILL: _running_backfills,
    KeyKind.EMISSION: _never,  # ``purged_tasks`` remembers its key.
}


def _column_values(
    tx: Tx, query: sa.Select[*tuple[Any, ...]], column: sa.Column[Any], values: Iterable[Any]
) -> set[Any]:
    return {
        value
        for some in batches(sorted(set(values)))
        for value in tx.execute(query.where(column.in_(some))).scalars()
    }


def _succeeded(tx: Tx, rows: Sequence[Row], given_up: Collection[str]) -> set[str]:
    """Return the tasks whose partition a later task of the same work has completed.

    Later means that it began later, so it has read no older state. Of two that began at once the greater id counts.
    For a task about a generation that was given up, it may have read another.
    """
    began, later_began = (sa.func.coalesce(each.c.started_at, each.c.completed_at) for each in (_tasks, _later))
    # Keeps planners from the index of the status, which leads to all that the edition ever completed.
    completed = _later.c.status + inline("") == Status.COMPLETED
    successor = sa.select(_later.c.id).where(
        _later.c.edition_id == _tasks.c.edition_id,
        _later.c.partition_key == _tasks.c.partition_key,
        _later.c.dataset_id == _tasks.c.dataset_id,
        completed,
        sa.or_(later_began > began, sa.and_(later_began == began, _later.c.id > _tasks.c.id)),
    )
    same = successor.where(_later.c.generation_id == _tasks.c.generation_id)
    succeeded = set[str]()
    for query, ids in (
        (same, [row["id"] for row in rows if row["generation_id"] not in given_up]),
        (successor, [row["id"] for row in rows if row["generation_id"] in given_up]),
    ):
        of_partitions = sa.select(_tasks.c.id).where(_tasks.c.partition_key.is_not(None), query.exists())
        succeeded |= _column_values(tx, of_partitions, _tasks.c.id, ids)
    return succeeded


def _delete(tx: Tx, rows: Sequence[Row], given_up: Collection[str], editions: Collection[str]) -> None:
    """``editions``: those that were given up. Nothing about them can come again, so nothing is remembered."""
    ids = [row["id"] for row in rows]
    commits = tx.all(
        sa.select(
            _commits.c.revision, _commits.c.dataset_id, _commits.c.generation_id, _commits.c.partition_key
        ).where(_commits.c.task_id.in_(ids))
    )
    _delete_given_up(tx, [each for each in commits if each["generation_id"] in given_up])
    for table in (_inputs, _attempts):
        tx.execute(sa.delete(table).where(table.c.task_id.in_(ids)))
    tx.execute(sa.delete(_tasks).where(_tasks.c.id.in_(ids)))
    tx.insert(
        _purged, [{"id": row["id"], "purged_at": tx.now} for row in rows if row["edition_id"] not in editions]
    )
    causes = {row["invalidation_id"] for row in rows if row["invalidation_id"] is not None}
    replaced = {derive_id("invalidation", each["generation_id"], each["revision"]) for each in commits}
    _delete_invalidations(tx, causes | replaced)


def _delete_given_up(tx: Tx, commits: Sequence[Row]) -> None:
    """Delete these commits and their partitions. In other generations commits stay: they tell sinks, and readers of
    earlier versions, what was there."""
    for some in batches(commits):
        revisions = [each["revision"] for each in some]
        for dataset, generation in {(each["dataset_id"], each["generation_id"]) for each in some}:
            own = sa.and_(_partitions.c.dataset_id == dataset, _partitions.c.generation_id == generation)
            keys = [each["partition_key"] for each in some if each["generation_id"] == generation]
            tx.execute(sa.delete(_partitions).where(own, _partitions.c.partition_key.in_(keys)))
        tx.execute(sa.delete(_loans).where(_loans.c.revision.in_(revisions)))
        tx.execute(sa.delete(_commits).where(_commits.c.revision.in_(revisions)))


def _delete_invalidations(tx: Tx, ids: Collection[str]) -> None:
    """Delete those of the invalidations that are over and whose readers' tasks are gone."""
    has_task = sa.select(_tasks.c.id).where(_tasks.c.id == _readers.c.task_id).exists()
    is_needed = (
        sa.select(_readers.c.edition_id)
        .where(_readers.c.invalidation_id == _invalidations.c.id, has_task)
        .exists()
    )
    query = sa.select(_invalidations.c.id).where(_invalidations.c.processed_at.is_not(None), sa.not_(is_needed))
    for some in batches(sorted(_column_values(tx, query, _invalidations.c.id, ids))):
        tx.execute(sa.delete(_readers).where(_readers.c.invalidation_id.in_(some)))
        tx.execute(sa.delete(_invalidations).where(_invalidations.c.id.in_(some)))
