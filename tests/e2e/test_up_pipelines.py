"""``qo up`` with pipelines in Python, with several of them, and with those that others deploy to it."""

from __future__ import annotations

import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cli.command import Qo
from support.cli.letters import OPERATORS, PIPELINE, parts, until
from support.servers.postgres import PostgresServer
from support.spark import session

# Many processes of their own.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LIMIT_S = 150.0
CLIMATE = """\
import qo
from scale import FACTOR

pipeline = qo.Pipeline("climate")
inbox = pipeline.add("inbox", source={"kind": "files", "path": "inbox", "pattern": "*.txt", "poll_seconds": 1})


@pipeline.job(inputs=[inbox], strategy="PerPartition", runtime="python")
def scaled(run):
    words = b"".join(run.input().read()).split()
    run.output().write("scaled.txt", f"{run.partition_key} {FACTOR * len(words)}\\n", rows=1)


pipeline.publish("scales", scaled)
"""
READER = """\
name: reader
jobs:
  - name: doubled
    activation: reactive
    runtime: python
    operator: reading:doubled
    inputs: [{from: {dataset: counts}}]
    execution_strategy: PerPartition
    outputs: 1
publish: {doubles: {from: {job: doubled}}}
"""
DOUBLED = """\
def doubled(run):
    run.output().write("double.txt", "".join(2 * line + "\\n" for line in run.input().lines()), rows=1)
"""
MANUAL = PIPELINE.replace('{kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}', "{kind: manual}")
SPARK = """\
name: other
jobs:
  - name: landed
    activation: source
    source: {kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: lines
    activation: reactive
    runtime: spark
    operator: ingest
    config: {format: csv, columns: [{name: word, type: string}]}
    inputs: [{from: {job: landed}}]
    execution_strategy: PerPartition
    outputs: 1
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "inbox").mkdir()
    for name, text in (("a", "one"), ("b", "three")):
        (tmp_path / "inbox" / f"{name}.txt").write_text(text)
    return Qo(tmp_path, {"QO_LEASE_S": "3"})


class Printed:
    """What a process has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, text: str, within_s: float = LIMIT_S) -> str:
        """The first line with this text."""
        until(lambda: self.process.poll() is not None or self.find(text), within_s=within_s)
        found = self.find(text)
        assert found is not None, (text, self.lines)
        return found

    def find(self, text: str) -> str | None:
        return next((line for line in list(self.lines) if text in line), None)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(60)
        self._reading.join(10)
        return code


