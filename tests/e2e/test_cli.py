"""The command line from end to end, on the embedded store: real processes, real files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qo.cli.invocation import SHARED
from qo.cli.main import COMMANDS, GROUPS, Commands, main
from support.cli.command import Qo
from support.spark.session import pretend

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
SLOW = {"aiohttp", "botocore", "cronsim", "pydantic", "qo.worker.worker", "rich"}
UNKNOWN = "00000000-0000-4000-8000-000000000000"

APP = """
import asyncio, qo
app = qo.App()

@app.task("echo")
async def echo(input):
    return input

@app.task("boom")
def boom(input):
    raise ValueError("kaput")

@app.task("sleep")
async def sleep(input):
    await asyncio.sleep(input)
    return "slept"
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "tasks.py").write_text(APP)
    return Qo(tmp_path)


def drain(qo: Qo) -> None:
    answer = qo("worker", "--app", "tasks:app", "--drain", "--no-monitor")
    assert answer.code == 0, answer.err


def until(condition: Callable[[], Any], within_s: float = 30.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
    return found


def test_a_task_goes_from_submit_to_completed(qo: Qo) -> None:
    task_id = qo.ok("submit", "--type", "echo", "--input", '{"n": 1}').strip()
    assert "status   pending" in qo.ok("status", task_id)
    assert [task["id"] for task in qo.json("list", "--status", "pending")] == [task_id]

    drain(qo)

    task = qo.json("status", task_id)
    assert (task["status"], task["output"], task["attempt"]) == ("completed", {"n": 1}, 1)
    assert [state["status"] for state in qo.json("history", task_id)] == ["pending", "running", "completed"]
    assert qo.json("list", "--status", "pending") == []
    assert qo.here("wait", task_id).code == 0


def test_a_failed_task_is_shown_with_its_error_and_can_be_replayed(qo: Qo) -> None:
    task_id = qo.ok("submit", "-t", "boom", "--retries", "0").strip()
    drain(qo)
    shown = qo.ok("status", task_id)
    assert "status     failed" in shown
    assert "ValueError: kaput" in shown
    assert 'raise ValueError("kaput")' in shown
    waited = qo.here("wait", task_id)
    assert waited.code == 8
    assert "kaput" in waited.out

    assert qo.ok("replay", task_id) == f"{task_id}  pending\n"
    assert qo.json("status", task_id)["retry_count"] == 0


def test_archived_tasks_are_listed_only_when_asked_for(qo: Qo) -> None:
    task_id = qo.ok("submit", "-t", "echo").strip()
    drain(qo)
    qo.ok("archive", task_id)
    assert qo.json("list") == []
    assert [task["id"] for task in qo.json("list", "--status", "archived")] == [task_id]
    qo.ok("unarchive", task_id)
    assert [task["status"] for task in qo.json("list")] == ["completed"]


def test_every_option_of_submit_reaches_the_task(qo: Qo) -> None:
    options = ["--delay", "1h30m", "--expires-in", "2d", "--timeout", "90", "--retries", "7", "--priority", "9"]
    options += ["--max-reschedules", "2", "--key", "k", "--key-scope", "s", "--retry-initial-ms", "5"]
    options += ["--retry-max-ms", "50", "--retry-multiplier", "3", "--retry-jitter", "0.5"]
    task = qo.json("submit", "-t", "echo", "-i", "-", *options, stdin="[1, 2]")
    assert task["input"] == [1, 2]
    assert (task["timeout_seconds"], task["max_retries"], task["priority"]) == (90, 7, 9)
    assert (task["max_reschedules"], task["idempotency_key"]) == (2, "k")
    assert task["retry_policy"] == {
        "initial_interval_ms": 5,
        "max_interval_ms": 50,
        "multiplier": 3.0,
        "jitter_percent": 0.5,
    }
    assert task["available_at"] > task["created_at"]
    assert task["expires_at"] > task["available_at"]


def test_the_same_key_names_the_same_task_and_another_input_is_refused(qo: Qo) -> None:
    first = qo.ok("submit", "-t", "echo", "-i", "1", "--key", "order-7")
    assert qo.ok("submit", "-t", "echo", "-i", "1", "--key", "order-7") == first
    other = qo.here("submit", "-t", "echo", "-i", "2", "--key", "order-7")
    assert (other.code, other.out) == (4, "")
    assert "order-7" in other.err


def test_many_tasks_are_submitted_from_a_file_with_options_of_their_own(qo: Qo) -> None:
    lines = [{"type": "echo", "input": n} for n in range(5)] + [{"input": "x", "priority": 3, "delay": "1h"}]
    (qo.cwd / "tasks.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    tasks = qo.json("submit", "--from", "tasks.jsonl", "--type", "other", "--retries", "1")
    assert [task["input"] for task in tasks] == [0, 1, 2, 3, 4, "x"]
    assert [task["task_type"] for task in tasks] == ["echo"] * 5 + ["other"]
    assert {task["max_retries"] for task in tasks} == {1}
    assert tasks[-1]["priority"] == 3
    assert len(qo.json("list", "--limit", "10")) == 6
    assert len(qo.json("list", "--type", "other")) == 1
    assert qo.ok("submit", "--from", "-", stdin='{"type": "echo"}\n').count("\n") == 1


def test_large_inputs_and_outputs_come_back_whole(qo: Qo) -> None:
    large = "x" * 300_000
    (qo.cwd / "input.json").write_text(json.dumps(large))
    task_id = qo.ok("submit", "-t", "echo", "--input", "@input.json").strip()
    drain(qo)
    task = qo.json("status", task_id)
    assert task["input"] == task["output"] == large
    assert task["input_ref"] is not None
    assert len(qo.ok("status", task_id)) < 20_000  # People are not shown all of it.


def test_submit_and_wait_exits_with_0_only_if_the_task_completed(qo: Qo) -> None:
    with qo.start("worker", "--app", "tasks:app") as worker:
        try:
            done = qo("submit", "-t", "echo", "-i", '"hello"', "--wait", "--wait-timeout", "30s", "--json")
            failed = qo("submit", "-t", "boom", "--retries", "0", "--wait", "--json")
        finally:
            worker.terminate()
            worker.communicate(timeout=30)
    assert (done.code, done.document["output"]) == (0, "hello")
    assert (failed.code, failed.document["status"]) == (8, "failed")


def test_waiting_no_longer_than_asked_exits_with_8_and_says_how_the_task_stands(qo: Qo) -> None:
    task_id = qo.ok("submit", "-t", "echo").strip()
    answer = qo.here("wait", task_id, "--timeout", "100ms", "--json")
    assert (answer.code, answer.out) == (8, "")
    assert "still pending" in answer.err


def test_a_bulk_command_reports_each_task_and_exits_with_the_worst_code(qo: Qo) -> None:
    pending, done = (qo.ok("submit", "-t", kind).strip() for kind in ("none", "echo"))
    drain(qo)
    answer = qo.here("cancel", pending, done, UNKNOWN, "--reason", "not needed", "--json")
    assert answer.code == 4
    by_id = {row["id"]: row for row in answer.document}
    assert by_id[pending] == {"id": pending, "ok": True, "status": "cancelled"}
    assert (by_id[done]["ok"], by_id[done]["exit_code"]) == (False, 4)
    assert (by_id[UNKNOWN]["ok"], by_id[UNKNOWN]["exit_code"]) == (False, 3)
    assert answer.err.count("error: ") == 2
    assert "not needed" in qo.ok("status", pending)
    plain = qo.here("cancel", UNKNOWN, pending)
    assert (plain.code, plain.out) == (3, f"{pending}  cancelled\n")


def test_many_tasks_are_changed_by_a_filter_after_a_preview(qo: Qo) -> None:
    for n in range(3):
        qo.ok("submit", "-t", "boom", "--retries", "0", "--input", str(n))
    waiting = qo.ok("submit", "-t", "never").strip()
    drain(qo)
    shown = qo.here("replay", "--status", "failed", "--error", "kaput")
    assert shown.code == 0
    assert "3 tasks match" in shown.out
    assert "say --yes" in shown.err
    assert len(qo.json("list", "--status", "failed")) == 3, "nothing was changed"
    assert qo.json("replay", "--type", "boom", "--dry-run")["matched"] == 3
    report = qo.json("replay", "--type", "boom", "--limit", "2", "--yes")
    assert (report["changed"], report["complete"], report["dry_run"]) == (2, False, False)
    assert qo.ok("replay", "--type", "boom", "--yes") == "1 task changed\n"
    assert qo.json("cancel", "--type", "boom", "--reason", "enough", "--yes")["changed"] == 3
    assert qo.json("archive", "--status", "cancelled", "--yes")["changed"] == 3
    assert [task["id"] for task in qo.json("list")] == [waiting]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("replay",), "say which tasks"),
        (("replay", UNKNOWN, "--status", "failed"), "not both"),
        (("replay", UNKNOWN, "--yes"), "not both"),
        (("replay", "--status", "completed", "--yes"), "choose from cancelled, expired, failed"),
        (("cancel", "--status", "failed"), "choose from pending, running"),
        (("archive", "--older-than", "soon", "--yes"), "--older-than"),
        (("purge",), "no time is set"),
        (("purge", "--status", "failed"), "need --older-than"),
        (("purge", "--older-than", "1d", "--status", "pending"), "only ended tasks"),
        (("purge", "--older-than", "1d", "--type", ""), "a task type is"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_explained(qo: Qo, args: tuple[str, ...], complaint: str) -> None:
    answer = qo.here(*args)
    assert answer.code == 2
    assert complaint in answer.err


def test_purged_tasks_are_gone_for_good(qo: Qo) -> None:
    done = qo.ok("submit", "-t", "echo", "--input", "1", "--key", "k").strip()
    failed = qo.ok("submit", "-t", "boom", "--retries", "0").strip()
    drain(qo)
    shown = qo.here("purge", "--older-than", "0s", "--status", "completed", "--status", "failed", "--type", "echo")
    assert "1 task would be removed; 2 tasks looked at" in shown.out
    assert "say --yes" in shown.err
    assert qo.json("status", done)["status"] == "completed"
    report = qo.json("purge", "--older-than", "0s", "--yes")
    assert (report["tasks"], report["versions"], report["dry_run"]) == (1, 3, False)
    assert report["purged"] == [{"type": "echo", "status": "completed", "tasks": 1}]
    assert qo.here("status", done).code == 3
    assert qo.json("status", failed)["status"] == "failed"
    assert qo.json("submit", "-t", "echo", "--input", "2", "--key", "k")["status"] == "pending"


def test_purge_applies_the_retention_of_the_settings(qo: Qo) -> None:
    (qo.cwd / "qo.toml").write_text('[retention]\nkeep_completed = "1h"\n')
    qo.ok("submit", "-t", "echo")
    drain(qo)
    report = qo.json("purge", "--yes")
    assert (report["tasks"], report["listed"]) == (0, 1)
    shown = {key: each["value"] for key, each in qo.json("config", "show").items()}
    assert shown["retention.keep_completed"] == 3600


def test_stats_show_what_waits_and_what_nobody_handles(qo: Qo) -> None:
    for _ in range(2):
        qo.ok("submit", "-t", "echo")
    qo.ok("submit", "-t", "later", "--delay", "1h")
    depth = qo.json("stats")
    assert (depth["due"], depth["delayed"], depth["running"], depth["exact"]) == (2, 1, 0, True)
    assert {each["task_type"]: each["due"] for each in depth["types"]} == {"echo": 2, "later": 0}
    shown = qo.here("stats")
    assert "no worker is running" in shown.err
    assert re.search(r"^all +2 +1 +0", shown.out, re.M)


def test_workers_are_listed_while_they_run_and_end_in_order(qo: Qo) -> None:
    with qo.start(
        "worker", "--app", "tasks:app", "--id", "w-1", "--shards", "0,1", "--concurrency", "4"
    ) as worker:
        try:
            (seen,) = until(lambda: qo.json("worker", "list"))
            assert (seen["worker_id"], seen["shards"], seen["stale"]) == ("w-1", ["0", "1"], False)
            until(lambda: re.search(r"^w-1 +active", qo.ok("worker", "list"), re.M))
            assert qo.json("worker", "list", "--stale") == []
        finally:
            worker.send_signal(signal.SIGTERM)
        out, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert re.fullmatch(r"completed 0, failed attempts 0, given back 0; \d+ requests, \$0\.\d{4} on S3\n", out)
    assert qo.json("worker", "list") == []


def test_the_task_of_a_killed_worker_is_requeued_by_the_monitor(qo: Qo) -> None:
    task_id = qo.ok("submit", "-t", "sleep", "-i", "60", "--timeout", "1s", "--retry-initial-ms", "0").strip()
    (qo.cwd / "qo.toml").write_text("[worker]\nlease_s = 1\n")
    with qo.start("worker", "--app", "tasks:app", "--no-monitor") as worker:
        until(lambda: qo.json("status", task_id)["status"] == "running")
        worker.kill()
    with qo.start("monitor", "--check-interval-s", "0.2") as monitor:
        try:
            task = until(lambda: (now := qo.json("status", task_id))["status"] == "pending" and now)
        finally:
            monitor.send_signal(signal.SIGTERM)
        assert monitor.wait(timeout=30) == 0
    assert task["retry_count"] == 1
    assert len(qo.json("worker", "list", "--worker-health-threshold-s", "0.1", "--stale")) == 1
    report = qo.json("monitor", "--once", "--worker-health-threshold-s", "0.1")
    assert len(report["check"]["stale_workers"]) == 1
    assert report["sweep"]["checked"] == 1


def test_schedules_are_created_listed_changed_triggered_and_deleted(qo: Qo) -> None:
    made = qo.json(
        *("schedule", "create", "nightly", "--type", "echo", "--cron", "0 3 * * *"),
        *("--timezone", "Europe/Berlin", "--input", '{"n": 1}', "--catch-up", "all", "--overlap", "skip"),
    )
    assert (made["cron"], made["timezone"], made["catch_up"], made["overlap"]) == (
        *("0 3 * * *", "Europe/Berlin"),
        *("all", "skip"),
    )
    assert made["next_run_at"] > made["created_at"]
    assert [each["name"] for each in qo.json("schedule", "list")] == ["nightly"]
    assert re.search(r"^nightly +enabled", qo.ok("schedule", "list"), re.M)
    assert qo.json("schedule", "update", "nightly", "--cron", "0 4 * * *")["cron"] == "0 4 * * *"
    assert qo.json("schedule", "disable", "nightly")["next_run_at"] is None
    assert qo.json("schedule", "enable", "nightly")["enabled"] is True
    task_id = qo.ok("schedule", "trigger", "nightly").strip()
    assert qo.json("status", task_id)["input"] == {"n": 1}
    assert qo.json("schedule", "run", "--once")["fired"] == 0
    assert qo.here("schedule", "create", "nightly", "--type", "echo", "--cron", "* * * * *").code == 4
    qo.ok("schedule", "delete", "nightly")
    assert qo.here("schedule", "show", "nightly").code == 3


def test_the_embedded_store_passes_its_own_examination(qo: Qo) -> None:
    report = qo.json("doctor")
    assert report["ok"]
    assert all(check["passed"] for check in report["checks"])
    assert re.search(r"^create race +pass", qo.ok("doctor"), re.M)


def test_the_doctor_names_spark_and_java_and_says_why_there_is_no_class_archive(qo: Qo, tmp_path: Path) -> None:
    home = pretend(tmp_path / "jdk", "17")  # It runs, but no Spark.
    here = Qo(qo.cwd, {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    told = here.json("doctor")["spark"]
    assert told["spark"] == importlib.metadata.version("pyspark")
    assert told["java"] == f"Java 17 in {home} (JAVA_HOME)"
    assert told["class archive"] == "not built yet; --fix builds it"
    why = "not built: Java cannot archive its own classes"
    assert re.fullmatch(f"{why}.*", here.json("doctor", "--fix")["spark"]["class archive"])
    assert re.search(f"^class archive: {why}.*; --fix tries again$", here.ok("doctor"), re.M)
    (tmp_path / "file").touch()
    nowhere = Qo(qo.cwd, {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert "Not a directory" in nowhere.json("doctor", "--fix")["spark"]["class archive"]


def test_config_show_says_where_each_value_came_from_and_no_secret(qo: Qo) -> None:
    (qo.cwd / "qo.toml").write_text("[worker]\nconcurrency = 3\n")
    environ = {"QO_LOG": "warning", "AWS_SECRET_ACCESS_KEY": "hush-hush", "S3_BUCKET": "queue"}
    answer = Qo(qo.cwd, environ).here("config", "show", "--json", "--store", "local:elsewhere")
    shown = answer.document
    assert shown["worker.concurrency"]["origin"] == "qo.toml"
    assert shown["log_level"] == {"value": "warning", "origin": "environment QO_LOG", "env": "QO_LOG"}
    assert (shown["store"]["value"], shown["store"]["origin"]) == ("local:elsewhere", "flag --store")
    assert shown["monitor.check_interval_s"]["origin"] == "default"
    plain = Qo(qo.cwd, environ).ok("config", "show")
    assert "hush" not in plain + answer.out
    assert re.search(r"^store +s3://queue +environment S3_BUCKET$", plain, re.M)
    assert re.search(r"qo\.toml .*read$", qo.ok("config", "paths"), re.M)


def test_cost_prices_every_index_mode_with_the_settings_that_apply(qo: Qo) -> None:
    prices = qo.json("cost", "--workers", "50", "--tasks-per-day", "100000")
    ways = [(row["index_mode"], row["delivery"]) for row in prices]
    assert ways[:3] == [("index-only", "board"), ("hybrid", "board"), ("log-scan", "board")]
    assert {("hybrid", "leased"), ("hybrid", "push")} <= set(ways[3:])
    quicker = qo.json("cost", "--workers", "50", "--tasks-per-day", "100000", "--poll-max-ms", "1000")
    assert all(slow["polling"] <= quick["polling"] for slow, quick in zip(prices, quicker, strict=True))
    assert quicker[0]["polling"] > prices[0]["polling"] * 1.001


def test_options_that_mean_the_same_everywhere_may_stand_before_or_after_the_command(qo: Qo) -> None:
    before = json.loads(qo.ok("--store", "local:here", "--json", "submit", "-t", "echo"))
    after = json.loads(qo.ok("list", "--json", "--store", "local:here"))
    assert [task["id"] for task in after] == [before["id"]]
    assert qo.json("list") == []


def test_two_prefixes_of_a_directory_are_two_queues(qo: Qo) -> None:
    task_id = qo.ok("submit", "-t", "echo", "--store", "local:one").strip()
    assert qo.here("status", task_id, "--store", "local:two").code == 3


def test_a_shard_prefix_that_disagrees_with_the_store_is_refused(qo: Qo) -> None:
    two = Qo(qo.cwd, {"QO_SHARD_PREFIX_LEN": "2"})
    task_id = two.ok("submit", "-t", "echo").strip()
    assert qo.json("status", task_id)["shard"] == task_id[:2]  # Unset: as the store says.
    assert [task["id"] for task in qo.json("list", "--shard", task_id[:2])] == [task_id]
    answer = Qo(qo.cwd, {"QO_SHARD_PREFIX_LEN": "3"}).here("list")
    assert (answer.code, answer.out) == (6, "")
    assert "QO_SHARD_PREFIX_LEN=2" in answer.err


def test_nothing_that_a_task_says_can_move_the_terminal(qo: Qo) -> None:
    qo.ok("submit", "-t", "echo", "-i", '"\\u001b[2J\\u0007"')
    (task,) = qo.json("list")
    shown = qo.ok("status", task["id"])
    assert "\x1b" not in shown
    assert "\x07" not in shown


def on_a_terminal(qo: Qo, *args: str, **environ: str) -> str:
    """What the command prints when its output is a terminal."""
    ours, theirs = pty.openpty()
    environment = {**qo.environment, "TERM": "xterm-256color", "COLUMNS": "200", **environ}
    if not environment.get("NO_COLOR"):
        environment.pop("NO_COLOR", None)
    with subprocess.Popen(qo.command(*args), cwd=qo.cwd, env=environment, stdout=theirs) as process:
        os.close(theirs)
        pieces: list[bytes] = []
        try:
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        except OSError:
            pass  # How Linux says that the other side of a terminal was closed.
        finally:
            os.close(ours)
        assert process.wait(timeout=30) == 0
    return b"".join(pieces).decode()


def test_a_terminal_gets_colours_unless_no_color_is_set(qo: Qo) -> None:
    qo.ok("submit", "-t", "echo")
    assert "\x1b[36m" in on_a_terminal(qo, "list", NO_COLOR="")
    assert "\x1b[3" not in on_a_terminal(qo, "list", NO_COLOR="1")
    assert "\x1b[3" not in on_a_terminal(qo, "list", "--no-color", NO_COLOR="")
    assert "\x1b" not in qo.ok("list")  # Piped.


def test_a_reader_that_goes_away_is_no_error(qo: Qo) -> None:
    lines = '{"type": "echo", "input": "%s"}\n' % ("x" * 1000) * 300
    qo.ok("submit", "--from", "-", stdin=lines)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        qo.command("list", "--json", "--limit", "1000"),
        cwd=qo.cwd,
        env=qo.environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.fast
def test_an_interrupted_command_exits_with_130_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qo.cli.invocation.Session.ask", interrupted)
    assert main(["wait", UNKNOWN]) == 130
    assert capsys.readouterr() == ("", "")


def test_the_version_and_the_help_need_no_store(qo: Qo) -> None:
    assert re.fullmatch(r"qo \d+\.\d+\.\d+\n", qo.ok("--version"))
    help = qo.ok("--help")
    for command, (_, first_line) in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(first_line)}$", help, re.M)
    assert help.split("\n\n")[1] == "  Event-driven data pipelines on a bucket and Spark."
    assert re.findall(r"^(\w+):$", help, re.M) == ["Options", *GROUPS]
    assert not (qo.cwd / ".qo").exists()


def test_python_m_qo_is_the_same_command(qo: Qo) -> None:
    done = subprocess.run([sys.executable, "-m", "qo", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, qo.ok("--version"))


def test_options_after_worker_are_those_of_worker_run(qo: Qo) -> None:
    task_id = qo.ok("submit", "-t", "echo").strip()
    done = qo.json("worker", "run", "--app", "tasks:app", "--drain", "--no-monitor")
    assert done["completed"] == 1
    assert qo.json("status", task_id)["status"] == "completed"
    assert qo.here("worker").err == qo.here("worker", "run").err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_is_printed(qo: Qo, shell: str) -> None:
    assert "_QO_COMPLETE=complete_" in qo("completion", shell).out


def test_completion_offers_commands_options_and_values(qo: Qo) -> None:
    def offered(words: str) -> list[str]:
        position = str(len(words.split(" ")) - 1)
        environ = {"_QO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
        return Qo(qo.cwd, environ)().out.split()

    assert offered("qo arch") == ["archive"]
    assert offered("qo submit --pri") == ["--priority"]
    assert "cancelled" in offered("qo list --status ")
    assert offered("qo schedule tri") == ["trigger"]
    assert offered("qo worker ") == ["list", "run"]
    assert offered("qo worker --conc") == ["--concurrency", "--concurrency-limit"]
    assert offered("qo worker --drain --conc") == ["--concurrency", "--concurrency-limit"]


def every_command() -> Iterator[tuple[str, Any]]:
    """Each command that can be run, with its full name."""
    top = Commands(name="qo")
    for name in COMMANDS:
        yield from commands_of(name, top.get_command(None, name))


def commands_of(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner in command.commands:
        yield from commands_of(f"{name} {inner}", command.commands[inner])


@pytest.mark.fast
def test_every_command_and_option_is_documented() -> None:
    sections = {section.partition("\n")[0]: section for section in DOCUMENT.read_text().split("\n### ")}
    for name in [parameter.name for parameter in SHARED]:
        assert f"\n| `--{name.replace('_', '-')}" in sections["# Commands"]
    for name, command in every_command():
        section = sections[f"qo {name}"]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden and parameter.name != "json":
                assert any(f"`{option}" in section for option in parameter.opts), (name, parameter.opts)


@pytest.mark.fast
def test_each_group_of_commands_has_a_package_of_its_own() -> None:
    for group, commands in GROUPS.items():
        assert {module.partition(".")[0] for module, _ in commands.values()} == {group.lower()}


@pytest.mark.fast
def test_the_first_line_of_each_help_is_the_one_in_the_overview() -> None:
    top = Commands(name="qo")
    for name, (_, first_line) in COMMANDS.items():
        text: str = top.get_command(None, name).help
        assert text.splitlines()[0] == first_line


def test_a_quick_command_loads_nothing_slow(qo: Qo) -> None:
    task_id = qo.ok("submit", "-t", "echo").strip()
    (python, *rest) = qo.command("status", task_id)
    done = subprocess.run(
        [python, "-X", "importtime", *rest], cwd=qo.cwd, env=qo.environment, capture_output=True, text=True
    )
    loaded = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.M))
    assert "qo.queue.queue" in loaded
    assert not loaded & SLOW
