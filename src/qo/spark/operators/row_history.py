"""history: every version of the row of each key, with the time from which and until which it was valid.

The versions of a key follow from all of its rows, whenever each of them arrived. So a task makes the buckets of the
keys that have changed anew, from all that is there; other buckets stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from qo.errors import UsageError
from qo.spark.io.bucketing import BUCKET, Bucketed
from qo.spark.operators.dedupe import sortable
from qo.spark.operators.input_changes import open_changes
from qo.spark.operators.keyed_rows import (
    DELETED,
    KeyRules,
    column,
    find_columns,
    first_of_each,
    latest_first,
    payload_fields,
    rules_for,
    spread,
    tag_rows,
    touched_buckets,
)
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.standing_buckets import standing_buckets

START, END = "start_at", "end_at"
_STARTS, _NEXT = "__qo_starts", "__qo_next"


def run(context: Context) -> Frames:
    changes = open_changes(context)
    if changes is None:
        return context.skip_all()
    job = context.run.work.job
    rules = rules_for(context.config, changes.added, changes.name, job)
    added = tag_rows(changes.added, rules)
    if reserved := {START, END} & {each.lower() for each in added.columns}:
        raise UsageError(
            f"the input {changes.name!r} has a column {', '.join(sorted(reserved))}, which {job} adds: rename it before"
        )
    tracked = (
        find_columns(added, context.config["track"], changes.name, job) if "track" in context.config else None
    )
    context.details["rows_in"] = changes.rows
    standing = standing_buckets(context, 0)
    if changes.is_first:
        rows, buckets = added, set(standing.pieces)
    else:
        removed = [] if changes.removed is None else [tag_rows(changes.removed, rules)]
        buckets = set(touched_buckets(added, *removed))
        context.details["buckets_touched"] = len(buckets)
        rows = tag_rows(changes.whole(), rules).where(column(BUCKET).isin(sorted(buckets)))
    frame = versions(rows, rules, tracked)
    emptied = sorted(buckets & set(standing.pieces))
    return {context.only_output(): Bucketed(frame, rules.buckets, emptied, standing.rows)}


def versions(rows: DataFrame, rules: KeyRules, tracked: Sequence[str] | None) -> DataFrame:
    """Return the versions of each key. ``tracked``: the columns whose change makes a new one; None: all others.

    A row with the same tracked values as the one before it makes no version; the others of its values replace those of
    the version. A deletion ends the version before it.
    """
    key_columns = rules.key_columns
    # Of several rows with one sequence only the latest counts, as for ``latest``.
    moments = first_of_each(spread(rows, rules), [*key_columns, rules.sequence], latest_first(rows, rules))
    in_order = Window.partitionBy(column(BUCKET), *key_columns).orderBy(rules.sequence.asc_nulls_first())
    fields = [each for each in payload_fields(rows, rules) if tracked is None or each.name in tracked]
    compared = [column(DELETED), *map(sortable, fields)]
    goes_on = F.row_number().over(in_order) > 1
    for each in compared:
        goes_on = goes_on & each.eqNullSafe(F.lag(each).over(in_order))
    start = F.last(F.when(column(_STARTS), F.struct(rules.sequence.alias("at"))), ignorenulls=True)
    return (
        moments.withColumn(_STARTS, ~goes_on)
        # The last row of a version has its values; the row behind it, if there is one, begins the next version.
        .withColumn(_NEXT, F.lead(column(_STARTS)).over(in_order))
        .withColumn(START, start.over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))["at"])
        .withColumn(END, F.lead(rules.sequence).over(in_order))
        .where(~column(DELETED) & F.coalesce(column(_NEXT), F.lit(True)))
        .drop(DELETED, _STARTS, _NEXT)
    )
