"""The registry of runtimes: what the settings say, and what jobs may name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qo.agent.service import with_queues
from qo.config import origins
from qo.config.settings import Settings
from qo.core.pipeline.gates import Cap
from qo.core.pipeline.plan import config_hash
from qo.dispatcher.engine.release_limits import caps_of
from qo.errors import ConfigError, NotFound, UsageError
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError
from qo.pipeline.registry import DEFAULT, Registry, configured_registry

pytestmark = pytest.mark.fast

TABLES = {
    "spark": {
        "queues": ["spark=3", "slow"],
        "image": "example.com/spark:1",
        "memory": "4Gi",
        "cpu": 2,
        "max_in_flight": 9,
        "queue_limits": {"slow": 2},
        "operator_limits": {"sql": 4},
    },
    "reports": {"kind": "python", "timeout_seconds": 7200, "idle_timeout": "10m"},
}

JOB = """
name: shop
jobs:
- {name: orders, activation: source, outputs: 1, source: {kind: manual}}
- name: yearly
  activation: reactive
  runtime: %s
  queue: %s
  operator: shop.jobs:yearly
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: orders}}]
"""


def settings_of(tables: object, **environ: str) -> Settings:
    return origins.load(environ={"QO_RUNTIMES": json.dumps(tables), **environ}, cwd=Path("/nonexistent"))


def registry_of(tables: object) -> Registry:
    return configured_registry(settings_of(tables).runtimes)


def test_tables_of_the_settings_complete_what_is_built_in() -> None:
    registry = registry_of(TABLES)
    assert sorted(registry.runtimes) == ["container", "dispatcher", "lambda", "python", "reports", "spark"]
    spark, reports = registry.get("spark"), registry.get("reports")
    assert spark.queues == ("spark", "slow")
    assert (spark.image, spark.memory, spark.cpu) == ("example.com/spark:1", "4Gi", 2.0)
    assert spark.timeout_seconds == DEFAULT.get("spark").timeout_seconds
    assert (reports.works_like, reports.queues, reports.timeout_seconds) == ("python", ("reports",), 7200.0)
    assert reports.accepts("shop.jobs:yearly")
    assert registry.of_queue("slow") is spark
    assert registry.of_queue("other") is None
    assert registry_of({}).runtimes == DEFAULT.runtimes


def test_a_file_says_the_same_as_the_variable(tmp_path: Path) -> None:
    (tmp_path / "qo.toml").write_text('[runtimes.reports]\nkind = "python"\nqueues = ["reports", "slow=2"]\n')
    loaded = origins.load(environ={}, cwd=tmp_path)
    assert (
        loaded.runtimes == settings_of({"reports": {"kind": "python", "queues": ["reports", "slow=2"]}}).runtimes
    )
    assert loaded.origin("runtimes") == "qo.toml"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"big": {}}, r"\[runtimes.big\] has no kind: write kind = one of 'spark', 'python', 'container'"),
        ({"big": {"kind": "lambda"}}, "has the kind 'lambda'"),
        ({"spark": {"kind": "python"}}, "is built in"),
        ({"python": {"queues": ["spark"]}}, "the queue 'spark' belongs to both runtimes"),
        ({"lambda": {"queues": ["a"]}}, "queues are for runtimes with workers"),
        ({"spark": {"queue_limits": {"slow": 1}}}, "queue_limits names 'slow', and its queues are spark"),
        ({"spark": {"operator_limits": {"sqll": 1}}}, "operator_limits names 'sqll'"),
        ({"spark": {"imgae": "x"}}, "has 'imgae'; it takes kind, image"),
        ({"spark": {"memory": "much"}}, "spark.memory must be an amount such as 512Mi"),
        ({"spark": {"max_in_flight": 0}}, "spark.max_in_flight must be a whole number"),
        ({"spark": {"queues": []}}, "spark.queues must be a list of queues"),
        ({"spark": {"idle_timeout": "soon"}}, "spark.idle_timeout must be never, 0, or a time"),
        ({"Spark": {}}, "'Spark' is no name"),
        ({"spark": 3}, "spark is no table"),
        ([], "runtimes must be tables"),
    ],
)
def test_tables_that_cannot_be_meant_are_refused_with_the_place(tables: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry_of(tables)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is not JSON"):
        origins.load(environ={"QO_RUNTIMES": "spark"}, cwd=Path("/nonexistent"))


def test_limits_of_the_registry_are_caps_of_release() -> None:
    both = frozenset({"spark", "slow"})
    assert caps_of(registry_of(TABLES)) == (
        Cap("runtime spark", 9, both),
        Cap("queue slow", 2, frozenset({"slow"})),
        Cap("operator sql in runtime spark", 4, both, "sql"),
    )
    assert caps_of(DEFAULT) == ()


def test_a_job_may_name_a_queue_of_its_runtime() -> None:
    dag = read(JOB % ("spark", "slow"), registry=registry_of(TABLES))
    job = next(each for each in dag.jobs if each.name == "yearly")
    assert registry_of(TABLES).get("spark").queue_of(job) == "slow"


@pytest.mark.parametrize(
    ("runtime", "queue", "message"),
    [
        ("spark", "slwo", "the runtime spark has no queue 'slwo'"),
        ("reports", "slow", "the runtime reports has no queue 'slow'"),
        ("spark", "Slow!", "'queue'"),
    ],
)
def test_a_queue_that_the_runtime_does_not_have_is_refused_with_its_line(
    runtime: str, queue: str, message: str
) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        read(JOB % (runtime, queue), registry=registry_of(TABLES))
    assert [each.line for each in caught.value.problems] == [8]


def test_a_source_that_runs_no_code_has_no_queue() -> None:
    fields = ("- name: a", "  activation: source", "  queue: spark", "  outputs: 1", "  source: {kind: manual}")
    text = "\n".join(("name: shop", "jobs:", *fields))
    with pytest.raises(DefinitionError, match="has no queues") as caught:
        read(text, registry=registry_of(TABLES))
    assert [each.line for each in caught.value.problems] == [5]


def test_the_queue_is_no_part_of_what_a_job_makes() -> None:
    registry = registry_of(TABLES)
    hashes = {
        config_hash(job)
        for queue in ("slow", "spark", "null")
        for job in read((JOB % ("spark", queue)).replace("  queue: null\n", ""), registry=registry).jobs
        if job.name == "yearly"
    }
    assert len(hashes) == 1


def test_a_runtime_or_a_queue_that_is_gone_is_named() -> None:
    job = next(each for each in read(JOB % ("spark", "slow"), registry=registry_of(TABLES)).jobs if each.queue)
    assert registry_of(TABLES).missing_reason(job) is None
    assert "no queue 'slow': add it to queues of [runtimes.spark]" in (DEFAULT.missing_reason(job) or "")
    assert "no runtime 'spark'" in (Registry({}).missing_reason(job) or "")


def test_a_worker_serves_all_queues_of_its_runtime_or_those_it_is_told() -> None:
    spark = registry_of(TABLES).get("spark")
    assert with_queues(settings_of(TABLES), spark).worker.queue == ("spark=3", "slow=1")
    assert with_queues(settings_of(TABLES, QO_WORKER_QUEUE="slow"), spark).worker.queue == ("slow=1",)
    assert with_queues(settings_of(TABLES, QO_WORKER_QUEUE="slow=5,spark"), spark).worker.queue == (
        "slow=5",
        "spark=3",
    )
    with pytest.raises(UsageError, match="the runtime spark has no queue 'fast'"):
        with_queues(settings_of(TABLES, QO_WORKER_QUEUE="fast"), spark)


def test_only_runtimes_with_workers_have_workers() -> None:
    with pytest.raises(UsageError, match="runtime 'lambda' has no workers"):
        DEFAULT.with_workers("lambda")
    with pytest.raises(NotFound, match="there is no runtime 'big'"):
        DEFAULT.with_workers("big")
