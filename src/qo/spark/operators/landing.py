"""Files that are gone when a task wants to read them: whoever owns a landing zone deletes what is old.

By default the task fails, with an error that says what can be done. With ``missing: keep`` it takes the rows that were
committed of the partition before, by whichever version of the job: the result and the lineage of the task say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from qo.agent.operator_run import uris
from qo.api.contract.task import KeptAnswer
from qo.config.location import path_text
from qo.errors import NotFound
from qo.spark.engine.errors import BadData, from_spark, full_text
from qo.spark.io import reading
from qo.spark.io.columns import of_bodies, struct_of
from qo.spark.io.files import Wrong, only_path, trouble
from qo.spark.io.reading import FileMissing
from qo.spark.operators.context import Context
from qo.spark.operators.staging import sees_this_machine
from qo.spark.operators.table_files import ADD, adds_columns, is_declared, listed, quoted

KEEP = "keep"


def keeps_rows(context: Context) -> bool:
    return context.config.get("missing") == KEEP


def missing_files(context: Context, patterns: Sequence[str]) -> list[str]:
    """Those that are named and not there. Of a bucket they are looked for only where that decides something."""
    named = [path for each in patterns if (path := only_path(each)) is not None]
    remote = [uri for uri in named if uri.startswith("s3://")]
    gone = _missing_objects(context, remote) if remote and keeps_rows(context) else []
    if sees_this_machine(context.settings.spark):
        local = [uri for uri in named if uri not in remote]
        gone += [uri for uri in local if not Path(path_text(uri)).exists()]
    return gone


def missing_file_error(context: Context, error: BaseException) -> FileMissing | None:
    """What to raise for an error of Spark which says that a file of the landing zone is not there."""
    found = trouble(full_text(error)) if from_spark(error) else None
    if found is None or found.wrong is not Wrong.MISSING:
        return None
    return gone_error(context, found.uri)


def gone_error(context: Context, uri: str) -> FileMissing:
    """Says since when the file is known, and what can be done. It is retried: a file may be on its way back."""
    known, forget = "", ""
    for name in context.inputs:
        given = context.run.input(name)
        for piece in given.pieces:
            if _plain(uri) not in {_plain(each) for each in uris(piece)}:
                continue
            label, key = given.given.dataset or name, piece.partition_key
            when = f" at {piece.committed_at:%Y-%m-%d %H:%M:%S UTC}" if piece.committed_at is not None else ""
            known = f": it was announced{when} as {label}@{key}"
            forget = f"let qo forget it with qo dataset remove {label} {key}; or "
    return FileMissing(
        f"the file {uri} is gone{known}. Put it back and replay the task; or {forget}write 'missing: keep' in the "
        "job's config to keep the rows that were made of it before, and replay the task"
    )


def kept_rows(context: Context, gone: Sequence[str], schema: StructType | None) -> DataFrame:
    """The rows of the partition as they were committed last. Raises FileMissing if they never were, BadData if their
    columns are not those that are wanted."""
    try:
        kept = context.run.kept(context.only_output())
    except NotFound as error:
        raise FileMissing(
            f"{error}, and the file {gone[0]} is gone: put it back and replay the task, or let qo forget it with "
            "qo dataset remove"
        ) from None
    columns = of_bodies(kept.columns)
    files = [uri for piece in kept.pieces for uri in uris(piece)]
    name = f"{context.run.work.dag}.{context.run.work.job}"
    rows = reading.of_files(context.spark, files, struct_of(columns) if columns else None, context.files, name)
    context.said["kept"] = {
        "files_gone": list(gone[:10]),
        "generation_id": kept.generation_id,
        "revision": kept.revision,
        "task_id": kept.task_id,
        "committed_at": kept.committed_at.isoformat(),
    }
    return rows if schema is None else _fitted(context, rows, schema, kept)


def _fitted(context: Context, rows: DataFrame, schema: StructType, kept: KeptAnswer) -> DataFrame:
    there = {field.name.lower(): field for field in rows.schema}
    wanted = {field.name.lower() for field in schema}
    missing = [field.name for field in schema if field.name.lower() not in there]
    new = [] if is_declared(context) else [field for key, field in there.items() if key not in wanted]
    wrong = [
        f"{field.name!r} was {there[field.name.lower()].dataType.simpleString()} and is {field.dataType.simpleString()}"
        for field in schema
        if field.name.lower() in there and there[field.name.lower()].dataType != field.dataType
    ]
    if not adds_columns(context):
        wrong += [f"they have no {listed(missing)}: {ADD} to have null there"] if missing else []
        wrong += [f"they have {listed([each.name for each in new])}: {ADD} to take it up"] if new else []
    if wrong:
        raise BadData(
            f"the rows kept of revision {kept.revision} do not fit the columns: {'; '.join(wrong)}. Put the file back, "
            "or let the job have the columns it had"
        )
    lacking = {name.lower() for name in missing}
    columns = [
        F.lit(None).cast(field.dataType).alias(field.name)
        if field.name.lower() in lacking
        else F.col(quoted(field.name)).alias(field.name)
        for field in [*schema, *new]
    ]
    return rows.select(*columns)


def _missing_objects(context: Context, named: Sequence[str]) -> list[str]:
    from qo.spark.io.objects import Bucket, path_in  # Only who has files in a bucket waits for pyarrow.

    way = Bucket(context.settings.s3).way()
    gone: list[str] = []
    for uri in named:
        try:
            way.open_input_file(path_in(uri)).close()
        except FileNotFoundError:
            gone.append(uri)
    return gone


def _plain(uri: str) -> str:
    return unquote(uri.removeprefix("file:").replace("s3a://", "s3://", 1)).replace("//", "/")
