"""The settings of scaling, and the fleets that a scaler makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qo.config import origins
from qo.config.settings import Settings
from qo.core.pipeline.scaling import Policy
from qo.errors import ConfigError
from qo.pipeline.registry import configured_registry
from qo.scaler.service import build_fleets

pytestmark = pytest.mark.fast


def settings_of(tables: object, **environ: str) -> Settings:
    return origins.load(environ={"QO_RUNTIMES": json.dumps(tables), **environ}, cwd=Path("/nonexistent"))


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({}, "it has no max: write how many workers there may be at most"),
        ({"max": 0}, "max must be a whole number"),
        ({"max": 2, "min": 3}, r"min \(3\) is more than max \(2\)"),
        ({"max": 2, "maximum": 3}, "it has 'maximum', and takes min, max, target_wait_s"),
        ({"max": 2, "idle_s": -1}, "idle_s must be a number"),
        ({"max": 2, "launcher": "docker"}, "launcher must be one of local, kubernetes, command"),
        ({"max": 2, "launcher": "command", "start": ["a"]}, "needs the commands .*: list is missing"),
        ({"max": 2, "launcher": "command", "start": "a"}, "start must be a list of arguments"),
        ({"max": 2, "start": ["a"]}, "start is for launcher = command, and the launcher is local"),
        ({"max": 2, "namespace": "shop"}, "namespace is for launcher = kubernetes, and the launcher is local"),
        (
            {"max": 2, "launcher": "kubernetes", "namespace": "A"},
            "namespace must be a name as Kubernetes has them",
        ),
        ([], "python.scaling must be a table with max"),
    ],
)
def test_a_table_that_is_wrong_is_refused_in_words(scaling: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of({"python": {"scaling": scaling}})


def test_a_runtime_without_workers_cannot_be_scaled() -> None:
    with pytest.raises(ConfigError, match="scaling is for runtimes with workers"):
        configured_registry(settings_of({"lambda": {"scaling": {"max": 2}}}).runtimes)


def test_without_a_table_a_scaler_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"write a table \[runtimes.NAME.scaling\] with max"):
        build_fleets(settings_of({}))


def test_workers_have_as_many_slots_as_they_would_have_themselves() -> None:
    tables = {
        "python": {"scaling": {"max": 2, "min": 1, "target_wait_s": 0, "idle_s": 5}},
        "spark": {"scaling": {"max": 3}},
        "reports": {"kind": "python", "scaling": {"max": 1, "slots": 7}},
    }
    settings = settings_of(tables, QO_SPARK_SLOTS="3")
    python, spark, reports = build_fleets(settings)
    assert python.policy == Policy(min=1, max=2, slots=settings.worker.concurrency, target_wait_s=0, idle_s=5)
    assert (spark.spec.slots, reports.spec.slots) == (3, 7)
