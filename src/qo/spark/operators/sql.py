"""sql: one query over the inputs, which are tables of the same names."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import DataFrame

from qo.errors import NotFound, UsageError
from qo.spark.operators.operator_context import Context, Frames


def run(context: Context) -> Frames:
    return {context.only_output(): query_frame(context)}


def query_frame(context: Context) -> DataFrame:
    """Return the result of the job's query. Only inputs that it names are opened."""
    query = query_of(context)
    for name in context.inputs:
        if re.search(rf"\b{re.escape(name)}\b", query, re.IGNORECASE):
            context.inputs[name].createOrReplaceTempView(name)
            context.later.callback(context.spark.catalog.dropTempView, name)
    return context.spark.sql(query)


def query_of(context: Context) -> str:
    query, file = context.config.get("query"), context.config.get("file")
    if (query is None) == (file is None):
        raise UsageError(f"{context.operator} needs either 'query' or 'file' in its config")
    if query is not None:
        return str(query)
    try:
        return Path(str(file)).read_text()
    except FileNotFoundError:
        raise NotFound(
            f"there is no file {file} here: deploy the pipeline from the directory that has it"
        ) from None
