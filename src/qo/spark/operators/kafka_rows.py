"""What a record of Kafka becomes: columns of its value, and what it has beside that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from qo.pipeline.operators.kafka_fields import MALFORMED_COLUMN, RECORD_COLUMNS, VALUE_COLUMN
from qo.spark.operators.table_files import quote_name

REFUSAL = "qo_malformed: "  # Before what is said of a record that does not fit.

_CORRUPT = "qo_malformed"


def rows_of(records: DataFrame, config: Mapping[str, Any]) -> DataFrame:
    """Return the rows of records: the value as declared, and what a record has beside it."""
    prefix, key = config.get("prefix", ""), config.get("key", "string")
    declared = config.get("columns")
    value = config.get("value", "string" if declared is None else "json")
    offset = F.col("offset")
    columns: list[Column] = []
    if declared is not None:
        text = F.make_valid_utf8(F.col("value").cast("string"))
        fields = [f"{quote_name(each['name'])} {each['type']}" for each in declared]
        schema = cast("StructType", StructType.fromDDL(", ".join([*fields, f"{_CORRUPT} string"])))
        parsed = F.from_json(text, schema, {"columnNameOfCorruptRecord": _CORRUPT})
        records = records.withColumn("qo_text", text).withColumn("qo_json", parsed)
        # An empty text is no JSON, either, and yields nothing at all.
        malformed = F.coalesce(F.col(f"qo_json.{_CORRUPT}"), F.when(F.col("qo_json").isNull(), F.col("qo_text")))
        columns += [F.col(f"qo_json.{quote_name(each['name'])}") for each in declared]
        columns.append(malformed.alias(prefix + MALFORMED_COLUMN))
        if config.get("malformed", "fail") == "fail":
            offset = F.when(malformed.isNotNull(), _refuse(malformed).cast("bigint")).otherwise(offset)
    else:
        columns.append(_readable("value", value).alias(prefix + VALUE_COLUMN))
    for name in RECORD_COLUMNS:
        match name:
            case "key" if key == "none":
                continue
            case "key":
                columns.append(_readable(name, key).alias(prefix + name))
            case "offset":
                columns.append(offset.alias(prefix + name))
            case _:
                columns.append(F.col(name).alias(prefix + name))
    return records.select(*columns)


def _readable(name: str, kind: str) -> Column:
    # Text that is not UTF-8 would be a file that some readers refuse.
    return F.col(name) if kind == "binary" else F.make_valid_utf8(F.col(name).cast("string"))


def _refuse(malformed: Column) -> Column:
    """Fail on a value that does not fit. The error says which record it is."""
    place = [F.lit(f"{REFUSAL}the record "), F.col("offset"), F.lit(" of "), F.col("topic")]
    number = [F.lit(", partition "), F.col("partition"), F.lit(", has ")]
    return F.raise_error(F.concat(*place, *number, F.substring(malformed, 1, 200), F.lit(" in place of JSON")))
