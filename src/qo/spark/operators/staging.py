"""Files of any format where Spark can open them.

Spark reads ``file:`` and, with the jars of hadoop-aws, ``s3a:``. Without these jars the objects are brought to a
directory of the worker, which only a session on this machine can see.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qo.config.spark import BucketAccess, SparkSettings
from qo.errors import UsageError
from qo.spark.operators.context import Context

AT_ONCE = 8


def readable(context: Context, uris: Sequence[str]) -> list[str]:
    """What to give to Spark. Copies last until the attempt is over."""
    remote = [uri for uri in uris if uri.startswith("s3://")]
    if not remote:
        return list(uris)
    if has_s3a(context):
        return [uri.replace("s3://", "s3a://", 1) for uri in uris]
    if not sees_this_machine(context.settings.spark):
        raise UsageError(
            f"Spark cannot open {remote[0]}: name org.apache.hadoop:hadoop-aws under spark.packages, "
            "in the version of Spark's own Hadoop"
        )
    if any(character in uri for uri in remote for character in "*?["):
        raise UsageError(
            f"{remote[0]} is a pattern, which needs hadoop-aws: read the files of a file source instead"
        )
    directory = Path(context.later.enter_context(tempfile.TemporaryDirectory(prefix="qo-ingest-")))
    return [*(uri for uri in uris if uri not in remote), *_copied(context, remote, directory)]


def _copied(context: Context, uris: Sequence[str], directory: Path) -> list[str]:
    def copy(at: int, uri: str) -> str:
        context.run.cancel.check()
        # Names stay, for the ending says how a file is compressed; numbers keep them apart.
        path = directory / str(at) / uri.rsplit("/", 1)[-1]
        path.parent.mkdir()
        path.write_bytes(context.run.storage.read(uri))
        return f"file:{path}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(copy, range(len(uris)), uris))


def sees_this_machine(chosen: SparkSettings) -> bool:
    if chosen.remote is not None:
        return chosen.remote == "local"
    return chosen.master.startswith("local")


def has_s3a(context: Context) -> bool:
    from qo.spark.bucket import bucket_access  # Only who has files in a bucket waits for pyarrow.

    return bucket_access(context.settings) is BucketAccess.S3A
