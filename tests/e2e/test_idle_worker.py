"""A worker as a process that ends by itself when it has nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli.command import Qo


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    return Qo(tmp_path)


def test_a_worker_without_work_ends_with_exit_code_0_after_its_idle_timeout(qo: Qo) -> None:
    (qo.cwd / "idle_tasks.py").write_text(
        "import qo\n\napp = qo.App()\n\n\n@app.task('ping')\nasync def ping(input: object) -> str:\n    return 'pong'\n"
    )
    qo.ok("submit", "--type", "ping")
    answer = qo("worker", "--app", "idle_tasks:app", "--idle-timeout", "0", "--poll-max-ms", "200", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["completed"] == 1
    assert "ending: there was no task for" in answer.err
