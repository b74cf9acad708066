"""``qo up``: everything in one command, as its user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from qo.up.installation import Installation
from qo.up.lock import LOCK_PATH, find_address
from qo.up.rollout import Rollout
from qo.up.targets import read
from qo.up.view import SilentView
from qo.up.watch import Watch
from support.cli.command import Qo
from support.cli.letters import OPERATORS, PIPELINE, done, parts, processes, tasks, until

# Many processes of their own.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EFFECT = """\
  - name: noted
    activation: reactive
    runtime: python
    operator: letters:noted
    inputs: [{from: {job: shouted}}]
    execution_strategy: PerPartition
    outputs: 0
"""

LIMIT_S = 120.0


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "letters.py").write_text(OPERATORS)
    for name, text in (("a", "one"), ("b", "three")):
        (tmp_path / "inbox" / f"{name}.txt").write_text(text)
    return Qo(tmp_path, {"QO_LEASE_S": "3"})


@pytest.fixture
def running(qo: Qo) -> Iterator[subprocess.Popen[str]]:
    (qo.cwd / "inbox" / "a.txt").touch()
    process = qo.start("up")
    yield process
    process.kill()
    process.communicate()
    until(lambda: not processes(qo))


@pytest.fixture
def told() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server, and the JSON that it was sent."""
    heard: list[dict[str, Any]] = []

    class Listening(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Listening) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/", heard
        server.shutdown()
        serving.join()


def test_once_builds_everything_and_then_nothing(qo: Qo, told: tuple[str, list[dict[str, Any]]]) -> None:
    url, heard = told
    first = Qo(qo.cwd, {**qo.environ, "QO_LINEAGE_URL": url, "QO_TOKEN": "another's"})(
        "up", "--once", timeout_s=LIMIT_S
    )
    assert first.code == 0, first
    assert first.out.startswith("the dispatcher is at http://127.0.0.1:")
    assert {each["eventType"] for each in heard} == {"START", "COMPLETE"}
    printed = (qo.cwd / ".qo" / "logs" / "worker-python.log").read_text()  # By attempts side by side.
    assert "42" in printed
    assert "\nnull\n" in printed
    assert "letters version 1 is new: 3 jobs" in first.out
    assert "shouts: 2 rows in 2 pieces" in first.out
    assert "A.TXT 3" in first.out
    assert "inbox -> counted -> shouted" in first.out
    assert tasks(qo) == 2 * [("counted", "completed")] + 2 * [("shouted", "completed")]

    tried = qo("try", "shouted@a.txt")  # Of the files as they are, on what is committed.
    assert tried.code == 0, tried
    assert "A.TXT 3" in tried.out
    assert "letters.shouts" not in tried.out

    again = qo("--json", "up", "--once", timeout_s=LIMIT_S)
    assert again.code == 0, again
    sizes = {each["name"]: (each["rows"], each["pieces"]) for each in again.document["tables"]}
    assert (again.document["version"], again.document["jobs"]) == (1, [])
    assert sizes == {"counts": (2, 2), "shouts": (2, 2)}
    assert len(tasks(qo)) == 4
    assert not processes(qo)


def test_a_change_rebuilds_what_is_downstream_and_what_had_failed_before_does_not_hold_it_up(qo: Qo) -> None:
    (qo.cwd / "inbox" / "bad.txt").write_text("?")
    pipeline = PIPELINE.replace("jobs:", "defaults: {max_attempts: 1}\njobs:", 1)
    (qo.cwd / "pipeline.yaml").write_text(pipeline)
    answer = qo("up", "pipeline.yaml", "--once", timeout_s=LIMIT_S)
    assert answer.code == 1, answer
    assert "failed: counted bad.txt" in answer.out
    assert "this letter cannot be read" in answer.out
    assert "shouts: 2 rows in 2 pieces" in answer.out
    assert tasks(qo) == [
        *(2 * [("counted", "completed")]),
        ("counted", "failed"),
        *(2 * [("shouted", "completed")]),
    ]

    operators = qo.cwd / "letters.py"
    operators.write_text(operators.read_text().replace("line.upper()", "line.title()"))
    (qo.cwd / "pipeline.yaml").write_text(pipeline.replace("publish:", f"{EFFECT}publish:"))
    (qo.cwd / "inbox" / "c.txt").write_text("seven")
    kept = qo("up", "--once", "--keep", timeout_s=LIMIT_S)
    assert "rebuilt       shouted: edited: code" in kept.out, kept
    assert "carried over  counted, inbox" in kept.out
    assert "version 2 was not activated: it is built, and kept" in kept.out
    before = [*(3 * [("counted", "completed")]), ("counted", "failed")]
    built = 6 * [("shouted", "completed")]
    assert tasks(qo) == [*before, ("noted", "pending"), *built]  # Effects are for who serves.

    taken = qo("up", "--once", timeout_s=LIMIT_S)
    assert "version 2 has taken over from 1, all tables at once" in taken.out, taken
    assert "A.Txt 3" in taken.out
    assert tasks(qo) == [*before, ("noted", "completed"), *built]
    assert (answer.code, kept.code, taken.code) == (1, 1, 1)


class SpokenLate(Watch):
    """Its source speaks right after a look, and before it is asked whether it has said everything."""

    speaking = True

    async def _all_announced(self) -> bool:
        if self.speaking:
            self.speaking = False
            async with self._installation.client() as client:
                await client.post(
                    "/v1/sources/letters/inbox/events",
                    {"idempotency_key": "a", "events": [{"partition_key": "a"}]},
                )
        return True


