"""Makes files of any format available to Spark.

Spark reads ``file:`` and, with the jars of hadoop-aws, ``s3a:``. Without these jars the objects are copied to a
directory of the worker, which only a session on this machine can see. Files behind URLs always are.
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
from qo.store.web_files import WebFiles, is_web
from qo.worker.loop.cancel import CancelToken

COPIES_AT_ONCE = 8
PART_BYTES = 4 * 1024 * 1024


class ObjectGone(NotFound):
    def __init__(self, uri: str) -> None:
        super().__init__(f"there is no object {uri}")
        self.uri = uri


def stage(context: Context, patterns: Sequence[str]) -> list[str]:
    """Return the paths to give to Spark. Copies last until the attempt ends. Raises ObjectGone."""
    if any(map(is_web, patterns)):
        return _fetch_all(context, patterns)
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


def _fetch_all(context: Context, patterns: Sequence[str]) -> list[str]:
    """Fetch the files behind URLs, and stage the others."""
    urls = [each for each in patterns if is_web(each)]
    if not sees_this_machine(context.settings.spark):
        raise UsageError(
            f"{urls[0]} is a URL, and the processes of this Spark do not see the files of the worker that would fetch "
            "it: let a job of the runtime python fetch the files, or one of a Spark on this machine"
        )
    directory = Path(context.later.enter_context(tempfile.TemporaryDirectory(prefix="qo-fetch-")))
    files = WebFiles(context.settings.fetch)

    def fetch(at: int, pattern: str) -> str:
        url = literal_path(pattern) or pattern
        path = directory / str(at) / (url.partition("?")[0].rsplit("/", 1)[-1] or "file")
        path.parent.mkdir()
        try:
            files.copy(url, path, context.run.cancel.check)
        except NotFound:
            raise ObjectGone(url) from None
        return escape_pattern(f"file:{path}")

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        fetched = list(pool.map(fetch, range(len(urls)), urls))
    others = [each for each in patterns if not is_web(each)]
    return [*(stage(context, others) if others else []), *fetched]


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
