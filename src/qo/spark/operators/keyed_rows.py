"""Rows by key: which of two rows of a key is the later, and in which bucket a key is.

Everything follows from the rows alone, so it makes no difference in which order they arrive, how they are spread over
files and how often they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from qo.errors import UsageError
from qo.pipeline.operators.by_key import BUCKETS
from qo.spark.engine.error_translation import short_text
from qo.spark.io.bucketing import BUCKET
from qo.spark.operators.dedupe import sortable
from qo.spark.operators.table_files import name_list, quote_name

DELETED = "__qo_deleted"  # Whether a row says that its key is deleted.
RANK = "__qo_rank"
ROWS_OF_PARTITION = 50_000
_SEQUENCES = (NumericType, DateType, TimestampType, TimestampNTZType, StringType)
_KEYS = (*_SEQUENCES, BooleanType, BinaryType)


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What a job's config says about its rows, with the names of columns as the input has them."""

    keys: tuple[str, ...]
    sequence_by: str
    deletes: str | None
    left_out: tuple[str, ...]
    buckets: int

    @property
    def key_columns(self) -> list[Column]:
        return [column(each) for each in self.keys]

    @property
    def sequence(self) -> Column:
        return column(self.sequence_by)

    def bucket(self) -> Column:
        return F.pmod(F.xxhash64(*self.key_columns), F.lit(self.buckets)).cast("int")


def column(name: str) -> Column:
    return F.col(quote_name(name))


def rules_for(config: Mapping[str, Any], frame: DataFrame, input_name: str, job: str) -> KeyRules:
    """Return the rules of a config for an input. Raises UsageError for columns that it does not have, or that cannot be
    keys or sequences."""
    left_out = find_columns(frame, config.get("leave_out", ()), input_name, job)
    keys = find_columns(frame, config["keys"], input_name, job)
    (sequence_by,) = find_columns(frame, [config["sequence_by"]], input_name, job)
    for name in keys:
        _check_type(frame, name, _KEYS, "part of a key", job)
    _check_type(frame, sequence_by, _SEQUENCES, "what rows are ordered by", job)
    if BUCKET in {each.lower() for each in frame.columns}:
        raise UsageError(f"the input {input_name!r} has a column {BUCKET!r}, which {job} needs itself: rename it")
    return KeyRules(keys, sequence_by, config.get("deletes"), left_out, int(config.get("buckets", BUCKETS)))


def find_columns(frame: DataFrame, names: Iterable[str], input_name: str, job: str) -> tuple[str, ...]:
    """Return the names as the frame has them: Spark ignores the case. Raises UsageError for one that it lacks."""
    there = {each.lower(): each for each in frame.columns}
    names = [str(each) for each in names]
    if missing := [each for each in names if each.lower() not in there]:
        raise UsageError(
            f"the input {input_name!r} has no column {name_list(missing)}: its columns are {name_list(frame.columns)}; "
            f"correct the config of {job}"
        )
    return tuple(there[each.lower()] for each in names)


def _check_type(frame: DataFrame, name: str, types: tuple[type[DataType], ...], what: str, job: str) -> None:
    type_ = frame.schema[name].dataType
    if not isinstance(type_, types):
        raise UsageError(
            f"column {name!r} is {type_.simpleString()}, which cannot be {what}: correct the config of {job}"
        )


def tag_rows(frame: DataFrame, rules: KeyRules) -> DataFrame:
    """Return the rows with their bucket and whether they are deletions, without columns that are left out.

    Raises UsageError for a condition that Spark does not understand.
    """
    deleted = F.lit(False)
    if rules.deletes is not None:
        try:
            condition = F.expr(rules.deletes)
            type_ = frame.select(condition.alias("deleted")).schema[0].dataType
        except AnalysisException as error:
            raise UsageError(f"'deletes' is not a condition over the input: {short_text(error)}") from None
        if not isinstance(type_, BooleanType):
            raise UsageError(f"'deletes' is {type_.simpleString()}, and a condition is true or false")
        deleted = F.coalesce(condition, F.lit(False))
    columns = [column(each) for each in frame.columns if each not in rules.left_out]
    return frame.select(*columns, deleted.alias(DELETED), rules.bucket().alias(BUCKET))


def payload_fields(frame: DataFrame, rules: KeyRules) -> list[StructField]:
    """Return the columns besides key and sequence, in the order of their names: they decide between equal sequences."""
    reserved = {*rules.keys, rules.sequence_by, DELETED, BUCKET, RANK}
    fields = [each for each in frame.schema if each.name not in reserved and not each.name.startswith("__qo_")]
    return sorted(fields, key=lambda each: each.name)


def latest_first(frame: DataFrame, rules: KeyRules) -> list[Column]:
    """Return the order in which the first row of a key is the latest."""
    others = [sortable(each) for each in payload_fields(frame, rules)]
    return [rules.sequence.desc_nulls_last(), column(DELETED).desc(), *others]


def spread(frame: DataFrame, rules: KeyRules, rows: int | None = None) -> DataFrame:
    """Return the rows with those of a bucket in one partition of Spark, so that each bucket becomes one file.

    ``rows``: about how many there are; few rows of many buckets need few partitions.
    """
    partitions = rules.buckets if rows is None else min(rules.buckets, rows // ROWS_OF_PARTITION + 1)
    return frame.repartition(partitions, column(BUCKET))


def first_of_each(frame: DataFrame, by: Sequence[Column], order: Sequence[Column]) -> DataFrame:
    """Return the first row of each group in the order. Buckets are together, and each is sorted by its groups."""
    ranked = Window.partitionBy(column(BUCKET), *by).orderBy(*order)
    return frame.withColumn(RANK, F.row_number().over(ranked)).where(column(RANK) == 1).drop(RANK)


def latest_rows(frame: DataFrame, rules: KeyRules, *beside: Column, rows: int | None = None) -> DataFrame:
    """Return the latest row of each key. ``beside``: decides between rows that are the same in every column."""
    return first_of_each(spread(frame, rules, rows), rules.key_columns, [*latest_first(frame, rules), *beside])


def same_key(one: DataFrame, other: DataFrame, rules: KeyRules, *, nulls: bool) -> Column:
    """Return the condition that two rows have one key. ``nulls``: there may be some on both sides; they are equal."""
    pairs = [(one[quote_name(each)], other[quote_name(each)]) for each in rules.keys]
    return reduce(Column.__and__, (ours.eqNullSafe(theirs) if nulls else ours == theirs for ours, theirs in pairs))


def touched_buckets(*frames: DataFrame) -> list[int]:
    """Return the buckets that any of these rows is in."""
    buckets = reduce(DataFrame.union, (each.select(BUCKET) for each in frames))
    return sorted(row[0] for row in buckets.distinct().collect())
