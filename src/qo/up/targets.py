"""The pipelines that ``qo up`` is given: read, held against each other, and put in the order to deploy them in."""

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
from qo.pipeline.registry import DEFAULT as REGISTRY
from qo.pipeline.registry import Launcher
from qo.pipeline.target import resolve


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What to run: the DAG, the text to deploy, and where its operators are."""

    dag: Dag
    source: str
    directory: Path
    bundle: Bundle | None = None  # The code of its jobs.

    @property
    def name(self) -> str:
        return self.dag.name

    @property
    def runtimes(self) -> list[str]:
        """Those that a worker runs."""
        named = {job.runtime for job in self.dag.jobs}
        return sorted(name for name in named if REGISTRY.get(name).launcher is Launcher.QUEUE)


def read(target: str) -> tuple[Pipeline, tuple[str, ...]]:
    """A pipeline, known by the code of its operators too; and what to warn of. Raises UsageError."""
    whole = load_for_deploy(target)
    return Pipeline(whole.dag, whole.source, resolve(target).directory, whole.bundle), whole.warnings


def read_all(targets: Sequence[str]) -> tuple[list[Pipeline], list[str]]:
    """All of them, each after those whose datasets it reads; and what to warn of.

    Raises UsageError where one cannot be read, or is given twice.
    """
    found: dict[str, Pipeline] = {}
    warnings: list[str] = []
    for target in targets:
        pipeline, own = read(target)
        if pipeline.name in found:
            raise UsageError(f"{target} is {pipeline.name!r}, as another target is: give each pipeline once")
        found[pipeline.name] = pipeline
        warnings += own
    return _publishers_first(found.values()), warnings


def import_path(pipelines: Iterable[Pipeline]) -> list[Path]:
    """Where workers look for modules, in this order: as whoever worked out what code is known by."""
    return list(dict.fromkeys((*(each.directory for each in pipelines), Path.cwd())))


def require_java(pipelines: Iterable[Pipeline], settings: Settings) -> None:
    """Better now than in the log of a worker. Raises ConfigError."""
    elsewhere = settings.spark.remote not in (None, "local")  # A local server is started here, and needs it too.
    if elsewhere or not any("spark" in each.runtimes for each in pipelines):
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
    """What reads a published dataset can only be deployed once that is published. A circle is the dispatcher's to
    refuse."""
    given = list(pipelines)
    owners = {name: each for each in given for name in each.dag.publish}
    ordered: list[Pipeline] = []
    seen: set[str] = set()

    def add(pipeline: Pipeline) -> None:
        if pipeline.name in seen:
            return
        seen.add(pipeline.name)
        for job in pipeline.dag.jobs:
            for each in job.inputs:
                if each.from_.dataset in owners:
                    add(owners[each.from_.dataset])
        ordered.append(pipeline)

    for each in given:
        add(each)
    return ordered
