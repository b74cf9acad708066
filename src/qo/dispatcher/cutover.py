"""Which version serves: ready, activate, roll back, abandon. Each in one transaction, so nobody sees half of it.

    staged ──mark_ready──▶ ready ──activate──▶ active ──(another is activated)──▶ retired ──rollback──▶ active
       └──────── abandon ────┘                    └──────────rollback──────────▶ rolled_back

Nothing is computed here. A version's data are its pointer set, ``version_generations``, written when it was deployed;
to activate it or to go back is to choose another set.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.core.flow.dag import Dag, from_json
from qo.core.flow.plan import Plan, derived, plan, upstream
from qo.core.flow.topology import LIVE, VersionStatus
from qo.dispatcher import backlog, effects, publishing, topology
from qo.dispatcher.contract.dag import CutoverAnswer
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound, Refused

_versions, _dags = schema.dag_versions, schema.dags

STAGED = (VersionStatus.STAGED, VersionStatus.READY)


def mark_ready(tx: Tx, dag: str, number: int, by: str) -> CutoverAnswer:
    """Say that a staged version may take over. Only a person or a pipeline of theirs says so, never the dispatcher."""
    topology.hold(tx)
    version = find(tx, dag, number)
    if version["status"] in (VersionStatus.READY, VersionStatus.ACTIVE):
        return _answer(tx, version, changed=False)
    if version["status"] != VersionStatus.STAGED:
        raise Refused(f"version {number} of {dag!r} is {_said(version)}: deploy its file again to stage it")
    _set(tx, version["id"], status=VersionStatus.READY, ready_at=tx.now)
    topology.bump(tx)
    return _answer(tx, find(tx, dag, number), changed=True)


def activate(tx: Tx, dag: str, number: int, by: str, force: bool = False) -> CutoverAnswer:
    """Let a ready version serve in place of the active one. ``force``: also one that nobody has called ready.

    The pending tasks of jobs that the new version does not have wait, withheld, for a rollback.
    """
    topology.hold(tx)
    version = find(tx, dag, number)
    if version["status"] == VersionStatus.ACTIVE:
        return _answer(tx, version, changed=False)
    if version["status"] not in STAGED:
        raise Refused(
            f"version {number} of {dag!r} is {_said(version)}: deploy its file again, or roll back to it"
        )
    if version["status"] == VersionStatus.STAGED and not force:
        raise Refused(
            f"version {number} of {dag!r} is still being rebuilt: mark it ready when it is, or force its activation"
        )
    replaced = active(tx, dag)
    stored = _publishable(tx, version)
    if replaced is not None:
        _set(tx, replaced["id"], status=VersionStatus.RETIRED)
    ready_at = version["ready_at"] or tx.now
    _set(tx, version["id"], status=VersionStatus.ACTIVE, ready_at=ready_at, activated_at=tx.now)
    _point(tx, dag, version["id"], replaced["id"] if replaced is not None else None)
    publishing.publish(tx, stored)
    withheld = backlog.withhold(tx, backlog.own_editions(tx, replaced["id"])) if replaced is not None else 0
    topology.bump(tx)
    effects.take_over(tx, topology.load(tx), dag, by)
    before = replaced["number"] if replaced is not None else None
    return _answer(tx, find(tx, dag, number), changed=True, replaced=before, withheld=withheld)


def rollback(tx: Tx, dag: str, by: str) -> CutoverAnswer:
    """Let the version that served before serve again, as it was. What the other one still had to do is cancelled."""
    topology.hold(tx)
    row = _dag(tx, dag)
    gone = active(tx, dag)
    target = tx.one(sa.select(_versions).where(_versions.c.id == row["previous_version_id"]))
    if gone is None or target is None:
        raise Refused(f"{dag!r} has no earlier version to roll back to")
    stored = _publishable(tx, target)
    _set(tx, gone["id"], status=VersionStatus.ROLLED_BACK)
    _set(tx, target["id"], status=VersionStatus.ACTIVE, activated_at=tx.now)
    _point(tx, dag, target["id"], _earlier(tx, target))
    publishing.publish(tx, stored)
    epoch = topology.bump(tx)
    # Some may have been cancelled with a version that shared them and was given up meanwhile.
    again = derived("back", target["id"], epoch)
    backlog.revive(tx, backlog.editions(tx, target["id"]), token=again, dag=dag)
    effects.take_over(tx, topology.load(tx), dag, by)
    stopped = backlog.cancel(
        tx,
        backlog.own_editions(tx, gone["id"]),
        token=derived("rollback", gone["id"], epoch),
        by=by,
        reason=backlog.stop_reason(dag, gone["number"], VersionStatus.ROLLED_BACK),
    )
    return _answer(
        tx,
        find(tx, dag, target["number"]),
        changed=True,
        replaced=gone["number"],
        cancelled=stopped.cancelled,
        cancel_requested=stopped.requested,
    )


def abandon(tx: Tx, dag: str, number: int, by: str) -> CutoverAnswer:
    """Give up a version that never became active. Its tasks are cancelled, its data are kept."""
    topology.hold(tx)
    version = find(tx, dag, number)
    if version["status"] == VersionStatus.ABANDONED:
        return _answer(tx, version, changed=False)
    if version["status"] not in STAGED:
        raise Refused(
            f"version {number} of {dag!r} is {_said(version)}: only a staged or ready one can be abandoned"
        )
    _set(tx, version["id"], status=VersionStatus.ABANDONED)
    epoch = topology.bump(tx)
    stopped = backlog.cancel(
        tx,
        backlog.own_editions(tx, version["id"]),
        token=derived("abandon", version["id"], epoch),
        by=by,
        reason=backlog.stop_reason(dag, number, VersionStatus.ABANDONED),
    )
    return _answer(
        tx,
        find(tx, dag, number),
        changed=True,
        cancelled=stopped.cancelled,
        cancel_requested=stopped.requested,
    )


def find(tx: Tx, dag: str, number: int | None) -> sa.RowMapping:
    """A version by its number; without one, the newest live one. Raises NotFound."""
    query = sa.select(_versions).where(_versions.c.dag == dag)
    if number is None:
        query = query.where(_versions.c.status.in_(sorted(LIVE))).order_by(_versions.c.number.desc())
    else:
        query = query.where(_versions.c.number == number)
    version = tx.one(query.limit(1))
    if version is None:
        _dag(tx, dag)
        raise NotFound(f"{dag!r} has no version {number}: see qo dag show {dag}")
    return version


def active(tx: Tx, dag: str) -> sa.RowMapping | None:
    """The version that serves."""
    return tx.one(
        sa.select(_versions).join(_dags, _dags.c.active_version_id == _versions.c.id).where(_dags.c.name == dag)
    )


def stored_plan(tx: Tx, version: sa.RowMapping) -> Plan:
    """The plan of a version, with what it read of other DAGs when it was deployed."""
    dag = from_json(version["document"])
    return plan(dag, _read_outside(tx, version["id"], dag))


def _read_outside(tx: Tx, version_id: str, dag: Dag) -> dict[str, str]:
    jobs, inputs = schema.jobs, schema.job_inputs
    rows = tx.execute(
        sa.select(jobs.c.name, inputs.c.position, inputs.c.dataset_id)
        .join(inputs, inputs.c.job_id == jobs.c.id)
        .where(jobs.c.version_id == version_id, inputs.c.generation_id.is_(None))
    )
    stored = {(row.name, row.position): row.dataset_id for row in rows}
    return {
        each.from_.dataset or "": stored[job.name, position]
        for job in dag.jobs
        for position, each in enumerate(job.inputs)
        if upstream(dag, each) is None
    }


def _publishable(tx: Tx, version: sa.RowMapping) -> Plan:
    stored = stored_plan(tx, version)
    publishing.check(tx, stored)
    publishing.check_inputs(tx, stored.dag, _read_outside(tx, version["id"], stored.dag))
    return stored


def _earlier(tx: Tx, version: sa.RowMapping) -> str | None:
    """Where a rollback goes once this version is active again."""
    previous = tx.one(sa.select(_versions).where(_versions.c.id == version["replaced_version_id"]))
    return previous["id"] if previous is not None and previous["status"] == VersionStatus.RETIRED else None


def _dag(tx: Tx, name: str) -> sa.RowMapping:
    row = tx.one(sa.select(_dags).where(_dags.c.name == name))
    if row is None:
        raise NotFound(f"there is no DAG {name!r}: see qo dag list")
    return row


def _set(tx: Tx, version_id: str, **values: Any) -> None:
    tx.execute(sa.update(_versions).where(_versions.c.id == version_id).values(**values))


def _point(tx: Tx, dag: str, version_id: str, previous: str | None) -> None:
    tx.execute(
        sa.update(_dags)
        .where(_dags.c.name == dag)
        .values(active_version_id=version_id, previous_version_id=previous, updated_at=tx.now)
    )
    _set(tx, version_id, replaced_version_id=previous)


def _said(version: sa.RowMapping) -> str:
    return str(version["status"]).replace("_", " ")


def _answer(tx: Tx, version: sa.RowMapping, *, changed: bool, **counts: Any) -> CutoverAnswer:
    now = active(tx, version["dag"])
    return CutoverAnswer(
        dag=version["dag"],
        version=version["number"],
        status=version["status"],
        changed=changed,
        active=now["number"] if now is not None else None,
        **counts,
    )
