"""Jobs whose query says what they read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.plan import content_hash, plan
from qo.pipeline.loading import load_for_deploy
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError

KNOWN = {"rates": "markets", "orders_archive": "archive", "customers": "crm"}

ORDERS = {"name": "orders", "activation": "source", "outputs": 1, "source": {"kind": "manual"}}


def query_job(query: str, **fields: Any) -> dict[str, Any]:
    job = {
        "name": "totals",
        "activation": "reactive",
        "runtime": "spark",
        "operator": "sql",
        "outputs": 1,
        "execution_strategy": "PerPartition",
        "config": {"query": query},
    }
    return {**job, **fields}


def sales(*jobs: Mapping[str, Any], **fields: Any) -> str:
    return json.dumps({"name": "sales", "jobs": [ORDERS, *jobs], **fields})


def accepted(text: str, known: Mapping[str, str] | None = KNOWN) -> Dag:
    return read(text, known_datasets=known)


def refused(text: str, known: Mapping[str, str] | None = KNOWN) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        read(text, known_datasets=known)
    return [str(each) for each in caught.value.problems]


def inputs_of(dag: Dag, name: str = "totals") -> list[tuple[str, str, str]]:
    (job,) = (each for each in dag.jobs if each.name == name)
    return [
        (each.name or "", "job" if each.from_.job else "dataset", each.from_.job or each.from_.dataset or "")
        for each in job.inputs
    ]


def test_a_query_gets_the_jobs_and_published_datasets_that_it_names():
    query = "SELECT * FROM Orders o JOIN rates USING (day) WHERE id IN (SELECT id FROM crm.customers)"
    assert inputs_of(accepted(sales(query_job(query)))) == [
        ("customers", "dataset", "customers"),
        ("orders", "job", "orders"),
        ("rates", "dataset", "rates"),
    ]


def test_inferred_and_declared_inputs_are_the_same_version():
    query = "SELECT * FROM orders JOIN rates USING (day)"
    declared = query_job(query, inputs=[{"from": {"job": "orders"}}, {"from": {"dataset": "rates"}}])
    inferred = accepted(sales(query_job(query)))
    assert content_hash(inferred) == content_hash(accepted(sales(declared)))
    # Before a deploy, the datasets of others are not known; the version is the same.
    assert content_hash(inferred) == content_hash(accepted(sales(query_job(query)), known=None))


def test_the_order_in_which_a_query_names_its_inputs_does_not_matter():
    one, other = "SELECT * FROM orders JOIN rates USING (x)", "select *\nfrom rates -- and\njoin ORDERS using (x)"
    editions = [inputs_of(accepted(sales(query_job(each)))) for each in (one, other)]
    assert editions[0] == editions[1]


def test_declared_inputs_stay_and_refine_what_a_query_reads():
    beside = {"from": {"dataset": "rates"}, "as": "r", "trigger": False, "where": {"currency": "EUR"}}
    query = "SELECT * FROM orders JOIN r USING (day) JOIN customers USING (id)"
    dag = accepted(sales(query_job(query, inputs=[beside])))
    assert inputs_of(dag) == [
        ("r", "dataset", "rates"),
        ("customers", "dataset", "customers"),
        ("orders", "job", "orders"),
    ]
    (job,) = (each for each in dag.jobs if each.name == "totals")
    assert not job.inputs[0].trigger
    assert job.inputs[0].where == {"currency": "EUR"}


def test_a_name_with_a_dot_is_a_pipeline_and_its_dataset():
    query = "SELECT * FROM sales.orders JOIN `markets`.`rates` r USING (day) WHERE orders.x > 1"
    dag = accepted(sales(query_job(query)))
    assert inputs_of(dag) == [("orders", "job", "orders"), ("rates", "dataset", "rates")]
    (job,) = (each for each in dag.jobs if each.name == "totals")
    assert job.config["query"] == "SELECT * FROM orders JOIN rates r USING (day) WHERE orders.x > 1"


def test_two_datasets_of_one_name_are_told_apart():
    query = "SELECT * FROM orders UNION ALL SELECT * FROM archive.orders"
    dag = accepted(sales(query_job(query)), known={"orders": "archive"})
    assert inputs_of(dag) == [("archive_orders", "dataset", "orders"), ("orders", "job", "orders")]
    (job,) = (each for each in dag.jobs if each.name == "totals")
    assert job.config["query"] == "SELECT * FROM orders UNION ALL SELECT * FROM archive_orders"


def test_a_name_with_a_dot_finds_the_input_that_is_declared_for_it():
    beside = {"from": {"dataset": "rates"}, "as": "fx", "trigger": False}
    dag = accepted(sales(query_job("SELECT * FROM orders JOIN markets.rates USING (day)", inputs=[beside])))
    assert inputs_of(dag) == [("fx", "dataset", "rates"), ("orders", "job", "orders")]
    (job,) = (each for each in dag.jobs if each.name == "totals")
    assert job.config["query"] == "SELECT * FROM orders JOIN fx USING (day)"


def test_an_own_publication_is_read_by_its_name():
    publish = {"raw_orders": {"from": {"job": "orders"}}}
    dag = accepted(sales(query_job("SELECT * FROM raw_orders"), publish=publish))
    assert inputs_of(dag) == [("raw_orders", "dataset", "raw_orders")]
    assert plan(dag).job("totals").inputs[0].generation_id is not None


def test_tables_of_sparks_own_catalog_and_paths_are_left_alone():
    query = "SELECT * FROM orders JOIN spark_catalog.default.planes JOIN parquet.`/data/old` JOIN range(5)"
    dag = accepted(sales(query_job(query)))
    assert inputs_of(dag) == [("orders", "job", "orders")]
    (job,) = (each for each in dag.jobs if each.name == "totals")
    assert job.config["query"] == query


def test_an_alert_reads_what_its_query_names():
    alert = query_job("SELECT * FROM orders WHERE late", operator="alert", outputs=0)
    assert inputs_of(accepted(sales(alert))) == [("orders", "job", "orders")]


YAML = """\
name: sales
jobs:
- {name: orders, activation: source, outputs: 1, source: {kind: manual}}
- name: totals
  activation: reactive
  runtime: spark
  operator: sql
  outputs: 1
  execution_strategy: PerPartition
  config:
    query: |
      WITH late AS (SELECT * FROM orders)
      SELECT *
      FROM late
      JOIN ordres USING (id)
      JOIN   market.rates
