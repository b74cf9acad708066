"""The short form of a definition: what it stands for, what follows from the rest, and what is refused."""

from __future__ import annotations

import pytest

from qo.core.pipeline.dag import Dag
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError

pytestmark = pytest.mark.fast

SHORT = """\
name: sales
jobs:
- name: orders
  files:
    path: landing/orders/*.csv.gz
    poll_seconds: 5
    columns: |
      day date, amount decimal(10,2),
      tags map<string, int>
  partitions: {kind: day}
  expectations:
  - not_null: [day]
- {name: ticks, source: always_on, operator: "sales:ticks"}
- {name: nightly, source: {schedule: "0 3 * * *"}}
- {name: parts, operator: "sales:parts", inputs: [ticks], outputs: 2}
- {name: rates, operator: ingest, inputs: [parts.1], unique_key: [currency],
   config: {format: csv, columns: "currency string, rate double"}}
- {name: cleanup, operator: "sales:cleanup", runtime: python, outputs: 0, inputs: [nightly]}
- name: totals
  sql: SELECT day, sum(amount) AS amount FROM orders GROUP BY day
  inputs: [orders, {from: rates, trigger: false}]
- {name: report, sql: report.sql, inputs: [totals]}
publish: [totals, report]
"""

EXPLICIT = """\
name: sales
jobs:
- name: orders_files
  activation: source
  runtime: dispatcher
  operator: noop
  outputs: 1
  source: {kind: files, path: landing/orders, pattern: "*.csv.gz", key: "{key}.csv.gz", poll_seconds: 5}
  partitions: {kind: day}
- name: orders
  activation: reactive
  runtime: spark
  operator: ingest
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: orders_files}}]
  config:
    format: csv
    options: {header: true}
    columns:
    - {name: day, type: date}
    - {name: amount, type: "decimal(10,2)"}
    - {name: tags, type: "map<string, int>"}
  expectations:
  - not_null: [day]
- {name: ticks, activation: source, runtime: python, operator: "sales:ticks", outputs: 1, source: {kind: always_on}}
- name: nightly
  activation: source
  runtime: dispatcher
  operator: noop
  outputs: 1
  source: {kind: cron, schedule: "0 3 * * *"}
- name: parts
  activation: reactive
  runtime: spark
  operator: sales:parts
  outputs: 2
  execution_strategy: PerUpdate
  inputs: [{from: {job: ticks}}]
- name: rates
  activation: reactive
  runtime: spark
  operator: ingest
  outputs: 1
  execution_strategy: PerUpdate
  update_strategy: append
  unique_key: [currency]
  inputs: [{from: {job: parts, output: 1}}]
  config:
    format: csv
    columns: [{name: currency, type: string}, {name: rate, type: double}]
- name: cleanup
  activation: reactive
  runtime: python
  operator: sales:cleanup
  outputs: 0
  execution_strategy: PerUpdate
  inputs: [{from: {job: nightly}}]
- name: totals
  activation: reactive
  runtime: spark
  operator: sql
  outputs: 1
  execution_strategy: PerPartition
  inputs:
  - from: {job: orders}
  - from: {job: rates}
    trigger: false
  config: {query: "SELECT day, sum(amount) AS amount FROM orders GROUP BY day"}
- name: report
  activation: reactive
  runtime: spark
  operator: sql
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: totals}}]
  config: {file: report.sql}
publish:
  totals: {from: {job: totals}}
  report: {from: {job: report}}
"""


def jobs_of(*jobs: str, head: str = "") -> Dag:
    return read(f"name: p\n{head}jobs:\n" + "".join(f"- {each}\n" for each in jobs))


def refused(*jobs: str) -> str:
    with pytest.raises(DefinitionError) as caught:
        jobs_of(*jobs)
    [problem] = caught.value.problems
    return str(problem)


def test_every_abbreviation_stands_for_its_explicit_form():
    assert read(SHORT) == read(EXPLICIT)


def test_a_source_of_files_is_in_the_group_of_its_job():
    [table, source] = jobs_of("{name: a, group: intake, files: 'in/*.csv'}").jobs
    assert (table.group, source.group) == ("intake", "intake")


@pytest.mark.parametrize(
    ("name", "format_"),
    [("*.csv", "csv"), ("a-*.CSV", "csv"), ("*.jsonl.gz", "json"), ("*.parquet", "parquet"), ("*.txt", "text")],
)
def test_the_format_of_files_is_that_of_their_names(name: str, format_: str):
    [table, source] = jobs_of(f"{{name: a, files: 's3://in/x/{name}'}}").jobs
    assert source.source is not None
    assert (source.source.path, source.source.pattern) == ("s3://in/x", name)
    assert table.config["format"] == format_
    assert table.config.get("options", {}) == ({"header": True} if format_ == "csv" else {})


