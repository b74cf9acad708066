"""stream: reads rows continuously, from a directory in which files arrive, or generated at a steady rate for trials.

For anything else, write a function that returns a streaming frame and name it as the operator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from qo.agent.dataset_files import resolve_uri
from qo.errors import UsageError
from qo.spark.io.files import escape_pattern
from qo.spark.operators import staging
from qo.spark.operators.operator_context import Context, Frames


def run(context: Context) -> Frames:
    source = context.config.get("source")
    if source == "files":
        return {context.only_output(): files(context)}
    if source == "rate":
        reader = context.spark.readStream.format("rate")
        return {context.only_output(): reader.options(**options(context)).load()}
    raise UsageError(f"there is no stream {source!r}: write rate or files, or module:function as the operator")


def files(context: Context) -> DataFrame:
    """Return a streaming frame of each file once. A file must appear whole: write it elsewhere and move it."""
    config = context.config
    if "path" not in config or "columns" not in config:
        raise UsageError(f"{context.run.work.job} follows files: name their 'path' and their 'columns'")
    path = resolve_uri(str(config["path"]), escape_pattern(str(Path.cwd())))
    if path.startswith("s3://"):
        if not staging.has_s3a(context):
            raise UsageError(
                f"Spark can follow {path} through s3a only: name org.apache.hadoop:hadoop-aws under spark.packages"
            )
        path = path.replace("s3://", "s3a://", 1)
    fields = ("`" + str(each["name"]).replace("`", "``") + "` " + str(each["type"]) for each in config["columns"])
    schema = cast("StructType", StructType.fromDDL(", ".join(fields)))
    reader = context.spark.readStream.format(str(config.get("format", "parquet"))).schema(schema)
    return reader.option("mode", "FAILFAST").options(**options(context)).load(path)


def options(context: Context) -> dict[str, Any]:
    """Return the options as Spark reads them: true, not True."""
    config: dict[str, Any] = context.config.get("options", {})
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}
