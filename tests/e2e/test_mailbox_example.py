"""The example in examples/mailbox, as its reader would run it: to its end, and stopped by Ctrl+C once and twice."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "mailbox" / "mailbox.py"
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("QO_", "S3_", "AWS_"))}


def module() -> Any:
    spec = importlib.util.spec_from_file_location("mailbox_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def start(cwd: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), *args]
    return subprocess.Popen(
        command, cwd=cwd, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """What it logs up to the first line that matches."""
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or not re.search(pattern, lines[-1]):
        lines.append(process.stderr.readline())
        assert lines[-1], "it ended: " + "".join(lines)
    return lines


def expected_dead(tasks: int) -> int:
    example = module()
    attempts = range(1, example.RETRIES_MAX + 2)
    return sum(all(example.fails(number, attempt) for attempt in attempts) for number in range(tasks))


@pytest.mark.timeout(120)
def test_a_hundred_tasks_on_four_slots_all_end_and_as_many_fail_as_chance_has_it(tmp_path: Path) -> None:
    out, log = start(tmp_path, "--speed", "500").communicate(timeout=100)
    dead = expected_dead(100)
    assert 1 <= dead <= 15
    assert f"{100 - dead} completed, {dead} in the dead letters, 0 still to do" in out
    assert log.count("went to the dead letters") == dead
    assert len(re.findall(r"begins attempt 3 at number \d+", log)) >= dead
    assert re.search(
        r"processed \d+, succeeded \d+, failed attempts \d+, dead letters \d+; \d of 4 slots busy", log
    )
    workers = set(re.findall(r"worker (\S+) begins attempt", log))
    assert len(workers) == 1, "every line names the one worker"


@pytest.mark.timeout(120)
def test_the_first_interrupt_lets_running_tasks_finish_and_the_next_run_does_the_rest(tmp_path: Path) -> None:
    process = start(tmp_path, "--speed", "10", "--tasks", "12")
    read_until(process, "begins attempt 1")
    process.send_signal(signal.SIGINT)
    out, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    done = re.search(r"this run: (\d+) completed, (\d+) failed attempts, (\d+) given back", out)
    assert done is not None, out
    assert 1 <= int(done[1]) + int(done[2]) <= 8, "those that ran, and none that waited"
    assert re.search(r"[1-9]\d* still to do", out)
    again, _ = start(tmp_path, "--speed", "10", "--tasks", "12").communicate(timeout=100)
    dead = expected_dead(12)
    assert f"{12 - dead} completed, {dead} in the dead letters, 0 still to do" in again


@pytest.mark.timeout(120)
def test_the_second_interrupt_gives_running_tasks_back_at_once(tmp_path: Path) -> None:
    process = start(
        tmp_path, "--speed", "0.1", "--tasks", "4"
    )  # Half a minute each: far longer than the test waits.
    read_until(process, "begins attempt 1")
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    read_until(process, "running tasks may finish")
    process.send_signal(signal.SIGINT)
    out, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert time.monotonic() - started < 15
    assert "4 still to do; this run: 0 completed, 0 failed attempts" in out
    given_back = re.search(r"(\d+) given back", out)
    assert given_back is not None
    assert 1 <= int(given_back[1]) <= 8
