"""Whether an output is as it should be.

Most is found out while the rows are written (``measures``), and needs no second look. Whether rows are unique, and
whether what they refer to is there, is asked of the files just written. So are a few examples of what is wrong, but
only where something is.
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
from qo.api.contract.task import CheckBody
from qo.core.pipeline.expectation import Expectation
from qo.spark.engine.errors import short_text
from qo.spark.io.columns import struct_of
from qo.spark.io.files import Files
from qo.spark.io.writing import Measure, Written
from qo.spark.quality.conditions import breaking, col, field_of, keys_of, moment, wrong

SAMPLE_MAX = 5  # Examples of what is wrong.
SAMPLE_COLUMNS_MAX = 12
SAMPLE_CHARS_MAX = 100
VALUES_SHOWN = 20
NAME_CHARS_MAX = 500
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def measures(
    expectations: Sequence[Expectation], schema: StructType, frame: DataFrame | None = None
) -> list[Measure]:
    """What to find out about an output while it is written. Its own expectations, and no others.

    Raises UsageError for one that names a column which is not there; with the frame, also for conditions that Spark
    does not understand, before anything is written.
    """
    found: list[Measure] = []
    for each in expectations:
        own = _measures(each, schema)
        if frame is not None and each.sql is not None:
            _understood(each, own, frame)
        found += own
    return found


def _measures(each: Expectation, schema: StructType) -> list[Measure]:
    name = _name(each)
    if each.not_null:
        fields = [field_of(each, column, schema) for column in each.not_null]
        # By functions: PySpark notes for each method of a column who has called it, in five questions to the JVM.
        return [Measure(f"{name} {field.name}", F.count_if(F.isnull(col(field.name)))) for field in fields]
    if each.freshness is not None:
        now = F.max(F.unix_micros(F.current_timestamp()))  # Spark's own: a process's clock is never asked.
        return [Measure(name, F.max(moment(each, each.freshness.column, schema))), Measure(f"{name} now", now)]
    if (condition := _breaking(each, schema)) is not None:
        return [Measure(name, F.count_if(condition))]
    # These are looked at when all is written. That their columns are there, is known now.
    keys_of(each, each.unique or (each.references.columns if each.references is not None else ()), schema)
    return []


def _breaking(each: Expectation, schema: StructType) -> Column | None:
    try:
        return breaking(each, schema)
    except AnalysisException as error:
        raise wrong(each, short_text(error)) from None


def _understood(each: Expectation, own: Sequence[Measure], frame: DataFrame) -> None:
    condition = each.sql or ""
    try:
        # As it will be asked for; to tell what type it is, Spark must have understood it.
        _ = frame.observe("understood", *(measure.column.alias("found") for measure in own)).schema
        type_ = frame.select(F.expr(condition).alias("holds")).schema[0].dataType
    except AnalysisException as error:
        raise wrong(each, short_text(error)) from None
    if not isinstance(type_, BooleanType):
        raise wrong(each, f"it is {type_.simpleString()}, and a condition is true or false")


def _name(each: Expectation) -> str:
    """What its measures are known by: the same for the same words."""
    return hashlib.sha256(msgspec.json.encode(each, order="deterministic")).hexdigest()[:16]


def settle(
    spark: SparkSession,
    run: Run,
    expectations: Sequence[Expectation],
    written: Mapping[int, Written],
    inputs: Mapping[str, DataFrame],
    files: Files | None = None,
) -> list[CheckBody]:
    """How each expectation was met, of all outputs that were written. Raises UsageError as ``measures``.

    Without ``files``, what was written is read by Spark's own means.
    """
    outputs = {each.given.index: each for each in run.outputs}
    looks = {index: _Look(spark, outputs[index], each, inputs, files) for index, each in written.items()}
    return [_checked(each, looks[each.output]) for each in expectations if each.output in looks]


def _checked(each: Expectation, look: _Look) -> CheckBody:
    found = look.found(each)
    return CheckBody(
        output=each.output,
        name=each.title[:NAME_CHARS_MAX],
        kind=each.kind,
        severity=each.severity.value,
        passed=found.passed,
        observed=found.observed,
        expected=found.expected,
    )


@dataclass(frozen=True, slots=True)
class Found:
    passed: bool
    observed: dict[str, Any]
    expected: Any


@dataclass(frozen=True, slots=True)
class _Look:
    """At one output that was written."""

    spark: SparkSession
    output: RunOutput
    written: Written
    inputs: Mapping[str, DataFrame]
    files: Files | None

    def found(self, each: Expectation) -> Found:
        if each.not_null:
            return self._not_null(each)
        if each.rows is not None:
            return _rows(each, self.written.rows)
        if each.freshness is not None:
            return self._freshness(each)
        if each.unique:
            return self._unique(each)
        if each.references is not None:
            return self._references(each)
        return self._breaking(each)

    def _not_null(self, each: Expectation) -> Found:
        fields = [field_of(each, name, self.schema) for name in each.not_null]
        counts = {field.name: self.written.observed.get(f"{_name(each)} {field.name}") or 0 for field in fields}
        nulls = {name: count for name, count in counts.items() if count}
        return Found(not nulls, {"nulls": nulls or 0}, "no nulls")

    def _freshness(self, each: Expectation) -> Found:
        assert each.freshness is not None
        expected = {"within": each.freshness.within}
        micros, now = (self.written.observed.get(f"{_name(each)}{what}") for what in ("", " now"))
        if micros is None or now is None:
            return Found(True, {"latest": None}, expected)
        latest = _BEGINNING + timedelta(microseconds=micros)
        age_s = (now - micros) // 1_000_000
        return Found(age_s <= each.freshness.within_s, {"latest": latest.isoformat(), "age_s": age_s}, expected)

    def _breaking(self, each: Expectation) -> Found:
        count = self.written.observed.get(_name(each)) or 0
        word, expected = _words(each)
        if not count:
            return Found(True, {word: 0}, expected)
        condition = breaking(each, self.schema)
        assert condition is not None
        broken = self.frame().where(condition)
        about = each.range or each.accepted
        if about is not None:
            broken = broken.select(col(about.column)).distinct()
        return Found(False, {word: count, "sample": _sample(broken)}, expected)

    def _unique(self, each: Expectation) -> Found:
        expected = f"no two rows with the same {', '.join(each.unique)}"
        if not self.written.rows:
            return Found(True, {"duplicates": 0}, expected)
        keys = [col(field.name) for field in keys_of(each, each.unique, self.schema)]
        rows = self.frame().select(*_numbered(keys)).dropna()
        groups = rows.groupBy(*rows.columns).agg(F.count(F.lit(1)).alias("n")).where(F.col("n") > 1)
        surplus = _number(groups.agg(F.sum(F.col("n") - 1)))
        if not surplus:
            return Found(True, {"duplicates": 0}, expected)
        return Found(False, {"duplicates": surplus, "sample": _sample(groups.drop("n"), each.unique)}, expected)

    def _references(self, each: Expectation) -> Found:
        given = each.references
        assert given is not None
        expected = f"each {', '.join(given.columns)} is in {given.input}"
        if given.input not in self.inputs:
            raise wrong(each, f"the task has no input {given.input!r}")
        if not self.written.rows:
            return Found(True, {"missing": 0}, expected)
        other = self.inputs[given.input]
        own = keys_of(each, given.columns, self.schema)
        owner = f"the input {given.input!r}"
        theirs = keys_of(each, given.input_columns or given.columns, other.schema, owner)
        for mine, its in zip(own, theirs, strict=True):
            if isinstance(mine.dataType, StringType) is not isinstance(its.dataType, StringType):
                types = f"{mine.dataType.simpleString()} and {its.dataType.simpleString()}"
                raise wrong(
                    each, f"{mine.name!r} and {its.name!r} of {owner} cannot be compared: they are {types}"
                )
        rows = self.frame().select(*_numbered(col(field.name) for field in own)).dropna()
        known = other.select(*_numbered(col(field.name) for field in theirs))
        missing = rows.join(known, rows.columns, "left_anti")
        count = _number(missing.agg(F.count(F.lit(1))))
        if not count:
            return Found(True, {"missing": 0}, expected)
        return Found(False, {"missing": count, "sample": _sample(missing.distinct(), given.columns)}, expected)

    @property
    def schema(self) -> StructType:
        return struct_of(self.written.columns)

    def frame(self) -> DataFrame:
        """What was written, from its files."""
        uris = [self.output.uri(each.name) for each in self.written.files]
        if self.files is not None:
            return self.files.read(self.spark, uris, self.schema)
        return self.spark.read.schema(self.schema).parquet(*uris)


def _rows(each: Expectation, count: int) -> Found:
    assert each.rows is not None
    low, high = each.rows.min, each.rows.max
    good = (low is None or count >= low) and (high is None or count <= high)
    return Found(good, {"rows": count}, _bounds(low, high))


def _words(each: Expectation) -> tuple[str, Any]:
    """What to call the rows that break it, and what should have been."""
    if each.range is not None:
        return "outside", {"column": each.range.column, **_bounds(each.range.min, each.range.max)}
    if each.accepted is not None:
        return "others", {"column": each.accepted.column, "values": list(each.accepted.values[:VALUES_SHOWN])}
    return "rows", each.sql


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    return {name: value for name, value in (("min", low), ("max", high)) if value is not None}


def _numbered(columns: Any) -> list[Column]:
    """Under names that no other column has."""
    return [each.alias(f"k{at}") for at, each in enumerate(columns)]


def _number(frame: DataFrame) -> int:
    row = frame.first()
    return 0 if row is None or row[0] is None else int(row[0])


def _sample(frame: DataFrame, names: Sequence[str] | None = None) -> list[Any]:
    """A few rows, small and readable."""
    shown = frame.select(*(col(each) for each in frame.columns[:SAMPLE_COLUMNS_MAX]))
    return [_shown(row, names or shown.columns) for row in shown.limit(SAMPLE_MAX).collect()]


def _shown(row: Row, names: Sequence[str]) -> Any:
    values = [_plain(value) for value in cast("tuple[Any, ...]", row)]
    return values[0] if len(values) == 1 else dict(zip(names, values, strict=False))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = str(value).replace("\x00", "\ufffd")
    return text if len(text) <= SAMPLE_CHARS_MAX else text[:SAMPLE_CHARS_MAX] + "…"