"""


def test_an_unknown_name_is_refused_where_the_query_has_it():
    assert refused(YAML) == [
        "pipeline.yaml:15:12: the query of 'totals' reads 'ordres', and there is no such job or published dataset; "
        "did you mean 'orders'?",
        "pipeline.yaml:16:14: the query of 'totals' reads 'market.rates', and there is no such job or published "
        "dataset; did you mean 'markets.rates'?",
    ]
    one_line = YAML[: YAML.index("    query:")] + "    query: 'SELECT 1 FROM ordres'\n"
    assert refused(one_line)[0].startswith("pipeline.yaml:11:27: the query of 'totals' reads 'ordres'")
    escaped = YAML[: YAML.index("    query:")] + '    query: "SELECT 1\\nFROM \\u006frdres"\n'
    assert refused(escaped)[0].startswith("pipeline.yaml:11:12: line 2 of the query of 'totals' reads 'ordres'")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1", "reads nothing, so nothing starts it; name a job"),
        ("SELECT * FROM totals", "reads 'totals', which is the job itself"),
        (
            "SELECT * FROM nowhere_near",
            "write spark_catalog.default.nowhere_near for a table of Spark's own catalog",
        ),
        ("SELECT * FROM hive.planes", "write spark_catalog.hive.planes for a table of Spark's own catalog"),
        ("SELECT * FROM sales.rates", "reads 'sales.rates', and there is no such job"),
        ("SELECT * FROM crm.rates", "did you mean 'markets.rates'?"),
        ("SELECT (a FROM orders", "cannot be read: its syntax is not understood at 'FROM'; correct it, or list"),
        ("INSERT INTO x SELECT * FROM orders", "does not begin with SELECT, FROM or WITH"),
        ("SELECT 1 FROM orders; SELECT 2 FROM orders", "it has 2 statements instead of one"),
    ],
)
def test_a_query_without_clear_inputs_is_refused(query: str, message: str):
    (problem,) = refused(sales(query_job(query)))
    assert message in problem


def test_a_query_that_is_not_understood_here_may_declare_its_inputs():
    query = "SELECT transform(x, y -> y.a:b) FROM orders"
    declared = query_job(query, inputs=[{"from": {"job": "orders"}}])
    assert inputs_of(accepted(sales(declared))) == [("orders", "job", "orders")]


def test_a_query_names_an_input_as_its_job_calls_it():
    declared = query_job("SELECT * FROM orders", inputs=[{"from": {"job": "orders"}, "as": "o"}])
    (problem,) = refused(sales(declared))
    assert "reads 'orders', which this job calls o; write o in the query" in problem


def test_a_name_with_two_meanings_is_refused():
    other = {**ORDERS, "name": "imports"}
    text = sales(other, query_job("SELECT * FROM orders"), publish={"orders": {"from": {"job": "imports"}}})
    (problem,) = refused(text)
    assert "reads 'orders', which is a job here, and also the published dataset of 'imports'" in problem


def test_rules_for_inputs_hold_for_inferred_ones_and_point_to_the_query():
    text = YAML.replace("ordres", "totals_by_day").replace("JOIN   market.rates", "")
    text = text.replace(
        "- {name: orders", "- {name: orders, activation: source, outputs: 0, source: {kind: manual}}\n- {name: x"
    )
    (problem,) = [each for each in refused(text, {"totals_by_day": "b"}) if "no output" in each]
    assert problem.startswith("pipeline.yaml:13:35: 'orders' has no output 0")


def test_a_query_in_a_file_says_what_its_job_reads(tmp_path: Path):
    (tmp_path / "totals.sql").write_text("SELECT *\nFROM sales.orders JOIN markets.rates USING (day)\n")
    (tmp_path / "pipeline.yaml").write_text(sales(query_job("", config={"file": "totals.sql"})))
    whole = load_for_deploy(str(tmp_path / "pipeline.yaml"))
    assert inputs_of(whole.dag) == [("orders", "job", "orders"), ("rates", "dataset", "rates")]
    assert accepted(whole.source) == whole.dag
    assert "FROM orders JOIN rates" in whole.source
    (problem,) = refused(sales(query_job("", config={"file": "totals.sql"})))
    assert "what 'totals' reads is not known: the file of its query is not at hand" in problem
    (tmp_path / "totals.sql").write_text("SELECT *\nFROM sales.order\n")
    with pytest.raises(
        DefinitionError, match=r"totals.sql:2:6: .*reads 'sales.order'.*did you mean 'sales.orders'"
    ):
        load_for_deploy(str(tmp_path / "pipeline.yaml"))


def test_a_declaration_in_python_may_leave_inputs_out():
    pipeline = qo.Pipeline("sales")
    pipeline.add("orders", source={"kind": "manual"})
    config = {"query": "SELECT * FROM orders"}
    pipeline.add("totals", operator="sql", runtime="spark", strategy="PerPartition", config=config)
    assert inputs_of(pipeline.document()) == [("orders", "job", "orders")]
    assert accepted(pipeline.to_yaml()) == pipeline.document()
