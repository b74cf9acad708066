"""Backfills: a job processes a range of partitions again because somebody asked for it.

The partitions are those committed in the job's triggering inputs, in order of key. Only a few tasks are open at a time
(``engine.loops.backfill``). The row stores how far the backfill has come, so it survives a restart. What its tasks
commit replaces the earlier output, so readers downstream are invalidated.

Bounds are compared as keys. If both are whole numbers and neither is the key of a partition, they are compared with
the ranges of the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import sqlalchemy as sa

from qo.api.contract.backfill import BackfillAnswer, BackfillRequest, BackfillsPage
from qo.core.pipeline.dag import Join, Strategy
from qo.core.pipeline.event import NUMBER_MAX
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import BackfillState
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.events import event_log
from qo.dispatcher.state import scans, schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backlog, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.tasks.dedupe_keys import backfill_prefix
from qo.dispatcher.versions import overview
from qo.errors import NotFound, Refused, UsageError

MISSING_MAX = 100
COUNT_MAX = 100_000
DAYS_MAX = 10_000

_rows, _tasks, _partitions = schema.backfills, schema.tasks, schema.partitions

Row = sa.RowMapping | Mapping[str, Any]


def create(tx: Tx, request: BackfillRequest, by: str) -> BackfillAnswer:
    """Start a backfill.

    Raises NotFound if the job is not live or nothing is committed within the bounds, UsageError if the job does not
    work by partition.
    """
    live = topology.load(tx)
    job = _job(tx, live, request.dag, request.job)
    if (
        request.from_key is not None
        and request.to_key is not None
        and _is_reversed(request.from_key, request.to_key)
    ):
        raise UsageError(f"--from {request.from_key} comes after --to {request.to_key}: exchange them")
    id_ = tx.ambient.task_id()
    if request.key is not None:
        id_ = derive_id("backfill", job.logical_id, request.key)
    row = {
        "id": id_,
        "dag": request.dag,
        "job": request.job,
        "edition_id": job.edition_id,
        "from_key": request.from_key,
        "to_key": request.to_key,
        "at_once": request.at_once,
        "state": BackfillState.RUNNING,
        "after_key": None,
        "made": 0,
        "created_at": tx.now,
        "created_by": by,
        "ended_at": None,
    }
    if not candidates(tx, live, job, row, limit=1):
        raise NotFound(
            f"{job.name} has no committed input partition {_bounds_text(row)}, so there is nothing to backfill"
        )
    tx.insert_absent(_rows, [row], returning=_rows.c.id)
    return show(tx, id_)


def show(tx: Tx, id_: str) -> BackfillAnswer:
    """Raises NotFound."""
    return _answer(tx, topology.load(tx), _load(tx, id_))


def list_all(tx: Tx, dag: str | None = None, after: str | None = None, limit: int = 100) -> BackfillsPage:
    """List backfills, newest first. Raises UsageError for an ``after`` that is no backfill."""
    query = sa.select(_rows).order_by(_rows.c.created_at.desc(), _rows.c.id.desc()).limit(limit + 1)
    if dag is not None:
        query = query.where(_rows.c.dag == dag)
    if after is not None:
        last = tx.one(sa.select(_rows.c.created_at, _rows.c.id).where(_rows.c.id == after))
        if last is None:
            raise UsageError(f"{after!r} is not a page position: pass the next of the page before")
        place = sa.tuple_(sa.literal(last["created_at"], schema.Instant()), sa.literal(after))
        query = query.where(sa.tuple_(_rows.c.created_at, _rows.c.id) < place)
    rows, live = tx.all(query), topology.load(tx)
    answers = [_answer(tx, live, row) for row in rows[:limit]]
    return BackfillsPage(backfills=answers, next=answers[-1].id if len(rows) > limit else None)


def pause(tx: Tx, id_: str) -> BackfillAnswer:
    """Create no more tasks; existing ones continue. Raises Refused for a backfill that has ended."""
    return _set(tx, id_, BackfillState.PAUSED)


def resume(tx: Tx, id_: str) -> BackfillAnswer:
    return _set(tx, id_, BackfillState.RUNNING)


def cancel(tx: Tx, id_: str, by: str) -> BackfillAnswer:
    """Create no more tasks, and cancel those that wait. Running tasks continue, and committed output stays."""
    row = _load(tx, id_, lock=True)
    if row["state"] == BackfillState.CANCELLED:
        return show(tx, id_)
    answer = _set(tx, id_, BackfillState.CANCELLED, ended_at=tx.now)
    which = scans.of_backfill(backfill_prefix(id_))
    token = derive_id("backfill cancelled", id_)
    cancellation = backlog.Cancellation(by, f"backfill {id_} was cancelled")
    backlog.cancel_some(tx, row["edition_id"], which, cancellation, token=token)
    return show(tx, answer.id)


def candidates(
    tx: Tx, live: Topology, job: LiveJob, row: Row, *, limit: int, after: str | None = None
) -> list[sa.RowMapping]:
    """Return the next partitions to process, each once, with the generation that holds it."""
    query = _candidate_query(tx, live, job, row).order_by(_partitions.c.partition_key).limit(limit)
    if after is not None:
        query = query.where(_partitions.c.partition_key > after)
    return list(tx.all(query))


def tasks_for(
    tx: Tx, live: Topology, job: LiveJob, id_: str, partitions: Sequence[sa.RowMapping]
) -> list[NewTask]:
    """Return the task for each partition that ``candidates`` returned."""
    datasets = {generation: dataset for dataset, generation in _inputs(live, job)}
    by_generation: dict[str, list[str]] = {}
    for each in partitions:
        by_generation.setdefault(each["generation_id"], []).append(each["partition_key"])
    attributes = {
        (generation, key): values
        for generation, keys in by_generation.items()
        for key, values in event_log.attributes(tx, generation, keys).items()
    }
    return [
        NewTask(
            job=job,
            dedupe_key=dedupe_keys.for_backfill(id_, each["partition_key"]),
            dataset_id=(subject := _subject(live, job, each["generation_id"], datasets))[0],
            generation_id=subject[1],
            partition_key=each["partition_key"],
            start=each["start"],
            end=each["end"],
            attributes=attributes.get((each["generation_id"], each["partition_key"])),
        )
        for each in partitions
    ]


def open_tasks(tx: Tx, row: Row) -> int:
    """Count the open tasks of a backfill, up to ``at_once``."""
    some = (
        sa.select(_tasks.c.id)
        .where(
            _tasks.c.edition_id == row["edition_id"],
            _tasks.c.status.in_([Status.PENDING, Status.RUNNING]),
            scans.of_backfill(backfill_prefix(row["id"])),
        )
        .limit(row["at_once"])
        .subquery()
    )
    return int(tx.value(sa.select(sa.func.count()).select_from(some)))


def _job(tx: Tx, live: Topology, dag: str, name: str) -> LiveJob:
    jobs = [each for each in live.of_dag(dag) if each.job.name == name and each.status is VersionStatus.ACTIVE]
    if not jobs:
        overview.require(tx, dag, name)
        raise NotFound(f"the active version of {dag} has no job {name!r}: see qo dag show {dag}")
    job = jobs[0]
    if job.job.execution_strategy is not Strategy.PER_PARTITION:
        raise UsageError(
            f"{job.name} does not work by partition: use qo invalidate to have part of its input read again"
        )
    if not job.outputs:
        raise UsageError(f"{job.name} has no outputs to backfill: replay its tasks with qo run replay")
    return job


def _subject(
    live: Topology, job: LiveJob, generation_id: str, datasets: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return the dataset and generation that a task for a partition of this generation names."""
    if not job.is_composite:
        return datasets[generation_id], generation_id
    first = job.composed[0]
    return first.dataset_id, first.generation_id or live.current.get(first.dataset_id)


