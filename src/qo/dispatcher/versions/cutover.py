"""Which version is active: mark ready, activate, roll back, abandon. Each is one transaction.

    staged ──mark_ready──▶ ready ──activate──▶ active ──(another is activated)──▶ retired ──rollback──▶ active
       └──────── abandon ────┘                    └──────────rollback──────────▶ rolled_back

Nothing is computed here. The data of a version are its set of pointers (``version_generations``), written when it was
deployed. Activating a version or rolling back selects another set.
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
from qo.dispatcher.tasks import backlog, bulk_changes
from qo.dispatcher.versions import publishing, rebuilding, side_inputs
from qo.dispatcher.versions import records as stored_versions
from qo.dispatcher.versions.records import active, dag_row, find, read_outside, stored_plan
from qo.errors import Refused

_versions, _dags = schema.dag_versions, schema.dags

STAGED = (VersionStatus.STAGED, VersionStatus.READY)


def mark_ready(tx: Tx, dag: str, number: int, by: str, force: bool = False) -> CutoverAnswer:
    """Mark a staged version as ready to take over. Only a caller does that, never the dispatcher by itself.

    ``force``: even if tasks of it have failed. The answer counts what is built and what is not.
    """
    topology.hold(tx)
    version = find(tx, dag, number)
    if version["status"] in (VersionStatus.READY, VersionStatus.ACTIVE):
        return _answer(tx, version, changed=False)
    if version["status"] != VersionStatus.STAGED:
        raise Refused(f"version {number} of {dag!r} is {_status_text(version)}: deploy its file again to stage it")
    counts = _check_rebuilt(tx, dag, number, force)
    _set(tx, version["id"], status=VersionStatus.READY, ready_at=tx.now)
    topology.bump(tx)
    return _answer(tx, find(tx, dag, number), changed=True, **counts)


def activate(tx: Tx, dag: str, number: int, by: str, force: bool = False) -> CutoverAnswer:
    """Replace the active version by a ready one. ``force``: also by one that is not ready, or has failed tasks.

    The pending tasks of jobs that the new version does not have stay withheld, in case of a rollback.
    """
    topology.hold(tx)
    version = find(tx, dag, number)
    if version["status"] == VersionStatus.ACTIVE:
        return _answer(tx, version, changed=False)
    if version["status"] not in STAGED:
        raise Refused(
            f"version {number} of {dag!r} is {_status_text(version)}: deploy its file again, or roll back to it"
        )
    if version["status"] == VersionStatus.STAGED and not force:
        raise Refused(
            f"version {number} of {dag!r} is still being rebuilt: mark it ready when that is done, or force it"
        )
    counts = _check_rebuilt(tx, dag, number, force)
    replaced = active(tx, dag)
    stored = _publishable(tx, version)
    if replaced is not None:
        _set(tx, replaced["id"], status=VersionStatus.RETIRED, ended_at=tx.now)
    ready_at = version["ready_at"] or tx.now
    _set(tx, version["id"], status=VersionStatus.ACTIVE, ready_at=ready_at, activated_at=tx.now)
    _point(tx, dag, version["id"], replaced["id"] if replaced is not None else None)
    publishing.publish(tx, stored)
    withheld = backlog.withhold(tx, backlog.own_editions(tx, replaced["id"])) if replaced is not None else 0
    topology.bump(tx)
    side_inputs.forget(tx, backlog.editions(tx, version["id"]))  # If it is staged again, it is compared again.
    external_effects.take_over(tx, topology.load(tx), dag, by)
    before = replaced["number"] if replaced is not None else None
    return _answer(tx, find(tx, dag, number), changed=True, replaced=before, withheld=withheld, **counts)


def rollback(tx: Tx, dag: str, by: str, replaces: int | None = None) -> CutoverAnswer:
    """Make the previous version active again, as it was. The open tasks of the other one are cancelled.

    ``replaces``: the version that the caller believes to be active. Of two concurrent rollbacks one is refused;
    otherwise the second would go back by one more version.
    """
    topology.hold(tx)
    row = dag_row(tx, dag)
    current = active(tx, dag)
    if current is not None and replaces not in (None, current["number"]):
        raise Refused(
            f"version {current['number']} of {dag!r} is active by now, not {replaces}: look again, then decide"
        )
    target = tx.one(sa.select(_versions).where(_versions.c.id == row["previous_version_id"]))
    if current is None or target is None:
        raise Refused(f"{dag!r} has no earlier version to roll back to")
    stored = _publishable(tx, target)
    generations = [output.generation_id for job in stored.jobs for output in job.outputs]
    retention.require_kept(tx, generations, f"version {target['number']} of {dag!r}")
    _set(tx, current["id"], status=VersionStatus.ROLLED_BACK, ended_at=tx.now)
    stored_versions.record_rollback(tx, current["id"], by)
    _set(tx, target["id"], status=VersionStatus.ACTIVE, activated_at=tx.now, ended_at=None)
    _point(tx, dag, target["id"], _rollback_target(tx, target))
    publishing.publish(tx, stored)
    epoch = topology.bump(tx)
    # Some tasks may have been cancelled with another version that shared them and was abandoned meanwhile.
    again = derive_id("back", target["id"], epoch)
    bulk_changes.revive(tx, backlog.editions(tx, target["id"]), token=again)
    external_effects.take_over(tx, topology.load(tx), dag, by)
    stopped = bulk_changes.cancel(
        tx,
        backlog.own_editions(tx, current["id"]),
        backlog.version_given_up(dag, current["number"], VersionStatus.ROLLED_BACK, by),
        token=derive_id("rollback", current["id"], epoch),
    )
    return _answer(
        tx,
        find(tx, dag, target["number"]),
        changed=True,
        replaced=current["number"],
        cancelled=stopped.cancelled,
        cancel_requested=stopped.requested,
        cancelling=stopped.more,
    )


def abandon(tx: Tx, dag: str, number: int, by: str) -> CutoverAnswer:
    """Abandon a version that never became active. Its tasks are cancelled, its data are kept."""
    topology.hold(tx)
    version = find(tx, dag, number)
    if version["status"] == VersionStatus.ABANDONED:
        return _answer(tx, version, changed=False)
    if version["status"] not in STAGED:
        raise Refused(
            f"version {number} of {dag!r} is {_status_text(version)}: only a staged or ready one can be abandoned"
        )
    _set(tx, version["id"], status=VersionStatus.ABANDONED, ended_at=tx.now)
    epoch = topology.bump(tx)
    stopped = bulk_changes.cancel(
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
        cancelling=stopped.more,
    )


def _check_rebuilt(tx: Tx, dag: str, number: int, force: bool) -> dict[str, int]:
    """Return how much of a version is built.

    Raises Refused if tasks of it have failed, or if jobs of it wait for their side inputs, unless by ``force``.
    """
    rebuild = rebuilding.rebuild(tx, dag, number)
    failed = rebuild.tasks.get(Status.FAILED, 0)
    if failed and not force:
        raise Refused(
            f"version {number} of {dag!r} is not whole: {failed:,} of its tasks failed; see qo run list {dag} "
            "--status failed and replay them, or take it as it is with --force"
        )
    if rebuild.waits and not force:
        first = rebuild.waits[0]
        raise Refused(
            f"version {number} of {dag!r} is still being rebuilt: {first.job} {first.reason}; try again when it is "
            "done, or take it as it is with --force"
        )
    under_way = rebuild.tasks.get(Status.PENDING, 0) + rebuild.tasks.get(Status.RUNNING, 0)
    return {
        "rebuilt": rebuild.tasks.get(Status.COMPLETED, 0),
        "left": rebuild.remaining + under_way,
        "failed": failed,
    }


def _publishable(tx: Tx, version: sa.RowMapping) -> Plan:
    stored = stored_plan(tx, version)
    publishing.check(tx, stored)
    publishing.check_inputs(tx, stored.dag, read_outside(tx, version["id"], stored.dag))
    return stored


def _rollback_target(tx: Tx, version: sa.RowMapping) -> str | None:
    """Return the version that a rollback leads to once this version is active again."""
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


def _status_text(version: sa.RowMapping) -> str:
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
