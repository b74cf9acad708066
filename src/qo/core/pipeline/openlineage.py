"""OpenLineage events for runs, which catalogues and other tools understand.

An attempt at a task is a run. It begins with START and ends with COMPLETE, FAIL or ABORT (stopped, or to be repeated).
The format is that of the specification 2-0-2; everything beyond it is in facets whose names begin with ``qo_``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from qo.core.pipeline.column_lineage import How, Lineage, Source
from qo.core.pipeline.columns import Column

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
_FACETS = "https://openlineage.io/spec/facets"
_RUNS = uuid.UUID("a6a3c3a6-3c5e-5f6f-8a52-0d6f6c1f7c55")  # The name space of ids of runs.


class EventType(StrEnum):
    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True)
class Check:
    """An expectation of an output, and whether it was met."""

    name: str
    passed: bool
    severity: str


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    version: str  # Which state of it.
    extent: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Which part of it.
    columns: Sequence[Column] | None = None
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    checks: Sequence[Check] = ()
    lineage: Lineage | None = (
        None  # Of an output. Its inputs are those of the run, by the names that they have there.
    )


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a task. ``namespace`` tells installations apart; ``producer`` names the software by a URI."""

    task_id: str
    attempt: int
    job: str
    namespace: str
    producer: str
    engine: str
    operator: str
    query: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Further fields of the task.
    inputs: Sequence[Dataset] = ()
    input_names: Mapping[str, str] = field(default_factory=dict[str, str])  # Of datasets, by name in the operator.
    outputs: Sequence[Dataset] = ()
    error: str | None = None

    @property
    def id(self) -> str:
        """Derived from the attempt, so that every process computes the same."""
        return str(uuid.uuid5(_RUNS, f"{self.task_id}/{self.attempt}"))


def event(run: Run, type_: EventType, at: datetime) -> dict[str, Any]:
    """Return the event as JSON values."""
    return {
        "eventType": type_.value,
        "eventTime": at.isoformat(),
        "producer": run.producer,
        "schemaURL": f"{SPEC}#/$defs/RunEvent",
        "run": {"runId": run.id, "facets": _run_facets(run)},
        "job": {"namespace": run.namespace, "name": run.job, "facets": _job_facets(run)},
        "inputs": [_dataset(run, each) for each in run.inputs],
        "outputs": [{**_dataset(run, each), "outputFacets": _statistics(run, each)} for each in run.outputs],
    }


def _run_facets(run: Run) -> dict[str, Any]:
    fields = {"taskId": run.task_id, "attempt": run.attempt, **run.about}
    facets = {"qo_task": _custom_facet(run, "RunFacet", fields)}
    if run.error is not None:
        message = {"message": run.error, "programmingLanguage": "python"}
        facets["errorMessage"] = _facet(run, "1-0-1", "ErrorMessageRunFacet", message)
    return facets


def _job_facets(run: Run) -> dict[str, Any]:
    kind = {"processingType": "BATCH", "integration": "QO", "jobType": "TASK"}
    facets = {
        "jobType": _facet(run, "2-0-3", "JobTypeJobFacet", kind),
        "qo_operator": _custom_facet(run, "JobFacet", {"runtime": run.engine, "operator": run.operator}),
    }
    if run.query is not None:
        facets["sql"] = _facet(run, "1-0-1", "SQLJobFacet", {"query": run.query})
    return facets


def _dataset(run: Run, each: Dataset) -> dict[str, Any]:
    facets = {"version": _facet(run, "1-0-1", "DatasetVersionDatasetFacet", {"datasetVersion": each.version})}
    if each.extent:
        facets["qo_partition"] = _custom_facet(run, "DatasetFacet", each.extent)
    if each.columns is not None:
        fields = [{"name": column.name, "type": _type(column.type)} for column in each.columns]
        facets["schema"] = _facet(run, "1-1-1", "SchemaDatasetFacet", {"fields": fields})
    if each.lineage is not None and each.lineage.columns:
        facets["columnLineage"] = _column_lineage(run, each.lineage)
    if each.checks:
        assertions = [
            {"assertion": check.name, "success": check.passed, "severity": check.severity} for check in each.checks
        ]
        facets["dataQualityAssertions"] = _facet(
            run, "1-0-1", "DataQualityAssertionsDatasetFacet", {"assertions": assertions}
        )
    return {"namespace": run.namespace, "name": each.name, "facets": facets}


def _column_lineage(run: Run, lineage: Lineage) -> dict[str, Any]:
    """Return the facet. What decides which rows there are is listed for the dataset as a whole."""
    fields = {
        name: {"inputFields": [_input_field(run, source, how) for source, how in sorted(origin.items())]}
        for name, origin in lineage.columns.items()
    }
    rows = [_input_field(run, source, how) for source, how in sorted(lineage.rows)]
    values = {"fields": fields, **({"dataset": rows} if rows else {})}
    return _facet(run, "1-2-0", "ColumnLineageDatasetFacet", values)


def _input_field(run: Run, source: Source, how: How) -> dict[str, Any]:
    kind = "DIRECT" if how in (How.IDENTITY, How.TRANSFORMATION, How.AGGREGATION) else "INDIRECT"
    return {
        "namespace": run.namespace,
        "name": run.input_names.get(source.input, source.input),
        "field": source.column,
        "transformations": [{"type": kind, "subtype": how.upper(), "masking": False}],
    }


def _statistics(run: Run, each: Dataset) -> dict[str, Any]:
    counts = {"rowCount": each.rows, "size": each.bytes, "fileCount": each.files}
    fields = {name: count for name, count in counts.items() if count is not None}
    return (
        {"outputStatistics": _facet(run, "1-0-2", "OutputStatisticsOutputDatasetFacet", fields)} if fields else {}
    )


def _type(type_: Any) -> str:
    return type_ if isinstance(type_, str) else msgspec.json.encode(type_, order="deterministic").decode()


def _facet(run: Run, version: str, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    url = f"{_FACETS}/{version}/{name}.json#/$defs/{name}"
    return {"_producer": run.producer, "_schemaURL": url, **fields}


def _custom_facet(run: Run, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a facet that the specification does not have."""
    present = {name: value for name, value in fields.items() if value is not None}
    return {"_producer": run.producer, "_schemaURL": f"{SPEC}#/$defs/{kind}", **present}
