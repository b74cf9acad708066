"""Where a stream keeps what it has read, attempt by attempt.

    {data root}/_checkpoints/{task}/{attempt}/

Spark expects one writer. An attempt that lost its lease may not know it yet, so each attempt has a directory of its
own, and begins with a copy of what belongs to the last batch that was *committed*, from the attempt that committed it.
What another attempt has read beyond that, committed by nobody, is read again.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import PurePosixPath

from qo.agent.operator_run import Run
from qo.config.location import local_path
from qo.config.settings import Settings
from qo.config.spark import BucketAccess
from qo.errors import UsageError
from qo.spark.engine.engine import Attempt
from qo.spark.io.files import File

DIRECTORY = "_checkpoints"
METADATA = "metadata"  # What Spark knows the query by.
# Of these, what lies beyond the last committed batch is not taken over: how many numbers beyond it that begins. The
# state after a batch has the number of the next. What a source has seen (``sources``) is taken over whole: it finds
# there what it had read and nobody committed.
_BY_BATCH = {"offsets": 0, "commits": 0, "state": 1}
_NUMBERED = re.compile(
    r"(\d+)(?=[._]|$)"
)  # 9, 9.delta, 9_1a2b.zip; not the shared files of RocksDB, 000009-1a2b.sst.


@dataclass(frozen=True, slots=True)
class Checkpoint:
    uri: str  # As Spark has it.
    last: int  # The last batch that is committed; -1: none is.


class _Local:
    def listed(self, uri: str) -> list[File]:
        root = local_path(uri)
        found = [path for path in root.rglob("*") if path.is_file()]
        return [File(str(path.relative_to(root)), 0) for path in found]

    def copy(self, source: str, target: str) -> None:
        path = local_path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local_path(source), path)

    def delete(self, uri: str) -> None:
        shutil.rmtree(local_path(uri), ignore_errors=True)

    def named(self, uri: str) -> str:
        return uri


class _Bucket:
    """Through s3a: Spark itself writes there."""

    def __init__(self, settings: Settings, run: Run) -> None:
        from qo.spark.io.bucket import bucket_access
        from qo.spark.io.objects import Bucket  # Only who has a bucket waits for pyarrow.

        if bucket_access(settings) is not BucketAccess.S3A:
            raise UsageError(
                "a stream keeps its checkpoint with its data, and Spark writes that to a bucket through s3a only: "
                "name org.apache.hadoop:hadoop-aws under spark.packages, in the version of Spark's own Hadoop"
            )
        self._bucket = Bucket(settings.s3)
        self._storage = run.storage

    def listed(self, uri: str) -> list[File]:
        return self._bucket.listed(uri)

    def copy(self, source: str, target: str) -> None:
        self._storage.write(target, self._storage.read(source))

    def delete(self, uri: str) -> None:
        self._bucket.delete(uri)

    def named(self, uri: str) -> str:
        return uri.replace("s3://", "s3a://", 1)


class Checkpoints:
    """Those of one stream."""

    def __init__(self, settings: Settings, run: Run, output: int) -> None:
        self._run = run
        self._output = output
        prefix = run.output(output).prefix
        self._root = f"{root_of(prefix)}/{DIRECTORY}/{run.work.task_id}"
        self._place = _Local() if prefix.startswith("file:") else _Bucket(settings, run)

    def taken_over(self) -> Checkpoint:
        """This attempt's own, as of the last committed batch. Raises UsageError if that cannot be found."""
        target = f"{self._root}/{self._run.work.attempt}"
        last = self._run.last_segment(self._output)
        if last.cursor is None:
            return Checkpoint(self._place.named(target), -1)
        source = f"{self._root}/{last.attempt}"
        for each in self._place.listed(source):
            if wanted(each.name, last.cursor):
                self._copy(f"{source}/{each.name}", f"{target}/{each.name}")
        # A name of its own: Spark would take two attempts for one query, and end the other to begin this.
        named = Attempt(self._run.work.task_id, self._run.work.attempt).session_id
        self._run.storage.write(f"{target}/{METADATA}", json.dumps({"id": named}).encode())
        if f"offsets/{last.cursor}" not in {each.name for each in self._place.listed(target)}:
            raise UsageError(
                f"{source} has no record of batch {last.cursor}, which is committed: to go on without it would lose "
                "rows or double them. Put it back, or change the job's config, which makes a stream that begins anew"
            )
        return Checkpoint(self._place.named(target), last.cursor)

    def _copy(self, source: str, target: str) -> None:
        try:
            self._place.copy(source, target)
        except FileNotFoundError:
            return  # An attempt that does not know yet that it is over clears away what is old.

    def forget_earlier(self) -> None:
        """Once this attempt has committed, what earlier ones kept will not be asked for again."""
        own = self._run.work.attempt
        numbers = {each.name.partition("/")[0] for each in self._place.listed(self._root)}
        for number in numbers:
            if number.isdecimal() and int(number) < own:
                self._place.delete(f"{self._root}/{number}")


def wanted(name: str, last: int) -> bool:
    """Whether a file of a checkpoint belongs to what was read up to the last committed batch."""
    path = PurePosixPath(name)
    if any(part.startswith(".") for part in path.parts):
        return False  # Half-written ones, and checksums of the local file system.
    beyond, numbered = _BY_BATCH.get(path.parts[0]), _NUMBERED.match(path.name)
    if beyond is None or numbered is None:
        return name != METADATA
    return int(numbered[1]) <= last + beyond


def root_of(prefix: str) -> str:
    """The data root, of the place of an output: it lies below dataset, generation, task and attempt."""
    return prefix.rstrip("/").rsplit("/", 4)[0]
