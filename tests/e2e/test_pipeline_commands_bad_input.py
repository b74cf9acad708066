"""Bad input to the commands for pipelines: one line that names the mistake, and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli.command import Answer, Qo

SHOP = """
name: shop
jobs:
  - name: orders
    activation: source
    outputs: 1
    source: {kind: manual}
  - name: mail
    activation: reactive
    runtime: python
    operator: shop.mail:run
    outputs: 0
    execution_strategy: PerPartition
    inputs:
      - from: {job: orders}
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "shop.yaml").write_text(SHOP)
    return Qo(tmp_path)


@pytest.fixture
def shop(qo: Qo) -> Qo:
    """With one partition of ``shop.orders``."""
    qo.ok("dag", "deploy", "shop.yaml")
    qo.ok("emit", "shop.orders", "-p", "a")
    return qo


def refused(answer: Answer, code: int, *said: str) -> str:
    """The one line that a refused command prints."""
    assert (answer.code, answer.out) == (code, ""), answer
    (line,) = answer.err.splitlines()
    assert line.startswith("error: ")
    for each in said:
        assert each in line, line
    return line


def test_a_broken_value_is_blamed_on_the_option_that_holds_it(qo: Qo) -> None:
    line = refused(qo.here("emit", "shop.orders", "-p", "a", "-a", "{bad"), 2, "--attributes")
    assert "--input" not in line
    refused(qo.here("submit", "-t", "email", "--input", "{bad"), 2, "--input")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "list", "nope"], "there is no DAG 'nope'"),
        (["run", "list", "nope.orders"], "there is no DAG 'nope'"),
        (["run", "list", "shop.nope"], "'shop' has no job 'nope'"),
        (["dataset", "list", "--dag", "nope"], "there is no DAG 'nope'"),
        (["dataset", "partitions", "shop.orders", "--generation", "zzz"], "shop.orders has no generation 'zzz'"),
        (["invalidate", "shop.orders@nope"], "shop.orders has no partition 'nope'"),
    ],
)
def test_what_there_is_not_is_named(shop: Qo, args: list[str], said: str) -> None:
    refused(shop.here(*args), 3, said)


def test_what_there_is_can_be_empty(shop: Qo) -> None:
    assert shop.json("run", "list", "shop", "--status", "failed") == []
    assert shop.json("run", "list", "shop.mail") == []
    assert shop.ok("invalidate", "shop.orders@a").strip()
    assert shop.ok("invalidate", "shop.orders", "--start", "1", "--end", "2").strip()
    assert shop.ok("invalidate", "shop.orders", "--all").strip()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["emit", "shop.orders", "--cursor", "-5"], "--cursor"),
        (["emit", "shop.orders", "-p", "a", "--start", "-1", "--end", "2"], "--start"),
        (["emit", "shop.orders", "-p", "a", "--output", "-1"], "--output"),
        (["invalidate", "shop.orders", "--start", "-1", "--end", "2"], "--start"),
        (["emit", "shop.orders", "--cursor", "9" * 30], "cursor"),
        (["emit", "shop.orders", "-p", "a", "--key", "k" * 5000], "idempotency_key"),
        (["why", "shop.orders@cursor:abc"], "cursor:N"),
        (["why", "shop.orders@cursor:"], "cursor:N"),
    ],
)
def test_a_value_out_of_bounds_is_one_clear_line(shop: Qo, args: list[str], said: str) -> None:
    assert "detail" not in refused(shop.here(*args), 2, said)


