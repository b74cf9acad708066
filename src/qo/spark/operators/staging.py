"""Makes files of any format available to Spark.

Spark reads ``file:`` and, with the jars of hadoop-aws, ``s3a:``. Without these jars the objects are copied to a
directory of the worker, which only a session on this machine can see.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from qo.config.spark import BucketAccess, SparkSettings
from qo.errors import NotFound, Unavailable, UsageError
from qo.spark.io.files import escape_pattern, literal_path
from qo.spark.operators.operator_context import Context
from qo.worker.loop.cancel import CancelToken

COPIES_AT_ONCE = 8
PART_BYTES = 4 * 1024 * 1024


class ObjectGone(NotFound):
    def __init__(self, uri: str) -> None:
        super().__init__(f"there is no object {uri}")
        self.uri = uri


def stage(context: Context, patterns: Sequence[str]) -> list[str]:
    """Return the paths to give to Spark. Copies last until the attempt ends. Raises ObjectGone."""
    remote = [each for each in patterns if each.startswith("s3://")]
    if not remote:
        return list(patterns)
    if has_s3a(context):
        return [each.replace("s3://", "s3a://", 1) for each in patterns]
    if not sees_this_machine(context.settings.spark):
        raise UsageError(
            f"Spark cannot open {remote[0]}: name org.apache.hadoop:hadoop-aws under spark.packages, "
            "in the version of Spark's own Hadoop"
        )
    uris = [_literal_uri(each) for each in remote]
    directory = Path(context.later.enter_context(tempfile.TemporaryDirectory(prefix="qo-ingest-")))
    return [*(each for each in patterns if each not in remote), *_copy_all(context, uris, directory)]


def _literal_uri(pattern: str) -> str:
    uri = literal_path(pattern)
    if uri is None:
        raise UsageError(
            f"{pattern} is a pattern, which needs hadoop-aws: read the files of a file source instead"
        )
    return uri


def _copy_all(context: Context, uris: Sequence[str], directory: Path) -> list[str]:
    from qo.spark.io.objects import Bucket

    filesystem = Bucket(context.settings.s3, context.run.credentials).filesystem()

    def copy(at: int, uri: str) -> str:
        # The name stays, since its suffix says how the file is compressed; the number makes the path unique.
        path = directory / str(at) / uri.rsplit("/", 1)[-1]
        path.parent.mkdir()
        _copy(filesystem, uri, path, context.run.cancel)
        return escape_pattern(f"file:{path}")

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        return list(pool.map(copy, range(len(uris)), uris))


def _copy(filesystem: Any, uri: str, path: Path, cancel: CancelToken) -> None:
    """Copy an object part by part: it may be larger than the memory."""
    from qo.spark.io.objects import bucket_path

    try:
        with filesystem.open_input_file(bucket_path(uri)) as source, path.open("wb") as copy:
            while part := source.read(PART_BYTES):
                cancel.check()
                copy.write(part)
            tag = _tag(source)
        with filesystem.open_input_file(bucket_path(uri)) as source:
            if _tag(source) != tag:  # The copy may mix both.
                raise Unavailable(f"{uri} was replaced while it was read")
    except FileNotFoundError:
        raise ObjectGone(uri) from None


def _tag(source: Any) -> bytes | None:
    return source.metadata().get("ETag")


def sees_this_machine(settings: SparkSettings) -> bool:
    """Whether Spark's processes run on this machine, and so read its files."""
    if settings.remote is not None:
        return settings.remote == "local"
    return settings.master.startswith("local")


def has_s3a(context: Context) -> bool:
    from qo.spark.io.bucket import bucket_access  # Loads pyarrow, which only buckets need.

    return bucket_access(context.settings) is BucketAccess.S3A