@contextmanager
def running(qo: Qo, *args: str) -> Iterator[Printed]:
    process = qo.start("up", "--no-watch", *args)
    try:
        yield Printed(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        until(lambda: not parts(qo))  # An archive of Spark's classes may still be made.


def test_a_pipeline_in_python_runs_with_the_code_that_lies_beside_it(qo: Qo) -> None:
    (qo.cwd / "jobs").mkdir()
    (qo.cwd / "jobs" / "climate.py").write_text(CLIMATE)
    (qo.cwd / "jobs" / "scale.py").write_text("FACTOR = 10\n")
    (qo.cwd / "scale.py").write_text("FACTOR = 3\n")  # Of the same name, and no part of it.
    first = qo("up", "jobs/climate.py", "--once", timeout_s=LIMIT_S)
    assert (first.code, first.err) == (0, ""), first
    assert "climate version 1 is new: 2 jobs" in first.out
    assert "a.txt 10" in first.out
    assert "\nscaled 2/2\n" in first.out

    for name in ("climate.py", "scale.py"):
        (qo.cwd / "jobs" / name).rename(qo.cwd / name)
    for target in ("climate:pipeline", "climate.py:pipeline"):
        again = qo("--json", "up", target, "--once", timeout_s=LIMIT_S)
        assert (again.code, again.document["version"], again.document["jobs"]) == (0, 1, []), again


def test_several_pipelines_are_deployed_in_the_order_of_their_data_and_waited_for(qo: Qo) -> None:
    for name, text in {"letters": OPERATORS, "reading": DOUBLED}.items():
        (qo.cwd / f"{name}.py").write_text(text)
    (qo.cwd / "pipeline.yaml").write_text(PIPELINE)
    (qo.cwd / "reader.yaml").write_text(READER)
    both = qo("up", "reader.yaml", ".", "--once", timeout_s=LIMIT_S)
    assert both.code == 0, both
    for text in (
        "letters version 1 is new: 3 jobs",
        "reader version 1 is new: 1 job",
        "letters: counted 2/2  shouted 2/2",
        "reader: doubled 2/2",
        "doubles: 2 rows in 2 pieces",
        "shouts: 2 rows in 2 pieces",
    ):
        assert text in both.out

    reading = qo.cwd / "reading.py"
    reading.write_text(DOUBLED.replace("2 *", "3 *"))
    again = qo("--json", "up", ".", "reader.yaml", "--once", timeout_s=LIMIT_S)
    assert again.code == 0, again
    versions = {each["dag"]: (each["version"], each["rebuilt"]) for each in again.document["pipelines"]}
    assert versions == {"letters": (1, []), "reader": (2, ["doubled"])}
    assert again.document["open"] == []

    twice = qo.here("up", "pipeline.yaml", ".")
    assert (twice.code, "give each pipeline once" in twice.err) == (2, True), twice


def test_what_others_deploy_activate_and_roll_back_is_run_and_told(qo: Qo) -> None:
    (qo.cwd / "letters.py").write_text(OPERATORS)
    (qo.cwd / "pipeline.yaml").write_text(MANUAL)
    (qo.cwd / "other.yaml").write_text(
        PIPELINE.replace("name: letters", "name: other", 1).partition("publish:")[0]
    )
    with running(qo) as up:
        up.wait_for("letters version 1 is new")
        assert "scheduler" not in parts(qo)
        qo.ok("dag", "deploy", "other.yaml")
        up.wait_for("other: version 1 is new and active (deployed by ")
        up.wait_for("other: counted 2/2  shouted 2/2")  # Its files are found, and their tasks run.

        edited = MANUAL.replace("jobs:", "defaults: {max_attempts: 2}\njobs:", 1)
        (qo.cwd / "pipeline.yaml").write_text(edited)
        qo.ok("dag", "deploy", "pipeline.yaml", "--activate")
        up.wait_for("letters: version 2 is active, in place of 1 (deployed by ")
        qo.ok("dag", "rollback", "letters")
        up.wait_for("letters: version 1 is active again: version 2 was rolled back")

        (qo.cwd / "letters.py").write_text(OPERATORS.replace("line.upper()", "line.title()"))
        qo.ok("dag", "pause", "other.shouted")
        qo.ok("dag", "deploy", "other.yaml")
        up.wait_for("other: version 2 (deployed by ")
        up.wait_for("other version 2, being built: ")
        assert up.end() == 0
        assert up.find("open: other version 2, being built: other.shouted (0 running, 2 waiting, paused)")


@pytest.mark.long
def test_once_does_not_wait_for_pipelines_that_it_was_not_given(qo: Qo) -> None:
    (qo.cwd / "letters.py").write_text(OPERATORS)
    (qo.cwd / "pipeline.yaml").write_text(PIPELINE)
    (qo.cwd / "other.yaml").write_text(MANUAL.replace("name: letters", "name: other", 1).partition("publish:")[0])
    qo.ok("dag", "deploy", "other.yaml")
    qo.ok("dag", "pause", "other")
    qo.ok("emit", "other.inbox", "--partition", "a")
    once = qo("up", "--once", timeout_s=LIMIT_S)
    assert once.code == 0, once
    assert "letters: counted 2/2  shouted 2/2" in once.out
    assert "open: other: other.counted (0 running, 1 waiting, paused)" in once.out


@pytest.mark.long
def test_a_version_of_ours_that_another_replaced_before_it_was_built_is_left_alone(qo: Qo) -> None:
    (qo.cwd / "letters.py").write_text(OPERATORS)
    (qo.cwd / "pipeline.yaml").write_text(PIPELINE)
    assert qo("up", "--once", timeout_s=LIMIT_S).code == 0
    qo.ok("dag", "pause", "letters.shouted")
    (qo.cwd / "letters.py").write_text(OPERATORS.replace("line.upper()", "line.title()"))
    with running(qo) as up:
        up.wait_for("letters version 2 is built beside version 1")
        up.wait_for("letters version 2, being built: ")
        (qo.cwd / "letters.py").write_text(OPERATORS.replace("line.upper()", "line.lower()"))
        qo.ok("dag", "deploy", "pipeline.yaml")
        line = up.wait_for("letters: version 3 (deployed by ")
        assert line.endswith("is built beside version 1, which keeps serving; version 2 is abandoned for it")
        up.wait_for("letters version 3, being built: ")
        qo.ok("dag", "resume", "letters.shouted")
        up.wait_for("letters version 3, being built: shouted 2/2")
        assert up.process.poll() is None
        assert up.end() == 0
    assert qo.json("dag", "show", "letters")["version"] == 1


@pytest.mark.long
def test_a_pipeline_that_is_deployed_beside_ours_gets_the_workers_that_it_needs(
    qo: Qo, postgres_server: PostgresServer
) -> None:
    """One on Spark, with the state of both in PostgreSQL."""
    qo = Qo(qo.cwd, {**qo.environ, "QO_STATE": postgres_server.make_database()})
    (qo.cwd / "letters.py").write_text(OPERATORS)
    (qo.cwd / "pipeline.yaml").write_text(MANUAL)
    (qo.cwd / "other.yaml").write_text(SPARK)
    with running(Qo(qo.cwd, {**qo.environ, **session.ENVIRONMENT, "QO_SPARK_UI": "1"})) as up:
        up.wait_for("letters version 1 is new")
        qo.ok("dag", "deploy", "other.yaml")
        up.wait_for("started worker:spark for other")
        up.wait_for("other: lines 2/2")
        url = up.wait_for("Spark's UI is at ").removeprefix("Spark's UI is at ")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.status == 200
        assert up.end() == 0
