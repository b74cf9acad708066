"""dedupe: one row for each key, the newest by an order column."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from qo.errors import UsageError
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.table_files import name_list, quote_name

_RANK = "__qo_rank"
_UNORDERED = ("map<", "variant")  # Types that Spark cannot sort by, also inside of others.
# Microseconds, so that no two different times become the same text.
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def run(context: Context) -> Frames:
    name, frame = context.only_input()
    keys, order_by = [str(each) for each in context.config["keys"]], str(context.config["order_by"])
    columns = {column.lower() for column in frame.columns}  # Spark ignores the case of names, too.
    if missing := [each for each in (*keys, order_by) if each.lower() not in columns]:
        raise UsageError(
            f"the input {name!r} has no column {name_list(missing)}: its columns are {name_list(frame.columns)}; "
            f"correct 'keys' and 'order_by' in the config of {context.run.work.job}"
        )
    return {context.only_output(): newest_rows(frame, keys, order_by)}


def newest_rows(frame: DataFrame, keys: Sequence[str], order_by: str) -> DataFrame:
    """Keep the row with the largest ``order_by`` of each key.

    Among several of them the other columns decide, in the order of their names. So the result depends only on the rows,
    not on how they are spread over files; rows that are the same in every column are interchangeable.
    """
    used = {each.lower() for each in (*keys, order_by)}
    others = sorted(
        (field for field in frame.schema if field.name.lower() not in used), key=lambda each: each.name
    )
    newest_first = [F.col(quote_name(order_by)).desc_nulls_last(), *map(sortable, others)]
    ranked = Window.partitionBy(*(F.col(quote_name(key)) for key in keys)).orderBy(*newest_first)
    return frame.withColumn(_RANK, F.row_number().over(ranked)).where(F.col(_RANK) == 1).drop(_RANK)


def sortable(field: StructField, value: Column | None = None) -> Column:
    """Return what to sort by, or compare, for a column of any type. ``value``: another one of that type."""
    column = F.col(quote_name(field.name)) if value is None else value
    if any(each in field.dataType.simpleString() for each in _UNORDERED):
        return F.to_json(F.struct(column), _TIMES)
    return column
