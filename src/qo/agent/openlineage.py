"""OpenLineage events for an attempt, from the dispatcher's contract."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from qo.api.contract.task import (
    CheckBody,
    ColumnBody,
    CompleteRequest,
    Outcome,
    OutputBody,
    Work,
    WorkInput,
    WorkOutput,
)
from qo.core.pipeline.columns import Column
from qo.core.pipeline.openlineage import Check, Dataset, EventType, Run, event
from qo.core.task import Status
from qo.version import VERSION

PRODUCER = f"urn:qo:{VERSION}"
ERROR_CHARS_MAX = 2_000


def start_event(work: Work, namespace: str, at: datetime) -> dict[str, Any]:
    outputs = [Dataset(_label(work, each), each.generation_id) for each in work.outputs]
    return event(_run(work, namespace, outputs), EventType.START, at)


def end_event(
    work: Work, completion: CompleteRequest | None, status: str, namespace: str, at: datetime
) -> dict[str, Any]:
    """Return the event for the end of an attempt. ``status``: of the task; without a completion, the lease was lost."""
    if completion is None:
        return event(_run(work, namespace, (), "the attempt has lost its task"), EventType.ABORT, at)
    type_ = _type(completion.outcome, status)
    bodies = completion.outputs if type_ is EventType.COMPLETE else completion.rejected
    by_index = {each.index: each for each in work.outputs}
    outputs = [
        _output_dataset(work, by_index[each.output], each, completion.checks)
        for each in bodies
        if each.output in by_index
    ]
    error = None
    if type_ is not EventType.COMPLETE:
        error = (completion.error or f"the attempt ended as {completion.outcome.value}")[:ERROR_CHARS_MAX]
    return event(_run(work, namespace, outputs, error), type_, at)


def _type(outcome: Outcome, status: str) -> EventType:
    if outcome is Outcome.SUCCESS:
        # If the task was cancelled meanwhile, or must be repeated, nothing of the attempt counts.
        return EventType.COMPLETE if status == Status.COMPLETED else EventType.ABORT
    return EventType.FAIL if outcome in (Outcome.RETRYABLE, Outcome.FATAL) else EventType.ABORT


def _run(work: Work, namespace: str, outputs: Sequence[Dataset], error: str | None = None) -> Run:
    query = work.config.get("query")
    return Run(
        task_id=work.task_id,
        attempt=work.attempt,
        job=f"{work.dag}.{work.job}",
        namespace=namespace,
        producer=PRODUCER,
        engine=work.runtime,
        operator=work.operator,
        query=query if isinstance(query, str) else None,
        about={
            "dag": work.dag,
            "job": work.job,
            "version": work.version,
            "partitionKey": work.partition_key,
            "start": work.start,
            "end": work.end,
            "cursor": work.cursor,
            "invalidationId": work.invalidation_id,
            **_code(work),
        },
        inputs=[_input_dataset(work, each) for each in work.inputs],
        input_names={each.name: each.dataset or each.dataset_id for each in work.inputs},
        outputs=outputs,
        error=error,
    )


def _code(work: Work) -> dict[str, Any]:
    """Return which code runs; nothing for built-in operators."""
    if ":" not in work.operator:
        return {}
    if work.code is None:
        return {"ownCode": True}  # Whatever the worker has.
    return {"code": work.code.fingerprint, "bundle": work.code.sha256}


def _input_dataset(work: Work, input_: WorkInput) -> Dataset:
    extent = {
        "as": input_.name,
        "mode": input_.mode.value,
        "partitionKey": work.partition_key if input_.mode.value == "partition" else None,
        "cursorAfter": input_.cursor_after,
        "cursorUpto": input_.cursor_upto,
    }
    version = f"{input_.generation_id}@{input_.revision if input_.revision is not None else 0}"
    return Dataset(input_.dataset or input_.dataset_id, version, extent, _columns(input_.columns))


def _output_dataset(work: Work, output: WorkOutput, body: OutputBody, checks: Sequence[CheckBody]) -> Dataset:
    extent = {
        "partitionKey": body.partition_key,
        "start": body.start,
        "end": body.end,
        "cursor": body.cursor,
        "location": body.location,
    }
    return Dataset(
        _label(work, output),
        output.generation_id,
        extent,
        _columns(body.columns),
        rows=body.rows,
        bytes=body.bytes,
        files=len(body.files),
        checks=[Check(each.name, each.passed, each.severity) for each in checks if each.output == body.output],
        lineage=None if body.full_lineage is None else body.full_lineage.lineage(),
    )


def _label(work: Work, output: WorkOutput) -> str:
    """Return the name of a dataset, equal to ``WorkInput.dataset`` of its readers."""
    return f"{work.dag}.{work.job}[{output.index}]" if output.index else f"{work.dag}.{work.job}"


def _columns(columns: Sequence[ColumnBody] | None) -> list[Column] | None:
    if columns is None:
        return None
    return [Column(name=each.name, type=each.type, nullable=each.nullable) for each in columns]
