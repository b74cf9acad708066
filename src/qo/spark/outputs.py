"""The end of an attempt: writes its frames, checks its expectations, and sums up the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qo.core.pipeline.expectation import describe_value, parse_expectations
from qo.spark.io import writing
from qo.spark.io.bucketing import Bucketed
from qo.spark.io.frame_lineage import LINEAGES
from qo.spark.io.writing import WrittenOutput
from qo.spark.operators.operator_context import Context, Frames, Inputs
from qo.spark.phases import Phases
from qo.spark.quality import quality


def write_outputs(context: Context, frames: Frames, phases: Phases) -> dict[int, WrittenOutput]:
    """Write every frame to its output. Starts no further one after the attempt was asked to stop."""
    run, expectations = context.run, parse_expectations(context.run.work.expectations)
    outputs: dict[int, WrittenOutput] = {}
    for index, frame in frames.items():
        run.cancel.check()
        with phases("write"):
            output = next(each for each in run.outputs if each.details.index == index)
            rows = frame.rows if isinstance(frame, Bucketed) else frame
            own = [each for each in expectations if each.output == index]
            measures = quality.measures(own, rows.schema, rows, quality.span_of(run.work))
            inputs = context.inputs.in_use if isinstance(context.inputs, Inputs) else context.inputs
            LINEAGES.describe(output, rows, inputs)
            outputs[index] = writing.write(context.spark, frame, output, context.files, measures, run.work)
        if isinstance(frame, Bucketed) and index == 0:
            context.details.update(describe_buckets(frame, outputs[index].partitions or {}))
    run.cancel.check()
    return outputs


def describe_buckets(frame: Bucketed, partitions: Mapping[str, int]) -> dict[str, Any]:
    """Return what people want to know of buckets: how many were written, and whether one is much larger than others."""
    rows = {frame.key(bucket): n for bucket, n in frame.standing.items()} | dict(partitions)
    largest = max(rows, key=lambda key: (rows[key], key), default=None)
    return {
        "buckets": frame.count,
        "buckets_written": len(partitions),
        "largest_bucket": None if largest is None else {"bucket": largest, "rows": rows[largest]},
    }


def check_expectations(context: Context, outputs: Mapping[int, WrittenOutput]) -> None:
    """Check the outputs. Raises QualityFailed if an expectation of severity fail was not met."""
    run, expectations = context.run, parse_expectations(context.run.work.expectations)
    if not expectations:
        return
    run.checks = quality.check(context.spark, run, expectations, outputs, context.inputs, context.files)
    failed = [each for each in run.checks if not each.passed and each.severity == "fail"]
    if failed:
        findings = "; ".join(
            f"{each.name}: found {describe_value(each.observed)}, expected {describe_value(each.expected)}"
            for each in failed[:5]
        )
        more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
        run.reject(f"{len(failed)} of {len(run.checks)} expectations failed: {findings}{more}")


def result_of(
    written_outputs: Mapping[int, WrittenOutput], details: Mapping[str, Any], phases: Phases
) -> dict[str, Any]:
    """Return the task's result: a small summary for people."""
    outputs = {
        str(index): {"rows": each.rows, "bytes": each.bytes, "files": len(each.files)}
        for index, each in sorted(written_outputs.items())
    }
    seconds = {name: round(took, 3) for name, took in phases.seconds.items()}
    return {"outputs": outputs, "seconds": seconds, **details}
