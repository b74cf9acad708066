"""changes: what differs between two versions of an input, as rows.

Only the parts of the input that differ are read. One task makes one segment, whose cursor is the revision that was
compared, so other jobs can follow the changes as they follow any feed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField

from qo.core.pipeline.change_range import revisions_to_compare
from qo.errors import UsageError
from qo.spark.operators.dedupe import sortable
from qo.spark.operators.input_changes import open_changes
from qo.spark.operators.keyed_rows import column, find_columns
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.table_files import name_list

CHANGE, REVISION, BEFORE = "change", "change_revision", "before"
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_ROW, _KEY, _COUNT = "__qo_row", "__qo_key", "__qo_count"


def run(context: Context) -> Frames:
    between, job = revisions_to_compare(context.config), context.run.work.job
    details = context.run.input(next(iter(context.inputs))).details
    if between is not None and details.revision is not None and details.revision < between[1]:
        raise UsageError(
            f"'between' names revision {between[1]}, and the latest is {details.revision}: correct {job}"
        )
    changes = open_changes(context)
    if changes is None:
        return context.skip_all()
    keys = find_columns(changes.added, context.config["keys"], changes.name, job)
    if reserved := {CHANGE, REVISION, BEFORE} & {each.lower() for each in changes.added.columns}:
        raise UsageError(
            f"the input {changes.name!r} has a column {name_list(sorted(reserved))}, which {job} adds itself"
        )
    removed = changes.removed if changes.removed is not None else changes.added.where(F.lit(False))
    difference = context.keep(compare(removed, changes.added, keys))
    counts = {
        row[CHANGE]: row["n"] for row in difference.groupBy(CHANGE).agg(F.count(F.lit(1)).alias("n")).collect()
    }
    if repeated := counts.pop(None, 0):
        raise UsageError(
            f"{repeated} keys are in several rows of the input {changes.name!r}: name columns in 'keys' of {job} that "
            "identify a row, or put a job of 'latest' or 'dedupe' before it"
        )
    context.details.update(
        {"rows_in": changes.rows} | {name: counts.get(name, 0) for name in (ADDED, REMOVED, CHANGED)}
    )
    if not counts:
        return context.skip_all()
    revision = details.revision or 0
    output = context.run.output(context.only_output())
    output.describe(cursor=revision)
    return {output.details.index: difference.withColumn(REVISION, F.lit(revision).cast(LongType()))}


def compare(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return one row for each key whose rows differ, as it is afterwards; of one that is gone, as it was.

    A key that is in several rows of one side has no kind of change: that is the caller's error.
    """
    fields = [each for each in after.schema if each.name not in keys]
    sides = [_by_key(frame, fields, keys, side) for frame, side in ((before, "old"), (after, "new"))]
    both = sides[0].join(sides[1], [_KEY], "full_outer")
    old, new = column("old"), column("new")
    same = F.lit(True)
    for each in fields:
        same = same & sortable(each, _field(old, each)).eqNullSafe(sortable(each, _field(new, each)))
    kind = (
        F.when(
            (F.coalesce(column("old_count"), F.lit(0)) > 1) | (F.coalesce(column("new_count"), F.lit(0)) > 1), None
        )
        .when(old.isNull(), ADDED)
        .when(new.isNull(), REMOVED)
        .otherwise(CHANGED)
    )
    differing = both.where(kind.isNull() | old.isNull() | new.isNull() | ~same)
    row = F.coalesce(new, old)
    earlier = F.when(kind == CHANGED, F.struct(*(_field(old, each).alias(each.name) for each in after.schema)))
    return differing.select(
        *(_field(row, each).alias(each.name) for each in after.schema), kind.alias(CHANGE), earlier.alias(BEFORE)
    )


def _by_key(frame: DataFrame, fields: Sequence[StructField], keys: Sequence[str], side: str) -> DataFrame:
    """Return the row of each key, and how many it has."""
    row = F.struct(*(column(each.name) for each in frame.schema))
    key = F.struct(*(column(each) for each in keys)).alias(_KEY)
    return frame.groupBy(key).agg(F.first(row).alias(side), F.count(F.lit(1)).alias(f"{side}_count"))


def _field(row: Column, field: StructField) -> Column:
    return row.getField(field.name)