def test_what_is_said_is_not_replaced():
    [table, source] = jobs_of(
        "{name: a, outputs: 1, files: {path: in, pattern: '*.dat', format: csv, source: landed, "
        "options: {header: false, sep: ';'}, missing: keep}, drift: add}"
    ).jobs
    assert source.name == "landed"
    assert table.config == {"format": "csv", "options": {"header": False, "sep": ";"}, "missing": "keep"}
    assert table.drift == "add"


def test_functions_run_where_the_defaults_say_unless_their_job_says_otherwise():
    dag = jobs_of(
        "{name: a, source: manual}",
        "{name: b, operator: 'm:b', inputs: [a]}",
        "{name: c, operator: 'm:c', inputs: [a], runtime: spark}",
        "{name: d, sql: SELECT 1, inputs: [a]}",
        head="defaults: {runtime: python}\n",
    )
    assert [job.runtime for job in dag.jobs] == ["dispatcher", "python", "spark", "spark"]


def test_cursors_are_followed_from_their_source_to_all_that_reads_them():
    dag = jobs_of(
        "{name: a, source: {schedule: rate(1 day)}}",
        "{name: b, operator: 'm:b', inputs: [a]}",
        "{name: c, operator: 'm:c', inputs: [b]}",
        "{name: d, operator: range_aggregator, config: {range_size: 10}, inputs: [c]}",
        "{name: e, operator: 'm:e', inputs: [d]}",
        "{name: f, operator: 'm:f', inputs: [e, {from: c, trigger: false}]}",
        "{name: g, source: always_on, operator: 'm:g', partitions: {kind: day}}",
        "{name: h, operator: 'm:h', inputs: [g]}",
    )
    strategies = {job.name: job.execution_strategy for job in dag.jobs if not job.is_source}
    assert strategies == {
        **dict.fromkeys("bcd", "PerUpdate"),
        **dict.fromkeys("efh", "PerPartition"),
    }


def test_a_chain_of_thousands_of_jobs_is_no_matter():
    jobs = [f"{{name: j{at}, operator: 'm:f', inputs: [j{at - 1}]}}" for at in range(1, 3_000)]
    dag = jobs_of("{name: j0, source: {schedule: rate(1 day)}}", *jobs)
    assert {job.execution_strategy for job in dag.jobs} == {None, "PerUpdate"}


@pytest.mark.parametrize(
    ("job", "place", "message"),
    [
        ("{name: a}", "3:3", "the job 'a' has no 'operator'"),
        (
            "{name: a, operator: 'm:f'}",
            "3:3",
            "the reactive job 'a' has no 'inputs'; write 'inputs:', or 'source:'",
        ),
        ("{name: a, operator: 'm:f', inputs: [b]}", "3:39", "there is no job 'b'"),
        ("{name: a, operator: 'm:f', inputs: ['B c']}", "3:39", "write a mapping with fields such as from"),
        ("{name: a, source: manuel}", "3:21", "'kind' is 'manuel'; did you mean 'manual'?"),
        (
            "{name: a, sql: SELECT 1, operator: 'm:f', inputs: [{from: {dataset: x}}]}",
            "3:28",
            "'sql' is the operator of the job",
        ),
        ("{name: a, files: {path: in, colums: a int}}", "3:31", "there is no field 'colums' in a files"),
        ("{name: a, files: 'in/*/x.csv'}", "3:20", "the directory of 'in/*/x.csv' is a pattern"),
        ("{name: a, files: in}", "3:20", "do not say what format they have; write 'format: csv |"),
        ("{name: a, files: 'in/*.csv', sql: SELECT 1}", "3:13", "'sql' is the operator of the job"),
        ("{name: a, files: {path: 'in/*.csv', columns: 'a int, b'}}", "3:48", "has no 'type'"),
        ("{name: a, files: {path: 'in/*.csv', columns: 'a integr'}}", "3:48", "'type' is 'integr'"),
    ],
)
def test_a_mistake_is_reported_where_it_was_written(job: str, place: str, message: str):
    problem = refused(job)
    assert f"pipeline.yaml:{place}: " in problem, problem
    assert message in problem


def test_a_mistake_behind_a_short_form_is_reported_on_its_own_line():
    with pytest.raises(DefinitionError) as caught:
        read(SHORT.replace("inputs: [parts.1]", "inputs: [parts.7]"))
    [problem] = caught.value.problems
    assert (problem.line, problem.message) == (16, "'parts' has no output 7: it has 2, counted from 0")
