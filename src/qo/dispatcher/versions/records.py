"""Stored versions: look-ups by number, the active one, and the plan of each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from qo.core.pipeline.dag import Dag, from_json
from qo.core.pipeline.plan import Plan, plan, upstream
from qo.core.pipeline.topology import LIVE, VersionStatus
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound, Refused

_versions, _dags = schema.dag_versions, schema.dags
_state, _ROLLBACK = schema.operator_state, "rollback"  # The key; the edition is the id of the version.


def find(tx: Tx, dag: str, number: int | None) -> sa.RowMapping:
    """Return a version by its number; without a number, the newest live one. Raises NotFound."""
    query = sa.select(_versions).where(_versions.c.dag == dag)
    if number is None:
        query = query.where(_versions.c.status.in_(sorted(LIVE))).order_by(_versions.c.number.desc())
    else:
        query = query.where(_versions.c.number == number)
    version = tx.one(query.limit(1))
    if version is None:
        dag_row(tx, dag)
        raise NotFound(f"{dag!r} has no version {number}: see qo dag show {dag}")
    return version


def find_live(tx: Tx, dag: str, number: int | None) -> sa.RowMapping:
    """Return a live version by its number; without a number, the active one, or else the newest. Raises NotFound, and
    Refused for a version that is not live."""
    if number is None and (version := active(tx, dag)) is not None:
        return version
    version = find(tx, dag, number)
    if version["status"] not in LIVE:
        raise Refused(f"version {version['number']} of {dag!r} is {version['status']}: choose a live one")
    return version


def active(tx: Tx, dag: str) -> sa.RowMapping | None:
    """Return the active version of a DAG, if there is one."""
    return tx.one(
        sa.select(_versions).join(_dags, _dags.c.active_version_id == _versions.c.id).where(_dags.c.name == dag)
    )


def stored_plan(tx: Tx, version: sa.RowMapping) -> Plan:
    """Return the plan of a version, with the datasets of other DAGs that it read when it was deployed."""
    dag = from_json(version["document"])
    return plan(dag, read_outside(tx, version["id"], dag))


def read_outside(tx: Tx, version_id: str, dag: Dag) -> dict[str, str]:
    """Return the datasets of other DAGs that a version reads, by the names they had when it was deployed."""
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


@dataclass(frozen=True, slots=True)
class Rollback:
    """When and by whom a version was rolled back; both None if that was before it was recorded."""

    at: datetime | None = None
    by: str | None = None


def record_rollback(tx: Tx, version_id: str, by: str) -> None:
    value = {"at": tx.now.isoformat(), "by": by}
    tx.upsert(_state, {"edition_id": version_id, "key": _ROLLBACK, "value": value, "updated_at": tx.now})


def find_rollback(tx: Tx, version: sa.RowMapping | None) -> Rollback | None:
    """Return the rollback of a version; None if there was none, or it has been deployed again since."""
    if version is None or version["status"] != VersionStatus.ROLLED_BACK:
        return None
    value = tx.value(
        sa.select(_state.c.value).where(_state.c.edition_id == version["id"], _state.c.key == _ROLLBACK)
    )
    return Rollback() if value is None else Rollback(datetime.fromisoformat(value["at"]), value["by"])


def dag_row(tx: Tx, name: str) -> sa.RowMapping:
    """Raises NotFound."""
    row = tx.one(sa.select(_dags).where(_dags.c.name == name))
    if row is None:
        raise NotFound(f"there is no DAG {name!r}: see qo dag list")
    return row
