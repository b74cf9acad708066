"""Claiming: a worker that was woken asks for its task, and gets all that it needs or a reason to skip it.

A claim is never an error. Limits and pauses play no part in it: they act before a wake-up is released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from qo.api.contract.task import Claimed, ClaimRequest, NotClaimed, Work, WorkCode, WorkInput, WorkOutput
from qo.core import run_log
from qo.core.lifecycle import Claim, Reason, Rejected
from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.attempts import pins
from qo.dispatcher.attempts.pins import Reader
from qo.dispatcher.bundles.bundle_store import location_of
from qo.dispatcher.commits import dataset_columns
from qo.dispatcher.commits.outputs import prefix_path
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import rows
from qo.dispatcher.tasks.rows import Move, Moved, Row

REPORT_S = 10.0
BEATS = 3  # Heartbeats within one lease.

_NOT_CLAIMED = {
    Status.RUNNING: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}


def claim(tx: Tx, request: ClaimRequest, data_root: str) -> Claimed | NotClaimed:
    """Begin the next attempt, or return why there is none to begin. The caller adds the token of the attempt.

    A repeated claim with the same ``lease_id`` gets the same answer. A pending task that is withheld is "not_due": the
    wake-up is old, and to follow it would bypass every limit. So is one whose job no live version has: after a
    rollback it is released again.
    """
    return claim_all(tx, [request], data_root)[0]


def claim_all(tx: Tx, requests: Sequence[ClaimRequest], data_root: str) -> list[Claimed | NotClaimed]:
    """As ``claim``, for several tasks."""
    live = topology.load(tx)
    rows_by_id = rows.load_all(tx, [each.task_id for each in requests])
    tx.refresh_now()  # A lease begins when it is granted.
    decisions = [_claim_move(tx, live, each, rows_by_id.get(each.task_id)) for each in requests]
    moves = [each for each in decisions if isinstance(each, Move)]
    moved = dict(zip((each.row["id"] for each in moves), rows.move_all(tx, moves), strict=True))
    readers = {id_: Reader(each.row, live.jobs[each.row["edition_id"]]) for id_, each in _moved_rows(moved)}
    pins.record(tx, [readers[id_] for id_, each in _moved_rows(moved) if each.changed], live)
    works = dict(zip(readers, works_of(tx, list(readers.values()), data_root), strict=True))
    answers: list[Claimed | NotClaimed] = []
    for request, each in zip(requests, decisions, strict=True):
        if isinstance(each, NotClaimed):
            answers.append(each)
        elif isinstance(rejected := moved[request.task_id], Rejected):
            answers.append(_reason(each.row, rejected))
        else:
            answers.append(_claimed(rejected.row, works[request.task_id]))
    return answers


def _claim_move(tx: Tx, live: Topology, request: ClaimRequest, row: Row | None) -> Move | NotClaimed:
    if row is None:
        return NotClaimed(reason="not_found")
    if row["edition_id"] not in live.jobs:
        return _unclaimable(tx, row)
    if row["status"] == Status.PENDING and row["released_at"] is None:
        return NotClaimed(reason="not_due")
    lease_id = request.lease_id or tx.ambient.task_id()
    token, length_s = tx.ambient.token(), lease_s(row, 0.0)
    return Move(row, Claim(token=token, lease_id=lease_id, worker_id=request.worker_id, lease_s=length_s))


def _moved_rows(moved: Mapping[str, Moved | Rejected]) -> list[tuple[str, Moved]]:
    return [(id_, each) for id_, each in moved.items() if isinstance(each, Moved)]


def _claimed(row: Row, work: Work) -> Claimed:
    return Claimed(
        attempt=row["attempt"],
        lease_id=row["lease_id"],
        at=row["started_at"],
        lease_expires_at=row["lease_expires_at"],
        heartbeat_s=row["lease_s"] / BEATS,
        work=work,
    )


def lease_s(row: Row, running_s: float) -> float:
    """Return how long a lease may be that is granted now: never far beyond the attempt's timeout.

    The worker itself stops an attempt that takes too long; ``REPORT_S`` leaves it the time to report that.
    """
    timeout = row["timeout_seconds"]
    return row["lease_s"] if timeout is None else max(0.0, min(row["lease_s"], timeout + REPORT_S - running_s))


def works_of(tx: Tx, readers: Sequence[Reader], data_root: str) -> list[Work]:
    """Return all that operators need to run the current attempts."""
    inputs = pins.read(tx, readers) if readers else []
    columns = dataset_columns.load_history(
        tx, {output.generation_id for each in readers for output in each.job.outputs}
    )
    return [_work(tx, each, read, data_root, columns) for each, read in zip(readers, inputs, strict=True)]


def _work(
    tx: Tx, reader: Reader, inputs: list[WorkInput], data_root: str, columns: dataset_columns.ColumnHistory
) -> Work:
    row, job = reader.row, reader.job
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
        inputs=inputs,
        outputs=[
            WorkOutput(
                index=output.index,
                dataset_id=output.dataset_id,
                generation_id=output.generation_id,
                prefix=prefix(data_root, output.dataset_id, output.generation_id, row["id"], row["attempt"]),
                columns=columns.bodies(output.generation_id),
            )
            for output in job.outputs
        ],
        execution_strategy=definition.execution_strategy,
        update_strategy=definition.update_strategy,
        unique_key=list(definition.unique_key),
        secrets=list(definition.secrets),
        partition_key=row["partition_key"],
        start=row["start"],
        end=row["end"],
        cursor=row["cursor"],
        attributes=row["attributes"] or {},
        invalidation_id=row["invalidation_id"],
        row_filter=_row_filter(tx, row),
        timeout_seconds=row["timeout_seconds"],
        idle_timeout=definition.idle_timeout,
        traceparent=row["traceparent"],
        log=log_prefix(data_root, row["id"], row["attempt"], row["started_at"]),
        code=_code(job, data_root),
        bundle_id=udf.bundle_id if udf is not None else None,
        entrypoint=udf.entrypoint if udf is not None else None,
        drift=definition.drift,
        cursor_column=definition.cursor_column,
        expectations=[msgspec.to_builtins(each) for each in definition.expectations],
        partitions=None if definition.partitions is None else msgspec.to_builtins(definition.partitions),
    )


def _code(job: LiveJob, data_root: str) -> WorkCode | None:
    if job.bundle is None:
        return None
    location = location_of(data_root, job.bundle)
    return WorkCode(sha256=job.bundle, location=location, fingerprint=job.job.code or "")


def prefix(data_root: str, dataset_id: str, generation_id: str, task_id: str, attempt: int) -> str:
    """Return where one attempt writes one output. No other attempt ever writes there."""
    return f"{data_root.rstrip('/')}/{prefix_path(dataset_id, generation_id, task_id, attempt)}"


def log_prefix(data_root: str, task_id: str, attempt: int, started_at: datetime) -> str:
    """Return where one attempt writes its log."""
    return f"{data_root.rstrip('/')}/{run_log.prefix_of(task_id, attempt, started_at)}"


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
