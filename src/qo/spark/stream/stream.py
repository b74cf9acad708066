"""Streams: an always-on source that is a Structured Streaming query. Each micro-batch becomes one committed segment.

The number of the batch is its cursor. A batch is written below the attempt's own prefix and committed under its fence
before Spark marks it as done. Spark repeats batches that are not marked, and those that are committed already are left
out. So every batch is committed once, whatever process dies at any time, and never by an attempt that lost its lease.

A batch without rows is committed only if there was no commit for many batches: a stream resumes from its last commit,
and Spark forgets old batches.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from qo.agent.operator_run import QualityFailed, RunOutput
from qo.core.pipeline.expectation import Expectation, describe_value, parse_expectations
from qo.errors import QoError, UsageError
from qo.spark.io import writing
from qo.spark.io.bucketing import Bucketed
from qo.spark.io.writing import WrittenOutput
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.quality import quality
from qo.spark.stream.checkpoint import Checkpoints
from qo.spark.stream.stream_progress import POSITION, StreamProgress

TRIGGER_S = 5.0
WATCH_S = 0.25  # Between two checks of whether the query runs, and whether it should.
RETAINED = "spark.sql.streaming.minBatchesToRetain"


def is_stream(frames: Frames) -> bool:
    return any(not isinstance(frame, Bucketed) and frame.isStreaming for frame in frames.values())


def run(context: Context, frames: Frames) -> None:
    """Run the query until the attempt is asked to stop. Raises Stopped then, else the error that ended the query."""
    index, frame = _single_output(context, frames)
    progress = context.progress[0] if context.progress else Checkpoints(context.settings, context.run, index)
    checkpoint = progress.take_over()
    batches = Batches(context, index, checkpoint.last, progress)
    seconds = float(context.config.get("trigger_seconds", TRIGGER_S))
    writer = frame.writeStream.foreachBatch(batches.process).option("checkpointLocation", checkpoint.uri)
    query = writer.trigger(processingTime=f"{max(0, round(seconds * 1000))} milliseconds").start()
    try:
        _watch(context, query)
    except PySparkException:
        if batches.failure is not None:
            raise batches.failure from None  # The original, not Spark's account of it.
        raise
    finally:
        with contextlib.suppress(PySparkException):
            query.stop()


def _single_output(context: Context, frames: Frames) -> tuple[int, DataFrame]:
    work = context.run.work
    if len(frames) != 1 or len(context.run.outputs) != 1:
        raise UsageError(
            f"a stream has one output, and {work.job} has {len(context.run.outputs)}: branch behind it"
        )
    if context.settings.spark.remote is not None:
        raise UsageError(
            f"{work.job} is a stream, whose batches are committed from the worker itself: run it on a worker that has "
            "its own session (leave spark.remote unset)"
        )
    ((index, frame),) = frames.items()
    assert not isinstance(frame, Bucketed)  # Or it would be no stream.
    return index, frame


def _watch(context: Context, query: StreamingQuery) -> None:
    while True:
        context.run.cancel.check()
        context.run.cancel.wait(WATCH_S)
        if not query.isActive:
            context.run.cancel.check()
            query.awaitTermination()  # Raises what ended it.
            raise QoError("the stream was ended from outside: the next attempt goes on where it stopped")


class Batches:
    """Commits micro-batches. Spark calls ``process`` for each, on a thread of its own."""

    def __init__(self, context: Context, output: int, last: int, progress: StreamProgress) -> None:
        self._context = context
        self._output = output
        self._last = last  # The last committed batch.
        self._progress = progress
        # The most batches from one commit to the next.
        self._commit_gap_max = max(1, int(context.spark.conf.get(RETAINED) or 0) // 2)
        self._first = True
        self.failure: BaseException | None = None

    def process(self, frame: DataFrame, number: int) -> None:
        try:
            if number > self._last:
                self._commit(frame, number)
            else:
                # It is committed, but not marked in Spark, whose state still has to process the rows.
                frame.write.format("noop").mode("overwrite").save()
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def _commit(self, frame: DataFrame, number: int) -> None:
        run = self._context.run
        run.wait_for_readers()  # Let rows wait in the source, not in files.
        part = run.segment(number, self._output)
        output = self._write(frame, part)
        if (position := self._progress.position(number)) is not None:
            part.stats[POSITION] = position
        if not output.rows and number - self._last < self._commit_gap_max:
            return
        run.cancel.check()
        run.commit(part)
        self._last = number
        run.log.info("committed batch %d: %d rows", number, output.rows)
        if self._first:
            self._first = False
            self._progress.delete_earlier()

    def _write(self, frame: DataFrame, part: RunOutput) -> WrittenOutput:
        context, run = self._context, self._context.run
        expected = [each for each in parse_expectations(run.work.expectations) if each.output == self._output]
        measures = quality.measures(expected, frame.schema, frame)
        spark = frame.sparkSession
        output = writing.write(spark, frame, part, context.files, measures, run.work)
        if expected and output.rows:
            self._check(spark, part, expected, output)
        return output

    def _check(
        self, spark: SparkSession, part: RunOutput, expected: Sequence[Expectation], output: WrittenOutput
    ) -> None:
        """Raise QualityFailed if an expectation fails. The batch is kept for inspection, and the stream stops."""
        run = self._context.run
        part_run = copy.copy(run)
        part_run.outputs = [part]
        checks = quality.check(spark, part_run, expected, {self._output: output}, {}, self._context.files)
        failed = [each for each in checks if not each.passed]
        part.stats |= {"failed_checks": [each.name for each in failed]} if failed else {}
        failures = [each for each in failed if each.severity == "fail"]
        if failures:
            run.checks, run.rejected = list(checks), [part.body(run.work)]
            findings = "; ".join(f"{each.name}: found {describe_value(each.observed)}" for each in failures[:5])
            raise QualityFailed(f"{len(failures)} of {len(checks)} expectations failed: {findings}")
