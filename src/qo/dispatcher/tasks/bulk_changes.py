"""Changes of all tasks of an edition, however many: some at once, the others a chunk at a time.

A version that is given up may have a million tasks. The transaction that gives it up stops what is in flight and the
first few; ``bulk_changes`` says what is left, and a loop does it (``engine.loops.bulk_change``). Until then nobody
starts the others, because no live version has them. A version that is deployed again has its tasks back in the same
way. Of two changes of an edition the later one counts.

Tasks of jobs without outputs are changed at once: which of their effects happened meanwhile is decided in the same
transaction. They have no history to rebuild, so there are few.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa

from qo.core.pipeline.states import BulkChangeKind, CancelCode
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backlog
from qo.dispatcher.tasks.backlog import Cancellation, Stopped

CHUNK = 1_000  # Tasks that one transaction of the loop changes.
AT_ONCE = 200  # Tasks that the call itself changes, while somebody waits for its answer.

_rows, _tasks = schema.bulk_changes, schema.tasks


def cancel(tx: Tx, of: Collection[str], cancellation: Cancellation, *, token: str) -> Stopped:
    """Cancel the pending tasks of these editions, and ask running ones to stop. The answer says if more are left."""
    _forget(tx, of)
    whole, by_chunks = _split(tx, of)
    at_once = backlog.cancel(tx, whole, cancellation, token=token)
    in_flight = backlog.cancel_in_flight(tx, by_chunks, cancellation, token=token)
    cancelled, unfinished = 0, list[str]()
    for edition in _having(tx, scans.WITHHELD_EDITIONS, by_chunks):
        ids, _ = _withheld(tx, edition, None, AT_ONCE - cancelled)
        cancelled += backlog.cancel_these(tx, ids, cancellation, token=token)
        if scans.has_withheld(tx, edition):
            unfinished.append(edition)
    fields = {"by": cancellation.by, "reason": cancellation.reason, "code": cancellation.code}
    _leave(tx, unfinished, BulkChangeKind.CANCEL, token, **fields)
    return Stopped(
        at_once.cancelled + in_flight.cancelled + cancelled,
        at_once.requested + in_flight.requested,
        bool(unfinished),
    )


def revive(tx: Tx, of: Collection[str], *, token: str) -> int:
    """Undo the cancellation of versions that were given up, for these editions. Return how many tasks are pending
    again; more follow if there are many."""
    _forget(tx, of)
    whole, by_chunks = _split(tx, of)
    revived = backlog.revive(tx, _having(tx, scans.GIVEN_UP_EDITIONS, whole), token=token)
    some, unfinished = 0, list[str]()
    for edition in _having(tx, scans.GIVEN_UP_EDITIONS, by_chunks):
        ids = _given_up(tx, edition, None, AT_ONCE - some)
        some += backlog.revive_these(tx, ids, token=token)
        if _given_up(tx, edition, None, 1):
            unfinished.append(edition)
    _leave(tx, unfinished, BulkChangeKind.REVIVE, token)
    return revived + some


def step(tx: Tx, edition: str, limit: int = CHUNK) -> int:
    """Take the next step of the change of an edition. Return how many tasks it looked at, at least 1 if there was
    something left to do."""
    row = tx.one(tx.lock(sa.select(_rows).where(_rows.c.edition_id == edition), skip=True))
    if row is None:
        return 0  # Done, or another dispatcher is at it.
    if row["kind"] == BulkChangeKind.CANCEL:
        ids, after = _withheld(tx, edition, row["after"], limit)
        code = None if row["code"] is None else CancelCode(row["code"])
        backlog.cancel_these(tx, ids, Cancellation(row["by"], row["reason"], code), token=row["token"])
    else:
        ids = _given_up(tx, edition, row["after"], limit)
        after = ids[-1] if ids else None
        backlog.revive_these(tx, ids, token=row["token"])
    own = _rows.c.edition_id == edition
    if len(ids) < limit and row["after"] is None:
        tx.execute(sa.delete(_rows).where(own))
    else:
        # A pass that did not begin at the first task may have missed some: another one decides.
        tx.execute(sa.update(_rows).where(own).values(after=after if len(ids) == limit else None))
    return max(len(ids), 1)


def editions(tx: Tx) -> list[str]:
    """Return the editions whose tasks are being changed, in the order of the requests."""
    return list(tx.execute(sa.select(_rows.c.edition_id).order_by(_rows.c.requested_at)).scalars())


def reviving(tx: Tx, of: Collection[str]) -> set[str]:
    """Return those of the editions that have tasks which are still to be revived."""
    reviving_ones: set[str] = set()
    for some in batches(sorted(of)):
        own = sa.and_(_rows.c.edition_id.in_(some), _rows.c.kind == BulkChangeKind.REVIVE)
        reviving_ones.update(tx.execute(sa.select(_rows.c.edition_id).where(own)).scalars())
    return reviving_ones


def count_given_up(tx: Tx, edition: str) -> int:
    """Count the tasks of an edition that are cancelled because their version was given up, up to a bound."""
    some = sa.select(_tasks.c.id).where(_tasks.c.edition_id == edition, scans.given_up()).order_by(_tasks.c.id)
    counted = sa.select(sa.func.count()).select_from(some.limit(backlog.COUNT_MAX).subquery())
    return int(tx.value(counted))


def _split(tx: Tx, of: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the editions of jobs without outputs, and the others."""
    table, making = schema.generation_rows, set[str]()
    for some in batches(sorted(of)):
        making.update(tx.execute(sa.select(table.c.edition_id).where(table.c.edition_id.in_(some))).scalars())
    return frozenset(of) - making, frozenset(of) & making


def _having(tx: Tx, condition: scans.IndexedCondition, of: Collection[str]) -> list[str]:
    return [edition for edition in scans.distinct(tx, condition) if edition in of] if of else []


def _withheld(tx: Tx, edition: str, after: str | None, limit: int) -> tuple[Sequence[str], str | None]:
    """Return the withheld tasks of an edition that are due next, and when the last of them is."""
    query = sa.select(_tasks.c.id, _tasks.c.available_at).where(_tasks.c.edition_id == edition, scans.withheld())
    if after is not None:
        query = query.where(_tasks.c.available_at >= datetime.fromisoformat(after))
    rows = tx.all(tx.lock(query.order_by(_tasks.c.available_at).limit(max(limit, 0))))
    return [row["id"] for row in rows], rows[-1]["available_at"].isoformat() if rows else None


def _given_up(tx: Tx, edition: str, after: str | None, limit: int) -> Sequence[str]:
    query = sa.select(_tasks.c.id).where(_tasks.c.edition_id == edition, scans.given_up())
    if after is not None:
        query = query.where(_tasks.c.id > after)
    return tx.execute(tx.lock(query.order_by(_tasks.c.id).limit(max(limit, 0)))).scalars().all()


def _forget(tx: Tx, of: Collection[str]) -> None:
    """Drop what is left of earlier changes. First, and with a lock: a step locks its row before it locks tasks."""
    for some in batches(sorted(of)):
        own = _rows.c.edition_id.in_(some)
        tx.execute(tx.lock(sa.select(_rows.c.edition_id).where(own).order_by(_rows.c.edition_id))).all()
        tx.execute(sa.delete(_rows).where(own))


def _leave(tx: Tx, unfinished: Sequence[str], kind: BulkChangeKind, token: str, **fields: str | None) -> None:
    common = {"kind": kind, "token": token, "after": None, "requested_at": tx.now}
    none = {"by": None, "reason": None, "code": None}
    tx.insert(_rows, [{"edition_id": edition, **common, **none, **fields} for edition in unfinished])