def _inputs(live: Topology, job: LiveJob) -> list[tuple[str, str]]:
    """Return dataset and generation of each triggering input that has a generation.

    Partitions that are made of others have no input of their keys: those that were made are made again.
    """
    if job.is_composite:
        return [(each.dataset_id, each.generation_id) for each in job.outputs[:1]]
    inputs = [
        (each.dataset_id, each.generation_id or live.current.get(each.dataset_id))
        for each in job.inputs
        if each.trigger
    ]
    return [(dataset, generation) for dataset, generation in inputs if generation is not None]


def _candidate_query(tx: Tx, live: Topology, job: LiveJob, row: Row) -> sa.Select[*tuple[Any, ...]]:
    """Select the partitions within the bounds; for a job that joins all its inputs, those that every input has."""
    inputs = _inputs(live, job)
    first = _partitions.alias("first")
    same = sa.and_(
        first.c.partition_key == _partitions.c.partition_key,
        sa.or_(*(sa.and_(first.c.dataset_id == d, first.c.generation_id == g) for d, g in inputs)),
    )
    query = sa.select(
        _partitions.c.partition_key, _partitions.c.start, _partitions.c.end, _partitions.c.generation_id
    ).where(_within(tx, inputs, row))
    if not inputs or (_joins(job) and len(inputs) < sum(each.trigger for each in job.inputs)):
        return query.where(sa.false())
    dataset, generation = inputs[0]
    of_first = sa.and_(_partitions.c.dataset_id == dataset, _partitions.c.generation_id == generation)
    if len(inputs) == 1:
        return query.where(of_first)
    if _joins(job):
        count = sa.select(sa.func.count()).select_from(first).where(same).correlate(_partitions).scalar_subquery()
        return query.where(of_first, count == len(set(inputs)))
    # A partition that several inputs have needs one task only.
    least = sa.select(sa.func.min(first.c.generation_id)).where(same).correlate(_partitions).scalar_subquery()
    either = sa.or_(*(sa.and_(_partitions.c.dataset_id == d, _partitions.c.generation_id == g) for d, g in inputs))
    return query.where(either, _partitions.c.generation_id == least)


