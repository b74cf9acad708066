"""stream: rows as they come, from a directory that files arrive in, or made at a steady rate to try things out.

For anything else, write a function that returns a streaming frame and name it as the operator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from qo.agent.dataset_files import located
from qo.errors import UsageError
from qo.spark.io.files import exactly
from qo.spark.operators import staging
from qo.spark.operators.context import Context, Frames


def run(context: Context) -> Frames:
    source = context.config.get("source")
    if source == "files":
        return {context.only_output(): files(context)}
    if source == "rate":
        reader = context.spark.readStream.format("rate")
        return {context.only_output(): reader.options(**options(context)).load()}
    raise UsageError(f"there is no stream {source!r}: write rate or files, or module:function as the operator")


def files(context: Context) -> DataFrame:
    """Each file once. It must appear whole: write it elsewhere and move it."""
    config = context.config
    if "path" not in config or "columns" not in config:
        raise UsageError(f"{context.run.work.job} follows files: name their 'path' and their 'columns'")
    path = located(str(config["path"]), exactly(str(Path.cwd())))
    if path.startswith("s3://"):
        if not staging.has_s3a(context):
            raise UsageError(
                f"Spark can follow {path} through s3a only: name org.apache.hadoop:hadoop-aws under spark.packages"
            )
        path = path.replace("s3://", "s3a://", 1)
    quoted = ("`" + str(each["name"]).replace("`", "``") + "` " + str(each["type"]) for each in config["columns"])
    schema = cast("StructType", StructType.fromDDL(", ".join(quoted)))
    reader = context.spark.readStream.format(str(config.get("format", "parquet"))).schema(schema)
    return reader.option("mode", "FAILFAST").options(**options(context)).load(path)


def options(context: Context) -> dict[str, Any]:
    """As Spark reads them: true, not True."""
    given: dict[str, Any] = context.config.get("options", {})
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}
