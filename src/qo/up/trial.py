"""A trial: one job, run here and now on committed inputs. What it makes is shown, and nothing is committed.

The operator is that of the pipeline's files as they are, saved or not deployed; its inputs are read as a task would.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from qo.agent.taskless_run import make_run
from qo.api.contract.task import InputMode, Piece, WorkInput, WorkOutput
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag, From, Input, Job, input_name
from qo.core.pipeline.part_maps import PartMap, map_inputs, reads
from qo.core.pipeline.plan import resolve_partitions, source_partitions
from qo.errors import NotFound, UsageError
from qo.pipeline.loading import load_for_deploy
from qo.pipeline.problems import closest
from qo.pipeline.registry import SPARK, Registry
from qo.pipeline.target import resolve
from qo.spark.engine.engine import Attempt, open_engine
from qo.spark.engine.error_translation import explain
from qo.spark.io import input_frames
from qo.spark.io.bucket import spark_settings
from qo.spark.io.files import files_for
from qo.spark.io.reader import pin
from qo.spark.operators.calling import call
from qo.spark.operators.operator_context import Context, Inputs
from qo.spark.outputs import check_expectations, write_outputs
from qo.spark.phases import Phases

_ATTEMPT = Attempt("try", 1)


@dataclass(frozen=True, slots=True)
class TryRequest:
    target: str
    job: str  # Of the pipeline, or DAG.JOB.
    partition: str | None
    directory: Path  # What the operator writes goes here.


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job with what a task of it would read."""

    dag: Dag
    job: Job
    partition: str | None
    inputs: tuple[WorkInput, ...]
    on_spark: bool


@dataclass(frozen=True, slots=True)
class TrialOutput:
    """What one output of a trial has: rows of a frame, or files."""

    output: int
    frame: DataFrame | None = None
    files: Sequence[Path] = ()


def prepare(request: TryRequest, settings: Settings, registry: Registry) -> Prepared:
    """Find the job, and pin what it reads. Raises NotFound for a job, dataset or partition that is not there."""
    whole = load_for_deploy(request.target, code=False, registry=registry)
    home = str(resolve(request.target).directory)
    if home not in sys.path:
        sys.path.insert(0, home)
    dag, name = whole.dag, request.job.removeprefix(f"{whole.dag.name}.")
    job = next((each for each in dag.jobs if each.name == name), None)
    if job is None:
        raise NotFound(f"{dag.name} has no job {name!r}: {closest(name, [each.name for each in dag.jobs])}")
    if job.is_source:
        raise UsageError(f"{name!r} is a source: it reads nothing; try a job that reads it")
    runtime = registry.get(job.runtime)
    if not runtime.functions:
        raise UsageError(f"{name!r} runs in the runtime {job.runtime}, which only a dispatcher can start")
    resolved = resolve_partitions(dag)
    placed = msgspec.structs.replace(job, partitions=resolved.get(name))
    maps = map_inputs(placed, source_partitions(dag, job, resolved))
    inputs = tuple(
        _pin_input(settings, dag, each, at, request.partition, maps.get(at)) for at, each in enumerate(job.inputs)
    )
    return Prepared(dag, job, request.partition, inputs, runtime.works_like == SPARK)


def _pin_input(
    settings: Settings, dag: Dag, each: Input, at: int, partition: str | None, map_: PartMap | None
) -> WorkInput:
    """Return an input as a task would read it: its partition, those that a map says, or all of it."""
    label = _label(dag, each.from_)
    pin_ = pin(settings, label)
    keys = {piece.partition_key for piece in pin_.pieces}
    mode, pieces = InputMode.WHOLE, pin_.pieces
    if partition is not None and map_ is not None:
        keys_read = {part.key for part in reads(map_, partition).parts}
        pieces = _of_partitions(pieces, keys_read)
    elif partition is not None and (each.trigger or partition in keys):
        mode, pieces = InputMode.PARTITION, _of_partitions(pieces, {partition})
    if each.trigger and partition is not None and not pieces:
        there = sorted(filter(None, keys))
        hint = closest(partition, there) if there else "nothing is committed yet: qo up builds it"
        raise NotFound(f"{label} has no partition {partition!r}: {hint}")
    return WorkInput(
        position=at,
        name=input_name(each),
        dataset=label,
        dataset_id=pin_.first.dataset_id,
        generation_id=pin_.first.generation_id,
        mode=mode,
        where=each.where,
        revision=pin_.first.revision,
        columns=pin_.first.columns,
        pieces=list(pieces),
    )


def _of_partitions(pieces: Sequence[Piece], keys: set[str]) -> tuple[Piece, ...]:
    return tuple(each for each in pieces if each.partition_key in keys)


def _label(dag: Dag, origin: From) -> str:
    if origin.job is None:
        return origin.dataset or ""
    return f"{dag.name}.{origin.job}" + (f"[{origin.output}]" if origin.output else "")


@contextmanager
def open_session(settings: Settings) -> Generator[SparkSession]:
    """Open the session that a worker would have. It is closed at the end."""
    engine = open_engine(spark_settings(settings))
    try:
        with engine.session(_ATTEMPT, lasting=True) as spark:
            yield spark
    finally:
        engine.close()


@contextmanager
def run_trial(prepared: Prepared, settings: Settings, directory: Path) -> Generator[list[TrialOutput]]:
    """Run the operator, and yield what it has made; afterwards, check the expectations.

    Raises what the operator raises, translated as for a task.
    """
    job = prepared.job
    run = make_run(
        job.operator,
        prepared.inputs,
        job.config,
        [
            WorkOutput(index=at, dataset_id="try", generation_id="try", prefix=f"{directory.as_uri()}/{at}/")
            for at in range(job.outputs)
        ],
        Path(settings.dispatcher.secrets_dir),
        dag=prepared.dag.name,
        job=job.name,
        partition_key=prepared.partition,
        update_strategy="replace",
        secrets=list(job.secrets),
        expectations=msgspec.to_builtins(job.expectations),
    )
    if not prepared.on_spark:
        run.code.load(job.operator)(run)
        yield [TrialOutput(at, files=sorted((directory / str(at)).rglob("*.*"))) for at in range(job.outputs)]
        return
    with ExitStack() as later:
        spark = later.enter_context(open_session(settings))
        committed, own = (
            files_for(settings, settings.dispatcher.data_root),
            files_for(settings, directory.as_uri()),
        )
        frames = Inputs(list(run.inputs), lambda name: input_frames.read_input(spark, run.input(name), committed))
        context = Context(spark, run, frames, run.config, own, settings, later)
        try:
            written_outputs = write_outputs(context, call(context), Phases())
            yield [TrialOutput(at, spark.read.parquet(f"{directory.as_uri()}/{at}")) for at in range(job.outputs)]
            check_expectations(context, written_outputs)
        except Exception as error:
            translated = explain(error)
            if translated is error:
                raise
            raise translated.with_traceback(error.__traceback__) from None
