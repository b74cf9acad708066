"""What was expected of outputs, and what was found: stored with the end of an attempt.

An attempt that has no say any more writes nothing down. What a success says counts for the outputs that it has
committed; what a failure says, always: nothing of it was committed, and its rejected files are kept to look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import CheckBody, CompleteRequest, Outcome
from qo.core.pipeline.event import Event
from qo.core.pipeline.expectation import describe_value
from qo.core.pipeline.topology import Topology
from qo.dispatcher.commits.outputs import Output, Write, outputs_of, validate_outputs
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.rows import Row
from qo.errors import UsageError

_checks, _rejections = schema.checks, schema.rejections

_OUTCOMES_WITH_CHECKS = (
    Outcome.SUCCESS,
    Outcome.RETRYABLE,
    Outcome.FATAL,
)  # A stopped attempt reports nothing on its data.


@dataclass(frozen=True, slots=True)
class Verdict:
    """The validated checks and rejected outputs that an attempt reports with its end."""

    row: Row
    request: CompleteRequest
    outputs: Sequence[Output]
    rejected: Sequence[Write] = ()


def validate_checks(
    tx: Tx, live: Topology, row: Row, request: CompleteRequest, data_root: str | None
) -> Verdict | None:
    """Return the validated checks of a request; None if it has none. Raises UsageError for invalid ones."""
    if request.outcome not in _OUTCOMES_WITH_CHECKS or not (request.checks or request.rejected):
        return None
    outputs = outputs_of(tx, live, row)
    rejected: list[Write] = []
    if request.outcome is not Outcome.SUCCESS:
        rejected = validate_outputs(row, request.attempt, request.rejected, outputs, data_root)
    rejected_outputs = [each.body.output for each in rejected]
    if len(set(rejected_outputs)) < len(rejected_outputs):
        raise UsageError("an output is rejected as a whole: name each once")
    unknown = {each.output for each in request.checks} - {each.index for each in outputs}
    if outputs and unknown:
        raise UsageError(f"the job has no output {min(unknown)}: it has {len(outputs)}, counted from 0")
    return Verdict(row, request, outputs, rejected)


def keep(tx: Tx, verdicts: Sequence[Verdict], committed: Mapping[str, Sequence[Write]]) -> None:
    """Store checks and rejected outputs. ``committed``: what was committed, by task."""
    checks: list[dict[str, Any]] = []
    rejections: list[dict[str, Any]] = []
    for each in verdicts:
        succeeded = each.request.outcome is Outcome.SUCCESS
        writes = committed.get(each.row["id"], ()) if succeeded else each.rejected
        events = {write.body.output: write.event for write in writes}
        for position, check in enumerate(each.request.checks):
            if not succeeded or not each.outputs or check.output in events:
                checks.append(_check(tx, each, position, check, events.get(check.output)))
        rejections += [_rejection(tx, each, write) for write in each.rejected]
    tx.insert(_checks, checks)
    tx.insert(_rejections, rejections)


def _check(tx: Tx, verdict: Verdict, position: int, check: CheckBody, event: Event | None) -> dict[str, Any]:
    row = verdict.row
    by_index = {each.index: each for each in verdict.outputs}
    # A job without outputs checks what it has read.
    of = by_index.get(check.output) or Output(0, row["dataset_id"] or "", row["generation_id"] or "")
    return _about(tx, verdict, event) | {
        "position": position,
        "dataset_id": of.dataset_id,
        "generation_id": of.generation_id,
        "name": check.name,
        "kind": check.kind,
        "severity": check.severity,
        "passed": check.passed,
        "observed": check.observed,
        "expected": check.expected,
    }


def _rejection(tx: Tx, verdict: Verdict, write: Write) -> dict[str, Any]:
    body, event = write.body, write.event
    columns = None if body.columns is None else [each.model_dump() for each in body.columns]
    return _about(tx, verdict, event) | {
        "output": body.output,
        "dataset_id": event.dataset_id,
        "generation_id": event.generation_id,
        "location": body.location or "",
        "files": body.files,
        "rows": body.rows,
        "bytes": body.bytes,
        "columns": columns,
        "reason": verdict.request.error or "",
    }


def _about(tx: Tx, verdict: Verdict, event: Event | None) -> dict[str, Any]:
    row = verdict.row
    return {
        "task_id": row["id"],
        "attempt": verdict.request.attempt,
        "dag": row["dag"],
        "job": row["job"],
        "partition_key": row["partition_key"] if event is None else event.partition_key,
        "cursor": row["cursor"] if event is None else event.cursor,
        "at": tx.now,
    }


def failed_checks(tx: Tx, task_id: str, limit: int = 10) -> Iterator[str]:
    """Return the failed checks of the last attempt at a task that reported any, in words."""
    last = sa.select(sa.func.max(_checks.c.attempt)).where(_checks.c.task_id == task_id).scalar_subquery()
    rows = tx.all(
        sa.select(_checks)
        .where(_checks.c.task_id == task_id, _checks.c.attempt == last, sa.not_(_checks.c.passed))
        .order_by(_checks.c.position)
        .limit(limit)
    )
    for each in rows:
        observed, expected = describe_value(each["observed"]), describe_value(each["expected"])
        yield f"{each['name']} ({each['severity']}): found {observed}, expected {expected}"


def last_rejection(tx: Tx, dataset_id: str, partition_key: str | None) -> sa.RowMapping | None:
    """Return the newest rejected output of a partition."""
    table = _rejections
    same = (table.c.dataset_id == dataset_id, table.c.partition_key == partition_key)
    return tx.one(sa.select(table).where(*same).order_by(table.c.at.desc()).limit(1))


def purge(tx: Tx, kept_days: int, limit: int) -> int:
    """Delete older checks and rejections, and return how many. Files of rejected outputs can then be collected."""
    purged = 0
    for table, last in ((_checks, _checks.c.position), (_rejections, _rejections.c.output)):
        key = (table.c.task_id, table.c.attempt, last)
        old = sa.select(*key).where(table.c.at < tx.now - timedelta(days=kept_days))
        keys = [tuple(row) for row in tx.execute(tx.lock(old.order_by(table.c.at).limit(limit), skip=True))]
        if keys:
            tx.execute(sa.delete(table).where(sa.tuple_(*key).in_(keys)))
        purged += len(keys)
    return purged
