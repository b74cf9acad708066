"""A pipeline with operators for rows by key, run attempt by attempt against the dispatcher's own functions."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from pyspark.sql import SparkSession

from qo.agent.operator_run import Run
from qo.api.contract.task import Claimed, ColumnBody, Outcome, Piece
from qo.config.settings import Settings
from qo.core.pipeline.topology import LiveJob
from qo.core.task import Status
from qo.dispatcher.commits import pieces
from qo.dispatcher.engine.loops import invalidation, reconciler, router
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.spark.io.files import files_for
from qo.spark.io.input_frames import read_input
from qo.spark.operators.calling import call
from qo.spark.operators.operator_context import Context, Inputs
from qo.spark.outputs import check_expectations, result_of, write_outputs
from qo.spark.phases import Phases
from qo.store.blocking_files import BlockingFiles
from support.dispatcher.pipeline_tasks import finish
from support.dispatcher.pipelines import live
from support.spark.attempts import Shop

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")


class KeyedSite(Shop):
    """``land`` rows as partitions of a source; ``settle`` runs whatever that leads to."""

    spark: SparkSession
    columns: Sequence[tuple[str, str]]  # Name and type, as both Arrow and Spark name it.
    landed = 0

    def land(self, job: str, partition: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Commit a partition of a source, with these rows."""
        arrow = {"long": pa.int64(), "string": pa.string(), "double": pa.float64(), "date": pa.date32()}
        struct = pa.schema([(name, arrow[type_]) for name, type_ in self.columns])
        body, listed = io.BytesIO(), list(rows)
        parquet.write_table(pa.Table.from_pylist(listed, schema=struct), body)
        self.landed += 1
        held, run = self.begin(job, f"{partition}-{self.landed}")
        output = run.output()
        output.write("part-0.parquet", body.getvalue(), rows=len(listed))
        output.describe(partition_key=partition)
        output.columns = [ColumnBody(name=name, type=type_) for name, type_ in self.columns]
        self.commit(held, run)

    def announce(self) -> None:
        """Route events and spread invalidations, until there is nothing to do."""
        while router.tick(self.state) or invalidation.tick(self.state) or reconciler.tick(self.state):
            pass

    def settle(self) -> list[dict[str, Any]]:
        """Run every task until none waits. Returns the results, in order, with the name of the job."""
        results: list[dict[str, Any]] = []
        for _ in range(50):
            self.announce()
            waiting = self.waiting()
            if not waiting:
                return results
            for task_id in waiting:
                held, run = self.claim(task_id)
                results.append({"job": held.work.job, **self.run(held, run)})
        raise AssertionError("it does not end")

    def waiting(self) -> list[str]:
        tasks = schema.tasks
        with self.state.read() as tx:
            query = sa.select(tasks.c.id).where(tasks.c.status == Status.PENDING).order_by(tasks.c.created_at)
            return list(tx.execute(query).scalars())

    def run(self, held: Claimed, run: Run) -> dict[str, Any]:
        """Run an attempt to its end; the task's result."""
        result = self.compute(run)
        self.commit(held, run, result=result)
        return result

    def fail(self, held: Claimed, error: str) -> None:
        finish(self.state, held, Outcome.FATAL, error=error)

    def compute(self, run: Run) -> dict[str, Any]:
        """Everything but the completion."""
        files = files_for(self.settings, self.root)
        frames = Inputs(list(run.inputs), lambda name: read_input(self.spark, run.input(name), files))
        with ExitStack() as later:
            context = Context(self.spark, run, frames, run.config, files, self.settings, later)
            phases = Phases()
            written = write_outputs(context, call(context), phases)
            check_expectations(context, written)
            return result_of(written, context.details, phases)

    def job(self, name: str, version: int | None = None) -> LiveJob:
        return live(self.topology, f"{self.dag}.{name}", version)

    def committed(self, name: str, output: int = 0, version: int | None = None) -> list[Piece]:
        generation = self.job(name, version).outputs[output].generation_id
        listed: list[Piece] = []
        after: str | None = None
        while True:
            with self.state.read() as tx:
                page, after = pieces.standing(tx, generation, after)
            listed += page
            if after is None:
                return listed

    def rows(self, name: str, output: int = 0, version: int | None = None) -> list[dict[str, Any]]:
        """What a dataset holds, read without Spark."""
        rows: list[dict[str, Any]] = []
        for piece in self.committed(name, output, version):
            for file in piece.files:
                body = BlockingFiles(self.settings).read(f"{piece.location}{file}")
                rows += parquet.ParquetFile(io.BytesIO(body)).read().to_pylist()
        return rows


def site(
    state: State,
    root: str,
    topology: Any,
    spark: SparkSession,
    columns: Sequence[tuple[str, str]],
    settings: Settings | None = None,
) -> KeyedSite:
    made = KeyedSite(state, root, topology, settings=settings or Settings())
    made.spark, made.columns = spark, columns
    return made
