"""Claiming: a worker that was woken asks for the task, and gets either everything it needs or a reason to let go.

A claim is never an error. Limits and pauses play no part in it: they act before a wake-up is released.
"""

from __future__ import annotations

import sqlalchemy as sa

from qo.core.flow.topology import LiveJob, Topology
from qo.core.lifecycle import Claim, Reason, Rejected
from qo.core.task import Status
from qo.dispatcher import topology
from qo.dispatcher.contract.task import Claimed, ClaimRequest, NotClaimed, Work, WorkOutput
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import pins, rows
from qo.dispatcher.tasks.rows import Row
from qo.errors import NotFound

BEATS = 3  # How often a holder is heard of before its lease runs out.

_NOT_CLAIMED = {
    Status.RUNNING: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


def claim(tx: Tx, request: ClaimRequest, data_root: str) -> Claimed | NotClaimed:
    """Begin the next attempt, or say why there is none to begin. The token of the attempt is the caller's to add.

    Asked again with the same ``lease_id``, the answer is the same: the first one was lost. A pending task that is
    withheld is "not_due": the wake-up is an old one, and to heed it would pass by every limit. So is one whose job no
    live version has: after a rollback it is released once more.
    """
    live = topology.load(tx)
    try:
        row = rows.load(tx, request.task_id)
    except NotFound:
        return NotClaimed(reason="not_found")
    job = live.jobs.get(row["edition_id"])
    if job is None:
        return _unclaimable(tx, row)
    if row["status"] == Status.PENDING and row["released_at"] is None:
        return NotClaimed(reason="not_due")
    lease_id = request.lease_id or tx.ambient.task_id()
    command = Claim(
        token=tx.ambient.token(), lease_id=lease_id, worker_id=request.worker_id, lease_s=lease_s(row, 0.0)
    )
    moved = rows.move(tx, row, command)
    if isinstance(moved, Rejected):
        return _reason(row, moved)
    if moved.changed:
        pins.record(tx, moved.row, job, live)
    return Claimed(
        attempt=moved.row["attempt"],
        lease_id=lease_id,
        lease_expires_at=moved.row["lease_expires_at"],
        heartbeat_s=row["lease_s"] / BEATS,
        work=work(tx, moved.row, job, data_root),
    )


def lease_s(row: Row, running_s: float) -> float:
    """How long a lease may be that is given now: never beyond the end of the attempt's time."""
    timeout = row["timeout_seconds"]
    return row["lease_s"] if timeout is None else max(0.0, min(row["lease_s"], timeout - running_s))


def work(tx: Tx, row: Row, job: LiveJob, data_root: str) -> Work:
    """Everything an operator needs to run the current attempt."""
    definition = job.job
    udf = definition.udf
    return Work(
        task_id=row["id"],
        attempt=row["attempt"],
        dag=job.dag,
        job=definition.name,
        version=job.version_number,
        runtime=definition.runtime,
        operator=definition.operator,
        config=definition.config,
        inputs=pins.read(tx, row, job),
        outputs=[
            WorkOutput(
                index=made.index,
                dataset_id=made.dataset_id,
                generation_id=made.generation_id,
                prefix=prefix(data_root, made.dataset_id, made.generation_id, row["id"], row["attempt"]),
            )
            for made in job.outputs
        ],
        execution_strategy=definition.execution_strategy,
        update_strategy=definition.update_strategy,
        unique_key=list(definition.unique_key),
        partition_key=row["partition_key"],
        start=row["start"],
        end=row["end"],
        cursor=row["cursor"],
        attributes=row["attributes"] or {},
        invalidation_id=row["invalidation_id"],
        row_filter=_row_filter(tx, row),
        timeout_seconds=row["timeout_seconds"],
        traceparent=row["traceparent"],
        bundle_id=udf.bundle_id if udf is not None else None,
        entrypoint=udf.entrypoint if udf is not None else None,
    )


def prefix(data_root: str, dataset_id: str, generation_id: str, task_id: str, attempt: int) -> str:
    """Where one attempt writes one output. No other attempt ever writes there."""
    return f"{data_root.rstrip('/')}/{prefix_path(dataset_id, generation_id, task_id, attempt)}"


def prefix_path(dataset_id: str, generation_id: str, task_id: str, attempt: int) -> str:
    """The same below the root, wherever that is mounted."""
    return f"{dataset_id}/{generation_id}/{task_id}/{attempt}/"


def live_job(live: Topology, row: Row) -> LiveJob | None:
    return live.jobs.get(row["edition_id"])


def _row_filter(tx: Tx, row: Row) -> dict[str, object] | None:
    if row["invalidation_id"] is None:
        return None
    table = schema.invalidations
    return tx.value(sa.select(table.c.row_filter).where(table.c.id == row["invalidation_id"]))


def _unclaimable(tx: Tx, row: Row) -> NotClaimed:
    if row["status"] != Status.PENDING:
        return _reason(row, None)
    table = schema.tasks
    tx.execute(sa.update(table).where(table.c.id == row["id"]).values(released_at=None))
    return NotClaimed(reason="not_due")


def _reason(row: Row, rejected: Rejected | None) -> NotClaimed:
    if rejected is not None and rejected.reason is Reason.NOT_DUE:
        return NotClaimed(reason="not_due")
    return NotClaimed.model_validate({"reason": _NOT_CLAIMED.get(Status(row["status"]), "cancelled")})
