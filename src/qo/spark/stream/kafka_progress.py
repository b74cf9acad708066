"""Where a stream of Kafka's topics begins and goes on: at the offsets that were committed with its last rows.

The first commit has no rows, but the offsets at which the stream begins. So also a stream that begins at the latest
record has one beginning, whatever happens before the first record comes.

Spark reads where its checkpoint says, so each attempt makes one of the committed offsets, in a directory of its own on
the driver's machine:

    metadata        the id of the query
    offsets/6       the same offsets: Spark wants the last two batches
    offsets/7       batch 7 ends at these offsets; 7 is the cursor of the last commit
    commits/7       and it is done

Spark goes on with batch 8, and writes its end to offsets/8 before it reads it. That is what is committed with the rows.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from qo.agent.operator_run import Run
from qo.api.contract.task import ColumnBody
from qo.core.pipeline.kafka_offsets import Offsets, describe_gaps, resume
from qo.errors import QoError, UsageError
from qo.spark.engine.engine import Attempt
from qo.spark.stream.kafka_admin import KafkaAdmin, Partition
from qo.spark.stream.stream_progress import POSITION, Checkpoint

EARLIEST, LATEST = "earliest", "latest"

_FORMAT = "v1"  # The first line of the files of a checkpoint.
_NO_SETTINGS = '{"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}'  # Those of the session count.


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """What a job reads."""

    names: tuple[str, ...]  # Or a pattern instead.
    pattern: str | None
    start: str  # earliest, latest or a time.
    skips_expired: bool

    def partitions(self, admin: KafkaAdmin) -> list[Partition]:
        return admin.partitions(self.names if self.pattern is None else admin.match_topics(self.pattern))


class KafkaProgress:
    """The offsets of one stream."""

    def __init__(
        self,
        run: Run,
        topics: KafkaTopics,
        columns: list[ColumnBody],
        open_admin: Callable[[], AbstractContextManager[KafkaAdmin]],
    ) -> None:
        self._run = run
        self._topics = topics
        self._columns = columns  # Of the rows.
        self._open_admin = open_admin
        self._directory = Path(tempfile.mkdtemp(prefix="qo-kafka-"))

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def take_over(self) -> Checkpoint:
        """Begin the stream, or go on after its last commit.

        Raises UsageError if records have expired that it still had to read, NotFound for topics that do not exist.
        """
        last = self._run.last_segment().cursor
        with self._open_admin() as admin:
            partitions = self._topics.partitions(admin)
            if last is None:
                last, offsets = 0, self._begin(admin, partitions)
            else:
                offsets = self._resume(admin, partitions)
        self._write_checkpoint(last, offsets)
        return Checkpoint(self._directory.as_uri(), last)

    def position(self, batch: int) -> Any:
        # Spark has written it before it began the batch.
        lines = (self._directory / "offsets" / str(batch)).read_text().splitlines()
        if len(lines) != 3 or lines[0] != _FORMAT:
            raise QoError(
                f"Spark has written the offsets of a batch as {lines[:1]}, and qo knows {_FORMAT} of one source: use "
                "a version of Spark that qo supports"
            )
        return json.loads(lines[2])

    def delete_earlier(self) -> None:
        """There is nothing: the directory of an attempt goes with it."""

    def _begin(self, admin: KafkaAdmin, partitions: list[Partition]) -> Offsets:
        match self._topics.start:
            case "earliest":
                offsets = admin.earliest(partitions)
            case "latest":
                offsets = admin.latest(partitions)
            case time:
                unix_ms = int(datetime.fromisoformat(time).timestamp() * 1000)
                offsets = admin.first_since(partitions, unix_ms)
        part = self._run.segment(0)
        part.columns = self._columns
        part.stats[POSITION] = offsets
        self._run.commit(part)
        self._run.log.info("the stream begins at %s", json.dumps(offsets))
        return offsets

    def _resume(self, admin: KafkaAdmin, partitions: list[Partition]) -> Offsets:
        position, _ = self._run.output().positions()
        if position is None:
            raise UsageError(
                f"the last commit of {self._run.work.job} has no offsets, so that nobody knows where to go on: change "
                "the job's 'topics', 'pattern' or 'from', which makes a stream that begins anew"
            )
        offsets, gaps = resume(position, admin.earliest(partitions), admin.latest(partitions))
        if gaps and not self._topics.skips_expired:
            raise UsageError(
                f"records are gone that were not read yet: {describe_gaps(gaps)}. Write 'expired: skip' to go on "
                "without them, which rebuilds nothing"
            )
        if gaps:
            self._run.log.warning("the stream goes on without records that are gone: %s", describe_gaps(gaps))
        return offsets

    def _write_checkpoint(self, batch: int, offsets: Offsets) -> None:
        # An id of its own: Spark would take two attempts for one query, and end the other to start this.
        query_id = Attempt(self._run.work.task_id, self._run.work.attempt).session_id
        self._write("metadata", json.dumps({"id": query_id}))
        for each in range(max(0, batch - 1), batch + 1):
            self._write(f"offsets/{each}", "\n".join([_FORMAT, _NO_SETTINGS, json.dumps(offsets)]))
        self._write(f"commits/{batch}", "\n".join([_FORMAT, json.dumps({"nextBatchWatermarkMs": 0})]))

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
