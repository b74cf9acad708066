"""Locks of commits: many commit to one generation side by side, and readers still see its revisions in order.

    acquire, shared   before committing partitions: others may do the same; each partition's own row is locked as well
    acquire, alone    before committing what concerns the whole generation: segments, appended rows, removals
    await_commits     before reading a generation as a whole: until all that has a revision is committed or undone

A revision comes from a sequence, so of two commits side by side the later revision may become visible first. Whoever
reads "everything up to a revision" waits for the commits under way first: nothing appears below that revision later.
Others are not kept from committing any longer than that takes.

All locks are advisory, so that they wait in order of arrival, and are taken in order of their numbers. On SQLite, where
one writer runs at a time, there is nothing to lock.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.advisory_locks import execute_locks, lock_names, number_of
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.prepared import Prepared

_LATEST = Prepared(sa.select(sa.func.max(schema.commits.c.revision)))
_LATEST_UPTO = Prepared(
    sa.select(sa.func.max(schema.commits.c.revision)).where(
        schema.commits.c.revision <= sa.bindparam("upto", type_=sa.BigInteger)
    )
)


def acquire(tx: Tx, *, alone: Collection[str] = (), shared: Collection[str] = ()) -> None:
    """Lock generations for commits until the transaction ends. One that is in both is locked alone."""
    modes = {number_of("commit", each): "_shared" for each in shared}
    modes |= {number_of("commit", each): "" for each in alone}
    execute_locks(tx, [f"pg_advisory_xact_lock{mode}({number})" for number, mode in sorted(modes.items())])


def await_commits(tx: Tx, generations: Collection[str]) -> int | None:
    """Wait for the commits that are under way in these generations. Return a revision up to which all are decided.

    None on SQLite: all of them are. The next statement sees everything up to that revision. Call it before locking rows
    of partitions: who commits may wait for these. Until the transaction ends, nobody commits ``alone``.
    """
    if not generations or not tx.on_postgres:
        return None
    numbers = ", ".join(str(number) for number in sorted({number_of("commit", each) for each in generations}))
    # Evaluated from left to right. The first lock keeps everybody out for a moment, and becomes the second.
    text = (
        "SELECT q.last_value, pg_advisory_lock(k), pg_advisory_xact_lock_shared(k), pg_advisory_unlock(k) "
        f"FROM unnest(ARRAY[{numbers}]::bigint[]) AS k, commits_revision_seq AS q"
    )
    try:
        rows = tx.call(text)
    except BaseException:
        # Cancelled between the locks, or chosen to end a deadlock: the first one belongs to the connection, and would
        # outlive the transaction.
        tx.discard_connection()
        raise
    return min(int(row[0]) for row in rows)


def await_latest(tx: Tx, generations: Collection[str]) -> int | None:
    """As ``await_commits``, and return the last revision of all datasets up to there; None if there is none."""
    upto = await_commits(tx, generations)
    [(latest,)] = tx.rows(_LATEST) if upto is None else tx.rows(_LATEST_UPTO, {"upto": upto})
    return latest


def await_commits_first(state: State, generations: Collection[str]) -> None:
    """As ``await_commits``, in a transaction of its own, before one that only reads is opened."""
    if generations and state.engine.dialect.name == "postgresql":
        with state.write() as tx:
            await_commits(tx, generations)


def lock_columns(tx: Tx, generations: Collection[str]) -> None:
    """Let nobody else add columns to these generations until the transaction ends."""
    lock_names(tx, "columns", generations)


def lock_absent(tx: Tx, generations: Collection[str], *, shared: bool) -> None:
    """Keep removed partitions of these generations from coming back (shared), or bring one back (alone).

    A removed partition has no row to lock.
    """
    lock_names(tx, "absent", generations, shared=shared)
