"""What a definition may say, and what is said about one that is wrong: place, reason, and what to write instead."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from qo.core.pipeline.dag import Dag, Join, SourceKind, Strategy
from qo.core.pipeline.plan import plan
from qo.errors import UsageError
from qo.pipeline.parsing import read
from qo.pipeline.problems import PROBLEMS_MAX, DefinitionError

pytestmark = pytest.mark.fast

GOOD = """\
name: sales
defaults: {max_attempts: 5}
jobs:
- name: totals
  activation: reactive
  runtime: spark
  operator: sql
  outputs: 1
  execution_strategy: PerPartition
  inputs:
  - from: {job: orders}
    where: {country: [DE, FR], paid: true}
  config: {query: "SELECT 1"}
- name: orders
  activation: source
  runtime: dispatcher
  operator: noop
  outputs: 1
  source: {kind: manual}
publish:
  daily_totals: {from: {job: totals}}
"""

SOURCE: dict[str, Any] = {
    "name": "orders",
    "activation": "source",
    "runtime": "dispatcher",
    "operator": "noop",
    "outputs": 1,
    "source": {"kind": "manual"},
}
JOB: dict[str, Any] = {
    "name": "totals",
    "activation": "reactive",
    "runtime": "python",
    "operator": "sales.jobs:totals",
    "outputs": 1,
    "execution_strategy": "PerPartition",
    "inputs": [{"from": {"job": "orders"}}],
}


def refreshed(how: str = "on_change", *, trigger: bool = False, **fields: Any) -> dict[str, Any]:
    """The job with one more input that is read beside, and refreshes."""
    beside = {"from": {"job": "orders"}, "trigger": trigger, "refresh": how}
    first = {"from": {"dataset": "days"}, "as": "days"}
    return {**JOB, "inputs": [first, beside], **fields}


UDF: dict[str, Any] = {
    **JOB,
    "runtime": "lambda",
    "operator": "udf",
    "udf": {"bundle_id": "b-1", "entrypoint": "main.run"},
}
SPLIT: dict[str, Any] = {
    **JOB,
    "runtime": "dispatcher",
    "operator": "range_splitter",
    "config": {"chunk_size": 10},
}
GATHER: dict[str, Any] = {
    **JOB,
    "runtime": "dispatcher",
    "operator": "range_aggregator",
    "execution_strategy": "PerUpdate",
    "config": {"range_size": 10},
}


def document(*jobs: dict[str, Any], **top: Any) -> dict[str, Any]:
    return {"name": "sales", "jobs": list(jobs), **top}


def accepted(*jobs: dict[str, Any], **top: Any) -> Dag:
    return read(json.dumps(document(*jobs, **top)))


def refused(text: str | dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        read(text if isinstance(text, str) else json.dumps(text, indent=1), **options)
    assert all(problem.line >= 1 and problem.column >= 1 and problem.hint for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def only(problems: list[str]) -> str:
    assert len(problems) == 1, problems
    return problems[0]


def without(job: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key not in names}


def test_a_file_becomes_a_resolved_dag():
    dag = read(GOOD)
    assert [job.name for job in dag.jobs] == ["orders", "totals"]
    totals = dag.jobs[1]
    assert totals.max_attempts == 5
    assert totals.heartbeat_timeout_seconds == 60
    assert totals.inputs[0].name == "orders"
    assert totals.inputs[0].where == {"country": ["DE", "FR"], "paid": True}
    assert totals.execution_strategy is Strategy.PER_PARTITION
    assert len(plan(dag).jobs) == 2


def test_json_is_accepted_as_it_is_written():
    dag = accepted(SOURCE, {**JOB, "config": {"smile": "\U0001f600", "path": "a\\ud83d/b", "tab": "\t"}})
    assert dag.jobs[1].config == {"smile": "\U0001f600", "path": "a\\ud83d/b", "tab": "\t"}
    assert read(json.dumps(document(SOURCE), indent="\t")) == accepted(SOURCE)


def test_every_problem_of_a_file_is_told_at_once_in_the_order_of_the_file():
    text = GOOD.replace("runtime: spark", "runtime: sparc").replace("{job: orders}", "{job: order}")
    text = text.replace("outputs: 1\n  source", "outputs: many\n  source").replace(
        "totals}}", "totals, output: 3}}"
    )
    with pytest.raises(DefinitionError) as caught:
        read(text, file="dags/sales.yaml")
    places = [(problem.line, problem.column) for problem in caught.value.problems]
    assert places == [(6, 12), (11, 17), (18, 12), (21, 46)]
    first = str(caught.value).splitlines()[0]
    assert first == "dags/sales.yaml:6:12: there is no runtime 'sparc'; did you mean 'spark'?"
    assert isinstance(caught.value, UsageError)


def test_who_reads_a_job_with_a_wrong_field_is_not_blamed():
    message = only(refused(GOOD.replace("kind: manual", "kind: manuel")))
    assert "'kind' is 'manuel'; did you mean 'manual'?" in message


@pytest.mark.parametrize(
    ("jobs", "message", "hint"),
    [
        ([{**SOURCE, "operatr": "x"}], "no field 'operatr'", "did you mean 'operator'?"),
        ([SOURCE, without(JOB, "operator")], "the job 'totals' has no 'operator'", "write 'operator: ...'"),
        ([{**SOURCE, "name": "Orders"}], "'name' is 'Orders'", "lower-case letters"),
        ([{**SOURCE, "name": "o" * 129}], "129 characters", "at most 128"),
        ([{**SOURCE, "outputs": 1001}], "'outputs' is 1001", "from 0 to 1000"),
        ([{**SOURCE, "outputs": True}], "'outputs' is true", "whole number"),
        ([{**SOURCE, "outputs": 1.0}], "'outputs' is 1.0", "whole number"),
        ([{**SOURCE, "activation": "manual"}], "'activation' is 'manual'", "source: {kind: manual}"),
        ([SOURCE, {**JOB, "runtime": "ecs_platform"}], "no runtime 'ecs_platform'", "runtime: spark"),
        (
            [SOURCE, {**JOB, "runtime": "ecs_udf"}],
            "no runtime 'ecs_udf'",
            "'runtime: lambda' with 'operator: udf'",
        ),
        ([SOURCE, {**JOB, "runtime": "python", "operator": "sql"}], "no operator 'sql'", "write 'runtime: spark'"),
        (
            [SOURCE, {**JOB, "runtime": "python", "operator": "noop"}],
            "no operator 'noop'",
            "write 'runtime: dispatcher'",
        ),
        ([SOURCE, {**JOB, "runtime": "spark", "operator": "f"}], "no operator 'f'", "module:function"),
        ([{**SOURCE, "operator": "sql"}], "a manual source runs no code", "'operator: noop'"),
        ([{**SOURCE, "runtime": "python", "operator": "a:b"}], "a manual source runs no code", "leave both out"),
        ([{**without(SOURCE, "runtime"), "operator": "a:b"}], "a manual source runs no code", "kind: always_on"),
        ([without(SOURCE, "source")], "no 'source'", "write 'source:'"),
        ([SOURCE, {**SOURCE, "name": "b", "inputs": JOB["inputs"]}], "'inputs' is for reactive", "remove it"),
        ([{**SOURCE, "execution_strategy": "PerUpdate"}], "'execution_strategy' is for reactive", "remove it"),
        ([SOURCE, without(JOB, "inputs")], "no 'inputs'", "write 'inputs:'"),
        ([SOURCE, {**JOB, "execution_strategy": "Bulk"}], "'Bulk'", "one task for each event"),
        ([SOURCE, {**JOB, "bootstrap": {"reset_outputs": True}}], "'bootstrap' is for source jobs", "remove it"),
        ([SOURCE, {**JOB, "update_strategy": "append"}], "no unique_key", "unique_key: [...]"),
        (
            [SOURCE, {**JOB, "update_strategy": "replace", "unique_key": ["id"]}],
            "'unique_key' is for jobs that append",
            "update_strategy: append",
        ),
        (
            [SOURCE, {**JOB, "update_strategy": "append", "unique_key": ["id", "Task_Id"]}],
            "'Task_Id' differs in each attempt",
            "come from the data",
        ),
        (
            [SOURCE, {**JOB, "update_strategy": "append", "unique_key": ["id", "id"]}],
            "'id' stands twice",
            "keep one",
        ),
        ([SOURCE, {**JOB, "idle_timeout": "5 minutes"}], "'idle_timeout'", "never, 0, or a time such as"),
        ([SOURCE, {**JOB, "idle_timeout": None}], "'idle_timeout' is empty", "leave the field out"),
        ([SOURCE, without(UDF, "udf")], "needs 'udf'", "bundle_id"),
        ([SOURCE, {**JOB, "udf": UDF["udf"]}], "'udf' is for the operator udf", "runtime: lambda"),
        ([SOURCE, {**UDF, "secrets": ["key"]}], "code of a user", "not trusted with secrets"),
        ([SOURCE, {**JOB, "timeout_seconds": 0}], "'timeout_seconds' is 0", "1 to 86400"),
        ([SOURCE, {**JOB, "heartbeat_timeout_seconds": 4}], "is 4", "5 to 3600"),
        ([SOURCE, {**JOB, "max_attempts": 101}], "is 101", "1 to 100"),
        ([SOURCE, {**JOB, "scaling": {"max_concurrency": 0}}], "is 0", "from 1"),
        ([SOURCE, {**JOB, "config": {"x": "y" * 65_536}}], "'config' has", "at most 65536 bytes"),
        ([SOURCE, {**JOB, "join": "all"}], "'join: all' waits", "two inputs that trigger"),
        ([SOURCE, refreshed(trigger=True)], "'orders' triggers", "worked on anyway"),
        ([SOURCE, refreshed(execution_strategy="PerUpdate")], "'totals' works by cursor", "qo invalidate"),
        ([SOURCE, refreshed(outputs=0)], "'totals' makes none", "effects outside are not repeated"),
        ([SOURCE, refreshed("always")], "'refresh' is", "on_change"),
        ([SOURCE, JOB, JOB], "two jobs named 'totals'", "another name"),
        ([{**SOURCE, "schedule": "x"}], "no field 'schedule'", "under source"),
    ],
)
def test_a_wrong_job_is_explained(jobs: list[dict[str, Any]], message: str, hint: str):
    said, _, advice = only(refused(document(*jobs))).partition("; ")
    assert message in said
    assert hint in advice


@pytest.mark.parametrize("name", ["max_queue_depth", "max_queue_age", "backpressure_mode"])
def test_fields_of_backpressure_belong_to_jobs(name: str):
    places = [
        document(SOURCE, **{name: 1}),
        document(SOURCE, defaults={name: 1}),
        document({**SOURCE, "source": {"kind": "manual", name: 1}}),
    ]
    for wrong in places:
        message = only(refused(wrong))
        assert f"no field {name!r}" in message
        assert "write it as a field of the job" in message


@pytest.mark.parametrize(
    ("jobs", "message", "hint"),
    [
        ([{**SOURCE, "max_queue_depth": 5}], "'max_queue_depth' is for reactive jobs", "remove it"),
        ([SOURCE, {**JOB, "max_queue_depth": 0}], "'max_queue_depth' is 0", "from 1 to 1000000"),
        ([SOURCE, {**JOB, "max_queue_age": "soon"}], "'max_queue_age' is 'soon'", "90s, 15m, 6h or 2d"),
        ([SOURCE, {**JOB, "backpressure_mode": "drop"}], "'backpressure_mode' is 'drop'", "hold"),
        ([SOURCE, {**JOB, "backpressure_mode": "coalesce"}], "of the kinds cron, files, http", "hold or ignore"),
        ([{**SOURCE, "backpressure_mode": "coalesce"}], "of the kinds cron, files, http", "hold or ignore"),
    ],
)
def test_wrong_backpressure_is_explained(jobs: list[dict[str, Any]], message: str, hint: str):
    said, _, advice = only(refused(document(*jobs))).partition("; ")
    assert message in said
    assert hint in advice


def test_backpressure_is_declared_by_the_job():
    files = {**SOURCE, "source": {"kind": "files", "path": "in"}, "backpressure_mode": "coalesce"}
    by_name = {
        each.name: each for each in accepted(files, {**JOB, "max_queue_depth": 5, "max_queue_age": "15m"}).jobs
    }
    assert by_name[SOURCE["name"]].backpressure_mode == "coalesce"
    assert (by_name[JOB["name"]].max_queue_depth, by_name[JOB["name"]].max_queue_age) == (5, "15m")


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "manual"},
        {"kind": "cron", "schedule": "*/5 0-6 1,15 JAN-MAR MON#2", "timezone": "Europe/Berlin"},
        {"kind": "cron", "schedule": "rate(5 minutes)"},
        {"kind": "cron", "schedule": "rate(1 day)"},
        {"kind": "webhook", "webhook_path": "/orders/new", "secret": "shop"},
        {"kind": "files", "path": "s3://in/orders", "pattern": "*.csv", "poll_seconds": 5},
    ],
)
def test_each_kind_of_source_is_accepted_with_its_fields(source: dict[str, Any]):
    whole = {**SOURCE, "source": source, "bootstrap": {"reset_outputs": True}}
    dag = accepted(whole)
    assert msgspec.to_builtins(dag.jobs[0].source) == source
    assert accepted(without(whole, "runtime", "operator")) == dag


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "cron"}, "a cron source needs 'schedule'"),
        ({"kind": "cron", "schedule": "* * * *"}, "not a schedule"),
        ({"kind": "cron", "schedule": "60 * * * *"}, "not a schedule"),
        ({"kind": "cron", "schedule": "rate(5 parsecs)"}, "not a schedule"),
        ({"kind": "cron", "schedule": "rate(1 day)", "timezone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"kind": "webhook", "webhook_path": "orders"}, "a webhook source needs 'secret'"),
        ({"kind": "webhook", "webhook_path": "a b", "secret": "s"}, "'webhook_path' is 'a b'"),
        ({"kind": "files"}, "a files source needs 'path'"),
        ({"kind": "manual", "path": "x"}, "'path' is for files sources"),
        ({"kind": "always_on", "schedule": "rate(1 day)"}, "'schedule' is for cron sources"),
        ({}, "'source' has no 'kind'"),
        ("manuel", "'kind' is 'manuel'"),
    ],
)
def test_a_source_has_the_fields_of_its_kind(source: Any, message: str):
    always_on = isinstance(source, dict) and source.get("kind") == "always_on"
    runtime = {"runtime": "python", "operator": "a:b"} if always_on else {}
    assert message in only(refused(document({**SOURCE, **runtime, "source": source})))


def test_a_source_that_runs_for_ever_needs_workers():
    always = {**SOURCE, "source": {"kind": "always_on"}}
    assert accepted({**always, "runtime": "python", "operator": "a:b"}).jobs[0].source is not None
    assert "runs for ever" in only(refused(document(always)))


def test_a_webhook_path_belongs_to_one_source():
    source = {"kind": "webhook", "webhook_path": "orders", "secret": "shop"}
    other = {**SOURCE, "name": "b", "source": {**source, "webhook_path": "/orders"}}
    assert "belongs to 'orders' already" in only(refused(document({**SOURCE, "source": source}, other)))


def test_the_forms_of_idle_timeout():
    for written, kept in [("never", "never"), (0, "0"), ("0", "0"), ("90s", "90s"), ("5m", "5m"), ("2h", "2h")]:
        assert accepted(SOURCE, {**JOB, "idle_timeout": written}).jobs[1].idle_timeout == kept


def test_joining_needs_partitions_of_two_inputs():
    two = {**JOB, "join": "all", "inputs": [*JOB["inputs"], {"from": {"dataset": "rates"}}]}
    assert accepted(SOURCE, two).jobs[1].join is Join.ALL
    side = {**two, "inputs": [two["inputs"][0], {**two["inputs"][1], "trigger": False}]}
    for wrong in [side, {**two, "execution_strategy": "PerUpdate"}]:
        assert "'join: all'" in only(refused(document(SOURCE, wrong)))


def test_at_least_one_input_starts_a_job():
    silent = {**JOB, "inputs": [{"from": {"job": "orders"}, "trigger": False}]}
    assert "no input of 'totals' starts it" in only(refused(document(SOURCE, silent)))


def test_inputs_of_a_job_have_different_names():
    twice = {**JOB, "inputs": [*JOB["inputs"], *JOB["inputs"]]}
    assert "write 'as: another_name'" in only(refused(document(SOURCE, twice)))
    named = {**JOB, "inputs": [*JOB["inputs"], {"from": {"job": "orders"}, "as": "again"}]}
    assert [each.name for each in accepted(SOURCE, named).jobs[1].inputs] == ["orders", "again"]


@pytest.mark.parametrize(
    ("from_", "message"),
    [
        ({"job": "order"}, "there is no job 'order'; did you mean 'orders'?"),
        ({"job": "orders", "output": 1}, "no output 1"),
        ({"job": "orders", "dataset": "x"}, "either 'job' or 'dataset'"),
        ({}, "either 'job' or 'dataset'"),
        ({"dataset": "rates", "output": 0}, "'output' belongs to a job"),
        ({"dataset": "ratez"}, "no pipeline publishes a dataset 'ratez'"),
        ({"dataset": "orders"}, "write 'from: {job: orders}'"),
    ],
)
def test_a_reference_leads_somewhere(from_: dict[str, Any], message: str):
    wrong = document(SOURCE, {**JOB, "inputs": [{"from": from_}]})
    assert message in only(refused(wrong, known_datasets={"rates": "markets"}))


def test_a_dataset_of_this_pipeline_can_be_read_by_its_name():
    jobs = [SOURCE, {**JOB, "inputs": [{"from": {"dataset": "raw"}}]}]
    text = json.dumps(document(*jobs, publish={"raw": {"from": {"job": "orders"}}}))
    assert plan(read(text, known_datasets={})).published.keys() == {"raw"}


@pytest.mark.parametrize(
    ("publish", "message"),
    [
        ({"Raw": {"from": {"job": "orders"}}}, "'Raw' is not a name"),
        ({"raw": {"from": {"job": "nobody"}}}, "no job 'nobody'"),
        ({"raw": {"from": {"job": "orders", "output": 1}}}, "no output 1"),
        ({"raw": {"from": {"dataset": "x", "job": "orders"}}}, "no field 'dataset'"),
        ({"raw": {"from": {"job": "orders"}, "storage": "s3"}}, "publishing only gives an output a name"),
        ({"raw": {"from": {"job": "orders"}, "write_mode": "direct"}}, "publishing only gives an output a name"),
        ({"raw": {"from": {"job": "orders"}, "schema": {}}}, "publishing only gives an output a name"),
        ({"raw": {"from": {"job": "orders"}, "to": "mysql"}}, "postgres"),
        ({"raw": {"from": {"job": "orders"}, "table": "raw"}}, "'table' of 'raw' is for datasets that are copied"),
        ({"raw": {"from": {"job": "orders"}, "to": "postgres", "table": "a.1b"}}, "'1b' is no name of a table"),
        ({"raw": {"from": {"job": "orders"}, "to": "postgres", "table": "a-b"}}, "a table, or schema.table"),
        ({"raw": {"from": {"job": "orders"}, "to": "postgres", "table": "qo.raw"}}, "'qo' is reserved"),
        ({"r" * 64: {"from": {"job": "orders"}, "to": "postgres"}}, "at most 63"),
    ],
)
def test_a_publication_names_an_output_and_a_table_that_can_be(publish: dict[str, Any], message: str):
    assert message in only(refused(document(SOURCE, publish=publish)))


def test_a_cycle_is_named_in_the_direction_of_the_data():
    jobs = [{**JOB, "name": name, "inputs": [{"from": {"job": up}}]} for name, up in ["ac", "ba", "cb", "db"]]
    message = only(refused(document(*jobs)))
    assert "wait for each other: b -> c -> a -> b" in message
    assert "a -> a" in only(refused(document({**JOB, "name": "a", "inputs": [{"from": {"job": "a"}}]})))


def test_a_cycle_through_a_published_name_is_found():
    jobs = [{**JOB, "name": "a", "inputs": [{"from": {"dataset": "loop"}}]}]
    assert "a -> a" in only(refused(document(*jobs, publish={"loop": {"from": {"job": "a"}}})))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "cannot be compared"),
        ({"a": 1}, "cannot be compared"),
        ([1, "a"], "mixes numbers and text"),
        ([True, 1], "mixes numbers and true or false"),
        ([], "has 0 values"),
        (list(range(101)), "has 101 values"),
    ],
)
def test_a_filter_compares_with_scalars_of_one_type(value: Any, message: str):
    wrong = {**JOB, "inputs": [{"from": {"job": "orders"}, "where": {"x": value}}]}
    assert message in only(refused(document(SOURCE, wrong)))


def test_a_job_that_waits_for_cursors_is_not_fed_with_partitions():
    late = {**JOB, "name": "late", "execution_strategy": "PerUpdate", "inputs": [{"from": {"job": "totals"}}]}
    for producer in [JOB, SPLIT, GATHER]:
        message = only(refused(document(SOURCE, producer, late)))
        assert "'totals' emits partitions, and 'late' waits for cursors" in message
    beside = {**late, "inputs": [{"from": {"job": "totals"}, "trigger": False}, {"from": {"job": "orders"}}]}
    assert len(accepted(SOURCE, JOB, beside).jobs) == 3
    assert len(accepted(SOURCE, {**JOB, "execution_strategy": "PerUpdate"}, late).jobs) == 3


@pytest.mark.parametrize("job", [SPLIT, GATHER])
def test_the_range_operators_say_what_they_need(job: dict[str, Any]):
    other = "PerUpdate" if job is SPLIT else "PerPartition"
    assert accepted(SOURCE, job).jobs[1].operator == job["operator"]
    assert "needs its 'config'" in only(refused(document(SOURCE, without(job, "config"))))
    assert "has no" in only(refused(document(SOURCE, {**job, "config": {}})))
    assert "has one output" in only(refused(document(SOURCE, {**job, "outputs": 2})))
    assert "does not work with" in only(refused(document(SOURCE, {**job, "execution_strategy": other})))
    key = next(iter(job["config"]))
    assert "whole number from 1" in only(refused(document(SOURCE, {**job, "config": {key: 0}})))


def test_code_of_users_is_accepted_where_it_belongs():
    assert accepted(SOURCE, UDF).jobs[1].udf is not None


def test_there_is_an_end_to_the_number_of_jobs_and_of_problems():
    many = [{**SOURCE, "name": f"s{number}"} for number in range(5_001)]
    assert "'jobs' has 5001 items" in only(refused(document(*many)))
    assert "'jobs' has 0 items" in only(refused(document()))
    assert len(refused(document(*[{"x": 1} for _ in range(4_000)]))) == PROBLEMS_MAX


def test_there_is_an_end_to_the_number_of_outputs_of_all_jobs_together():
    wide = [{**SOURCE, "name": f"s{number}", "outputs": 1_000} for number in range(5)]
    assert len(accepted(*wide).jobs) == 5
    message = only(refused(document(*wide, SOURCE)))
    assert "the jobs have 5001 outputs together, and a pipeline has at most 5000" in message


def test_the_kinds_of_sources_all_have_a_rule():
    from qo.pipeline.sources import SOURCES

    assert set(SOURCES) == set(SourceKind)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "an http source needs either 'urls' or 'index_url'"),
        (
            {"urls": ["https://a/b"], "index_url": "https://a/c"},
            "an http source needs either 'urls' or 'index_url'",
        ),
        ({"urls": ["ftp://a/b"]}, "write an http:// or https:// address without user name and password"),
        ({"urls": ["https://me:secret@a/b"]}, "address without user name and password"),
        ({"index_url": "https://a/c", "pattern": "*"}, "'pattern' is for files sources, not for http"),
    ],
)
def test_an_http_source_names_its_files_or_an_index_of_them(config: dict[str, Any], message: str):
    assert message in only(refused(document({**SOURCE, "source": {"kind": "http", **config}})))
    assert accepted({**SOURCE, "source": {"kind": "http", "index_url": "https://a/c", "poll_seconds": 5}})


def test_a_job_that_waits_for_partitions_is_not_fed_by_a_schedule():
    nightly = {**SOURCE, "source": {"kind": "cron", "schedule": "0 3 * * *"}}
    message = only(refused(document(nightly, JOB)))
    assert "'orders' is a cron source and emits cursors, and 'totals' waits for partitions" in message
    assert "write 'execution_strategy: PerUpdate'" in message
    beside = {**JOB, "inputs": [{"from": {"job": "days"}}, {"from": {"job": "orders"}, "trigger": False}]}
    assert accepted(nightly, {**SOURCE, "name": "days"}, beside)


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        ({"url": "jdbc:postgresql://db/shop"}, {}, "jdbc reads either a table or a query"),
        ({"url": "db/shop", "table": "a"}, {}, "'db/shop' is no URL of JDBC"),
        ({"url": "jdbc:postgresql://db/shop?password=x", "table": "a"}, {}, "there is a password in 'url'"),
        ({"url": "jdbc:postgresql://a:b@db/shop", "table": "a"}, {}, "there is a password in 'url'"),
        ({"url_secret": "db", "table": "a"}, {}, "does not list the secret 'db'"),
        ({"url_secret": "db", "table": "a; DROP"}, {"secrets": ["db"]}, "'a; DROP'"),
        ({"url_secret": "db", "query": "DELETE FROM a"}, {"secrets": ["db"]}, "DELETE FROM a"),
        (
            {"url_secret": "db", "query": "SELECT {day}"},
            {"secrets": ["db"]},
            "nothing stands for {day} in a query",
        ),
        ({"url_secret": "db", "table": "a", "cursor": "at"}, {"secrets": ["db"]}, "would replace what is there"),
        (
            {"url_secret": "db", "table": "a", "overlap": 5},
            {"secrets": ["db"]},
            "'overlap' is for reading by a cursor",
        ),
        (
            {"url_secret": "db", "table": "a", "options": {"password": "x"}},
            {"secrets": ["db"]},
            "'password' is no option of its own",
        ),
    ],
)
def test_a_job_that_reads_a_database_says_what_to_read_and_no_password(
    config: dict[str, Any], fields: dict[str, Any], message: str
):
    job = {"name": "rows", "activation": "reactive", "runtime": "spark", "operator": "jdbc", "outputs": 1}
    reading = {"execution_strategy": "PerPartition", "inputs": [{"from": {"job": "orders"}}], "config": config}
    assert message in only(refused(document(SOURCE, {**job, **reading, **fields})))


KAFKA: dict[str, Any] = {
    "name": "clicks",
    "activation": "source",
    "runtime": "spark",
    "operator": "kafka",
    "outputs": 1,
    "source": {"kind": "always_on"},
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"topics": ["a"], "servers": "broker"}, "'broker'"),
        ({}, "'topics' or 'pattern'"),
        ({"topics": ["a"], "pattern": "b"}, "'topics' or 'pattern'"),
        ({"topics": ["a b"]}, "'a b'"),
        ({"topics": ["a"], "from": "2026-01-31"}, "a time with its zone"),
        ({"topics": ["a"], "value": "json"}, "a value of JSON needs its 'columns'"),
        ({"topics": ["a"], "malformed": "keep"}, "'malformed' is for values of JSON"),
        ({"topics": ["a"], "value": "binary", "columns": "id int"}, "a value that is a binary has no columns"),
        ({"topics": ["a"], "columns": "id int, Offset int"}, "there are two columns 'offset'"),
        ({"topics": ["a"], "options": {"failOnDataLoss": False}}, "'failOnDataLoss' is no option of its own"),
        (
            {"topics": ["a"], "options": {"kafka.sasl.jaas.config": "x"}},
            "everybody who sees the pipeline can read",
        ),
        (
            {"topics": ["a"], "options": {"kafka.ssl.key.password": "x"}},
            "everybody who sees the pipeline can read",
        ),
        ({"topics": ["a"], "secret_options": {"kafka.ssl.key.password": "x"}}, "does not list the secret 'x'"),
        ({"topics": ["a"], "user": "qo"}, "a login is a user and a password"),
        ({"topics": ["a"], "user": "qo", "password_secret": "x"}, "does not list the secret 'x'"),
        ({"topics": ["a"], "mechanism": "PLAIN"}, "'mechanism' is for a login"),
    ],
)
def test_a_source_of_topics_says_what_to_read_and_no_password(config: dict[str, Any], message: str):
    assert message in only(refused(document({**KAFKA, "config": {"servers": "a:1", **config}})))


def test_a_source_of_topics_may_be_short_and_may_say_everything():
    short = {"name": "clicks", "operator": "kafka", "source": "always_on"}
    config = {"servers": "a:1, [::1]:9092", "pattern": "clicks-.*", "columns": "id bigint, offset int"}
    further = {"prefix": "kafka_", "from": "2026-01-31T00:00:00+01:00", "user": "qo", "password_secret": "db"}
    clicks = accepted({**short, "secrets": ["db"], "config": {**config, **further}}).jobs[0]
    assert (clicks.activation, clicks.runtime, clicks.outputs) == ("source", "spark", 1)
    assert clicks.config["columns"] == [{"name": "id", "type": "bigint"}, {"name": "offset", "type": "int"}]


@pytest.mark.parametrize(
    ("url", "partitions", "message"),
    [
        ("https://a/{partition}.csv", None, "it is not declared which there are of 'orders'"),
        ("https://a/{partition}.csv", {"kind": "day"}, "it is not declared which there are of 'orders'"),
        ("https://a/{hour}.csv", {"kind": "day", "start": "2026-01-01"}, "{hour} is no part of a day"),
        ("https://a/{day}.csv", {"kind": "day", "start": "2026-01-01"}, "is the same for several partitions"),
        ("https://a/{year}.csv", {"kind": "day", "start": "2026-01-01"}, "is the same for several partitions"),
    ],
)
def test_a_url_of_partitions_needs_to_know_which_there_are(url: str, partitions: Any, message: str):
    fields = {} if partitions is None else {"partitions": partitions}
    assert message in only(refused(document({**SOURCE, "source": {"kind": "http", "url": url}, **fields})))
    day = {"kind": "day", "start": "2026-01-01"}
    assert accepted(
        {**SOURCE, "source": {"kind": "http", "url": "https://a/{year}/{month}/{day}"}, "partitions": day}
    )


def test_two_datasets_cannot_share_the_table_of_a_sink():
    sink = {"from": {"job": "orders"}, "to": "postgres", "table": "shop.all"}
    message = only(refused(document(SOURCE, publish={"one": sink, "two": sink})))
    assert "'one' is copied to the table shop.all of 'data' already" in message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"to": "files", "file": "a/{day}.csv"}, "'{day}' stands for nothing in the name of a file"),
        ({"to": "files", "file": "a.xlsx"}, "the ending of 'a.xlsx' names no format"),
        ({"to": "files", "file": "../a.csv"}, "'..' is no part of a file's name"),
        ({"to": "files", "table": "a"}, "'table' of 'one' is for datasets that are copied to a database"),
        ({"file": "a.csv"}, "'file' of 'one' is for datasets that are copied to files"),
        ({"to": "files", "file": "a.csv", "keep_seconds": 5}, "for files with names of their own for each change"),
    ],
)
def test_a_sink_has_the_fields_of_its_kind(fields: dict[str, Any], message: str):
    assert message in only(refused(document(SOURCE, publish={"one": {"from": {"job": "orders"}, **fields}})))


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ({"kind": "day", "timezone": "Europe/Berlni"}, "there is no time zone 'Europe/Berlni'"),
        ({"kind": "integer", "timezone": "UTC"}, "'timezone' is for partitions of time, not of the kind integer"),
        ({"kind": "day", "range": 7}, "'range' is for partitions of the kind integer, not day"),
        ({"kind": "day", "start": "2026-01"}, "'2026-01' is not a day; write it as in 2026-03-29"),
        ({"kind": "text", "start": "a"}, "partitions of text have no order"),
    ],
)
def test_partitions_are_declared_with_what_their_kind_has(partitions: dict[str, Any], message: str):
    assert message in only(refused(document({**SOURCE, "partitions": partitions})))


def test_partitions_are_declared_where_partitions_are_made():
    nightly = {**SOURCE, "source": {"kind": "cron", "schedule": "0 3 * * *"}, "partitions": {"kind": "integer"}}
    assert "it announces times, and no integer" in only(refused(document(nightly)))
    daily = {**nightly, "source": {**nightly["source"], "offset": -1}, "partitions": {"kind": "day"}}
    assert accepted(daily, JOB).jobs[0].source is not None
    undeclared = {name: value for name, value in daily.items() if name != "partitions"}
    assert "'offset' counts partitions" in only(refused(document(undeclared)))
    assert "has none" in only(refused(document({**SOURCE, "outputs": 0, "partitions": {"kind": "day"}})))
    assert accepted({**SOURCE, "partitions": {"kind": "integer", "range": 1000, "start": "5000"}})


DAYS = {**SOURCE, "partitions": {"kind": "day"}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partitions": {"kind": "integer"}}, "an integer of 'totals' cannot be made of days of 'orders'"),
        ({"complete": "any"}, "'complete' is for jobs whose partitions are made of others"),
        ({"deadline": "2d"}, "'deadline' is for jobs whose partitions are made of others"),
        ({"partitions": {"kind": "month"}, "complete": "announced"}, "nothing says until when"),
        (
            {"partitions": {"kind": "month"}, "update_strategy": "append", "unique_key": ["id"]},
            "made again as a whole",
        ),
        ({"partitions": {"kind": "minute"}, "inputs": [{"from": {"job": "orders"}, "window": 900}]}, "400"),
        (
            {"inputs": [{"from": {"job": "orders"}, "window": 7}]},
            "'totals' waits for partitions before the first of 'orders', which nobody names",
        ),
        (
            {
                "inputs": [{"from": {"job": "orders"}, "window": 300}],
                "partitions": {"kind": "month"},
                "complete": "any",
            },
            "one month of 'totals' would go with more than 2,000 parts of the kind day",
        ),
        (
            {"inputs": [{"from": {"job": "orders"}, "offset": -1}], "partitions": {"kind": "text"}},
            "'offset' counts partitions, and those of 'totals' have no order",
        ),
    ],
)
def test_partitions_are_made_of_others_where_these_have_an_order_in_common(fields: dict[str, Any], message: str):
    assert message in only(refused(document(DAYS, {**JOB, **fields})))


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ({"kind": "month", "weekdays": "MON-FRI"}, "'weekdays' is for partitions of a day or less"),
        ({"kind": "day", "weekdays": "Monday"}, "days of the week, as in MON-FRI"),
        ({"kind": "day", "without": ["2026-13-01"]}, "'2026-13-01' is not a day"),
        ({"kind": "text", "without": ["a"]}, "of partitions of text none is expected"),
    ],
)
def test_gaps_are_declared_as_partitions_of_their_kind(partitions: dict[str, Any], message: str):
    assert message in only(refused(document({**SOURCE, "partitions": partitions})))


def test_rows_are_compared_with_partitions_that_say_what_is_in_them():
    timely = {**JOB, "runtime": "spark", "operator": "a.b:c", "expectations": [{"in_partition": "at"}]}
    assert accepted(DAYS, timely).jobs[1].expectations[0].kind == "in_partition"
    for undeclared in (SOURCE, {**SOURCE, "partitions": {"kind": "text"}}):
        assert "'in_partition' compares rows with their partition" in only(refused(document(undeclared, timely)))


def test_a_job_may_look_back_where_the_first_partition_is_known_or_need_not_be_there():
    back = {**JOB, "inputs": [{"from": {"job": "orders"}, "window": 7, "offset": -1}]}
    begun = {**SOURCE, "partitions": {"kind": "day", "start": "2026-01-01", "weekdays": "MON-FRI,SUN"}}
    read_back = accepted(begun, back).jobs[1].inputs[0]
    assert (read_back.window, read_back.offset) == (7, -1)
    for fields in ({"complete": "any"}, {"deadline": "6h"}):
        assert accepted(DAYS, {**back, **fields})


def test_which_partitions_are_made_of_which_others_is_part_of_the_edition():
    def edition(source: dict[str, Any], **fields: Any) -> str:
        return plan(accepted({**SOURCE, "partitions": source}, {**JOB, **fields})).job("totals").edition_id

    month = {"partitions": {"kind": "month"}}
    of_days = edition({"kind": "day"}, **month)
    assert edition({"kind": "day", "start": "2026-01-01"}, **month, deadline="2d") == of_days
    assert edition({"kind": "hour"}, **month) != of_days
    assert edition({"kind": "day", "timezone": "Asia/Tokyo"}, **month) != of_days
    assert edition({"kind": "day"}) == edition({"kind": "day"}, partitions={"kind": "day"})
