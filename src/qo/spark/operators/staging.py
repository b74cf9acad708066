"""Files of any format where Spark can open them.

Spark reads ``file:`` and, with the jars of hadoop-aws, ``s3a:``. Without these jars the objects are brought to a
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
from qo.spark.io.files import exactly, only_path
from qo.spark.operators.context import Context
from qo.worker.loop.cancel import CancelToken

AT_ONCE = 8
PART_BYTES = 4 * 1024 * 1024


class ObjectGone(NotFound):
    def __init__(self, uri: str) -> None:
        super().__init__(f"there is no object {uri}")
        self.uri = uri


def readable(context: Context, patterns: Sequence[str]) -> list[str]:
    """What to give to Spark. Copies last until the attempt is over."""
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
    named = [_named(each) for each in remote]
    directory = Path(context.later.enter_context(tempfile.TemporaryDirectory(prefix="qo-ingest-")))
    return [*(each for each in patterns if each not in remote), *_copied(context, named, directory)]


def _named(pattern: str) -> str:
    uri = only_path(pattern)
    if uri is None:
        raise UsageError(
            f"{pattern} is a pattern, which needs hadoop-aws: read the files of a file source instead"
        )
    return uri


def _copied(context: Context, uris: Sequence[str], directory: Path) -> list[str]:
    from qo.spark.io.objects import Bucket

    way = Bucket(context.settings.s3).way()

    def copy(at: int, uri: str) -> str:
        # Names stay, for the ending says how a file is compressed; numbers keep them apart.
        path = directory / str(at) / uri.rsplit("/", 1)[-1]
        path.parent.mkdir()
        _copy(way, uri, path, context.run.cancel)
        return exactly(f"file:{path}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(copy, range(len(uris)), uris))


def _copy(way: Any, uri: str, path: Path, cancel: CancelToken) -> None:
    """Part by part: an object may be larger than the memory."""
    from qo.spark.io.objects import path_in

    try:
        with way.open_input_file(path_in(uri)) as source, path.open("wb") as copy:
            while part := source.read(PART_BYTES):
                cancel.check()
                copy.write(part)
            tag = _tag(source)
        with way.open_input_file(path_in(uri)) as source:
            if _tag(source) != tag:  # The parts may be of either.
                raise Unavailable(f"{uri} was replaced while it was read")
    except FileNotFoundError:
        raise ObjectGone(uri) from None


def _tag(source: Any) -> bytes | None:
    return source.metadata().get("ETag")


def sees_this_machine(chosen: SparkSettings) -> bool:
    if chosen.remote is not None:
        return chosen.remote == "local"
    return chosen.master.startswith("local")


def has_s3a(context: Context) -> bool:
    from qo.spark.io.bucket import bucket_access  # Only who has files in a bucket waits for pyarrow.

    return bucket_access(context.settings) is BucketAccess.S3A