def _joins(job: LiveJob) -> bool:
    return job.job.join is Join.ALL and not job.is_composite


def _within(tx: Tx, inputs: Iterable[tuple[str, str]], row: Row) -> sa.ColumnElement[bool]:
    low, high = row["from_key"], row["to_key"]
    key = _partitions.c.partition_key
    by_key = sa.and_(key >= low if low is not None else sa.true(), key <= high if high is not None else sa.true())
    if not (_is_number(low) and _is_number(high)) or _existing_keys(tx, inputs, (str(low), str(high))):
        return by_key
    touches = sa.and_(_partitions.c.start <= int(str(high)), _partitions.c.end > int(str(low)))
    return sa.or_(touches, sa.and_(_partitions.c.start.is_(None), by_key))


def _existing_keys(tx: Tx, inputs: Iterable[tuple[str, str]], keys: Sequence[str]) -> set[str]:
    """Return those of the keys that are keys of partitions."""
    return {
        key
        for dataset, generation in inputs
        for key in tx.execute(
            sa.select(_partitions.c.partition_key).where(
                _partitions.c.dataset_id == dataset,
                _partitions.c.generation_id == generation,
                _partitions.c.partition_key.in_(keys),
            )
        ).scalars()
    }


def _missing(tx: Tx, live: Topology, job: LiveJob, row: Row) -> list[str]:
    """Return what is missing within the bounds: each missing day if both are days, else the missing bounds."""
    bounds = [each for each in (row["from_key"], row["to_key"]) if each is not None]
    inputs = _inputs(live, job)
    if len(bounds) == 2 and all(map(_is_number, bounds)) and not _existing_keys(tx, inputs, bounds):
        return []
    days = _days(*bounds) if len(bounds) == 2 else []
    if not days:
        return sorted(set(bounds) - _existing_keys(tx, inputs, bounds))
    existing = set(
        tx.execute(_candidate_query(tx, live, job, row).with_only_columns(_partitions.c.partition_key)).scalars()
    )
    return [day for day in days if day not in existing][:MISSING_MAX]


def _days(low: str, high: str) -> list[str]:
    try:
        first, last = date.fromisoformat(low), date.fromisoformat(high)
    except ValueError:
        return []
    if first.isoformat() != low or last.isoformat() != high or (last - first).days > DAYS_MAX:
        return []
    return [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]


def _is_number(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdecimal() and int(text[:20]) <= NUMBER_MAX


def _is_reversed(low: str, high: str) -> bool:
    if _is_number(low) and _is_number(high):
        return int(low) > int(high) and low > high
    return low > high


def _bounds_text(row: Row) -> str:
    bounds = [
        f"{word} {row[name]}" for word, name in (("from", "from_key"), ("to", "to_key")) if row[name] is not None
    ]
    return " ".join(bounds) or "at all"


def _load(tx: Tx, id_: str, *, lock: bool = False) -> sa.RowMapping:
    query = sa.select(_rows).where(_rows.c.id == id_)
    row = tx.one(tx.lock(query) if lock else query)
    if row is None:
        raise NotFound(f"there is no backfill {id_!r}: see qo backfill list")
    return row


def _set(tx: Tx, id_: str, state: str, **values: Any) -> BackfillAnswer:
    row = _load(tx, id_, lock=True)
    if row["state"] in (BackfillState.DONE, BackfillState.CANCELLED) and row["state"] != state:
        raise Refused(f"backfill {id_} is {row['state']}: start another one")
    tx.execute(sa.update(_rows).where(_rows.c.id == id_).values(state=state, **values))
    return show(tx, id_)


def _answer(tx: Tx, live: Topology, row: sa.RowMapping) -> BackfillAnswer:
    job = live.jobs.get(row["edition_id"])
    remaining, missing = 0, list[str]()
    if job is not None and row["state"] in (BackfillState.RUNNING, BackfillState.PAUSED):
        query = _candidate_query(tx, live, job, row)
        if row["after_key"] is not None:
            query = query.where(_partitions.c.partition_key > row["after_key"])
        remaining = int(tx.value(sa.select(sa.func.count()).select_from(query.limit(COUNT_MAX).subquery())))
        missing = _missing(tx, live, job, row)
    return BackfillAnswer.model_validate(
        {**row, "live": job is not None, "left": remaining, "missing": missing, "tasks": _count_tasks(tx, row)}
    )


def _count_tasks(tx: Tx, row: sa.RowMapping) -> dict[str, int]:
    own = sa.and_(
        _tasks.c.edition_id == row["edition_id"],
        scans.of_backfill(backfill_prefix(row["id"])),
    )
    some = sa.select(_tasks.c.status).where(own).limit(COUNT_MAX).subquery()
    counts = tx.execute(sa.select(some.c.status, sa.func.count()).group_by(some.c.status))
    return {status: int(count) for status, count in counts}
