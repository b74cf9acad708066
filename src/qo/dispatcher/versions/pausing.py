"""Pause and resume a DAG or one of its jobs, by hand.

A pause withholds wake-ups: running tasks continue, events are accepted and become tasks, and no task is started. The
pause belongs to the name, so it outlives deploys, cutovers and rollbacks.
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
    """Pause ``dag`` or ``dag.job``. Pausing again replaces the reason. Raises NotFound for an unknown name."""
    topology.hold(tx)
    row = _load(tx, scope)
    if row is None:
        _require_scope(tx, scope)
    elif row["reason"] == reason:
        return _answer(row, changed=False)
    tx.upsert(_pauses, {"scope": scope, "reason": reason, "by": by, "at": tx.now})
    topology.bump(tx)
    return PauseAnswer(scope=scope, paused=True, changed=True, reason=reason, by=by, at=tx.now)


def resume(tx: Tx, scope: str, by: str) -> PauseAnswer:
    """Undo a pause, even of a job that no longer exists. Raises NotFound for an unknown name that is not paused."""
    topology.hold(tx)
    row = _load(tx, scope)
    if row is None:
        _require_scope(tx, scope)
        return PauseAnswer(scope=scope, paused=False, changed=False)
    tx.execute(sa.delete(_pauses).where(_pauses.c.scope == scope))
    topology.bump(tx)
    return PauseAnswer(scope=scope, paused=False, changed=True)


def _load(tx: Tx, scope: str) -> sa.RowMapping | None:
    return tx.one(sa.select(_pauses).where(_pauses.c.scope == scope))


def _require_scope(tx: Tx, scope: str) -> None:
    dag, _, job = scope.partition(".")
    if tx.one(sa.select(schema.dags.c.name).where(schema.dags.c.name == dag)) is None:
        raise NotFound(f"there is no DAG {dag!r}: see qo dag list")
    if not job and scope == dag:
        return
    jobs, versions = schema.jobs, schema.dag_versions
    job_row = tx.one(
        sa.select(jobs.c.id)
        .join(versions, versions.c.id == jobs.c.version_id)
        .where(versions.c.dag == dag, versions.c.status.in_(sorted(LIVE)), jobs.c.name == job)
        .limit(1)
    )
    if job_row is None:
        raise NotFound(f"no live version of {dag!r} has a job {job!r}: see qo dag show {dag}")


def _answer(row: sa.RowMapping, *, changed: bool) -> PauseAnswer:
    return PauseAnswer(
        scope=row["scope"], paused=True, changed=changed, reason=row["reason"], by=row["by"], at=row["at"]
    )
