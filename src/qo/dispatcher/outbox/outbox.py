"""The outbox: side effects, written in the transaction that decided them and carried out after it.

    take        in one transaction: the rows are reserved for a while, and nobody else sees them
    act         outside of any transaction: enqueue, invoke, run
    mark_done   in another transaction; or ``mark_failed``, which makes the row due again later

A crash in between loses nothing: the reservation ends by itself, and an effect is known by its id, so doing it twice is
doing it once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import EffectKind, OutboxState
from qo.core.retry import delay_s
from qo.core.task import RetryPolicy
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import outbox
from qo.pipeline.registry import Launcher

TAKEN_S = 15.0  # How long a taken row is reserved.
HANDED_S = (
    5.0  # How long a row is reserved that is passed on in memory: that takes no time, unless the process dies.
)
ATTEMPTS_MAX = 20
KEPT_S = 86_400.0  # How long rows that are done stay, for people to see.
BACKOFF = RetryPolicy(initial_interval_ms=1_000, max_interval_ms=300_000, multiplier=2.0, jitter_percent=0.5)
ERROR_LEN_MAX = 2_000

PENDING = outbox.c.state == inline(OutboxState.PENDING)
DONE = outbox.c.state == inline(OutboxState.DONE)
DEAD = outbox.c.state == inline(OutboxState.DEAD)

# Building a statement takes longer than executing it, so these are built once.
_THESE = (
    sa.select(outbox)
    .where(
        PENDING,
        outbox.c.available_at <= sa.bindparam("now"),
        outbox.c.kind.in_(sa.bindparam("kinds", expanding=True)),
    )
    .order_by(outbox.c.available_at, outbox.c.seq)
    .limit(sa.bindparam("most"))
)
_DUE, _DUE_LOCKED = Prepared(_THESE), Prepared(_THESE.with_for_update(skip_locked=True))
_OF_QUEUES = _THESE.where(outbox.c.queue.in_(sa.bindparam("queues", expanding=True)))
_DUE_OF, _DUE_OF_LOCKED = Prepared(_OF_QUEUES), Prepared(_OF_QUEUES.with_for_update(skip_locked=True))
_TAKE = Prepared(sa.update(outbox).where(outbox.c.seq.in_(sa.bindparam("seqs", expanding=True))))
_MARK_DONE = Prepared(
    sa.update(outbox)
    .where(outbox.c.id.in_(sa.bindparam("ids", expanding=True)), outbox.c.state == OutboxState.PENDING)
    .values(state=OutboxState.DONE, done_at=sa.bindparam("now"), last_error=None)
)


KIND_OF = {
    Launcher.QUEUE: EffectKind.WAKE,
    Launcher.INVOKE: EffectKind.INVOKE,
    Launcher.IN_PROCESS: EffectKind.RUN,
}


@dataclass(frozen=True, slots=True)
class Effect:
    id: str
    kind: EffectKind
    queue: str
    task_id: str
    depth: int = 0  # Of its job in the pipeline.


@dataclass(frozen=True, slots=True)
class TakenEffect:
    """An effect that is reserved for the caller for the next ``TAKEN_S`` seconds."""

    effect: Effect
    attempts: int  # How many failed so far.


def wake_id(task_id: str, attempt: int, wakes: int) -> str:
    """Return the id of a task's wake-up number ``wakes`` after ``attempt`` attempts have begun."""
    return derive_id("wake", task_id, attempt + 1, wakes)


def add(tx: Tx, effects: Sequence[Effect], handed: Collection[EffectKind] = ()) -> int:
    """Add effects to the outbox, and return how many were new.

    ``handed``: kinds that the caller carries out, or passes on, at once. They are reserved for ``HANDED_S``.
    """
    later = tx.now + timedelta(seconds=HANDED_S)
    rows = [
        {
            "id": each.id,
            "kind": each.kind,
            "queue": each.queue,
            "task_id": each.task_id,
            "depth": each.depth,
            "state": OutboxState.PENDING,
            "available_at": later if each.kind in handed else tx.now,
            "attempts": 0,
            "created_at": tx.now,
        }
        for each in effects
    ]
    return len(tx.insert_absent(outbox, rows, returning=outbox.c.id)) if rows else 0


