"""``qo up`` after a change: a new version reads its own data, and one that was rolled back stays so."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from support.cli.command import Qo

# Many processes of their own.
pytestmark = pytest.mark.timeout(300)

LIMIT_S = 120.0
PIPELINE = """\
name: weather
jobs:
  - name: readings
    activation: source
    source: {kind: files, path: readings, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: months
    activation: source
    source: {kind: files, path: months, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: day
    activation: reactive
    runtime: python
    operator: weather:day
    inputs: [{from: {job: readings}}]
    execution_strategy: PerPartition
    outputs: 1
  - name: month
    activation: reactive
    runtime: python
    operator: weather:month
    inputs: [{from: {job: months}}, {from: {job: day}, trigger: false}]
    execution_strategy: PerPartition
    outputs: 1
publish:
  monthly: {from: {job: month}}
"""

OPERATORS = """\
import time


def day(run):
    time.sleep(0.1)
    run.output().write("day.txt", f"{1 * sum(int(body) for body in run.input('readings').read())}\\n", rows=1)


def month(run):
    days = [int(line) for line in run.input("day").lines()]
    run.output().write("month.txt", f"days {len(days)}, sum {sum(days)}\\n", rows=1)
"""

FAILS = """\
    import qo
    if run.partition_key == "3.txt":
        raise qo.Reject("this day cannot be read")"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A site with two versions, of which the second serves, and what was printed as that was built."""
    qo = Qo(tmp_path_factory.mktemp("weather"))
    (qo.cwd / "pipeline.yaml").write_text(PIPELINE)
    (qo.cwd / "weather.py").write_text(OPERATORS)
    for name in ("readings", "months"):
        (qo.cwd / name).mkdir()
    for number in range(1, 7):
        (qo.cwd / "readings" / f"{number}.txt").write_text(str(number))
    (qo.cwd / "months" / "2024-01.txt").write_text("")
    up(qo)
    (qo.cwd / "weather.py").write_text(OPERATORS.replace("1 * sum", "10 * sum"))
    return qo.cwd, up(qo)


@pytest.fixture
def qo(built: tuple[Path, str], tmp_path: Path) -> Qo:
    """A copy of that site: its places are relative to its directory."""
    shutil.copytree(built[0], tmp_path / "site", symlinks=True)
    return Qo(tmp_path / "site")


def up(qo: Qo, *options: str) -> str:
    answer = qo("up", "--once", *options, timeout_s=LIMIT_S)
    assert answer.code == 0, answer.err + answer.out
    return answer.out


def test_a_table_that_reads_another_beside_is_made_of_all_of_it(built: tuple[Path, str]) -> None:
    _, printed = built
    assert "version 2 has taken over from 1" in printed
    assert "days 6, sum 210" in printed


@pytest.mark.long
def test_it_ends_where_all_that_is_left_waits_for_what_failed(qo: Qo) -> None:
    (qo.cwd / "weather.py").write_text(OPERATORS.replace("    time.sleep(0.1)", FAILS))
    answer = qo("up", "--once", timeout_s=LIMIT_S)
    assert answer.code == 1, answer.out + answer.err
    assert "version 3 has taken over" not in answer.out
    assert qo.json("dag", "show", "weather")["version"] == 2
    assert "1 task of day failed" in qo.ok("dag", "show", "weather", "--version", "3")


@pytest.mark.long
def test_a_version_that_was_rolled_back_takes_over_only_on_request(qo: Qo) -> None:
    qo.ok("dag", "rollback", "weather")
    refused = qo("up", "--once", timeout_s=LIMIT_S)
    assert (refused.code, "version 2 of 'weather' was rolled back on " in refused.err) == (4, True), refused.err
    assert "is built beside" not in refused.out
    assert "was rolled back" in qo.ok("dag", "diff", "pipeline.yaml")
    assert qo.here("dag", "deploy", "pipeline.yaml").code == 4
    assert "version 2 has taken over from 1" in up(qo, "--again")


def test_who_sits_at_a_terminal_is_asked_whether_it_is_meant(qo: Qo) -> None:
    qo.ok("dag", "rollback", "weather")
    assert _at_terminal(qo, "n")[0] == 4
    code, told = _at_terminal(qo, "y")
    assert (code, "weather version 2  staged" in told) == (0, True), told


def _at_terminal(qo: Qo, answer: str) -> tuple[int, str]:
    """Deploy at a terminal, and answer the question; the exit code and what was to be seen."""
    master, slave = pty.openpty()
    command, ends = (
        qo.command("dag", "deploy", "pipeline.yaml"),
        {"stdin": slave, "stdout": slave, "stderr": slave},
    )
    with subprocess.Popen(command, cwd=qo.cwd, env=qo.environment, **ends) as process:
        os.close(slave)
        told, deadline = "", time.monotonic() + 60
        answered = False
        while time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    told += os.read(master, 4096).decode()
                except OSError:
                    break  # The other end is closed.
            if "[y/N]" in told and not answered:
                os.write(master, f"{answer}\n".encode())
                answered = True
        os.close(master)
        assert answered, told
        return process.wait(30), told
