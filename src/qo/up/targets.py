"""Load the pipelines of ``qo up``, and sort them in the order in which they are deployed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag
from qo.errors import ConfigError, UsageError
from qo.pipeline.code.bundling import Bundle
from qo.pipeline.loading import load_for_deploy
from qo.pipeline.registry import DEFAULT, SPARK, Launcher, Registry
from qo.pipeline.target import resolve


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline to run: its DAG, the text to deploy, and the directory of its operators."""

    dag: Dag
    source: str
    directory: Path
    bundle: Bundle | None = None  # The code of its jobs.
    registry: Registry = DEFAULT

    @property
    def name(self) -> str:
        return self.dag.name

    @property
    def runtimes(self) -> list[str]:
        """The runtimes of its jobs that need a worker."""
        names = {job.runtime for job in self.dag.jobs}
        return sorted(name for name in names if self.registry.get(name).launcher is Launcher.QUEUE)

    @property
    def needs_spark(self) -> bool:
        return any(self.registry.get(name).works_like == SPARK for name in self.runtimes)


def read(target: str, registry: Registry = DEFAULT) -> tuple[Pipeline, tuple[str, ...]]:
    """Load a pipeline with the code of its operators; return it and the warnings. Raises UsageError."""
    whole = load_for_deploy(target, registry=registry)
    return Pipeline(whole.dag, whole.source, resolve(target).directory, whole.bundle, registry), whole.warnings


def read_all(targets: Sequence[str], registry: Registry = DEFAULT) -> tuple[list[Pipeline], list[str]]:
    """Load all pipelines, each after those whose datasets it reads; return them and the warnings.

    Raises UsageError if one cannot be read, or is given twice.
    """
    by_name: dict[str, Pipeline] = {}
    warnings: list[str] = []
    for target in targets:
        pipeline, own_warnings = read(target, registry)
        if pipeline.name in by_name:
            raise UsageError(
                f"{target} is the pipeline {pipeline.name!r}, as is another target: give each pipeline once"
            )
        by_name[pipeline.name] = pipeline
        warnings += own_warnings
    return _publishers_first(by_name.values()), warnings


def import_path(pipelines: Iterable[Pipeline]) -> list[Path]:
    """Return the directories from which workers import modules: the same as when the code was fingerprinted."""
    return list(dict.fromkeys((*(each.directory for each in pipelines), Path.cwd())))


def require_java(pipelines: Iterable[Pipeline], settings: Settings) -> None:
    """Raise ConfigError if a pipeline needs Java and there is none: better now than in the log of a worker."""
    elsewhere = settings.spark.remote not in (
        None,
        "local",
    )  # A local Connect server is started here, and needs Java, too.
    if elsewhere or not any(each.needs_spark for each in pipelines):
        return
    try:
        from qo.spark.engine.java import find
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"a pipeline on Spark needs {missing.name}: install qo with its extra, from a checkout, "
            "pip install '.[dispatcher,spark]'"
        ) from None
    find(settings.spark, os.environ)


def _publishers_first(pipelines: Iterable[Pipeline]) -> list[Pipeline]:
    """Sort the pipelines: a reader of a published dataset comes after its publisher. The dispatcher refuses cycles."""
    unsorted = list(pipelines)
    owners = {name: each for each in unsorted for name in each.dag.publish}
    ordered: list[Pipeline] = []
    visited: set[str] = set()

    def add(pipeline: Pipeline) -> None:
        if pipeline.name in visited:
            return
        visited.add(pipeline.name)
        for job in pipeline.dag.jobs:
            for each in job.inputs:
                if each.from_.dataset in owners:
                    add(owners[each.from_.dataset])
        ordered.append(pipeline)

    for each in unsorted:
        add(each)
    return ordered
