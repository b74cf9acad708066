"""Which version serves: ready, activate, roll back, abandon. Each in one transaction, so nobody sees half of it.

    staged ──mark_ready──▶ ready ──activate──▶ active ──(another is activated)──▶ retired ──rollback──▶ active
       └──────── abandon ────┘                    └──────────rollback──────────▶ rolled_back

Nothing is computed here. A version's data are its pointer set, ``version_generations``, written when it was deployed;
to activate it or to go back is to choose another set.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.api.contract.dag import CutoverAnswer
from qo.core.pipeline.plan import Plan, derive_id
from qo.core.pipeline.topology import VersionStatus
from qo.core.task import Status
from qo.dispatcher.commits import retention
from qo.dispatcher.effects import external_effects
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backlog
from qo.dispatcher.versions import publishing, rebuilding, side_inputs
from qo.dispatcher.versions import records as stored_versions
from qo.dispatcher.versions.records import active, dag_row, find, read_outside, stored_plan
from qo.errors import Refused

_versions, _dags = schema.dag_versions, schema.dags

STAGED = (VersionStatus.STAGED, VersionStatus.READY)


def mark_ready(tx: Tx, dag: str, number: int, by: str, force: bool = False) -> CutoverAnswer:
    """Say that a staged version may take over. Only a person or a pipeline of theirs says so, never the dispatcher.

    ``force``: also one of which tasks have failed. The answer counts what is built and what is not.
    """
    topology.hold(tx)
    version = find(tx, dag, number)
    if version["status"] in (VersionStatus.READY, VersionStatus.ACTIVE):
        return _answer(tx, version, changed=False)
    if version["status"] != VersionStatus.STAGED:
        raise Refused(f"version {number} of {dag!r} is {_said(version)}: deploy its file again to stage it")
    counts = _rebuilt(tx, dag, number, force)
    _set(tx, version["id"], status=VersionStatus.READY, ready_at=tx.now)
    topology.bump(tx)
    return _answer(tx, find(tx, dag, number), changed=True, **counts)


def activate(tx: Tx, dag: str, number: int, by: str, force: bool = False) -> CutoverAnswer:
    """Let a ready version serve in place of the active one. ``force``: also one that nobody has called ready, or of
    which tasks have failed.

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
    counts = _rebuilt(tx, dag, number, force)
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
    side_inputs.forget(tx, backlog.editions(tx, version["id"]))  # Should it be staged again, it is compared again.
    external_effects.take_over(tx, topology.load(tx), dag, by)
    before = replaced["number"] if replaced is not None else None
    return _answer(tx, find(tx, dag, number), changed=True, replaced=before, withheld=withheld, **counts)


def rollback(tx: Tx, dag: str, by: str, replaces: int | None = None) -> CutoverAnswer:
    """Let the version that served before serve again, as it was. What the other one still had to do is cancelled.

    ``replaces``: the version that the caller saw serving. Of two who roll it back at once, one is refused; otherwise
    the second would go back one further.
    """
    topology.hold(tx)
    row = dag_row(tx, dag)
    gone = active(tx, dag)
    if gone is not None and replaces not in (None, gone["number"]):
        raise Refused(
            f"version {gone['number']} of {dag!r} serves by now, not {replaces}: look again, then decide"
        )
    target = tx.one(sa.select(_versions).where(_versions.c.id == row["previous_version_id"]))
    if gone is None or target is None:
        raise Refused(f"{dag!r} has no earlier version to roll back to")
    stored = _publishable(tx, target)
    made = [made.generation_id for job in stored.jobs for made in job.outputs]
    retention.require_kept(tx, made, f"version {target['number']} of {dag!r}")
    _set(tx, gone["id"], status=VersionStatus.ROLLED_BACK)
    stored_versions.record_rollback(tx, gone["id"], by)
    _set(tx, target["id"], status=VersionStatus.ACTIVE, activated_at=tx.now)
    _point(tx, dag, target["id"], _earlier(tx, target))
    publishing.publish(tx, stored)
    epoch = topology.bump(tx)
    # Some may have been cancelled with a version that shared them and was given up meanwhile.
    again = derive_id("back", target["id"], epoch)
    backlog.revive(tx, backlog.editions(tx, target["id"]), token=again)
    external_effects.take_over(tx, topology.load(tx), dag, by)
    stopped = backlog.cancel(
        tx,
        backlog.own_editions(tx, gone["id"]),
        backlog.version_given_up(dag, gone["number"], VersionStatus.ROLLED_BACK, by),
        token=derive_id("rollback", gone["id"], epoch),
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
        backlog.version_given_up(dag, number, VersionStatus.ABANDONED, by),
        token=derive_id("abandon", version["id"], epoch),
    )
    return _answer(
        tx,
        find(tx, dag, number),
        changed=True,
        cancelled=stopped.cancelled,
        cancel_requested=stopped.requested,
    )


def _rebuilt(tx: Tx, dag: str, number: int, force: bool) -> dict[str, int]:
    """How much of a version is built. Raises Refused if tasks of it have failed, or if jobs of it wait for others that
    make what they read beside, unless by ``force``."""
    found = rebuilding.rebuild(tx, dag, number)
    failed = found.tasks.get(Status.FAILED, 0)
    if failed and not force:
        raise Refused(
            f"version {number} of {dag!r} is not whole: {failed:,} of its tasks failed; see qo run list {dag} "
            "--status failed and replay them, or take it as it is with --force"
        )
    if found.waits and not force:
        first = found.waits[0]
        raise Refused(
            f"version {number} of {dag!r} is still being rebuilt: {first.job} {first.reason}; ask again when it is "
            "done, or take it as it is with --force"
        )
    under_way = found.tasks.get(Status.PENDING, 0) + found.tasks.get(Status.RUNNING, 0)
    return {
        "rebuilt": found.tasks.get(Status.COMPLETED, 0),
        "left": found.remaining + under_way,
        "failed": failed,
    }


def _publishable(tx: Tx, version: sa.RowMapping) -> Plan:
    stored = stored_plan(tx, version)
    publishing.check(tx, stored)
    publishing.check_inputs(tx, stored.dag, read_outside(tx, version["id"], stored.dag))
    return stored


def _earlier(tx: Tx, version: sa.RowMapping) -> str | None:
    """Where a rollback goes once this version is active again."""
    previous = tx.one(sa.select(_versions).where(_versions.c.id == version["replaced_version_id"]))
    return previous["id"] if previous is not None and previous["status"] == VersionStatus.RETIRED else None


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
