"""What must be true of what a job says about its data: expectations that can be met, of outputs that it has."""

from __future__ import annotations

from typing import Any

from qo.core.pipeline.dag import Job, input_name
from qo.core.pipeline.expectation import Accepted, Expectation, Range, References, Rows
from qo.pipeline.draft import JobDraft
from qo.pipeline.problems import Path, Report, closest

SPARK_ONLY = ("cursor_column", "drift", "expectations")  # Who else writes files does not look into them.


def check_expectations(job_draft: JobDraft, report: Report) -> None:
    """Only Spark looks into data. Bounds bound something, and what is referred to is there."""
    job = job_draft.job
    if job.runtime != "spark":
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
        _says(each, job, (*path, each.kind), report)


def _says(each: Expectation, job: Job, path: Path, report: Report) -> None:
    if each.range is not None or each.rows is not None:
        _bounds(each.range or each.rows or Rows(), path, report)
    if each.accepted is not None:
        _accepted(each.accepted, path, report)
    if each.references is not None:
        _references(each.references, job, path, report)


def _bounds(given: Range | Rows, path: Path, report: Report) -> None:
    low, high = given.min, given.max
    if low is None and high is None:
        report.add(path, "nothing is bounded", "write 'min:', 'max:', or both")
    elif low is None or high is None:
        return
    elif isinstance(low, str) is not isinstance(high, str):
        report.add((*path, "max"), "one bound is text and the other a number", "write both as the column has them")
    elif _above(low, high):
        report.add((*path, "max"), f"nothing lies between {low} and {high}", "write the smaller one as 'min'")


def _above(low: Any, high: Any) -> bool:
    return bool(low > high)  # Of one type, see above. Dates are written so that their texts compare as they do.


def _accepted(given: Accepted, path: Path, report: Report) -> None:
    sorts = {_sort_of(value) for value in given.values}
    if len(sorts) > 1:
        hint = "write values of one type, in quotes where text is meant"
        report.add((*path, "values"), f"the values mix {' and '.join(sorted(sorts))}", hint)


def _sort_of(value: Any) -> str:
    return "true or false" if isinstance(value, bool) else "text" if isinstance(value, str) else "numbers"


def _references(given: References, job: Job, path: Path, report: Report) -> None:
    names = [input_name(each) for each in job.inputs]
    if given.input not in names:
        message = f"{job.name!r} has no input {given.input!r}"
        report.add((*path, "input"), message, closest(given.input, names))
    if given.input_columns and len(given.input_columns) != len(given.columns):
        message = f"{len(given.columns)} columns cannot be found in {len(given.input_columns)}"
        report.add((*path, "input_columns"), message, "name as many, in the same order, or leave it out")