async def test_once_ends_only_after_what_was_announced_since_its_last_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual = PIPELINE.replace('{kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}', "{kind: manual}")
    (tmp_path / "pipeline.yaml").write_text(manual)
    (tmp_path / "letters.py").write_text("def counted(run):\n    pass\n\n\nshouted = counted\n")
    monkeypatch.chdir(tmp_path)
    pipeline, _ = read(str(tmp_path))
    async with Installation({}, None, [pipeline], Path("logs")) as site:
        await site.start()
        rollout = Rollout(await site.deploy(pipeline))
        async with asyncio.timeout(LIMIT_S):
            await SpokenLate(site, [rollout], SilentView(), once=True).run(asyncio.Event())
    assert tasks(Qo(tmp_path)) == [("counted", "completed"), ("shouted", "completed")]


def test_what_dies_is_started_again_and_nothing_stays_when_it_is_killed_and_it_goes_on_where_it_was(
    qo: Qo, running: subprocess.Popen[str]
) -> None:
    until(lambda: done(qo) == 4)
    second = qo("up", "--once")
    assert (second.code, f"process {running.pid}" in second.err) == (4, True), second
    address = find_address(qo.cwd / LOCK_PATH)
    assert address is not None
    assert httpx.get(f"{address}/livez").status_code == 200

    before, killed = parts(qo), ("worker:python", "dispatcher")
    for role in killed:
        os.kill(before[role], signal.SIGKILL)
    until(lambda: all(parts(qo).get(role) not in (None, before[role]) for role in killed))
    (qo.cwd / "inbox" / "c.txt").write_text("seven")
    until(lambda: done(qo) == 6)

    os.kill(running.pid, signal.SIGKILL)
    until(lambda: not processes(qo), within_s=20)
    (qo.cwd / "inbox" / "d.txt").write_text("eleven")
    third = qo.start("up")
    try:
        until(lambda: done(qo) == 8)
        third.send_signal(signal.SIGINT)
        out, err = third.communicate(timeout=60)
    finally:
        third.kill()
    assert third.returncode == 0, (out, err)
    assert tasks(qo) == 4 * [("counted", "completed")] + 4 * [("shouted", "completed")]
    assert not processes(qo)


def test_who_interrupts_what_does_not_start_waits_for_nothing(qo: Qo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        state = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        process = Qo(qo.cwd, {"QO_STATE": state}).start("up", "--once")
        try:
            silent.settimeout(60)
            with silent.accept()[0]:  # The dispatcher asks, and is not answered.
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, (out, err)
    assert not processes(qo)


def test_what_cannot_work_is_said_before_anything_runs(qo: Qo) -> None:
    (qo.cwd / "wrong.yaml").write_text(PIPELINE.replace("operator: letters:counted", "operator: counted"))
    wrong = qo.here("up", "wrong.yaml")
    assert (wrong.code, "wrong.yaml:10:" in wrong.err) == (2, True), wrong
    missing = qo.here("up", "nowhere")
    assert (missing.code, "there is no pipeline nowhere" in missing.err) == (2, True), missing
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        blocked = Qo(qo.cwd, {"QO_DISPATCHER_LISTEN": address})("up", "--once")
    assert (blocked.code, f"cannot serve at '{address}'" in blocked.err) == (2, True), blocked
    with socket.create_server(("127.0.0.1", 0)) as taken:
        state = f"postgresql://nobody@127.0.0.1:{taken.getsockname()[1]}/nothing"
    closed = Qo(qo.cwd, {"QO_STATE": state})("up", "--once")
    assert (closed.code, "traceback" in closed.err) == (5, False), closed
    spark = PIPELINE.replace("runtime: python", "runtime: spark", 1)
    (qo.cwd / "spark.yaml").write_text(spark)
    for remote in ({}, {"QO_SPARK_REMOTE": "local"}):
        java = Qo(qo.cwd, {"QO_JAVA_HOME": str(qo.cwd), **remote}).here("up", "spark.yaml", "--once")
        assert (java.code, "Spark needs Java" in java.err, str(qo.cwd) in java.err) == (2, True, True), java
    assert not processes(qo)


def test_a_save_is_deployed_and_one_that_is_wrong_is_explained(qo: Qo, running: subprocess.Popen[str]) -> None:
    printed: list[str] = []
    assert running.stdout is not None
    threading.Thread(target=lambda: printed.extend(iter(running.stdout.readline, "")), daemon=True).start()  # type: ignore[union-attr]
    until(lambda: done(qo) == 4)
    operators, definition = qo.cwd / "letters.py", qo.cwd / "pipeline.yaml"
    good = definition.read_text()

    definition.write_text(good.replace("{job: counted}", "{job: countd}", 1))
    until(lambda: any("there is no job 'countd'; did you mean 'counted'?" in line for line in printed))
    assert "saved, and not deployed; what serves goes on:\n" in printed
    definition.write_text(good)

    operators.write_text(operators.read_text() + "\n\ndef counted(:\n")
    until(lambda: any("letters.py cannot be read as Python" in line for line in printed))
    operators.write_text(OPERATORS.replace(".upper()", ".lower()"))
    until(lambda: any("version 2 has taken over from 1" in line for line in printed), LIMIT_S)
    assert not any("version 3" in line for line in printed)
