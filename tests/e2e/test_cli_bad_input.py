"""Whatever is wrong: a clear line on standard error, the documented exit code, and nothing written."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from qo.store import queue_manifest
from qo.store.checks import UNSAFE
from qo.store.local import LocalStore
from qo.store.proof import CheckResult, Report, prove
from support.cli.command import Answer, Qo
from support.servers.ports import free_ports
from support.servers.s3 import S3Server

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    return Qo(tmp_path)


def refused(answer: Answer, code: int, *words: str) -> None:
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.err.startswith("error: "), answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err


SUBMIT = ["submit", "--type", "t"]
CREATE = ["schedule", "create", "s", "--type", "t", "--cron", "* * * * *"]

# Faults that show before any store is opened: not even an empty one may be left behind.
FAULTS: list[tuple[list[str], list[str]]] = [
    ([*SUBMIT, "--input", "{broken"], ["--input is not valid JSON"]),
    ([*SUBMIT, "--input", "@broken.json"], ["broken.json is not valid JSON"]),
    ([*SUBMIT, "--input", "@missing.json"], ["cannot read missing.json"]),
    ([*SUBMIT, "--input", "-"], ["standard input is not valid JSON"]),
    (["submit", "--input", "{}"], ["--type"]),
    ([*SUBMIT, "--at", "2030-01-01T00:00:00Z", "--delay", "1h"], ["--at or --delay, not both"]),
    ([*SUBMIT, "--expires-at", "2030-01-01T00:00:00Z", "--expires-in", "1h"], ["--expires-at or --expires-in"]),
    ([*SUBMIT, "--delay", "-5s"], ["--delay", "'-5s' is not a duration"]),
    ([*SUBMIT, "--delay", "soon"], ["--delay", "'soon' is not a duration"]),
    ([*SUBMIT, "--at", "2030-01-01T00:00:00"], ["--at", "no time zone"]),
    ([*SUBMIT, "--priority", "10"], ["--priority", "from 0 to 9"]),
    ([*SUBMIT, "--retries", "-1"], ["--retries", "at least 0"]),
    ([*SUBMIT, "--retries", "many"], ["--retries"]),
    ([*SUBMIT, "--max-deliveries", "0"], ["--max-deliveries", "at least 1"]),
    (["worker", "--app", "tasks:app", "--shard-leasing", "--drain"], ["leave out --drain", "look at all shards"]),
    ([*SUBMIT, "--key", ""], ["--key", "non-empty"]),
    ([*SUBMIT, "--key-scope", "s"], ["--key-scope needs --key"]),
    ([*SUBMIT, "--wait-timeout", "1s"], ["--wait-timeout needs --wait"]),
    (["submit", "--from", "missing.jsonl"], ["cannot read missing.jsonl"]),
    (["submit", "--from", "broken.jsonl"], ["broken.jsonl, line 2 is not valid JSON"]),
    (["submit", "--from", "typo.jsonl"], ["typo.jsonl, line 1", "'imput'", "did you mean 'input'"]),
    (["submit", "--from", "untyped.jsonl"], ["untyped.jsonl, line 1", 'has no "type"']),
    (["submit", "--from", "early.jsonl"], ["early.jsonl, line 1: give at or delay, not both"]),
    (["submit", "--from", "empty.jsonl"], ["no task in empty.jsonl"]),
    (["submit", "--from", "broken.jsonl", "--input", "1"], ["--from takes no --input"]),
    (["list", "--status", "done"], ["'done'", "'pending'", "'completed'", "'archived'"]),
    (["list", "--limit", "0"], ["--limit", "at least 1"]),
    (["list", "--since", "yesterday"], ["--since", "not a duration"]),
    (["status", "42"], ["'42' is not a task id"]),
    (["history", "../../etc/passwd"], ["is not a task id"]),
    (["cancel", UNKNOWN, "42"], ["'42' is not a task id"]),
    (["replay"], ["say which tasks"]),
    (["sttatus", UNKNOWN], ["no command 'sttatus'", "did you mean 'status'"]),
    (["status", UNKNOWN, "--jsn"], ["--jsn"]),
    (["list", "--store", "redis://localhost"], ["flag --store", "local:PATH, s3://BUCKET[/PREFIX] or memory:"]),
    ([*SUBMIT, "--store", "memory:"], ["memory:", "lives inside one process"]),
    (["list", "--config", "missing.toml"], ["there is no settings file missing.toml"]),
    (["list", "--config", "typo.toml"], ["'worker.concurency'", "typo.toml", "'worker.concurrency'"]),
    (["list", "--log-level", "loud"], ["log_level", "flag --log-level says 'loud'"]),
    (["worker", "--app", "nonsense"], ["'nonsense' does not name an app"]),
    (["worker", "--app", "broken_app:app"], ["importing 'broken_app' failed", "SyntaxError"]),
    (["worker", "--app", "needy_app:app"], ["importing 'needy_app' failed", "no_such_dependency"]),
    (
        ["worker", "--app", "good_app:app", "--concurrency", "0"],
        ["flag --concurrency says '0'"],
    ),
    (["worker", "--app", "good_app:app", "--index-mode", "fast"], ["index-only, hybrid, log-scan"]),
    (["worker", "--app", "good_app:app", "--shards", "0,x"], ["worker.shards", "'0,x'"]),
    (["worker", "--app", "good_app:app", "--id", "a/b"], ["worker.id", "'a/b'"]),
    (["worker"], ["--app"]),
    (["monitor", "--check-interval-s", "0"], ["monitor.check_interval_s"]),
    (["schedule", "run", "--interval", "0"], ["--interval", "more than 0"]),
    ([*CREATE, "--input", "{broken"], ["--input is not valid JSON"]),
    (["cost", "--workers", "-1"], ["--workers"]),
    (["cost", "--limits", "-1"], ["--limits"]),
    (["completion", "tcsh"], ["'tcsh'", "'bash'"]),
]


@pytest.fixture
def files(qo: Qo) -> None:
    for name, text in {
        "broken.json": '{"a": ',
        "broken.jsonl": '{"type": "t"}\n{"type": "t"\n',
        "typo.jsonl": '{"type": "t", "imput": 1}\n',
        "untyped.jsonl": '{"input": 1}\n',
        "early.jsonl": '{"type": "t", "delay": "1h", "at": "2030-01-01T00:00:00Z"}\n',
        "empty.jsonl": "\n",
        "typo.toml": "[worker]\nconcurency = 2\n",
        "good_app.py": "import qo\napp = qo.App()\n",
        "broken_app.py": "def broken(:\n",
        "needy_app.py": "import no_such_dependency\n",
    }.items():
        (qo.cwd / name).write_text(text)


@pytest.mark.fast
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("args", "words"), FAULTS, ids=lambda value: " ".join(value)[:60])
def test_a_wrong_command_line_is_refused_before_anything_is_opened(
    qo: Qo, args: list[str], words: list[str]
) -> None:
    refused(qo.here(*args, stdin="{broken"), 2, *words)
    refused(qo.here("--json", *args, stdin="{broken"), 2, *words)
    assert not (qo.cwd / ".qo").exists()


@pytest.mark.fast
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("app", ["missing_app:app", "good_app:other", "good_app:qo"])
def test_an_app_that_does_not_exist_is_not_found(qo: Qo, app: str) -> None:
    module, _, attribute = app.partition(":")
    refused(qo.here("worker", "--app", app), 3, module if module == "missing_app" else attribute)
    assert not (qo.cwd / ".qo").exists()


@pytest.mark.fast
def test_an_unknown_variable_or_setting_stops_every_command(qo: Qo) -> None:
    typo = Qo(qo.cwd, {"QO_CONCURENCY": "2"})
    refused(typo.here(*SUBMIT), 2, "QO_CONCURENCY", "'QO_CONCURRENCY'")
    (qo.cwd / "qo.toml").write_text("[monitor]\nsweep_interval = 3\n")
    refused(qo.here(*SUBMIT), 2, "'monitor.sweep_interval' in qo.toml", "'monitor.sweep_interval_s'")
    assert not (qo.cwd / ".qo").exists()


@pytest.mark.fast
def test_an_input_over_the_maximum_is_refused_unread_and_unwritten(qo: Qo) -> None:
    with (qo.cwd / "huge.json").open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)  # Sparse: it takes no room.
    refused(qo.here(*SUBMIT, "--input", "@huge.json"), 2, "huge.json is larger than 67,108,864 bytes")
    assert not (qo.cwd / ".qo").exists()


@pytest.mark.fast
@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["status", UNKNOWN], 3, ["no task", UNKNOWN, "store local:.qo, default"]),
        (["history", UNKNOWN], 3, ["no task", UNKNOWN]),
        (["wait", UNKNOWN], 3, ["no task", UNKNOWN]),
        (["schedule", "show", "nightly"], 3, ["no schedule nightly"]),
        (["schedule", "trigger", "nightly"], 3, ["no schedule nightly"]),
        (["schedule", "show", "../tasks"], 2, ["cannot name a schedule"]),
        (["list", "--shard", "aa"], 2, ["'aa' is not a shard of this queue"]),
        (["list", "--shard", "g"], 2, ["'g' is not a shard of this queue"]),
        ([*SUBMIT, "--timeout", "0"], 2, ["timeout"]),
        ([*SUBMIT, "--delay", "1000w"], 2, ["delay"]),
        ([*SUBMIT, "--delay", "1h", "--expires-in", "1m"], 2, ["expire"]),
        ([*SUBMIT, "--retry-multiplier", "0.5"], 2, ["multiplier"]),
        (["submit", "--type", ""], 2, ["task type"]),
        (["submit", "--from", "half.jsonl"], 2, ["task type"]),
        (["schedule", "create", "s", "--type", "t", "--cron", "61 * * * *"], 2, ["cron '61 * * * *'"]),
        (["schedule", "create", "s", "--type", "t", "--cron", "* * * *"], 2, ["4 fields"]),
        ([*CREATE, "--timezone", "Mars/Base"], 2, ["no time zone 'Mars/Base'"]),
        (["worker", "--app", "good_app:app", "--shards", "aa", "--drain"], 2, ["'aa' is not a shard"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("files")
def test_what_the_queue_refuses_is_said_and_not_written(
    qo: Qo, args: list[str], code: int, words: list[str]
) -> None:
    (qo.cwd / "half.jsonl").write_text(json.dumps({"type": "t"}) + "\n" + json.dumps({"type": "x" * 201}) + "\n")
    refused(qo.here(*args), code, *words)
    assert qo.json("list") == []
    assert qo.json("schedule", "list") == []


@pytest.mark.fast
def test_a_path_that_cannot_hold_a_store_is_a_setting_to_fix(qo: Qo) -> None:
    (qo.cwd / "file").write_text("not a directory")
    refused(qo.here("list", "--store", "local:file"), 2, "file")
    assert (qo.cwd / "file").read_text() == "not a directory"


@pytest.mark.fast
def test_a_damaged_task_is_reported_as_damaged(qo: Qo) -> None:
    task_id = qo.ok(*SUBMIT).strip()

    async def damage() -> None:
        store = await LocalStore.open(qo.cwd / ".qo")
        await store.put(f"tasks/{task_id[0]}/{task_id}.json", b"{")
        await store.close()

    asyncio.run(damage())
    refused(qo.here("status", task_id), 7, task_id, "cannot be read")


@pytest.mark.fast
def test_a_defect_shows_its_traceback_only_when_debugging(qo: Qo, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("qo.cli.invocation.Session.ask", defect)
    refused(qo.here("list"), 1, "ZeroDivisionError: by zero", "--log-level debug")
    for debugging in (qo.here("list", "--log-level", "debug"), Qo(qo.cwd, {"QO_LOG": "debug"}).here("list")):
        assert debugging.code == 1
        assert "Traceback" in debugging.err


@pytest.mark.fast
@pytest.mark.parametrize(("advice", "code", "kept"), [(UNSAFE, 6, False), ("Mend that first.", 5, True)])
def test_a_wrong_answer_takes_the_proof_back_and_no_answer_does_not(
    qo: Qo, advice: str, code: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert qo.json("doctor")["ok"]

    async def failing(*_: object, **__: object) -> Report:
        return Report((CheckResult("create race", False, True, "seen", advice),))

    monkeypatch.setattr("qo.cli.admin.doctor.prove", failing)
    answer = qo.here("doctor")
    assert answer.code == code
    assert "create race" in answer.err
    assert advice in answer.out
    assert asyncio.run(proven(qo)) is kept


async def proven(qo: Qo) -> bool:
    store = await LocalStore.open(qo.cwd / ".qo")
    loaded = await queue_manifest.load(store)
    await store.close()
    return loaded is not None and loaded.manifest.proof is not None


@pytest.mark.fast
def test_an_endpoint_where_nobody_answers_is_unreachable(qo: Qo) -> None:
    (port,) = free_ports(1)
    environ = {"S3_ENDPOINT": f"http://127.0.0.1:{port}", "S3_BUCKET": "queue"}
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    gone = Qo(qo.cwd, {**environ, **keys})
    for args in (SUBMIT, ["list"], ["doctor"]):
        refused(gone.here(*args), 5, str(port))


@pytest.fixture
def brief_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """What doctor finds out with many writers is tested elsewhere; some servers take seconds for each race."""
    monkeypatch.setattr("qo.cli.admin.doctor.prove", partial(prove, writers=2, rounds=1))


@pytest.mark.s3
@pytest.mark.usefixtures("brief_races")
class TestBuckets:
    def nothing_in(self, server: S3Server, bucket: str) -> bool:
        return server.admin.list_objects_v2(Bucket=bucket).get("KeyCount", 0) == 0

    def test_a_bucket_that_was_not_proven_is_refused_until_doctor_has_seen_it(
        self, qo: Qo, s3_server: S3Server, s3_bucket: str
    ) -> None:
        there = Qo(qo.cwd, s3_server.environment(s3_bucket))
        refused(there.here(*SUBMIT), 6, "qo doctor")
        assert self.nothing_in(s3_server, s3_bucket)
        assert there.json("doctor")["ok"]
        task_id = there.ok(*SUBMIT).strip()
        assert there.json("status", task_id)["status"] == "pending"

    def test_wrong_credentials_are_denied(self, qo: Qo, s3_server: S3Server, s3_bucket: str) -> None:
        wrong = {"AWS_SECRET_ACCESS_KEY": "wrong"}
        there = Qo(qo.cwd, {**s3_server.environment(s3_bucket), **wrong})
        for args in (SUBMIT, ["list"], ["doctor"]):
            refused(there.here(*args), 5, "AWS_SECRET_ACCESS_KEY")
        assert self.nothing_in(s3_server, s3_bucket)

    def test_a_bucket_that_does_not_exist_is_named(self, qo: Qo, s3_server: S3Server) -> None:
        there = Qo(qo.cwd, s3_server.environment("no-such-bucket"))
        for args in (SUBMIT, ["list"], ["doctor"]):
            refused(there.here(*args), 5, "no-such-bucket", "qo doctor --fix")

    def test_a_bucket_without_versioning_is_refused_unless_allowed(self, qo: Qo, s3_server: S3Server) -> None:
        bucket = s3_server.make_bucket(versioned=False)
        there = Qo(qo.cwd, s3_server.environment(bucket))
        examined = there.here("doctor", "--json")
        assert examined.code == 6
        assert not examined.document["ok"]
        assert "versions" in examined.err
        assert self.nothing_in(s3_server, bucket)
        refused(there.here(*SUBMIT), 6, "qo doctor")
        assert self.nothing_in(s3_server, bucket)

        allowed = Qo(qo.cwd, {**s3_server.environment(bucket), "QO_ALLOW_NO_VERSIONING": "1"})
        assert allowed.json("doctor")["ok"]
        allowed.ok(*SUBMIT)
        refused(there.here(*SUBMIT), 6, "versioning", "QO_ALLOW_NO_VERSIONING=1")

    def test_doctor_fix_makes_the_bucket_and_switches_versioning_on(self, qo: Qo, s3_server: S3Server) -> None:
        # What it does for Spark beside is seen elsewhere, and takes its time.
        there = Qo(qo.cwd, {**s3_server.environment("made-by-doctor"), "QO_SPARK_CLASS_ARCHIVE": "false"})
        report = there.json("doctor", "--fix")
        assert report["ok"]
        assert report["fixed"][:2] == ["created the bucket", "enabled versioning"]
        versioning = s3_server.admin.get_bucket_versioning(Bucket="made-by-doctor")
        assert versioning["Status"] == "Enabled"
        assert there.json("doctor", "--fix")["fixed"] == []
        there.ok(*SUBMIT)
