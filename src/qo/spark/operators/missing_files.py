"""Files of a landing zone that are missing when a task reads them: their owner deletes old ones.

By default the task fails, with an error that says what to do. With ``missing: keep`` it takes the rows of the partition
that were committed before, by whichever version of the job; the result and the lineage of the task say so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from qo.agent.run_input import uris
from qo.api.contract.task import KeptAnswer
from qo.config.location import path_text
from qo.errors import NotFound
from qo.spark.engine.error_translation import BadData, from_spark, full_text
from qo.spark.io import input_frames
from qo.spark.io.columns import columns_from_bodies, struct_of
from qo.spark.io.files import ProblemKind, find_file_problem, literal_path
from qo.spark.io.input_frames import FileMissing
from qo.spark.operators.operator_context import Context
from qo.spark.operators.staging import sees_this_machine
from qo.spark.operators.table_files import ADD, adds_columns, is_declared, name_list, quote_name
from qo.store.web_files import is_web

KEEP = "keep"


def keeps_rows(context: Context) -> bool:
    return context.config.get("missing") == KEEP


def find_missing(context: Context, patterns: Sequence[str]) -> list[str]:
    """Return the files that do not exist. Objects are looked up only with ``missing: keep``, which needs to know."""
    paths = [path for each in patterns if (path := literal_path(each)) is not None]
    remote = [uri for uri in paths if uri.startswith("s3://")]
    missing = _missing_objects(context, remote) if remote and keeps_rows(context) else []
    if sees_this_machine(context.settings.spark):
        local = [uri for uri in paths if uri not in remote and not is_web(uri)]
        missing += [uri for uri in local if not Path(path_text(uri)).exists()]
    return missing


def missing_file_error(context: Context, error: BaseException) -> FileMissing | None:
    """Return what to raise for an error of Spark about a missing file; None if it is about something else."""
    problem = find_file_problem(full_text(error)) if from_spark(error) else None
    if problem is None or problem.kind is not ProblemKind.MISSING:
        return None
    return gone_error(context, problem.uri)


def gone_error(context: Context, uri: str) -> FileMissing:
    """Return an error that says when the file was announced, and what to do. It is retried: a file may come back."""
    announced, forget = "", ""
    for name in context.inputs:
        source = context.run.input(name)
        for piece in source.pieces:
            if _normalise(uri) not in {_normalise(each) for each in uris(piece)}:
                continue
            label, key = source.details.dataset or name, piece.partition_key
            when = f" at {piece.committed_at:%Y-%m-%d %H:%M:%S UTC}" if piece.committed_at is not None else ""
            announced = f": it was announced{when} as {label}@{key}"
            forget = f"let qo forget it with qo dataset remove {label} {key}; or "
    return FileMissing(
        f"the file {uri} is gone{announced}. Put it back and replay the task; or {forget}write 'missing: keep' in the "
        "job's config to keep the rows that were made of it before, and replay the task"
    )


def previous_rows(context: Context, missing: Sequence[str], schema: StructType | None) -> DataFrame:
    """Return the rows of the partition as committed last.

    Raises FileMissing if they never were, and BadData if their columns do not fit the schema.
    """
    try:
        previous = context.run.previous_output(context.only_output())
    except NotFound as error:
        raise FileMissing(
            f"{error}, and the file {missing[0]} is gone: put it back and replay the task, or let qo forget it with "
            "qo dataset remove"
        ) from None
    columns = columns_from_bodies(previous.columns)
    files = [uri for piece in previous.pieces for uri in uris(piece)]
    name = f"{context.run.work.dag}.{context.run.work.job}"
    rows = input_frames.read_files(
        context.spark, files, struct_of(columns) if columns else None, context.files, name
    )
    context.details["kept"] = {
        "files_gone": list(missing[:10]),
        "generation_id": previous.generation_id,
        "revision": previous.revision,
        "task_id": previous.task_id,
        "committed_at": previous.committed_at.isoformat(),
    }
    return rows if schema is None else _conform(context, rows, schema, previous)


def _conform(context: Context, rows: DataFrame, schema: StructType, previous: KeptAnswer) -> DataFrame:
    there = {field.name.lower(): field for field in rows.schema}
    expected = {field.name.lower() for field in schema}
    missing = [field.name for field in schema if field.name.lower() not in there]
    new = [] if is_declared(context) else [field for key, field in there.items() if key not in expected]
    wrong = [
        f"{field.name!r} was {there[field.name.lower()].dataType.simpleString()} and is {field.dataType.simpleString()}"
        for field in schema
        if field.name.lower() in there and there[field.name.lower()].dataType != field.dataType
    ]
    if not adds_columns(context):
        wrong += [f"they have no {name_list(missing)}: {ADD} to have null there"] if missing else []
        wrong += [f"they have {name_list([each.name for each in new])}: {ADD} to take it up"] if new else []
    if wrong:
        raise BadData(
            f"the rows kept of revision {previous.revision} do not fit the columns: {'; '.join(wrong)}. Put the file "
            "back, or let the job have the columns it had"
        )
    lacking = {name.lower() for name in missing}
    columns = [
        F.lit(None).cast(field.dataType).alias(field.name)
        if field.name.lower() in lacking
        else F.col(quote_name(field.name)).alias(field.name)
        for field in [*schema, *new]
    ]
    return rows.select(*columns)


def _missing_objects(context: Context, objects: Sequence[str]) -> list[str]:
    from qo.spark.io.objects import Bucket, bucket_path  # Loads pyarrow, which only buckets need.

    filesystem = Bucket(context.settings.s3, context.run.credentials).filesystem()
    missing: list[str] = []
    for uri in objects:
        try:
            filesystem.open_input_file(bucket_path(uri)).close()
        except FileNotFoundError:
            missing.append(uri)
    return missing


def _normalise(uri: str) -> str:
    """Return a text that is the same for all spellings of one file, as file:/x and file:///x."""
    return re.sub("/+", "/", unquote(uri.removeprefix("file:").replace("s3a://", "s3://", 1)))
