"""Encrypted payloads at the command line: made with a key, read with it, and marked without it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.cli.command import Qo

APP = """
import qo
app = qo.App()

@app.task("echo")
async def echo(input):
    return input

@app.task("boom")
async def boom(input):
    raise qo.Reject(f"cannot do {input}")
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "tasks.py").write_text(APP)
    return Qo(tmp_path)


def test_with_the_key_everything_is_shown_and_without_it_that_it_is_encrypted(qo: Qo) -> None:
    key = qo.ok("key", "generate", "k1").strip()
    assert key.startswith("k1:")
    assert qo.ok("key", "generate", "k1").strip() != key
    holder = Qo(qo.cwd, {"QO_ENCRYPTION_KEYS": key})
    done, failed = (holder.json("submit", "--type", name, "--input", '"4111"')["id"] for name in ("echo", "boom"))
    assert holder("worker", "--app", "tasks:app", "--drain").code == 0
    assert holder.json("status", done)["output"] == "4111"
    assert "cannot do 4111" in holder.ok("history", failed)
    for task_id in (done, failed):
        shown = qo.ok("status", task_id)
        assert "encrypted with key k1" in shown
        assert "4111" not in shown
    assert "encrypted with key k1" in qo.ok("history", failed)
    config = holder.ok("config", "show")
    assert "(set)" in config
    assert key not in config


def test_a_wrong_key_is_an_error_that_does_not_show_it(qo: Qo) -> None:
    answer = Qo(qo.cwd, {"QO_ENCRYPTION_KEYS": "k1:c2hvcnQ="})("list")
    assert answer.code == 2
    assert "5 bytes instead of 32" in answer.err
    assert "c2hvcnQ" not in answer.err
    assert Qo(qo.cwd, {"QO_ENCRYPTION_REQUIRED": "1"})("list").code == 2
    assert qo("key", "generate", "a b").code == 2


def test_a_list_marks_tasks_that_no_running_worker_handles(qo: Qo) -> None:
    task = qo.ok("submit", "--type", "nobodys").strip()
    worker = qo.start("worker", "--app", "tasks:app", "--no-monitor")
    try:
        deadline = time.monotonic() + 40
        while "no handler" not in (listed := qo.ok("list")):
            assert time.monotonic() < deadline, listed
            time.sleep(0.2)
        assert task in listed
        assert "pending, no handler" in listed
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
