"""Checkpoints of a stream: what it has read, for each attempt.

    {data root}/_checkpoints/{task}/{attempt}/

Spark expects one writer. An attempt that lost its lease may not know it yet, so each attempt has its own directory, and
starts with a copy of what belongs to the last *committed* batch, from the attempt that committed it. What another
attempt has read beyond that and not committed is read again.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import PurePosixPath

from qo.agent.operator_run import Run
from qo.config.location import local_path
from qo.config.settings import Settings
from qo.config.spark import BucketAccess
from qo.errors import UsageError
from qo.spark.engine.engine import Attempt
from qo.spark.io.files import File
from qo.spark.stream.stream_progress import Checkpoint

DIRECTORY = "_checkpoints"
METADATA = "metadata"  # Holds the id of the query.
# Directories whose files are numbered by batch, and how far beyond the last committed batch they are taken over: the
# state after a batch has the number of the next. A source's own log (``sources``) is taken over whole: it holds what
# was read and not committed.
_BEYOND_LAST = {"offsets": 0, "commits": 0, "state": 1}
_NUMBERED = re.compile(
    r"(\d+)(?=[._]|$)"
)  # 9, 9.delta, 9_1a2b.zip; not the shared files of RocksDB, 000009-1a2b.sst.


class _Local:
    def list_files(self, uri: str) -> list[File]:
        root = local_path(uri)
        paths = [path for path in root.rglob("*") if path.is_file()]
        return [File(str(path.relative_to(root)), 0) for path in paths]

    def copy(self, source: str, target: str) -> None:
        path = local_path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local_path(source), path)

    def delete(self, uri: str) -> None:
        shutil.rmtree(local_path(uri), ignore_errors=True)

    def spark_uri(self, uri: str) -> str:
        return uri


class _Bucket:
    """Checkpoints in a bucket, which Spark writes through s3a."""

    def __init__(self, settings: Settings, run: Run) -> None:
        from qo.spark.io.bucket import bucket_access
        from qo.spark.io.objects import Bucket  # Loads pyarrow, which only buckets need.

        if bucket_access(settings) is not BucketAccess.S3A:
            raise UsageError(
                "a stream keeps its checkpoint with its data, and Spark writes that to a bucket through s3a only: "
                "name org.apache.hadoop:hadoop-aws under spark.packages, in the version of Spark's own Hadoop"
            )
        self._bucket = Bucket(settings.s3)
        self._storage = run.storage

    def list_files(self, uri: str) -> list[File]:
        return self._bucket.list_files(uri)

    def copy(self, source: str, target: str) -> None:
        self._storage.write(target, self._storage.read(source))

    def delete(self, uri: str) -> None:
        self._bucket.delete(uri)

    def spark_uri(self, uri: str) -> str:
        return uri.replace("s3://", "s3a://", 1)


class Checkpoints:
    """The checkpoints of one stream."""

    def __init__(self, settings: Settings, run: Run, output: int) -> None:
        self._run = run
        self._output = output
        prefix = run.output(output).prefix
        self._root = f"{data_root(prefix)}/{DIRECTORY}/{run.work.task_id}"
        self._files = _Local() if prefix.startswith("file:") else _Bucket(settings, run)

    def take_over(self) -> Checkpoint:
        """Make this attempt's checkpoint, as of the last committed batch. Raises UsageError if that has no record."""
        target = f"{self._root}/{self._run.work.attempt}"
        last = self._run.last_segment(self._output)
        if last.cursor is None:
            return Checkpoint(self._files.spark_uri(target), -1)
        source = f"{self._root}/{last.attempt}"
        for each in self._files.list_files(source):
            if is_committed(each.name, last.cursor):
                self._copy(f"{source}/{each.name}", f"{target}/{each.name}")
        # An id of its own: Spark would take two attempts for one query, and end the other to start this.
        query_id = Attempt(self._run.work.task_id, self._run.work.attempt).session_id
        self._run.storage.write(f"{target}/{METADATA}", json.dumps({"id": query_id}).encode())
        if f"offsets/{last.cursor}" not in {each.name for each in self._files.list_files(target)}:
            raise UsageError(
                f"{source} has no record of batch {last.cursor}, which is committed: to go on without it would lose "
                "rows or double them. Put it back, or change the job's config, which makes a stream that begins anew"
            )
        return Checkpoint(self._files.spark_uri(target), last.cursor)

    def position(self, batch: int) -> None:
        """The checkpoint has it."""

    def _copy(self, source: str, target: str) -> None:
        try:
            self._files.copy(source, target)
        except FileNotFoundError:
            return  # An earlier attempt that still runs deletes old files.

    def delete_earlier(self) -> None:
        """Delete the checkpoints of earlier attempts, which nobody needs after this attempt has committed."""
        own = self._run.work.attempt
        numbers = {each.name.partition("/")[0] for each in self._files.list_files(self._root)}
        for number in numbers:
            if number.isdecimal() and int(number) < own:
                self._files.delete(f"{self._root}/{number}")


def is_committed(name: str, last: int) -> bool:
    """Whether a file of a checkpoint belongs to what was read up to the last committed batch."""
    path = PurePosixPath(name)
    if any(part.startswith(".") for part in path.parts):
        return False  # Temporary files, and checksums of the local file system.
    beyond, numbered = _BEYOND_LAST.get(path.parts[0]), _NUMBERED.match(path.name)
    if beyond is None or numbered is None:
        return name != METADATA
    return int(numbered[1]) <= last + beyond


def data_root(prefix: str) -> str:
    """Return the data root of an output's prefix, which ends with dataset, generation, task and attempt."""
    return prefix.rstrip("/").rsplit("/", 4)[0]
