"""Composites: tasks for partitions that are made of others, such as months of days.

Whoever notices a change (router, invalidations, reconciler) computes from its key which partitions it concerns, and
calls ``follow``. That looks up what these partitions read, by key, and ``core.pipeline.composition`` decides. A
partition that waits for others has a row in ``incomplete_partitions``, with the time at which it is made of what is
there.

Callers lock the job first (``lock``): of two transactions that bring the last two days of a month, the second sees what
the first has brought. Open tasks are locked as well, so that a claim has either read what is new or is seen not to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline import composition
from qo.core.pipeline.composition import PartNow, Place, Step, Work
from qo.core.pipeline.part_maps import Missing, concerned, due_at, is_ready, reads
from qo.core.pipeline.partitions import PartitionKind, find_part
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.commits import composed_parts
from qo.dispatcher.effects import external_effects
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared, Values
from qo.dispatcher.tasks import dedupe_keys
from qo.dispatcher.tasks.creation import NewTask
from qo.errors import UsageError

WORKS_MAX = 8  # Tasks of one partition that have ended, newest first, whose reads are compared.

_tasks, _pins = schema.tasks, schema.task_inputs
_incomplete = schema.incomplete_partitions
_OPEN = (Status.PENDING, Status.RUNNING)
_KEYS = sa.bindparam("keys", expanding=True, type_=sa.String)
# Built once: building a statement takes longer than executing it.
_WORKS = Prepared(
    sa.select(_tasks.c.id, _tasks.c.partition_key, _tasks.c.status, _tasks.c.late_lease_id, _tasks.c.updated_at)
    .where(_tasks.c.edition_id == sa.bindparam("edition"), _tasks.c.partition_key.in_(_KEYS))
    .order_by(_tasks.c.updated_at.desc())
)
_LOCKED = Prepared(
    sa.select(_tasks.c.id, _tasks.c.status, _tasks.c.late_lease_id, _tasks.c.updated_at)
    .where(_tasks.c.id.in_(sa.bindparam("ids", expanding=True, type_=sa.String)))
    .order_by(_tasks.c.id)
    .with_for_update()
)
_PINNED = Prepared(
    sa.select(
        _pins.c.task_id, _pins.c.position, _pins.c.generation_id, _pins.c.partition_key, _pins.c.revision
    ).where(_pins.c.task_id.in_(sa.bindparam("ids", expanding=True, type_=sa.String)), _pins.c.partition_key != "")
)
_DUE_TIMES = Prepared(
    sa.select(_incomplete.c.partition_key, _incomplete.c.due_at).where(
        _incomplete.c.edition_id == sa.bindparam("edition"), _incomplete.c.partition_key.in_(_KEYS)
    )
)
_CREATED = sa.delete(_incomplete).where(
    _incomplete.c.edition_id == sa.bindparam("edition"), _incomplete.c.partition_key.in_(_KEYS)
)


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of one partition of a composite."""

    task_id: str | None  # None: it waits.
    new: bool = False
    reason: str | None = None  # Why it has no task and gets none.


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of the partitions that one call is about, all by their keys."""

    parts: Mapping[str, Mapping[Place, PartNow]]
    works: Mapping[str, Sequence[Work]]
    missing: Mapping[str, Missing]
    due: Mapping[str, float | None]


@dataclass(slots=True)
class Settled:
    """The tasks that deliveries which waited now belong to, by edition and partition of the input."""

    tasks: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])


def concerned_keys(job: LiveJob, live: Topology, dataset_id: str, generation_id: str, key: str) -> list[str]:
    """Return the partitions of a composite that read this one by an input that triggers it."""
    keys: dict[str, None] = {}
    for each in job.composed:
        if (
            each.dataset_id == dataset_id
            and composed_parts.generation_of(live, job, each.position) == generation_id
        ):
            try:
                keys |= dict.fromkeys(concerned(job.maps[each.position], key))
            except UsageError:
                return []  # It was committed before its keys were declared, and is part of nothing.
    return list(keys)


def lock(tx: Tx, jobs: Iterable[LiveJob]) -> None:
    """Follow partitions of these composites alone, until the transaction ends."""
    table = schema.jobs
    for some in batches(sorted({job.id for job in jobs})):
        tx.execute(tx.lock(sa.select(table.c.id).where(table.c.id.in_(some)).order_by(table.c.id))).all()


def follow(
    tx: Tx,
    live: Topology,
    job: LiveJob,
    keys: Collection[str],
    settled: Settled,
    *,
    causes: Mapping[str, int] | None = None,
    again: str | None = None,
) -> dict[str, Followed]:
    """Create the tasks that these partitions of a composite need, and return what became of each.

    The caller has locked the job, and settles the deliveries in ``settled``. ``causes``: the event that concerns each.
    ``again``: the id of an invalidation for which they are made again, whatever they have read.
    """
    facts = _load(tx, live, job, keys)
    decisions = {key: _decide(job, key, facts, tx.now.timestamp()) for key in keys}
    new_tasks: list[NewTask] = []
    followed: dict[str, Followed] = {}
    waiting: list[str] = []
    for key, decision in decisions.items():
        if again is not None and facts.works[key] and not _is_pending(decision):
            dedupe_key = dedupe_keys.for_invalidation(again) + f":{key}"
        elif decision.by is not None:
            followed[key] = Followed(decision.by.task_id)
            continue
        elif decision.step is Step.WAIT:
            if facts.missing[key].is_begun:
                followed[key] = Followed(None)
                waiting.append(key)
            continue
        elif decision.step is Step.CREATE:
            dedupe_key = first_key(live, job) + key
        else:
            dedupe_key = dedupe_keys.for_parts(key, facts.parts[key])
        new_tasks.append(_task(live, job, key, dedupe_key, (causes or {}).get(key), again))
    _create(tx, new_tasks, followed)
    _record_waiting(tx, job, waiting, facts)
    _settle(tx, job, followed, settled)
    return followed


def first_key(live: Topology, job: LiveJob) -> str:
    """Return how the keys of the first tasks of all partitions of a composite begin."""
    read = (composed_parts.generation_of(live, job, each.position) for each in job.composed)
    return dedupe_keys.joined_prefix(each or "" for each in read)


def due_editions(tx: Tx, live: Topology) -> list[str]:
    """Return the composites with partitions whose deadline has passed. Without deadlines, there is no query."""
    editions = [job.edition_id for job in live.jobs.values() if job.is_composite and job.job.deadline is not None]
    return [each for each in sorted(editions) if due_keys(tx, each, 1)]


def due_keys(tx: Tx, edition: str, limit: int) -> list[str]:
    """Return partitions of a composite whose deadline has passed, longest first."""
    query = sa.select(_incomplete.c.partition_key).where(
        _incomplete.c.edition_id == edition, _incomplete.c.due_at <= tx.now
    )
    return list(tx.execute(query.order_by(_incomplete.c.due_at).limit(limit)).scalars())


def _is_pending(decision: composition.Decision) -> bool:
    return decision.by is not None and decision.by.status is Status.PENDING and not decision.by.has_late_attempt


def _decide(job: LiveJob, key: str, facts: _Facts, now: float) -> composition.Decision:
    ready = is_ready(job.job, facts.missing[key], now=now, due=facts.due[key])
    return composition.decide(facts.parts[key], facts.works[key], is_ready=ready)


def _load(tx: Tx, live: Topology, job: LiveJob, keys: Collection[str]) -> _Facts:
    works = _load_works(tx, job, keys)
    # After the open tasks are locked: what is read here, a claim from now on reads as well.
    parts, missing = composed_parts.load(tx, live, job, keys)
    due: dict[str, float | None] = dict.fromkeys(keys)
    if job.job.deadline is not None:
        # A version that is being built makes what the one that serves has made, and does not wait again.
        since = tx.now.timestamp() if job.status is VersionStatus.ACTIVE else None
        due = {key: due_at(job.job, key, since=since) for key in keys}
        for some in batches(sorted(keys)):
            stored = tx.rows(_DUE_TIMES, {"edition": job.edition_id, "keys": some})
            due |= {key: at.timestamp() for key, at in stored if at is not None}
    return _Facts(parts, works, missing, due)


def _load_works(tx: Tx, job: LiveJob, keys: Collection[str]) -> dict[str, list[Work]]:
    rows: dict[str, list[Values]] = {key: [] for key in keys}
    for some in batches(sorted(keys)):
        for row in tx.mappings(_WORKS, {"edition": job.edition_id, "keys": some}):
            of_key = rows[row["partition_key"]]
            if row["status"] in _OPEN or row["late_lease_id"] is not None or len(of_key) < WORKS_MAX:
                of_key.append(row)
    locked = _lock_open(tx, [row for of_key in rows.values() for row in of_key if row["status"] in _OPEN])
    pins: dict[str, dict[Place, int]] = {}
    for some in batches(row["id"] for of_key in rows.values() for row in of_key):
        for task, position, generation, part, revision in tx.rows(_PINNED, {"ids": some}):
            pins.setdefault(task, {})[position, generation, part] = revision or 0
    return {
        key: [_work(locked.get(row["id"], row), pins.get(row["id"], {})) for row in of_key]
        for key, of_key in rows.items()
    }


def _lock_open(tx: Tx, rows: Sequence[Values]) -> dict[str, Values]:
    """Lock open tasks, and return them as they are then."""
    locked: dict[str, Values] = {}
    for some in batches(row["id"] for row in rows) if tx.on_postgres else ():
        locked |= {row["id"]: row for row in tx.mappings(_LOCKED, {"ids": some})}
    return locked


def _work(row: Values, pins: Mapping[Place, int]) -> Work:
    return Work(
        row["id"], Status(row["status"]), row["late_lease_id"] is not None, pins, row["updated_at"].timestamp()
    )


def _task(
    live: Topology, job: LiveJob, key: str, dedupe_key: str, event_seq: int | None, invalidation: str | None
) -> NewTask:
    first, part = job.composed[0], None
    if job.job.partitions is not None and job.job.partitions.kind is PartitionKind.INTEGER:
        part = find_part(job.job.partitions, key)
    return NewTask(
        job=job,
        dedupe_key=dedupe_key,
        event_seq=event_seq,
        dataset_id=first.dataset_id,
        generation_id=composed_parts.generation_of(live, job, first.position),
        partition_key=key,
        start=None if part is None else part.start,
        end=None if part is None else part.end,
        invalidation_id=invalidation,
    )


def _create(tx: Tx, new_tasks: Sequence[NewTask], followed: dict[str, Followed]) -> None:
    repeated = external_effects.repeated(tx, [each for each in new_tasks if each.invalidation_id is None])
    allowed = [each for each in new_tasks if each.task_id not in repeated]
    for each in new_tasks:
        if each.task_id in repeated:
            followed[each.partition_key or ""] = Followed(None, reason=repeated[each.task_id])
    for each, created in zip(allowed, external_effects.create(tx, allowed) if allowed else (), strict=True):
        followed[each.partition_key or ""] = Followed(created.task_id, created.new)
    keys = [each.partition_key for each in allowed]
    for some in batches(keys):
        tx.execute(_CREATED, {"edition": allowed[0].job.edition_id, "keys": some})


def _record_waiting(tx: Tx, job: LiveJob, keys: Sequence[str], facts: _Facts) -> None:
    rows: list[dict[str, Any]] = [
        {
            "edition_id": job.edition_id,
            "partition_key": key,
            "since": tx.now,
            "due_at": None if (due := facts.due[key]) is None else datetime.fromtimestamp(due, UTC),
        }
        for key in keys
    ]
    if rows:
        tx.insert_absent(_incomplete, rows, returning=_incomplete.c.partition_key)


def _settle(tx: Tx, job: LiveJob, followed: Mapping[str, Followed], settled: Settled) -> None:
    for key, one in followed.items():
        if one.task_id is not None and one.new:
            for each in job.composed:
                for part in reads(job.maps[each.position], key).parts:
                    settled.tasks.setdefault((job.edition_id, part.key), one.task_id)
