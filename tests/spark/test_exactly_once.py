"""Exactly once, under fire: whatever happens to workers and dispatcher, the tables are those of a quiet day.

Real processes and real signals. Every test has a pipeline of its own, on one site; workers that survive a test do the
work of the next.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from qo.config.location import local_path
from qo.config.settings import Settings
from qo.queue.options import NewTask
from qo.spark.io.appending import uris_of
from qo.spark.io.reader import pin
from support.dispatcher.sites import Process
from support.process_family import family_of, pause, paused, resume
from support.spark.sites import (
    DAYS,
    WITHIN_S,
    Flow,
    Plant,
    Row,
    daily_of,
    land,
    orders_of,
    planted,
    rows_of,
    shop,
)
from support.stores.queues import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)]
)
async def plant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plant]:
    on_postgres = request.param == "postgres"
    state_url = request.getfixturevalue("postgres_server").make_database() if on_postgres else None
    async with planted(tmp_path_factory.mktemp("plant") / "site", state_url) as plant:
        yield plant


# Two workers, one task


@pytest.mark.long
async def test_workers_that_race_for_every_task_do_each_once(plant: Plant) -> None:
    """Everyone is woken for everything, many times over."""
    racing = await plant.workers("w1", "w2")
    flow = await plant.flow("race", adding=2)
    await flow.emit(*DAYS)
    async with plant.site.queue() as queue:
        done, woken = asyncio.create_task(flow.completed()), set[str]()
        while not done.done():
            fresh = {row["id"] for row in await asyncio.to_thread(flow.tasks)} - woken
            await queue.submit_many([NewTask("wake", {"task_id": each}) for each in fresh for _ in range(5)])
            woken |= fresh
            await asyncio.wait({done}, timeout=0.2)
        await done
    # Who wants to add to what another has just added to, looks again.
    once = Counter((name, outcome) for name, _, outcome in flow.attempts() if outcome != "released")
    assert once == {**{(name, "completed"): len(DAYS) for name in flow.jobs}, ("feed", "completed"): 1}
    assert {name for name, _, outcome in flow.attempts() if outcome == "released"} <= {"ledger"}
    assert {row["worker_id"] for row in flow.tasks() if row["job"] != "feed"} == {"w1", "w2"}
    ids = {row["id"] for row in flow.tasks()}
    lost = [line for each in racing for line in each.said.splitlines() if "the lease is lost" in line]
    assert [line for line in lost if any(task_id in line for task_id in ids)] == []
    flow.audit()
    assert flow.tables() == flow.expected


# Zombies


async def written(flow: Flow, job: str, day: str) -> Mapping[str, Any] | None:
    """The task, as soon as all files of its attempt are there; None: it was completed before we saw them."""

    async def seen() -> tuple[Mapping[str, Any] | None] | None:
        (row,) = [each for each in flow.tasks(job) if each["partition_key"] == day] or [None]
        if row is None or row["status"] == "pending":
            return None
        if row["status"] == "completed":
            return (None,)
        return (row,) if files_of(flow, row["id"], row["attempt"]) else None

    (found,) = await until(seen, within_s=WITHIN_S, every_s=0.01)
    return found


def files_of(flow: Flow, task_id: str, attempt: int) -> list[Path]:
    return [
        path for path in flow.site.data.glob(f"*/*/{task_id}/{attempt}/*.parquet") if not path.name.startswith(".")
    ]


@pytest.mark.long
async def test_a_worker_that_was_paused_past_its_lease_commits_nothing(plant: Plant) -> None:
    """It stands still with its files written and its word unsaid, while another does its task. Then it goes on.

    Once with its JVM, as a machine does that is paused; once without, so that Spark goes on and nobody listens.
    """
    by_name = dict(zip(("w1", "w2"), await plant.workers("w1", "w2"), strict=True))
    # To look at the rows once more takes the time in which it can be caught.
    flow = await plant.flow("paused", ledger=False, expectations=[{"unique": ["id"]}])
    flow.days, caught = [], list[Mapping[str, Any]]()
    for day in (f"2024-04-{number:02}" for number in range(1, 11)):  # As many as it takes.
        if len(caught) == 2:
            break
        land(flow.landing, orders_of(day))
        flow.days = [*flow.days, day]
        await flow.emit(day)
        if (row := await written(flow, "clean", day)) is None:
            continue
        zombie = by_name[row["worker_id"]]
        with paused(*([zombie.process.pid] if caught else family_of(zombie.process.pid))):
            in_time = await overtaken(flow, row)
        if in_time:
            await gives_up(zombie, row["id"])
            caught.append(row)
    assert len(caught) == 2, "no attempt could be caught between its files and its end"
    await flow.completed()
    flow.audit()
    assert flow.tables() == flow.expected
    left = {path for row in caught for path in files_of(flow, row["id"], row["attempt"])}
    committed = {local_path(uri) for uri in uris_of(flow.pieces("clean"))}
    assert len(left) >= 2
    assert not committed & left
    assert all(path.exists() for path in committed)


async def overtaken(flow: Flow, row: Mapping[str, Any]) -> bool:
    """Wait for the end of the task; False: it was the attempt at hand that had completed it."""

    await asyncio.to_thread(flow.site.lapse, row["worker_id"])

    async def ended() -> Mapping[str, Any] | None:
        await asyncio.to_thread(flow.site.hasten)
        (now,) = [each for each in await asyncio.to_thread(flow.tasks, "clean") if each["id"] == row["id"]]
        return now if now["status"] == "completed" else None

    return (await until(ended, within_s=WITHIN_S, every_s=0.1))["attempt"] > row["attempt"]


async def gives_up(zombie: Process, task_id: str) -> None:
    """Wait until it knows that the task is no longer its own."""

    async def heard() -> bool:
        lines = [line for line in zombie.said.splitlines() if task_id in line]
        return any("the lease is lost" in line or "was refused" in line for line in lines)

    await until(heard, within_s=WITHIN_S, every_s=0.05)


# The dispatcher


async def test_a_dispatcher_killed_while_results_come_in_loses_and_doubles_none(plant: Plant) -> None:
    await plant.workers("w1", "w2")
    flow = await plant.flow("restarted")
    await flow.emit(*DAYS)
    for enough in (3, 8):

        async def coming_in() -> bool:
            return sum(row["status"] == "completed" for row in flow.tasks()) >= enough  # noqa: B023 - used at once.

        await until(coming_in, within_s=WITHIN_S, every_s=0.05)
        plant.serving.signal(signal.SIGKILL)
        assert await plant.serving.code() == -signal.SIGKILL
        await plant.serve()
    await flow.completed()
    flow.audit()
    assert flow.tables() == flow.expected


# Readers


class Reader(threading.Thread):
    """Reads a dataset again and again, as ``qo.read`` does, and knows every state that each day may be in."""

    def __init__(self, settings: Settings, name: str, states: Sequence[Mapping[str, list[Row]]]) -> None:
        super().__init__(name="reader", daemon=True)
        self._settings, self._dataset, self._states = settings, name, states
        self.seen = Counter[tuple[int, ...]]()  # The state of each day, as they were seen together.
        self.wrong: list[str] = []
        self._stop_it = threading.Event()

    def run(self) -> None:
        before = (0,) * len(DAYS)
        while not self._stop_it.wait(0.05):  # The processor is for those that are watched.
            try:
                now = self._look()
            except Exception as error:
                self.wrong.append(repr(error))
                continue
            if any(then > state for then, state in zip(before, now, strict=True)):
                self.wrong.append(f"went back from {before} to {now}")
            self.seen[now] += 1
            before = now

    def _look(self) -> tuple[int, ...]:
        by_day: dict[str, list[Row]] = {}
        for row in rows_of(pin(self._settings, self._dataset).pieces):
            by_day.setdefault(row[0], []).append(row)
        assert sorted(by_day) == DAYS, f"days are missing: {sorted(by_day)}"
        return tuple(self._state(day, by_day[day]) for day in DAYS)

    def _state(self, day: str, rows: list[Row]) -> int:
        return next(number for number, state in reversed(list(enumerate(self._states))) if state[day] == rows)

    def stop(self) -> None:
        self._stop_it.set()
        self.join()


async def test_no_reader_ever_sees_a_mixture(plant: Plant) -> None:
    """Partitions are replaced one by one, then the whole table by that of an edited pipeline."""
    await plant.workers("w1", "w2")
    flow = await plant.flow("read", ledger=False)
    await flow.emit(*DAYS)
    await flow.completed()
    again = DAYS[1:3]
    dearer = {day: orders_of(day, 7 if day in again else 0) for day in DAYS}
    states = [
        {day: daily_of(orders_of(day)) for day in DAYS},
        {day: daily_of(dearer[day]) for day in DAYS},
        {day: daily_of(dearer[day], 2) for day in DAYS},
    ]
    reader = Reader(plant.site.settings, "read_daily", states)
    reader.start()
    try:
        await saw(reader, tuple(int(day not in again) for day in DAYS))
        for day in again:
            land(flow.landing, dearer[day])
        asked = {"dag": "read", "job": "orders", "from_key": again[0], "to_key": again[-1]}
        await plant.site.client.post("/v1/backfills", asked)
        await saw(reader, (1,) * len(DAYS))
        await taken_over(flow, shop("read", flow.landing, factor=2, ledger=False))
        await saw(reader, (2,) * len(DAYS))
    finally:
        reader.stop()
    assert reader.wrong == []
    mixed = [together for together in reader.seen if 2 in together and set(together) != {2}]
    assert mixed == []
    assert flow.table("daily") == daily_of((order for day in DAYS for order in dearer[day]), 2)


async def saw(reader: Reader, state: tuple[int, ...]) -> None:
    async def seen() -> bool:
        return reader.seen[state] > 0 or bool(reader.wrong)

    await until(seen, within_s=WITHIN_S, every_s=0.05)
    assert reader.wrong == []


async def taken_over(flow: Flow, source: str) -> None:
    """The edited pipeline is built beside the other, and then takes its place."""
    number, client = (await flow.deploy(source))["version"], flow.site.client

    async def rebuilt() -> bool:
        return (await client.get(f"/v1/dags/{flow.dag}/rebuild", version=number))["caught_up"]

    await until(rebuilt, within_s=WITHIN_S, every_s=0.1)
    await client.post(f"/v1/dags/{flow.dag}/versions/{number}/ready")
    await client.put(f"/v1/dags/{flow.dag}/active", {"version": number})


# Kill a worker, again and again


# When so many tasks are completed, somebody is killed who holds one. After the second, nobody is left.
KILLS = (2, 6)


@pytest.mark.parametrize(
    ("kills", "anew"),
    [
        pytest.param(KILLS, ["w1"], id="two"),
        # And one of those that came then, while the other goes on.
        pytest.param((*KILLS, 10), ["w1", "w2"], id="three", marks=pytest.mark.long),
    ],
)
async def test_workers_killed_at_any_instant_lose_and_double_nothing(
    plant: Plant, kills: Sequence[int], anew: Sequence[str]
) -> None:
    chance = random.Random(5)
    flow = await plant.flow(f"killed{len(kills)}")
    names: Sequence[str] = ["w1", "w2"]
    workers = dict(zip(names, await plant.workers(*names), strict=True))
    await flow.emit(*DAYS)
    for enough in kills:
        victim = workers.pop(await caught_at_work(flow, workers, enough, chance))
        victim.signal(signal.SIGKILL)
        assert await victim.code() == -signal.SIGKILL
        if not workers:
            workers = dict(zip(anew, await plant.workers(*anew), strict=True))
    await flow.completed()
    assert "timed_out" in {outcome for _, _, outcome in flow.attempts()}
    flow.audit()
    assert flow.tables() == flow.expected


async def caught_at_work(flow: Flow, workers: Mapping[str, Process], enough: int, chance: random.Random) -> str:
    """When so many tasks are completed, a worker stands still, at any instant of a task of its own.

    Which one, they decide: a worker that is awake claims one task after the other, so a small pipeline may be done by
    one of them alone, while the other holds nothing at any time.
    """

    def holders() -> list[str]:
        rows = flow.tasks()
        if sum(row["status"] == "completed" for row in rows) < enough:
            return []
        return sorted({row["worker_id"] for row in rows if row["status"] == "running"} & workers.keys())

    async def caught() -> str | None:
        if not (holding := holders()):
            await go_on(flow)
            return None
        name = chance.choice(holding)
        await asyncio.sleep(chance.uniform(0.0, 0.4))  # Any instant: there is nothing to wait for.
        pause(workers[name].process.pid)
        if name in holders():
            return name
        resume(workers[name].process.pid)
        return None

    return await until(caught, within_s=WITHIN_S, every_s=0.05)


async def go_on(flow: Flow) -> None:
    """A further day, if those before it are over: nobody was caught in time."""
    made = [row["status"] for row in flow.tasks() if row["job"] in flow.jobs]
    if made == ["completed"] * (len(flow.jobs) * len(flow.days)):
        day = f"2024-03-{len(flow.days) + 1:02}"
        land(flow.landing, orders_of(day))
        flow.days = [*flow.days, day]
        await flow.emit(day)
