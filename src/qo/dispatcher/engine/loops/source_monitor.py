"""The source monitor: every live always-on source has exactly one task, and it runs or is about to.

What to do is ``core.flow.supervision``'s to say; here it is seen and done. Cancelling the task of a source by hand is
no way to stop it, it is restarted: pause its job.
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
class Watched:
    edition_id: str
    job: LiveJob | None  # None: no live version has it any more.
    known: Supervised
    unwanted: str | None


def tick(state: State) -> int:
    """Look at all always-on sources once; how many of them changed."""
    with state.read() as tx:
        moved = [each.edition_id for each in _watched(tx) if _decided(tx, each) != (each.known, Action.NONE)]
    changed = 0
    for edition in moved:
        with state.write() as tx:
            changed += _attend(tx, edition)
    return changed


def _attend(tx: Tx, edition: str) -> int:
    live = topology.load(tx)
    row = tx.one(tx.lock(sa.select(sources).where(sources.c.edition_id == edition), skip=True))
    if row is None:
        return 0  # Another dispatcher is at it.
    watched = _one(live, edition, row)
    after, action = _decided(tx, watched)
    _act(tx, watched, after, action)
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


def _watched(tx: Tx) -> list[Watched]:
    """All that are live, and all that are not but have not stopped yet."""
    live = topology.load(tx)
    wanted = sorted(edition for edition, job in live.jobs.items() if _always_on(job))
    moving = sa.and_(sources.c.state != SourceState.STOPPED.value, sources.c.kind == SourceKind.ALWAYS_ON.value)
    query = sa.select(sources).where(sa.or_(moving, sources.c.edition_id.in_(wanted)))
    return [_one(live, row["edition_id"], row) for row in tx.all(query.order_by(sources.c.edition_id))]


def _one(live: Topology, edition: str, row: sa.RowMapping) -> Watched:
    job = live.jobs.get(edition)
    if job is None:
        unwanted = "no live version has it"
    else:
        unwanted = None if (said := live.pause_reason(job)) is None else pause_text(said)
    return Watched(edition, job, _supervised(row), unwanted)


def _supervised(row: sa.RowMapping) -> Supervised:
    counted: dict[str, int] = row["memory"] or {}
    return Supervised(
        state=SourceState(row["state"]),
        restarts=row["restarts"],
        streak=counted.get("streak", 0),
        attempt=counted.get("attempt", 0),
        start_after=row["start_after"],
        heard_at=row["heard_at"],
        error=row["last_error"],
    )


def _always_on(job: LiveJob) -> bool:
    return job.job.source is not None and job.job.source.kind is SourceKind.ALWAYS_ON


def _decided(tx: Tx, watched: Watched) -> tuple[Supervised, Action]:
    return supervise(watched.known, _seen(tx, watched.edition_id), unwanted=watched.unwanted, now=tx.now)


def _seen(tx: Tx, edition: str) -> ObservedTask | None:
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
    returned = "it returned, and an always-on source has no end" if status is Status.COMPLETED else None
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


def _act(tx: Tx, watched: Watched, after: Supervised, action: Action) -> None:
    match action:
        case Action.NONE:
            return
        case Action.CREATE if watched.job is not None:
            create(tx, [NewTask(job=watched.job, dedupe_key=dedupe_keys.SOURCE)])
            limits = {"max_retries": RETRIES_MAX, "max_deliveries": RETRIES_MAX}
            tx.execute(sa.update(tasks).where(_of(watched)).values(limits))
        case Action.STOP:
            row = rows.load(tx, task_id(watched.edition_id, dedupe_keys.SOURCE))
            rows.move(tx, row, Cancel(tx.ambient.token(), by="source monitor", reason=watched.unwanted))
        case Action.RESTART:
            _restart(tx, watched, after)
        case _:
            raise AssertionError(f"{action} for {watched}")


def _restart(tx: Tx, watched: Watched, after: Supervised) -> None:
    row = rows.load(tx, task_id(watched.edition_id, dedupe_keys.SOURCE))
    task = rows.task_of(row)
    if task.status in ENDED:
        # A task that completed is done for good by the rules of tasks; a source that returned has only died.
        begun = replace(task, status=Status.FAILED) if task.status is Status.COMPLETED else None
        moved = rows.move(tx, row, Replay(tx.ambient.token()), as_if=begun)
        if isinstance(moved, Rejected):
            raise AssertionError(moved.detail)
    # How long to rest, we say; the retry policy of tasks is made for work that ends.
    waiting = sa.and_(_of(watched), tasks.c.status == Status.PENDING.value, tasks.c.released_at.is_(None))
    tx.execute(sa.update(tasks).where(waiting).values(available_at=after.start_after or tx.now))


def _of(watched: Watched) -> sa.ColumnElement[bool]:
    return tasks.c.id == task_id(watched.edition_id, dedupe_keys.SOURCE)
