"""Checks the expectations of an output.

Most are measured while the rows are written (``measures``). Unique keys and references are checked on the files just
written, and so is a sample of the rows that break an expectation, if there are any.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructType

from qo.agent.operator_run import Run, RunOutput
from qo.api.contract.task import CheckBody, Work
from qo.core.pipeline.expectation import Expectation
from qo.core.pipeline.partition_span import PartitionSpan, find_span
from qo.spark.engine.error_translation import short_text
from qo.spark.io.columns import struct_of
from qo.spark.io.files import Files
from qo.spark.io.writing import Measure, WrittenOutput
from qo.spark.quality.conditions import breaking_condition, col, epoch_micros, field_of, keys_of, misfit

SAMPLE_MAX = 5  # Rows that break an expectation.
SAMPLE_COLUMNS_MAX = 12
SAMPLE_CHARS_MAX = 100
VALUES_SHOWN = 20
NAME_CHARS_MAX = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def measures(
    expectations: Sequence[Expectation],
    schema: StructType,
    frame: DataFrame | None = None,
    span: PartitionSpan | None = None,
) -> list[Measure]:
    """Return what to measure of an output while it is written, for its own expectations.

    Raises UsageError for one that names a missing column; with the frame, also for conditions that Spark does not
    understand, before anything is written. ``span``: of the partition that is written.
    """
    all_measures: list[Measure] = []
    for each in expectations:
        own = _measures(each, schema, span)
        if frame is not None and each.sql is not None:
            _check_condition(each, own, frame)
        all_measures += own
    return all_measures


def _measures(each: Expectation, schema: StructType, span: PartitionSpan | None) -> list[Measure]:
    name = _name(each)
    if each.not_null:
        fields = [field_of(each, column, schema) for column in each.not_null]
        # By functions: for each method of a column, PySpark records the caller, with five calls to the JVM.
        return [Measure(f"{name} {field.name}", F.count_if(F.isnull(col(field.name)))) for field in fields]
    if each.freshness is not None:
        now = F.max(F.unix_micros(F.current_timestamp()))  # Spark's clock; qo never uses that of its process.
        return [
            Measure(name, F.max(epoch_micros(each, each.freshness.column, schema))),
            Measure(f"{name} now", now),
        ]
    if (condition := _row_condition(each, schema, span)) is not None:
        return [Measure(name, F.count_if(condition))]
    # These are checked after the write; only their columns are checked now.
    keys_of(each, each.unique or (each.references.columns if each.references is not None else ()), schema)
    return []


def _row_condition(each: Expectation, schema: StructType, span: PartitionSpan | None) -> Column | None:
    try:
        return breaking_condition(each, schema, span)
    except AnalysisException as error:
        raise misfit(each, short_text(error)) from None


def _check_condition(each: Expectation, own: Sequence[Measure], frame: DataFrame) -> None:
    condition = each.sql or ""
    try:
        # As it will be measured. To know its type, Spark must analyse it.
        _ = frame.observe("check", *(measure.column.alias("measured") for measure in own)).schema
        type_ = frame.select(F.expr(condition).alias("holds")).schema[0].dataType
    except AnalysisException as error:
        raise misfit(each, short_text(error)) from None
    if not isinstance(type_, BooleanType):
        raise misfit(each, f"it is {type_.simpleString()}, and a condition is true or false")


def _name(each: Expectation) -> str:
    """Return the name of its measures, which follows from the expectation."""
    return hashlib.sha256(msgspec.json.encode(each, order="deterministic")).hexdigest()[:16]


def check(
    spark: SparkSession,
    run: Run,
    expectations: Sequence[Expectation],
    written_outputs: Mapping[int, WrittenOutput],
    inputs: Mapping[str, DataFrame],
    files: Files | None = None,
) -> list[CheckBody]:
    """Return how each expectation of the written outputs was met. Raises UsageError as ``measures``.

    Without ``files``, Spark itself reads what was written.
    """
    outputs = {each.details.index: each for each in run.outputs}
    checkers = {
        index: _Checker(spark, outputs[index], each, inputs, files, span_of(run.work))
        for index, each in written_outputs.items()
    }
    return [_check_body(each, checkers[each.output]) for each in expectations if each.output in checkers]


def _check_body(each: Expectation, checker: _Checker) -> CheckBody:
    finding = checker.check(each)
    return CheckBody(
        output=each.output,
        name=each.title[:NAME_CHARS_MAX],
        kind=each.kind,
        severity=each.severity.value,
        passed=finding.passed,
        observed=finding.observed,
        expected=finding.expected,
    )


@dataclass(frozen=True, slots=True)
class Finding:
    passed: bool
    observed: dict[str, Any]
    expected: Any


@dataclass(frozen=True, slots=True)
class _Checker:
    """Checks one output that was written."""

    spark: SparkSession
    output: RunOutput
    result: WrittenOutput
    inputs: Mapping[str, DataFrame]
    files: Files | None
    span: PartitionSpan | None = None  # Of the partition.

    def check(self, each: Expectation) -> Finding:
        if each.not_null:
            return self._not_null(each)
        if each.rows is not None:
            return _rows(each, self.result.rows)
        if each.freshness is not None:
            return self._freshness(each)
        if each.unique:
            return self._unique(each)
        if each.references is not None:
            return self._references(each)
        return self._row_condition(each)

    def _not_null(self, each: Expectation) -> Finding:
        fields = [field_of(each, name, self.schema) for name in each.not_null]
        counts = {field.name: self.result.observed.get(f"{_name(each)} {field.name}") or 0 for field in fields}
        nulls = {name: count for name, count in counts.items() if count}
        return Finding(not nulls, {"nulls": nulls or 0}, "no nulls")

    def _freshness(self, each: Expectation) -> Finding:
        assert each.freshness is not None
        expected = {"within": each.freshness.within}
        micros, now = (self.result.observed.get(f"{_name(each)}{what}") for what in ("", " now"))
        if micros is None or now is None:
            return Finding(True, {"latest": None}, expected)
        latest = _EPOCH + timedelta(microseconds=micros)
        age_s = (now - micros) // 1_000_000
        return Finding(age_s <= each.freshness.within_s, {"latest": latest.isoformat(), "age_s": age_s}, expected)

    def _row_condition(self, each: Expectation) -> Finding:
        count = self.result.observed.get(_name(each)) or 0
        word, expected = _terms(each, self.span)
        if not count:
            return Finding(True, {word: 0}, expected)
        condition = breaking_condition(each, self.schema, self.span)
        assert condition is not None
        broken = self.frame().where(condition)
        about = each.range or each.accepted
        column = about.column if about is not None else each.in_partition
        if column is not None:
            broken = broken.select(col(column)).distinct()
        return Finding(False, {word: count, "sample": _sample(broken)}, expected)

    def _unique(self, each: Expectation) -> Finding:
        expected = f"no two rows with the same {', '.join(each.unique)}"
        if not self.result.rows:
            return Finding(True, {"duplicates": 0}, expected)
        keys = [col(field.name) for field in keys_of(each, each.unique, self.schema)]
        rows = self.frame().select(*_renamed(keys)).dropna()
        groups = rows.groupBy(*rows.columns).agg(F.count(F.lit(1)).alias("n")).where(F.col("n") > 1)
        surplus = _first_number(groups.agg(F.sum(F.col("n") - 1)))
        if not surplus:
            return Finding(True, {"duplicates": 0}, expected)
        return Finding(False, {"duplicates": surplus, "sample": _sample(groups.drop("n"), each.unique)}, expected)

    def _references(self, each: Expectation) -> Finding:
        reference = each.references
        assert reference is not None
        expected = f"each {', '.join(reference.columns)} is in {reference.input}"
        if reference.input not in self.inputs:
            raise misfit(each, f"the task has no input {reference.input!r}")
        if not self.result.rows:
            return Finding(True, {"missing": 0}, expected)
        other = self.inputs[reference.input]
        own = keys_of(each, reference.columns, self.schema)
        owner = f"the input {reference.input!r}"
        theirs = keys_of(each, reference.input_columns or reference.columns, other.schema, owner)
        for mine, its in zip(own, theirs, strict=True):
            if isinstance(mine.dataType, StringType) is not isinstance(its.dataType, StringType):
                types = f"{mine.dataType.simpleString()} and {its.dataType.simpleString()}"
                raise misfit(
                    each, f"{mine.name!r} and {its.name!r} of {owner} cannot be compared: they are {types}"
                )
        rows = self.frame().select(*_renamed(col(field.name) for field in own)).dropna()
        referenced = other.select(*_renamed(col(field.name) for field in theirs))
        missing = rows.join(referenced, rows.columns, "left_anti")
        count = _first_number(missing.agg(F.count(F.lit(1))))
        if not count:
            return Finding(True, {"missing": 0}, expected)
        return Finding(
            False, {"missing": count, "sample": _sample(missing.distinct(), reference.columns)}, expected
        )

    @property
    def schema(self) -> StructType:
        return struct_of(self.result.columns)

    def frame(self) -> DataFrame:
        """Return the rows that were written, from their files."""
        uris = [self.output.uri(each.name) for each in self.result.files]
        if self.files is not None:
            return self.files.read(self.spark, uris, self.schema)
        return self.spark.read.schema(self.schema).parquet(*uris)


def _rows(each: Expectation, count: int) -> Finding:
    assert each.rows is not None
    low, high = each.rows.min, each.rows.max
    is_within = (low is None or count >= low) and (high is None or count <= high)
    return Finding(is_within, {"rows": count}, _bounds(low, high))


def span_of(work: Work) -> PartitionSpan | None:
    """Return the span of the partition that an attempt writes; None if nothing says what is in it."""
    return find_span(work.partitions, work.partition_key)


def _terms(each: Expectation, span: PartitionSpan | None) -> tuple[str, Any]:
    """Return what to call the rows that break it, and what was expected."""
    if each.range is not None:
        return "outside", {"column": each.range.column, **_bounds(each.range.min, each.range.max)}
    if each.accepted is not None:
        return "others", {"column": each.accepted.column, "values": list(each.accepted.values[:VALUES_SHOWN])}
    if each.in_partition is not None:
        return "elsewhere", {"column": each.in_partition, "partition": None if span is None else span.key}
    return "rows", each.sql


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    return {name: value for name, value in (("min", low), ("max", high)) if value is not None}


def _renamed(columns: Any) -> list[Column]:
    """Return the columns under generated names."""
    return [each.alias(f"k{at}") for at, each in enumerate(columns)]


def _first_number(frame: DataFrame) -> int:
    row = frame.first()
    return 0 if row is None or row[0] is None else int(row[0])


def _sample(frame: DataFrame, names: Sequence[str] | None = None) -> list[Any]:
    """Return a few rows, small and readable."""
    narrow = frame.select(*(col(each) for each in frame.columns[:SAMPLE_COLUMNS_MAX]))
    return [_sample_row(row, names or narrow.columns) for row in narrow.limit(SAMPLE_MAX).collect()]


def _sample_row(row: Row, names: Sequence[str]) -> Any:
    values = [_sample_value(value) for value in cast("tuple[Any, ...]", row)]
    return values[0] if len(values) == 1 else dict(zip(names, values, strict=False))


def _sample_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = str(value).replace("\x00", "\ufffd")
    return text if len(text) <= SAMPLE_CHARS_MAX else text[:SAMPLE_CHARS_MAX] + "…"