def due(
    tx: Tx, kinds: Collection[EffectKind] = frozenset({EffectKind.WAKE}), queues: Collection[str] | None = None
) -> bool:
    """Whether an effect of these kinds is due. ``queues``: of these only; None: of all."""
    return bool(tx.rows(_DUE if queues is None else _DUE_OF, _due_values(tx, kinds, 1, queues)))


def take(
    tx: Tx,
    limit: int,
    kinds: Collection[EffectKind] = frozenset({EffectKind.WAKE}),
    queues: Collection[str] | None = None,
    *,
    taken_s: float = TAKEN_S,
) -> list[TakenEffect]:
    """Reserve up to ``limit`` due effects, the longest due first. Concurrent callers get different ones.

    ``queues``: of these only; None: of all.
    """
    query = _DUE_LOCKED if queues is None else _DUE_OF_LOCKED
    rows = tx.mappings(query, _due_values(tx, kinds, limit, queues))
    if rows:
        seqs, until = [row["seq"] for row in rows], tx.now + timedelta(seconds=taken_s)
        tx.do(_TAKE, {"seqs": seqs, "available_at": until})
    return [
        TakenEffect(
            Effect(row["id"], EffectKind(row["kind"]), row["queue"], row["task_id"], row["depth"]), row["attempts"]
        )
        for row in rows
    ]


def _due_values(
    tx: Tx, kinds: Collection[EffectKind], limit: int, queues: Collection[str] | None
) -> dict[str, Any]:
    values = {"now": tx.now, "kinds": sorted(kinds), "most": limit}
    return values if queues is None else values | {"queues": sorted(queues)}


def mark_done(tx: Tx, ids: Collection[str]) -> None:
    """Record that these effects were carried out. Recording it twice changes nothing."""
    if ids:
        tx.do(_MARK_DONE, {"ids": sorted(ids), "now": tx.now})


def mark_failed(tx: Tx, id: str, error: str) -> bool:
    """Record a failure: the effect is due again later, or dead after ``ATTEMPTS_MAX``; return whether it is dead."""
    row = tx.one(
        tx.lock(sa.select(outbox.c.attempts).where(outbox.c.id == id, outbox.c.state == OutboxState.PENDING))
    )
    if row is None:
        return False  # Another process has carried it out meanwhile.
    attempts = row["attempts"] + 1
    is_dead = attempts >= ATTEMPTS_MAX
    rest = timedelta(seconds=delay_s(BACKOFF, attempts - 1, tx.ambient.unit()))
    tx.execute(
        sa.update(outbox)
        .where(outbox.c.id == id)
        .values(
            attempts=attempts,
            state=OutboxState.DEAD if is_dead else OutboxState.PENDING,
            available_at=tx.now + rest,
            last_error=error[:ERROR_LEN_MAX],
        )
    )
    return is_dead


def purge(tx: Tx, *, kept_s: float = KEPT_S, limit: int = 1000) -> int:
    """Delete up to ``limit`` effects that were done long ago, and return how many."""
    return _delete_old(tx, DONE, outbox.c.done_at, kept_s, limit)


def purge_dead(tx: Tx, *, kept_s: float, limit: int = 1000) -> int:
    """Delete up to ``limit`` effects that were given up long ago, and return how many."""
    return _delete_old(tx, DEAD, outbox.c.available_at, kept_s, limit)


def _delete_old(tx: Tx, which: sa.ColumnElement[bool], ended: sa.Column[Any], kept_s: float, limit: int) -> int:
    old = (
        sa.select(outbox.c.seq)
        .where(which, ended < tx.now - timedelta(seconds=kept_s))
        .order_by(ended)
        .limit(limit)
    )
    seqs = tx.execute(tx.lock(old, skip=True)).scalars().all()
    if seqs:
        tx.execute(sa.delete(outbox).where(outbox.c.seq.in_(seqs)))
    return len(seqs)
