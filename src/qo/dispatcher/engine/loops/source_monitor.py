"""The source monitor loop keeps exactly one task running for every live always-on source.

``core.pipeline.supervision`` decides; this module observes and acts. Cancelling the task of a source does not stop the
source, because the task is restarted: pause its job instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from msgspec.structs import replace

from qo.core.lifecycle import Cancel, Rejected, Replay
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.states import AttemptOutcome
from qo.core.pipeline.supervision import Action, ObservedTask, SourceState, Supervised, supervise
from qo.core.pipeline.topology import LiveJob, Topology, pause_text
from qo.core.task import ENDED, Status
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import attempts, sources, tasks
from qo.dispatcher.tasks import dedupe_keys, rows
from qo.dispatcher.tasks.creation import NewTask, create, task_id

RETRIES_MAX = 2**31 - 1
_GIVEN_BACK = frozenset(
    {AttemptOutcome.RELEASED, AttemptOutcome.RESCHEDULED, AttemptOutcome.CANCELLED}
)  # Outcomes of attempts that did not die.


@dataclass(frozen=True, slots=True)
class WatchedSource:
    edition_id: str
    job: LiveJob | None  # None: no live version has it.
    before: Supervised
    unwanted: str | None


def tick(state: State) -> int:
    """Check all always-on sources once. Return how many changed."""
    with state.read() as tx:
        due = [each.edition_id for each in _watched_sources(tx) if _decide(tx, each) != (each.before, Action.NONE)]
    changed = 0
    for edition in due:
        with state.write() as tx:
            changed += _supervise(tx, edition)
    return changed


def _supervise(tx: Tx, edition: str) -> int:
    live = topology.load(tx)
    row = tx.one(tx.lock(sa.select(sources).where(sources.c.edition_id == edition), skip=True))
    if row is None:
        return 0  # Another dispatcher handles it.
    watched = _watched_source(live, edition, row)
    after, action = _decide(tx, watched)
    _execute(tx, watched, after, action)
    values = {
        "state": after.state.value,
        "task_id": task_id(edition, dedupe_keys.SOURCE),
        "restarts": after.restarts,
        "start_after": after.start_after,
        "heard_at": after.heard_at,
        "last_error": after.error,
        "memory": {"attempt": after.attempt, "streak": after.streak},
        "updated_at": tx.now,
    }
    tx.execute(sa.update(sources).where(sources.c.edition_id == edition).values(values))
    return 1


def _watched_sources(tx: Tx) -> list[WatchedSource]:
    """Return all live always-on sources, and those that are no longer live but have not stopped yet."""
    live = topology.load(tx)
    live_editions = sorted(edition for edition, job in live.jobs.items() if _is_always_on(job))
    moving = sa.and_(sources.c.state != SourceState.STOPPED.value, sources.c.kind == SourceKind.ALWAYS_ON.value)
    query = sa.select(sources).where(sa.or_(moving, sources.c.edition_id.in_(live_editions)))
    return [_watched_source(live, row["edition_id"], row) for row in tx.all(query.order_by(sources.c.edition_id))]


def _watched_source(live: Topology, edition: str, row: sa.RowMapping) -> WatchedSource:
    job = live.jobs.get(edition)
    if job is None:
        unwanted = "no live version has it"
    else:
        unwanted = None if (pause := live.pause_reason(job)) is None else pause_text(pause)
    return WatchedSource(edition, job, _supervised(row), unwanted)


def _supervised(row: sa.RowMapping) -> Supervised:
    memory: dict[str, int] = row["memory"] or {}
    return Supervised(
        state=SourceState(row["state"]),
        restarts=row["restarts"],
        streak=memory.get("streak", 0),
        attempt=memory.get("attempt", 0),
        start_after=row["start_after"],
        heard_at=row["heard_at"],
        error=row["last_error"],
    )


def _is_always_on(job: LiveJob) -> bool:
    return job.job.source is not None and job.job.source.kind is SourceKind.ALWAYS_ON


def _decide(tx: Tx, watched: WatchedSource) -> tuple[Supervised, Action]:
    return supervise(watched.before, _observe_task(tx, watched.edition_id), unwanted=watched.unwanted, now=tx.now)


def _observe_task(tx: Tx, edition: str) -> ObservedTask | None:
    last = sa.and_(attempts.c.task_id == tasks.c.id, attempts.c.attempt == tasks.c.attempt)
    query = (
        sa.select(tasks, attempts.c.started_at.label("began_at"), attempts.c.ended_at, attempts.c.outcome)
        .select_from(tasks.outerjoin(attempts, last))
        .where(tasks.c.id == task_id(edition, dedupe_keys.SOURCE))
    )
    row = tx.one(query)
    if row is None:
        return None
    status = Status(row["status"])
    returned = "it returned, but an always-on source must not end" if status is Status.COMPLETED else None
    return ObservedTask(
        status=status,
        attempt=row["attempt"],
        heard_at=row["updated_at"],
        lease_expires_at=row["lease_expires_at"],
        cancel_requested=row["cancel_requested"],
        started_at=row["began_at"],
        ended_at=row["ended_at"],
        died=row["outcome"] is not None and row["outcome"] not in _GIVEN_BACK,
        error=returned or row["last_error"],
    )


def _execute(tx: Tx, watched: WatchedSource, after: Supervised, action: Action) -> None:
    match action:
        case Action.NONE:
            return
        case Action.CREATE if watched.job is not None:
            create(tx, [NewTask(job=watched.job, dedupe_key=dedupe_keys.SOURCE)])
            limits = {"max_retries": RETRIES_MAX, "max_deliveries": RETRIES_MAX}
            tx.execute(sa.update(tasks).where(_is_task_of(watched)).values(limits))
        case Action.STOP:
            row = rows.load(tx, task_id(watched.edition_id, dedupe_keys.SOURCE))
            rows.move(tx, row, Cancel(tx.ambient.token(), by="source monitor", reason=watched.unwanted))
        case Action.RESTART:
            _restart(tx, watched, after)
        case _:
            raise AssertionError(f"{action} for {watched}")


def _restart(tx: Tx, watched: WatchedSource, after: Supervised) -> None:
    row = rows.load(tx, task_id(watched.edition_id, dedupe_keys.SOURCE))
    task = rows.task_of(row)
    if task.status in ENDED:
        # A completed task cannot be replayed; but a source that returned has only died.
        failed = replace(task, status=Status.FAILED) if task.status is Status.COMPLETED else None
        moved = rows.move(tx, row, Replay(tx.ambient.token()), as_if=failed)
        if isinstance(moved, Rejected):
            raise AssertionError(moved.detail)
    # The monitor decides the delay; the retry policy of tasks is made for work that ends.
    waiting = sa.and_(_is_task_of(watched), tasks.c.status == Status.PENDING.value, tasks.c.released_at.is_(None))
    tx.execute(sa.update(tasks).where(waiting).values(available_at=after.start_after or tx.now))


def _is_task_of(watched: WatchedSource) -> sa.ColumnElement[bool]:
    return tasks.c.id == task_id(watched.edition_id, dedupe_keys.SOURCE)
