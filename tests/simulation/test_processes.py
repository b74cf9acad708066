"""The processes of the simulation: everything that runs belongs to one, and whoever is stopped or dead does nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from qo.errors import Unavailable
from qo.queue.options import NewTask
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.config import WorkerConfig
from qo.worker.worker import Worker
from simulation.engine import machines, worker
from simulation.engine.faults import Faults
from simulation.engine.line import Line, Perils
from simulation.engine.playing import limit_cpu

SECONDS = 60.0


def _attempt(worker_id: str) -> Any:
    return SimpleNamespace(task_id="t", attempt=1, worker_id=worker_id)


def _worker(world: worker.World) -> Worker:
    """With a single slot and an inbox, from which the runner starts attempts in the context that it was built in."""
    app = App()

    @app.task("quick")
    async def quick(input: int, ctx: Context) -> None:
        with world.alone(ctx):
            await asyncio.sleep(0.01)

    return Worker(world.plain(), app, WorkerConfig(worker_id="w", concurrency=1, inbox_capacity=3))


async def _work(*, built_inside: bool) -> worker.World:
    world, loop = worker.World(Faults(0)), machines.machines()
    await world.plain().submit_many([NewTask("quick", n) for n in range(12)])
    built = loop.context("w").run(_worker, world) if built_inside else _worker(world)
    loop.spawn("w", built.run())
    await asyncio.sleep(SECONDS)
    return world


def test_an_attempt_of_no_process_fails_the_run() -> None:
    """Neither a pause nor a kill would reach it: it would run on as a ghost."""
    with pytest.raises(AssertionError, match=r"attempt 1 at .* belongs to no process"):
        machines.run(_work(built_inside=False))


def test_a_worker_that_is_built_inside_its_process_has_no_such_attempts() -> None:
    world = machines.run(_work(built_inside=True))
    assert (len(world.begun), world.wrong) == (12, [])


def test_an_attempt_in_the_process_of_another_worker_fails_the_run() -> None:
    async def act() -> None:
        with worker.World(Faults(0)).alone(_attempt("w2")):
            await asyncio.sleep(SECONDS)

    async def main() -> None:
        await machines.machines().spawn("w1", act())

    with pytest.raises(AssertionError, match="of w2 runs in w1"):
        machines.run(main())


def test_a_refusal_ends_the_run_at_once() -> None:
    ended_at: list[float] = []

    async def main() -> None:
        machines.machines().refuse("no use to go on")
        try:
            await asyncio.sleep(SECONDS)
        finally:
            ended_at.append(virtual.monotonic())

    with pytest.raises(AssertionError, match="no use to go on"):
        machines.run(main())
    assert ended_at == [0.0]


def test_a_request_over_the_line_of_another_process_fails_the_run() -> None:
    async def main() -> None:
        line = machines.machines().context("w").run(_line, MemoryStore(clock=virtual.wall_clock), Perils())
        await line.put("key", b"")

    with pytest.raises(AssertionError, match=r"request w\.1 of 'w' was sent by ''"):
        machines.run(main())


def _line(truth: MemoryStore, perils: Perils) -> Line:
    """The seed was chosen so that its first request is stopped on its way to the store, not on its way back."""
    return Line("w", truth, perils, Faults(1))


@pytest.mark.parametrize("perils", [Perils(pause=1.0, pause_s=(SECONDS, SECONDS)), Perils(crash=1.0)])
def test_whoever_is_killed_in_a_request_writes_nothing_when_it_is_buried(perils: Perils) -> None:
    """Also if it was paused there, and killed before it could go on."""
    ends: list[BaseException] = []

    async def act(truth: MemoryStore) -> None:
        writing = asyncio.ensure_future(_line(truth, perils).put("key", b""))
        writing.add_done_callback(lambda done: ends.append(done.exception() or AssertionError("it was written")))
        await asyncio.sleep(1_000_000)  # Burial cancels this. What goes on beside it learns nothing of that.

    async def main() -> object:
        truth, loop = MemoryStore(clock=virtual.wall_clock), machines.machines()
        loop.spawn("w", act(truth))
        await asyncio.sleep(1)
        assert await truth.get("key") is None, "it was stopped on its way back"
        loop.kill("w")
        await asyncio.sleep(2 * SECONDS)
        assert ends == [], "who is dead does nothing"
        await loop.bury()
        await asyncio.sleep(0)
        return await truth.get("key")

    assert machines.run(main()) is None
    assert [type(each) for each in ends] == [Unavailable]


def test_whoever_is_killed_in_the_turn_in_which_its_pause_ends_stays_dead() -> None:
    async def main() -> list[float]:
        loop, woken = machines.machines(), list[float]()

        async def act() -> None:
            await asyncio.sleep(1)
            woken.append(virtual.monotonic())

        loop.spawn("w", act())
        await asyncio.sleep(0)
        loop.call_later(5, loop.kill, "w")
        loop.pause("w", 5)
        await asyncio.sleep(SECONDS)
        return list(woken)

    assert machines.run(main()) == []


def test_an_order_reaches_a_stopped_process_when_it_goes_on_and_a_dead_one_never() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, came = machines.machines(), list[tuple[str, float]]()
        for name in ("stopped", "dead"):
            loop.pause(name, 5)
            loop.call_in(name, lambda: came.append((machines.PROCESS.get(), virtual.monotonic())))
        loop.kill("dead")
        await asyncio.sleep(SECONDS)
        return list(came)

    assert machines.run(main()) == [("stopped", 5.0)]


async def _spin() -> None:
    while True:  # noqa: ASYNC110 - This is what the run must notice.
        await asyncio.sleep(0)


def test_a_process_that_asks_again_without_waiting_fails_the_run() -> None:
    async def world() -> None:
        machines.machines().spawn("w", _spin())
        await asyncio.sleep(SECONDS)

    with pytest.raises(AssertionError, match="without time going by"):
        machines.run(world())


def test_a_seed_that_never_ends_fails() -> None:
    async def ask_without_rest() -> None:
        news = asyncio.Event()
        news.set()
        while True:
            await news.wait()

    with pytest.raises(AssertionError, match="still running after"), limit_cpu(0.2):
        machines.run(ask_without_rest())
