"""The process of a version, as the worker ends it."""

from __future__ import annotations

import asyncio
import signal

import pytest

from qo.agent.code import version_processes
from qo.agent.code.version_processes import VersionProcess


async def test_a_process_that_does_not_end_is_killed_also_by_a_worker_that_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(version_processes, "GRACE_S", 0.1)
    child = await asyncio.create_subprocess_exec(
        "sleep",
        "600",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    process = VersionProcess(child, idle_s=600.0)
    begun = asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await process.close()

    working = asyncio.create_task(work())
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert child.returncode == -signal.SIGKILL
