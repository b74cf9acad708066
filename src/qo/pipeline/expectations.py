"""Rules for expectations: they can be met, and are about outputs and inputs that the job has."""

from __future__ import annotations

from typing import Any

from qo.core.pipeline.dag import Job, input_name
from qo.core.pipeline.expectation import Accepted, Expectation, Range, References, Rows
from qo.pipeline.draft import JobDraft
from qo.pipeline.problems import Path, Report, closest

SPARK_ONLY = ("cursor_column", "drift", "expectations")  # Other runtimes do not look into the data.


def check_expectations(job_draft: JobDraft, on_spark: bool, report: Report) -> None:
    """Check that the job runs on Spark, that bounds make sense, and that references exist."""
    job = job_draft.job
    if not on_spark:
        for name in SPARK_ONLY:
            if name in job_draft.raw:
                message = f"{name!r} is for the runtime spark, and {job.name!r} runs on {job.runtime[:80]}"
                report.add((*job_draft.path, name), message, "remove it, or write 'runtime: spark'", key=True)
        return
    for index, each in enumerate(job.expectations):
        path: Path = (*job_draft.path, "expectations", index)
        if each.output >= job.outputs:
            hint = f"write one from 0 to {job.outputs - 1}" if job.outputs else "remove it, or write 'outputs: 1'"
            message = f"{job.name!r} has no output {each.output}: it has {job.outputs}, counted from 0"
            report.add((*path, "output"), message, hint)
        _check_condition(each, job, (*path, each.kind), report)


def _check_condition(expectation: Expectation, job: Job, path: Path, report: Report) -> None:
    if expectation.range is not None or expectation.rows is not None:
        _check_bounds(expectation.range or expectation.rows or Rows(), path, report)
    if expectation.accepted is not None:
        _check_accepted(expectation.accepted, path, report)
    if expectation.references is not None:
        _check_references(expectation.references, job, path, report)


def _check_bounds(bounds: Range | Rows, path: Path, report: Report) -> None:
    low, high = bounds.min, bounds.max
    if low is None and high is None:
        report.add(path, "nothing is bounded", "write 'min:', 'max:', or both")
    elif low is None or high is None:
        return
    elif isinstance(low, str) is not isinstance(high, str):
        report.add((*path, "max"), "one bound is text and the other a number", "write both as the column has them")
    elif _above(low, high):
        report.add((*path, "max"), f"nothing lies between {low} and {high}", "write the smaller one as 'min'")


def _above(low: Any, high: Any) -> bool:
    return bool(low > high)  # Both have one type. Dates are written so that their texts compare as they do.


def _check_accepted(accepted: Accepted, path: Path, report: Report) -> None:
    types = {_type_name(value) for value in accepted.values}
    if len(types) > 1:
        hint = "write values of one type, in quotes where text is meant"
        report.add((*path, "values"), f"the values mix {' and '.join(sorted(types))}", hint)


def _type_name(value: Any) -> str:
    return "true or false" if isinstance(value, bool) else "text" if isinstance(value, str) else "numbers"


def _check_references(references: References, job: Job, path: Path, report: Report) -> None:
    names = [input_name(each) for each in job.inputs]
    if references.input not in names:
        message = f"{job.name!r} has no input {references.input!r}"
        report.add((*path, "input"), message, closest(references.input, names))
    if references.input_columns and len(references.input_columns) != len(references.columns):
        message = f"{len(references.columns)} columns cannot be found in {len(references.input_columns)}"
        report.add((*path, "input_columns"), message, "name as many, in the same order, or leave it out")
