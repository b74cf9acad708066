"""Pause and resume a DAG or one of its jobs, by hand.

A pause holds back wake-ups: what runs, runs on, events are accepted and become tasks, and none of these is started.
It belongs to the name, so it outlives deploys, cutovers and rollbacks.
"""

from __future__ import annotations

import sqlalchemy as sa

from qo.api.contract.dag import PauseAnswer
from qo.core.pipeline.topology import LIVE
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound

_pauses = schema.pauses


def pause(tx: Tx, scope: str, reason: str, by: str) -> PauseAnswer:
    """Pause ``dag`` or ``dag.job``. Raises NotFound if there is none; pausing again replaces the reason."""
    topology.hold(tx)
    known = _found(tx, scope)
    if known is None:
        _check(tx, scope)
    elif known["reason"] == reason:
        return _answer(known, changed=False)
    tx.upsert(_pauses, {"scope": scope, "reason": reason, "by": by, "at": tx.now})
    topology.bump(tx)
    return PauseAnswer(scope=scope, paused=True, changed=True, reason=reason, by=by, at=tx.now)


def resume(tx: Tx, scope: str, by: str) -> PauseAnswer:
    """Undo a pause, also of a job that is gone since. Raises NotFound for a name that never stood for anything."""
    topology.hold(tx)
    known = _found(tx, scope)
    if known is None:
        _check(tx, scope)
        return PauseAnswer(scope=scope, paused=False, changed=False)
    tx.execute(sa.delete(_pauses).where(_pauses.c.scope == scope))
    topology.bump(tx)
    return PauseAnswer(scope=scope, paused=False, changed=True)


def _found(tx: Tx, scope: str) -> sa.RowMapping | None:
    return tx.one(sa.select(_pauses).where(_pauses.c.scope == scope))


def _check(tx: Tx, scope: str) -> None:
    dag, _, job = scope.partition(".")
    if tx.one(sa.select(schema.dags.c.name).where(schema.dags.c.name == dag)) is None:
        raise NotFound(f"there is no DAG {dag!r}: see qo dag list")
    if not job and scope == dag:
        return
    jobs, versions = schema.jobs, schema.dag_versions
    found = tx.one(
        sa.select(jobs.c.id)
        .join(versions, versions.c.id == jobs.c.version_id)
        .where(versions.c.dag == dag, versions.c.status.in_(sorted(LIVE)), jobs.c.name == job)
        .limit(1)
    )
    if found is None:
        raise NotFound(f"no live version of {dag!r} has a job {job!r}: see qo dag show {dag}")


def _answer(row: sa.RowMapping, *, changed: bool) -> PauseAnswer:
    return PauseAnswer(
        scope=row["scope"], paused=True, changed=changed, reason=row["reason"], by=row["by"], at=row["at"]
    )
