"""The threads that attempts of Spark run on: kept and used again, because each has one of Java behind it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from qo.agent.operators import Threads, on_thread

pytestmark = pytest.mark.fast


async def test_a_thread_that_is_done_takes_the_next_call() -> None:
    threads = Threads("kept")
    names = [await on_thread(threading.get_ident, begin=threads.begin) for _ in range(20)]
    assert len(set(names)) == 1
    assert threading.get_ident() not in names


async def test_calls_at_the_same_time_have_a_thread_each() -> None:
    threads, together = Threads("kept"), threading.Barrier(3, timeout=30)

    def meet() -> int:
        together.wait()
        return threading.get_ident()

    met = await asyncio.gather(*(on_thread(meet, begin=threads.begin) for _ in range(3)))
    assert len(set(met)) == 3


async def test_a_call_that_fails_or_is_left_behind_costs_no_other_its_thread() -> None:
    threads, gate = Threads("kept"), threading.Event()

    def fail() -> None:
        raise SystemExit(1)

    left = asyncio.create_task(on_thread(gate.wait, begin=threads.begin))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(Exception, match="SystemExit"):
        await on_thread(fail, begin=threads.begin)
    assert await on_thread(lambda: "done", begin=threads.begin) == "done"
    gate.set()
