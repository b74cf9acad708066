"""A worker of ``qo up`` that ended because it had nothing to do is no death, and is started again for new work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qo.up.child_main import WORKER
from qo.up.process_group import ChildProcess
from qo.worker.lifeline import Lifeline

pytestmark = pytest.mark.fast


class Runs(ChildProcess):
    """Processes that end at once with these codes, and then stay until they are stopped."""

    codes: list[int]
    stays: asyncio.Event

    async def _run_once(self) -> int:
        if self.codes:
            return self.codes.pop(0)
        self.stays.set()
        await self._stop_requested.wait()
        return 0


async def test_a_worker_that_ends_with_0_has_retired_and_can_be_started_again(tmp_path: Path) -> None:
    lifeline = Lifeline()
    child = Runs(f"{WORKER}python", {}, lifeline=lifeline, environ={}, logs=tmp_path)
    child.codes, child.stays = [0], asyncio.Event()
    child.start()
    await asyncio.wait({each for each in asyncio.all_tasks() if each.get_name() == f"qo-{child.role}"}, timeout=10)
    assert child.has_retired
    child.check()
    child.start()
    assert not child.has_retired
    async with asyncio.timeout(10):
        await child.stays.wait()
    await child.stop()
    lifeline.close()
    assert child.deaths == 0
