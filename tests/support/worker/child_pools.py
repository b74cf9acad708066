"""Pools of child processes for tests, and what runs in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qo.worker.api.request import Request
from qo.worker.executors.processes import ProcessExecutor
from qo.worker.loop.outcome import Outcome, outcome_of
from support.stores.queues import until
from support.worker.attempts import Attempts


class Pool(ProcessExecutor):
    """Counts what came back."""

    def __init__(self, slots: int = 2, **options: Any) -> None:
        self.returned = 0
        super().__init__(slots, on_late_return=self._count, **{"tasks_max": 0, "memory_max_mb": 0, **options})

    def _count(self) -> None:
        self.returned += 1

    @property
    def pids(self) -> set[int]:
        return {child.pid for child in self._children}


@asynccontextmanager
async def pool_of(slots: int = 2, **options: Any) -> AsyncIterator[Pool]:
    pool = Pool(slots, **options)
    try:
        yield pool
    finally:
        pids = pool.pids
        pool.close()
        assert not any(alive(pid) for pid in pids), "no child outlives its pool"
        await asyncio.sleep(0)  # The loop closes its ends.


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with pool_of(kill_after_s=1.0) as pool:
        yield pool


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def holds(condition: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def ask() -> Any:
        return condition()

    return ask


async def begun(path: Path) -> int:
    """The process that a function runs in, once it does."""
    return int(await until(holds(lambda: path.exists() and path.read_text()), within_s=60))


async def ends(pid: int) -> None:
    await until(holds(lambda: not alive(pid)))


async def failure(pool: Pool, request: Request) -> Outcome:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what it means is looked at below.
        await pool.call(request)
    return outcome_of(raised.value)
