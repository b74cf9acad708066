"""``qo up``: everything in one command, as its user runs it."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import Qo

pytestmark = pytest.mark.spark  # With processes of their own, and a JVM among them.

PIPELINE = """\
name: letters
jobs:
  - name: inbox
    activation: source
    source: {kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: counted
    activation: reactive
    runtime: python
    operator: letters:counted
    inputs: [{from: {job: inbox}}]
    execution_strategy: PerPartition
    outputs: 1
  - name: shouted
    activation: reactive
    runtime: python
    operator: letters:shouted
    inputs: [{from: {job: counted}}]
    execution_strategy: PerPartition
    outputs: 1
publish:
  counts: {from: {job: counted}}
  shouts: {from: {job: shouted}}
"""

OPERATORS = """\
import os
import signal


def counted(run):
    texts = [body.decode() for body in run.input().read()]
    if "bad" in run.partition_key:
        raise ValueError("this letter cannot be read")
    run.output().write("count.txt", f"{run.partition_key} {sum(map(len, texts))}\\n", rows=1)


def shouted(run):
    run.output().write("shout.txt", "".join(line.upper() + "\\n" for line in run.input().lines()), rows=1)
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


def tasks(qo: Qo) -> list[tuple[str, str]]:
    """Job and status of every task, without those of sources."""
    with sqlite3.connect(f"file:{qo.cwd / '.qo' / 'state.db'}?mode=ro", uri=True) as state:
        known = state.execute("SELECT 1 FROM sqlite_master WHERE name = 'tasks'").fetchall()
        found = (
            state.execute("SELECT job, status FROM tasks WHERE job <> 'inbox' ORDER BY 1, 2").fetchall()
            if known
            else []
        )
    state.close()
    return found


def done(qo: Qo) -> int:
    return sum(status == "completed" for _, status in tasks(qo)) if (qo.cwd / ".qo" / "state.db").exists() else 0


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def parts(qo: Qo) -> dict[str, int]:
    """The processes of an installation by their roles, found by where they were started."""
    found: dict[str, int] = {}
    for each in Path("/proc").iterdir():
        try:
            words = (each / "cmdline").read_bytes().decode().split("\0")
            if "qo.site.part" in words and (each / "cwd").resolve() == qo.cwd.resolve():
                found[words[words.index("qo.site.part") + 1]] = int(each.name)
        except OSError:
            continue  # It has ended, or is another's.
    return found


@pytest.fixture
def running(qo: Qo) -> Iterator[subprocess.Popen[str]]:
    (qo.cwd / "inbox" / "a.txt").touch()
    process = qo.start("up")
    yield process
    process.kill()
    process.communicate()
    until(lambda: not parts(qo))


def test_once_builds_everything_then_nothing_then_only_what_a_change_is_upstream_of(qo: Qo) -> None:
    first = qo("up", "--once", timeout_s=LIMIT_S)
    assert first.code == 0, first
    assert "letters version 1 is new: 3 jobs" in first.out
    assert "shouts: 2 rows in 2 pieces" in first.out
    assert "A.TXT 3" in first.out
    assert "inbox -> counted -> shouted" in first.out
    assert tasks(qo) == 2 * [("counted", "completed")] + 2 * [("shouted", "completed")]

    again = qo("up", "--once", timeout_s=LIMIT_S)
    assert again.code == 0, again
    assert "version 1 is deployed already" in again.out
    assert "nothing was to be done" in again.out
    assert len(tasks(qo)) == 4

    operators = qo.cwd / "letters.py"
    operators.write_text(operators.read_text().replace("line.upper()", "line.title()"))
    changed = qo("up", "--once", timeout_s=LIMIT_S)
    assert changed.code == 0, changed
    assert "rebuilt       shouted: edited: code" in changed.out
    assert "carried over  counted, inbox" in changed.out
    assert "version 2 has taken over from 1, all tables at once" in changed.out
    assert "A.Txt 3" in changed.out
    assert tasks(qo) == 2 * [("counted", "completed")] + 4 * [("shouted", "completed")]
    assert not parts(qo)


def test_once_says_which_tasks_failed_and_why_and_keeps_the_rest(qo: Qo) -> None:
    (qo.cwd / "inbox" / "bad.txt").write_text("?")
    (qo.cwd / "pipeline.yaml").write_text(PIPELINE.replace("jobs:", "defaults: {max_attempts: 1}\njobs:", 1))
    answer = qo("up", "pipeline.yaml", "--once", timeout_s=LIMIT_S)
    assert answer.code == 1, answer
    assert "failed: counted bad.txt" in answer.out
    assert "this letter cannot be read" in answer.out
    assert "shouts: 2 rows in 2 pieces" in answer.out


def test_nothing_stays_when_it_is_killed_and_it_goes_on_where_it_was(
    qo: Qo, running: subprocess.Popen[str]
) -> None:
    until(lambda: done(qo) == 4)
    second = qo("up", "--once")
    assert (second.code, f"process {running.pid}" in second.err) == (4, True), second
    os.kill(running.pid, signal.SIGKILL)
    until(lambda: not parts(qo), within_s=20)
    (qo.cwd / "inbox" / "c.txt").write_text("seven")
    assert qo("up", "--once", timeout_s=LIMIT_S).code == 0
    assert tasks(qo) == 3 * [("counted", "completed")] + 3 * [("shouted", "completed")]


def test_what_dies_is_started_again_and_all_ends_in_good_order(qo: Qo, running: subprocess.Popen[str]) -> None:
    until(lambda: done(qo) == 4)
    before = parts(qo)
    for role in ("worker:python", "dispatcher"):
        os.kill(before[role], signal.SIGKILL)
    until(lambda: parts(qo).keys() == before.keys() and not set(before.values()) <= set(parts(qo).values()))
    (qo.cwd / "inbox" / "c.txt").write_text("seven")
    until(lambda: done(qo) == 6)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, (out, err)
    assert "worker:python died 1 times" in out
    assert not parts(qo)


def test_what_cannot_work_is_said_before_anything_runs(qo: Qo) -> None:
    (qo.cwd / "wrong.yaml").write_text(PIPELINE.replace("operator: letters:counted", "operator: counted"))
    wrong = qo("up", "wrong.yaml")
    assert (wrong.code, "wrong.yaml:10:" in wrong.err) == (2, True), wrong
    missing = qo("up", "nowhere")
    assert (missing.code, "there is no pipeline nowhere" in missing.err) == (3, True), missing
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        blocked = Qo(qo.cwd, {"QO_DISPATCHER_LISTEN": address})("up", "--once")
    assert (blocked.code, f"cannot serve at '{address}'" in blocked.err) == (2, True), blocked
    spark = PIPELINE.replace("runtime: python", "runtime: spark", 1)
    (qo.cwd / "spark.yaml").write_text(spark)
    java = Qo(qo.cwd, {"QO_JAVA_HOME": str(qo.cwd)})("up", "spark.yaml", "--once")
    assert (java.code, "ava" in java.err) == (2, True), java
    assert not parts(qo)
