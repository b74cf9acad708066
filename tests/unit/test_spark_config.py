"""The configuration of Spark's operators: what is refused, where it stands, and what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from qo.agent.service import with_spark_slots
from qo.config.origins import load
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError
from qo.pipeline.registry import DEFAULT

pytestmark = pytest.mark.fast

SOURCE = {"name": "orders", "activation": "source", "outputs": 1, "source": {"kind": "manual"}}
JOB: dict[str, Any] = {
    "name": "clean",
    "activation": "reactive",
    "runtime": "spark",
    "outputs": 1,
    "execution_strategy": "PerPartition",
    "inputs": [{"from": {"job": "orders"}}],
}
COLUMNS = [{"name": "a", "type": "decimal(10, 2)"}, {"name": "b", "type": "array<struct<c: date>>"}]


def defined(operator: str, config: dict[str, Any] | None, **fields: Any) -> str:
    job = {**JOB, "operator": operator, **fields, **({} if config is None else {"config": config})}
    return yaml.safe_dump({"name": "shop", "jobs": [SOURCE, job]}, sort_keys=False)


@pytest.mark.parametrize(
    ("operator", "config", "fields"),
    [
        ("sql", {"query": "SELECT 1"}, {}),
        ("sql", {"file": "queries/one.sql"}, {}),
        ("ingest", {"format": "csv", "options": {"header": True}, "columns": COLUMNS}, {}),
        ("ingest", {"format": "json", "path": "s3://in/{partition_key}/*.json"}, {}),
        ("compact", {"target_mb": 64}, {}),
        ("compact", None, {}),
        ("check", None, {}),
        ("check", {}, {}),
        ("dedupe", {"keys": ["id", "shop"], "order_by": "updated_at"}, {}),
        ("alert", {"query": "SELECT 1"}, {"outputs": 0}),
        ("alert", {"query": "SELECT 1", "channel": "webhook", "url": "https://example.com/hook"}, {}),
        ("alert", {"query": "SELECT 1", "channel": "webhook", "url_secret": "hook"}, {"secrets": ["hook"]}),
        ("alert", {"file": "late.sql", "channel": "file", "path": "file:/tmp/alerts"}, {}),
        ("shop.jobs:clean", {"anything": ["goes", 1]}, {"outputs": 3}),
    ],
)
def test_what_an_operator_understands_is_accepted(
    operator: str, config: dict[str, Any] | None, fields: dict[str, Any]
) -> None:
    job = next(
        each for each in read(defined(operator, config, **fields), file="shop.yaml").jobs if each.name == "clean"
    )
    assert job.config == (config or {})


@pytest.mark.parametrize(
    ("operator", "config", "fields", "said"),
    [
        ("sql", None, {}, "sql needs its 'config'; write 'config: {query: SELECT ...}'"),
        ("sql", {"query": "SELECT 1", "file": "one.sql"}, {}, "needs either 'query' or 'file'"),
        ("sql", {"qeury": "SELECT 1"}, {}, "there is no field 'qeury' in a sql"),
        ("sql", {"query": "SELECT 1"}, {"outputs": 2}, "sql has one output, not 2"),
        ("ingest", None, {}, "write 'config: {format: csv}'"),
        ("ingest", {"format": "xml"}, {}, "'format' is 'xml'"),
        (
            "ingest",
            {"format": "csv", "path": "ftp://data/x.csv"},
            {},
            "write a path, file:PATH or s3://BUCKET/KEY",
        ),
        ("ingest", {"format": "csv", "path": "s3:/data/x.csv"}, {}, "write a path, file:PATH or s3://BUCKET/KEY"),
        ("ingest", {"format": "csv", "path": "file:/x/{day}"}, {}, "nothing stands for {day} in a path"),
        ("ingest", {"format": "csv", "columns": [{"name": "a", "type": "text"}]}, {}, "a type of Spark SQL"),
        ("ingest", {"format": "csv", "columns": [COLUMNS[0], {**COLUMNS[1], "name": "A"}]}, {}, "two columns 'a'"),
        ("ingest", {"format": "text", "columns": COLUMNS}, {}, "text has one column"),
        ("compact", {"target_mb": 0}, {}, "a whole number from 1"),
        ("compact", {}, {"inputs": [*JOB["inputs"], {"from": {"job": "orders"}, "as": "b"}]}, "reads one input"),
        ("dedupe", None, {}, "write 'config: {keys: [id], order_by: updated_at}'"),
        ("dedupe", {"order_by": "b"}, {}, "'config' has no 'keys'"),
        ("dedupe", {"keys": ["a"]}, {}, "'config' has no 'order_by'"),
        ("dedupe", {"keys": [], "order_by": "b"}, {}, "'keys' has 0 items"),
        ("dedupe", {"keys": ["a", "a"], "order_by": "b"}, {}, "'a' stands twice in 'keys'"),
        ("dedupe", {"keys": ["a", "B"], "order_by": "b"}, {}, "name a column that is not one of 'keys'"),
        ("dedupe", {"keys": ["a"], "order_by": "b"}, {"outputs": 0}, "dedupe has one output, not 0"),
        ("check", {"expectations": []}, {}, "there is no field 'expectations' in a check"),
        ("alert", {"query": "SELECT 1"}, {"outputs": 2}, "alert has one output or none, not 2"),
        ("alert", {"query": "SELECT 1", "channel": "webhook"}, {}, "needs 'url' or 'url_secret'"),
        ("alert", {"query": "SELECT 1", "url": "http://x"}, {}, "'url' is not for the channel log"),
        (
            "alert",
            {"query": "SELECT 1", "channel": "webhook", "url_secret": "hook"},
            {},
            "write 'secrets: [hook]'",
        ),
    ],
)
def test_what_it_does_not_understand_is_refused_with_its_place(
    operator: str, config: dict[str, Any] | None, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        read(defined(operator, config, **fields), file="shop.yaml")
    assert said in str(caught.value)
    assert all(each.file == "shop.yaml" and each.line >= 8 for each in caught.value.problems)


def test_built_in_operators_are_no_sources() -> None:
    job = {"name": "a", "activation": "source", "runtime": "spark", "operator": "check", "outputs": 1}
    text = yaml.safe_dump({"name": "shop", "jobs": [{**job, "source": {"kind": "always_on"}}]})
    with pytest.raises(DefinitionError, match="check works on the events of its input"):
        read(text, file="shop.yaml")


def test_a_spark_worker_runs_as_many_tasks_as_it_has_slots_unless_told_otherwise() -> None:
    assert with_spark_slots(load(environ={"QO_SPARK_SLOTS": "3"}), DEFAULT.get("spark")).worker.concurrency == 3
    said = load(environ={"QO_SPARK_SLOTS": "3", "QO_CONCURRENCY": "7"})
    assert with_spark_slots(said, DEFAULT.get("spark")).worker.concurrency == 7
    assert with_spark_slots(load(environ={}), DEFAULT.get("python")).worker.concurrency == 16
