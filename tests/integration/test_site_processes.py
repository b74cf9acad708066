"""The processes of an installation, and how they end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.up import process_group
from qo.up.process_group import ChildProcess
from qo.worker import lifeline as lifeline_module
from qo.worker.lifeline import Lifeline

HUNG = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("{}", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def lifeline() -> Iterator[Lifeline]:
    made = Lifeline()
    yield made
    made.close()


def child(path: Path, lifeline: Lifeline, **environ: str) -> ChildProcess:
    return ChildProcess("scheduler", {}, lifeline=lifeline, environ={**os.environ, **environ}, logs=path)


async def test_a_stop_waits_for_no_rest_before_a_restart(
    tmp_path: Path, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifeline_module, "BACKOFF_S", (3600.0,))
    dying = child(tmp_path, lifeline)  # Without settings it cannot do anything.
    async with asyncio.timeout(60):
        dying.start()
        while not dying.deaths:  # noqa: ASYNC110 - it is a number.
            await asyncio.sleep(0.01)
        with caplog.at_level(logging.WARNING):
            await dying.stop()
    assert "was killed" not in caplog.text


async def test_who_does_not_end_is_killed_as_soon_as_that_is_wanted(
    tmp_path: Path, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "GRACE_S", 3600.0)
    (tmp_path / "sitecustomize.py").write_text(HUNG)
    hung = child(tmp_path, lifeline, PYTHONPATH=str(tmp_path))
    async with asyncio.timeout(60):
        hung.start()
        await hung.first_message(60)
        stopping = asyncio.create_task(hung.stop())
        await asyncio.sleep(0)
        hung.kill()
        await stopping
    assert hung.deaths == 0