@pytest.mark.parametrize(
    "args",
    [
        ["emit", "shop.orders", "-p", "k" * 5000],
        ["emit", "shop.orders", "-p", "k k" * 2000],
        ["emit", "k" * 5000, "-p", "a"],
        ["why", "k" * 600],
        ["run", "show", "k" * 5000],
        ["dataset", "show", "k" * 300],
        ["k" * 5000],
    ],
)
def test_a_long_text_is_not_echoed_whole(shop: Qo, args: list[str]) -> None:
    answer = shop.here(*args)
    assert answer.code in (2, 3), answer
    assert len(answer.err) < 500
    assert "k" * 100 not in answer.err


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("QO_DISPATCHER_URL", "http://user:hunter2@127.0.0.1:1", "QO_TOKEN"),
        ("QO_DISPATCHER_URL", "user:hunter2@127.0.0.1:1", ""),
        ("QO_DISPATCHER_URL", "http://127.0.0.1:1/?token=hunter2", ""),
        ("QO_DISPATCHER_INTERNAL_URL", "http://user:hunter2@127.0.0.1:1", "QO_WORKER_TOKEN"),
        ("S3_ENDPOINT", "http://user:hunter2@127.0.0.1:1", "AWS_SECRET_ACCESS_KEY"),
        ("QO_STATE", "mysql://user:hunter2@127.0.0.1/state", "postgresql://"),
        ("QO_STORE", "s3://user:hunter2@bucket", "s3://BUCKET"),
    ],
)
def test_a_setting_with_credentials_is_refused_without_repeating_them(
    qo: Qo, name: str, value: str, instead: str
) -> None:
    line = refused(Qo(qo.cwd, {name: value}).here("dag", "list"), 2, name, instead)
    assert "hunter2" not in line
    if "AWS" not in instead:
        assert "AWS" not in line


SLOW = """
import importlib.abc, os, signal, sys, time

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)

sys.meta_path.insert(0, Slow())
signal.signal(signal.SIGINT, signal.default_int_handler)  # Who runs the tests may have been told to ignore it.
from qo.cli.entry import main
sys.exit(main())
"""


def test_an_interrupt_while_the_program_loads_ends_it_quietly(qo: Qo) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW], cwd=qo.cwd, env=qo.environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_later_ends_it_quietly_too(qo: Qo) -> None:
    process = qo.start("dispatcher", "--listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0", "--json")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "Traceback" not in err


def test_the_workers_of_a_runtime_are_looked_for_in_its_own_queue(shop: Qo) -> None:
    assert shop.json("worker", "list", "--runtime", "python") == []
    assert shop.ok("pause", "--runtime", "python", "--reason", "a look").startswith("the queue is paused")
    assert "the queue is paused" in shop.here("worker", "list", "--runtime", "python").err
    assert "paused" not in shop.here("worker", "list").err
    assert "qo worker list --runtime python, qo worker list --runtime spark" in shop.here("worker", "list").err
    assert "goes on" in shop.ok("resume", "--runtime", "python")
    assert shop.here("drain", "nobody", "--runtime", "python").code == shop.here("drain", "nobody").code
    refused(shop.here("worker", "list", "--runtime", "nope"), 3, "there is no runtime 'nope'")
    refused(shop.here("worker", "list", "--runtime", "lambda"), 2, "has no workers")


@pytest.mark.parametrize("command", [["dag", "list"], ["db", "status"], ["db", "upgrade"], ["dispatcher"]])
@pytest.mark.parametrize("damage", ["foreign", "malformed"])
def test_a_state_file_that_is_damaged_is_said_in_one_line(shop: Qo, command: list[str], damage: str) -> None:
    path = shop.cwd / ".qo/state.db"
    for beside in path.parent.glob("state.db-*"):
        beside.unlink()
    if damage == "foreign":
        path.write_bytes(b"This is no database, whatever its name says.\n" * 200)
    else:
        with path.open("r+b") as file:
            file.seek(100)
            file.write(os.urandom(path.stat().st_size - 100))
    refused(shop.here(*command), 7, "state database", "backup")


def test_why_of_a_job_without_datasets_tells_of_its_task(shop: Qo) -> None:
    refused(shop.here("why", "shop.nope@a"), 3, "there is no dataset")
    assert "shop.mail" in shop.ok("why", "shop.mail@a")
    assert shop.json("why", "shop.mail@b")["verdict"] == "unknown"
