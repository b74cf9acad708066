"""Pipelines from the command line: in one process without a dispatcher, and against one over HTTP."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.cli.command import Qo

YEARLY = """
name: yearly
jobs:
- {name: days, activation: source, outputs: 1, source: {kind: manual}}
- name: sums
  activation: reactive
  runtime: reports
  queue: slow
  operator: yearly.sums:run
  outputs: 1
  execution_strategy: PerPartition
  inputs: [{from: {job: days}}]
"""
SHOP = """
name: shop
jobs:
  - name: orders
    activation: source
    outputs: 1
    source: {kind: manual}
  - name: clean
    activation: reactive
    runtime: python
    operator: shop.clean:run
    outputs: 1
    execution_strategy: PerPartition
    inputs:
      - from: {job: orders}
publish:
  clean_orders: {from: {job: clean}}
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "shop.yaml").write_text(SHOP)
    return Qo(tmp_path)


def until(condition: Callable[[], Any], within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
    return found


@contextmanager
def running(qo: Qo) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A dispatcher, and where it listens."""
    process = qo.start(
        "dispatcher",
        "--listen",
        "127.0.0.1:0",
        "--internal-listen",
        "127.0.0.1:0",
        "--json",
        "--log-level",
        "error",
    )
    assert process.stdout is not None
    said = ""
    while not said.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, process.communicate()
        said += line
    try:
        yield process, json.loads(said)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_pipeline_is_looked_after_without_a_dispatcher(qo: Qo) -> None:
    (qo.cwd / "known.yaml").write_text(SHOP.replace("shop.clean:run", "json:dumps"))
    assert qo.ok("dag", "validate", "known.yaml") == "shop: 2 jobs, nothing wrong\n"
    assert qo.json("dag", "diff", "shop.yaml")["added"] == ["clean", "orders"]
    assert "active" in qo.ok("dag", "deploy", "shop.yaml")
    assert "as before" in qo.ok("dag", "deploy", "shop.yaml")
    assert [each["name"] for each in qo.json("dag", "list")] == ["shop"]
    shown = qo.json("dag", "show", "shop")
    assert (shown["version"], [each["version"] for each in shown["versions"]]) == (1, [1])
    assert qo.ok("dag", "show", "shop", "--source").strip() == SHOP.strip()
    event = qo.ok("emit", "shop.orders", "--partition", "2026-01-01", "--key", "k").strip()
    again = qo.here("emit", "shop.orders", "--partition", "2026-01-01", "--key", "k")
    assert (again.out.strip(), "nothing new" in again.err) == (event, True)
    assert qo.json("why", "clean_orders@2026-01-01")["verdict"] == "under_way"
    assert qo.ok("why", "clean_orders@2026-01-01").startswith("clean_orders@2026-01-01 is under way")
    assert qo.json("dataset", "show", "clean_orders")["dataset"]["job"] == "clean"
    assert qo.json("dataset", "show", "shop.orders", "--columns")["pieces"] == 1
    assert qo.json("dataset", "show", "shop.orders", "--quality")["points"][0]["partition_key"] == "2026-01-01"
    assert "2026-01-01" in qo.ok("dataset", "show", "shop.orders", "--quality", "--by", "partition")
    assert qo.json("dataset", "partitions", "shop.orders")[0]["partition_key"] == "2026-01-01"
    assert qo.json("dataset", "events", "shop.orders")[0]["id"] == event
    (task,) = qo.json("run", "list", "shop.orders")
    assert "completed" in qo.ok("run", "show", task["id"])
    assert qo.json("source", "list")[0]["job"] == "orders"
    assert qo.json("queue", "list") == []
    assert [each["name"] for each in qo.json("status")["pipelines"]] == ["shop"]
    assert qo.ok("status").splitlines()[1].split() == ["shop", "1", "2", "0", "0", "0", "0", "up", "to", "date"]
    assert "paused" in qo.ok("dag", "pause", "shop", "--reason", "a look")
    lines = qo.ok("status", "shop").splitlines()
    assert lines[0] == "shop version 1 (active)  paused: a look"
    (orders,) = [line.split() for line in lines if line.startswith("orders ")]
    assert orders[:6] == ["orders", "#" * 20, "1", "0", "0", "0"]
    assert "there is no DAG 'shops'" in qo.here("status", "shops").err
    assert qo.json("dag", "list")[0]["paused"] == "a look"
    assert "not paused" in qo.ok("dag", "resume", "shop")
    assert qo.ok("invalidate", "shop.orders@2026-01-01").strip()
    assert qo.json("dag", "schema")["title"]


MONTHS = """
name: bank
jobs:
  - {name: days, source: {kind: manual}, partitions: {kind: day, start: "2026-01-01"}}
  - {name: monthly, runtime: python, operator: "bank:monthly", inputs: [days], execution_strategy: PerPartition,
     partitions: {kind: month}}
"""


def test_partitions_that_wait_for_others_are_listed_with_what_they_wait_for(qo: Qo) -> None:
    (qo.cwd / "bank.yaml").write_text(MONTHS)
    qo.ok("dag", "deploy", "bank.yaml", "--no-code")
    assert qo.json("dag", "waiting", "bank") == []
    for day in ("2026-01-31", "2026-02-01"):
        qo.ok("emit", "bank.days", "--partition", day, "--key", day)
    with running(qo):  # Until it has routed the days.
        first, second = until(
            lambda: len(found := qo.json("dag", "waiting", "bank", "--job", "monthly")) == 2 and found
        )
    assert [(each["job"], each["partition_key"]) for each in (first, second)] == [
        ("monthly", "2026-01"),
        ("monthly", "2026-02"),
    ]
    assert first["due_at"] is None
    assert "monthly waits for 30 of 31 partitions of bank.days (2026-01-01" in first["because"]
    said = qo.here("dag", "waiting", "bank", "--limit", "1")
    assert said.out.splitlines()[1].startswith("monthly  2026-01  ")
    assert "stopped after 1 partitions" in said.err
    assert qo.here("dag", "waiting", "nobody").code == 3


OPERATORS = """
def run(run):
    text = '{"day": "' + run.partition_key + '", "amount": 1}\\n'
    run.output().write("part-0.jsonl", text, rows=1)
"""


def test_data_is_planned_made_again_looked_into_and_collected(qo: Qo, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "clean.py").write_text(OPERATORS)
    assert qo.json("plan", "shop.yaml")["diff"]["added"] == ["clean", "orders"]
    qo.ok("dag", "deploy", "shop.yaml")
    for day in ("2026-01-01", "2026-01-02", "2026-01-04"):
        qo.ok("emit", "shop.orders", "--partition", day)
    assert "nothing to build" in qo.ok("plan", "shop.yaml")
    (tmp_path / "shop" / "clean.py").write_text("# Only said differently.\n" + OPERATORS)
    assert "nothing to build" in qo.ok("plan", "shop.yaml")
    (tmp_path / "shop" / "clean.py").write_text(OPERATORS.replace("1}", "2}"))
    assert qo.json("plan", "shop.yaml", "--no-code")["rebuilds"][0]["why"] == "edited: code"
    (change,) = qo.json("plan", "shop.yaml")["rebuilds"]
    assert (change["why"], change["tasks"]) == ("edited: code", 3)
    assert "and 1 more" not in qo.ok("plan", "shop.yaml", "--all")
    with running(qo) as (_, listens):
        remote = replace(
            qo,
            environ={"QO_DISPATCHER_URL": listens["url"], "QO_DISPATCHER_INTERNAL_URL": listens["internal_url"]},
        )
        worker = remote.start("worker", "--runtime", "python", "--log-level", "error")
        try:
            until(lambda: len(remote.json("dataset", "partitions", "clean_orders")) == 3)
            made = remote.json(
                "backfill", "shop.clean", "--from", "2026-01-01", "--to", "2026-01-03", "--at-once", "1", "--wait"
            )
        finally:
            worker.terminate()
            worker.communicate(timeout=60)
        assert (made["state"], made["tasks"]) == ("done", {"completed": 2})
        assert remote.json("backfill", "list")[0]["id"] == remote.json("backfill", "show", made["id"])["id"]
        assert remote.here("backfill", "resume", made["id"]).code != 0
        revisions = sorted(each["revision"] for each in remote.json("dataset", "history", "clean_orders"))
        first, last = revisions[2], revisions[-1]  # From when all three were there.
        changes = remote.json("dataset", "diff", "clean_orders", str(first), str(last))
        assert sorted(each["change"] for each in changes) == ["replaced", "replaced"]
        rows = remote.json("dataset", "preview", "clean_orders", "--partition", "2026-01-02")
        assert rows == [{"day": "2026-01-02", "amount": 1}]  # The code that was deployed, not what lies there now.
        assert "2026-01-04" in remote.ok("dataset", "preview", "clean_orders")
        written = tmp_path / ".qo/data/_manifests/clean_orders/latest.json"
        until(lambda: written.exists() and json.loads(written.read_text())["revision"] == last)
        printed = remote.json("dataset", "manifest", "clean_orders")
        assert printed["files"] == json.loads(written.read_text())["files"]
        assert remote.json("collect")["prefixes"] == 0
        assert remote.json("collect", "--older-than", "0s", "--dry-run")["prefixes"] == 2
        assert remote.json("collect", "--older-than", "0s")["prefixes"] == 2
        assert written.with_name(f"{last}.json").is_file()
        assert all(Path(each["path"]).is_file() for each in printed["files"])


def test_tokens_and_keys_are_looked_after(qo: Qo) -> None:
    made = qo.json("token", "create", "ann", "--role", "writer", "--expires-in", "1d")
    assert made["token"].startswith("qo_")
    assert [each["name"] for each in qo.json("token", "list")] == ["ann"]
    assert "revoked ann" in qo.ok("token", "revoke", made["id"])
    before = len(qo.json("key", "list"))
    qo.ok("key", "rotate")
    assert len(qo.json("key", "list")) == before + 1


def test_the_database_is_upgraded_and_says_where_it_stands(qo: Qo) -> None:
    assert qo.here("db", "status").code == 4
    assert qo.json("db", "upgrade")["changed"]
    assert not qo.json("db", "upgrade")["changed"]
    assert qo.json("db", "status")["fits"]
    measured = qo.json("db", "size")
    assert (measured["tasks"], measured["bytes_per_million_tasks"]) == (0, None)
    assert {"events", "deliveries", "tasks", "commits"} <= {each["name"] for each in measured["tables"]}
    assert "in all" in qo.ok("db", "size")


def test_history_is_purged_after_a_look_at_it(qo: Qo) -> None:
    qo.json("db", "upgrade")
    assert "kept for ever" in qo.here("db", "purge").err
    assert "would be purged" in qo.ok("db", "purge", "--older-than", "90d", "--dry-run")
    assert "say --yes" in qo.here("db", "purge", "--versions-older-than", "90d").err
    assert qo.json("db", "purge", "--older-than", "90d", "--yes") == {
        "tasks": 0,
        "events": 0,
        "generations": 0,
        "dry_run": False,
    }


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["dag", "show", "nobody"], 3, "there is no DAG 'nobody'"),
        (["dag", "deploy", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["emit", "orders", "--cursor", "1"], 2, "DAG.JOB"),
        (["emit", "shop.orders"], 2, "--partition"),
        (["emit", "shop.orders", "--cursor", "1"], 3, "no live source"),
        (["invalidate", "shop.orders"], 2, "--all"),
        (["why", "nothing"], 3, "there is no dataset"),
        (["dataset", "show", "x", "--columns", "--quality"], 2, "--columns or --quality, not both"),
        (["dataset", "show", "x", "--by", "commit"], 2, "--limit go with --quality"),
        (["dataset", "show", "x", "--quality", "--by", "day"], 2, "commit or partition"),
        (["run", "cancel", "nobody"], 3, "nobody"),
        (["token", "revoke", "nobody"], 3, "qo token list"),
    ],
)
def test_an_error_is_one_line_and_a_code(qo: Qo, args: list[str], code: int, said: str) -> None:
    answer = qo.here(*args)
    assert answer.code == code, answer
    assert answer.err.startswith("error: ")
    assert said in answer.err
    assert answer.out == ""


def test_everything_that_is_wrong_with_a_file_is_said_at_once(qo: Qo) -> None:
    (qo.cwd / "shop.yaml").write_text(
        SHOP.replace("kind: manual", "kind: magic").replace("outputs: 1", "outputs: x")
    )
    answer = qo.here("dag", "validate", "shop.yaml")
    assert answer.code == 2
    assert len([line for line in answer.err.splitlines() if "shop.yaml:" in line]) >= 3


def test_commands_ask_the_dispatcher_that_the_settings_name(qo: Qo) -> None:
    qo.ok("dag", "deploy", "shop.yaml")
    runtimes = {"reports": {"kind": "python", "queues": ["reports", "slow=2"]}}
    with running(replace(qo, environ={"QO_RUNTIMES": json.dumps(runtimes)})) as (process, listens):
        far = replace(qo, environ={"QO_DISPATCHER_URL": listens["url"]})
        (reports,) = (each for each in far.json("runtime", "list") if each["name"] == "reports")
        assert [(each["name"], each["weight"]) for each in reports["queues"]] == [("reports", 1), ("slow", 2)]
        [functions] = [
            line.split() for line in far.ok("runtime", "list").splitlines() if line.startswith("lambda")
        ]
        assert functions[-3:] == ["8", "no", "none"]  # At a time, network, variables.
        (qo.cwd / "yearly.yaml").write_text(YEARLY)
        far.ok("dag", "diff", "yearly.yaml", "--no-code")  # By the runtimes of the dispatcher.
        assert "there is no runtime 'reports'" in qo.here("dag", "diff", "yearly.yaml", "--no-code").err
        assert [each["name"] for each in far.json("dag", "list")] == ["shop"]  # With the token it keeps here.
        reader = far.json("token", "create", "bob")["token"]
        other = replace(far, environ={**far.environ, "QO_TOKEN": reader})
        refused = other.here("emit", "shop.orders", "-p", "a")
        assert (refused.code, "writer" in refused.err) == (9, True)
        stranger = replace(far, environ={**far.environ, "QO_TOKEN": "qo_nobody"})
        assert stranger.here("dag", "list").code == 9
        far.ok("emit", "shop.orders", "-p", "a")
        # It routes by itself: soon there is a task for the reader.
        (task,) = until(lambda: far.json("run", "list", "shop.clean"))
        assert task["partition_key"] == "a"
        assert "cancelled" in far.ok("run", "cancel", task["id"], "--reason", "enough")
        assert far.ok("run", "replay", task["id"]).split() == [task["id"], "pending"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert far.here("dag", "list").code == 5


def test_a_dispatcher_that_cannot_listen_says_so(qo: Qo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        answer = qo("dispatcher", "--listen", taken, "--internal-listen", "127.0.0.1:0")
        assert answer.code == 2
        assert "something else listens there" in answer.err


def test_a_deploy_that_is_activated_waits_for_its_rebuild(qo: Qo) -> None:
    qo.ok("dag", "deploy", "shop.yaml")
    qo.ok("emit", "shop.orders", "-p", "a")
    (qo.cwd / "shop.yaml").write_text(SHOP.replace("shop.clean:run", "shop.clean:again"))
    late = qo.here("dag", "deploy", "shop.yaml", "--activate", "--timeout", "1s")
    assert (late.code, "1 left" in late.err) == (8, True)
    assert qo.json("dag", "show", "shop")["version"] == 1
    assert qo.here("dag", "activate", "shop", "2").code == 4  # Nobody said that it is ready.
    assert "ready" in qo.ok("dag", "ready", "shop", "2")
    assert "active" in qo.ok("dag", "activate", "shop", "2")
    assert qo.json("dag", "rollback", "shop")["active"] == 1


def test_a_document_has_all_versions_and_the_table_says_that_it_has_not(
    qo: Qo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.cli.pipelines.dag.VERSIONS_SHOWN", 1)
    qo.ok("dag", "deploy", "shop.yaml")
    (qo.cwd / "shop.yaml").write_text(SHOP.replace("shop.clean:run", "shop.clean:other"))
    qo.ok("dag", "deploy", "shop.yaml")
    assert [each["version"] for each in qo.json("dag", "show", "shop")["versions"]] == [2, 1]
    assert "there are older versions than these 1" in qo.here("dag", "show", "shop").err
