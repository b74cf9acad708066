"""Sources under backpressure do as their job declares: they hold back, coalesce or go on, and nothing is lost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.requests import Request

from qo.ambient import Ambient
from qo.asgi.error_responses import error_response
from qo.config.settings import Settings
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.pressure import Thresholds
from qo.dispatcher.engine.loops import pressure
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import pausing
from qo.dispatcher.views import held as held_view
from qo.errors import HeldBack
from qo.scheduler import cron
from qo.scheduler.file_source import Watchers
from support.dispatcher.local_emitter import LocalEmitter
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock

LIMITS = Thresholds(depth=1000, age_s=1e9, clear_ratio=0.5)
DAILY = {"schedule": "rate(1 day)"}
DAY_S = 86_400


class Shop:
    """A source, and a job that reads it and may be overfull."""

    def __init__(self, state: State, kind: str, mode: str | None, of: dict[str, Any] | None = None) -> None:
        self.state = state
        declared = {} if mode is None else {"backpressure_mode": mode}
        strategy = {"execution_strategy": "PerUpdate"} if kind == "cron" else {}
        reader = job("slow", reads="in", max_queue_depth=2, **strategy)
        self.topology = deployed(state, dag("d", source("in", kind, of=of, **declared), reader))

    def overfill(self) -> None:
        slow = live(self.topology, "d.slow")
        with self.state.write() as tx:
            create(tx, [NewTask(job=slow, dedupe_key=f"manual:{number}") for number in range(3)])
        assert pressure.tick(self.state, LIMITS) == 1

    def drain(self) -> None:
        with self.state.write() as tx:
            tx.execute(sa.update(schema.tasks).where(schema.tasks.c.job == "slow").values(status="completed"))
        assert pressure.tick(self.state, LIMITS) == 1

    def emissions(self) -> list[Any]:
        """What was recorded with each, in order of its cursor or key."""
        tasks = schema.tasks
        query = sa.select(tasks).where(tasks.c.job == "in").order_by(tasks.c.cursor, tasks.c.partition_key)
        with self.state.read() as tx:
            return [row["output"] for row in tx.all(query)]

    def cursors(self) -> list[int]:
        with self.state.read() as tx:
            return sorted(row["cursor"] for row in tx.all(sa.select(schema.events)))

    def held(self) -> Any:
        with self.state.read() as tx:
            found = held_view.list_held(tx, LIMITS).held
        return next((each for each in found if each.job == "in"), None)


async def fire(shop: Shop, clock: Clock, days: int) -> int:
    """Let days pass, with a look at the schedule after each; return how many times were announced."""
    emitted = 0
    for _ in range(days):
        clock.advance(DAY_S)
        emitted += (await cron.poll(LocalEmitter(shop.state))).emitted
    return emitted


async def test_a_schedule_that_holds_back_loses_no_time(state: State, state_clock: Clock) -> None:
    shop = Shop(state, "cron", "hold", DAILY)
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    assert await fire(shop, state_clock, 1) == 1
    shop.overfill()
    assert await fire(shop, state_clock, 3) == 0
    assert (shop.held().waiting, shop.held().kind) == (3, "cron")
    shop.drain()
    assert (await cron.poll(emitter)).emitted == 3
    assert (await cron.poll(emitter)).emitted == 0
    cursors = shop.cursors()
    assert [later - earlier for earlier, later in pairwise(cursors)] == [DAY_S] * 3
    assert not any("coalesced" in each for each in shop.emissions())


async def test_a_long_hold_is_made_up_for_in_parts(state: State, state_clock: Clock) -> None:
    shop = Shop(state, "cron", None, DAILY)
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    shop.overfill()
    await fire(shop, state_clock, 1)
    state_clock.advance(DAY_S * 44)
    await cron.poll(emitter)
    shop.drain()
    made_up = [(await cron.poll(emitter)).emitted for _ in range(4)]
    assert made_up == [20, 20, 5, 0]
    assert len(set(shop.cursors())) == 45


async def test_a_schedule_that_coalesces_announces_once_and_records_how_many(
    state: State, state_clock: Clock
) -> None:
    shop = Shop(state, "cron", "coalesce", DAILY)
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    shop.overfill()
    assert await fire(shop, state_clock, 3) == 0
    shop.drain()
    assert (await cron.poll(emitter)).emitted == 1
    [recorded] = shop.emissions()
    assert recorded["coalesced"]["count"] == 3
    assert len(shop.cursors()) == 1
    assert await fire(shop, state_clock, 1) == 1, "from then on each by itself"


async def test_a_schedule_that_ignores_pressure_goes_on(state: State, state_clock: Clock) -> None:
    shop = Shop(state, "cron", "ignore", DAILY)
    await cron.poll(LocalEmitter(state))
    shop.overfill()
    assert await fire(shop, state_clock, 2) == 2
    assert shop.held() is None


@pytest.mark.parametrize(("mode", "count"), [("hold", None), ("coalesce", 2), (None, None)])
async def test_files_wait_and_none_is_lost(
    state: State, tmp_path: Path, mode: str | None, count: int | None
) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    shop = Shop(state, "files", mode, {"path": f"file:{inbox}"})
    passed = iter(range(0, 10_000, 31))
    watchers = Watchers(
        SourceKind.FILES,
        LocalEmitter(state),
        Settings(),
        ambient=Ambient.seeded(1, monotonic=lambda: float(next(passed))),
    )
    shop.overfill()
    (inbox / "a").write_text("one")
    (inbox / "b").write_text("one")
    async with watchers:
        assert [(await watchers.poll()).emitted for _ in range(3)] == [0, 0, 0]
        assert shop.held().waiting == 2
        (inbox / "a").write_text("one and two")
        assert [(await watchers.poll()).emitted for _ in range(3)] == [0, 0, 0]
        shop.drain()
        assert (await watchers.poll()).emitted == 2
        assert (await watchers.poll()).emitted == 0
    changed, unchanged = shop.emissions()
    assert changed.get("coalesced", {}).get("count") == count
    assert "coalesced" not in unchanged


@pytest.mark.parametrize("kind", ["manual", "webhook"])
def test_senders_are_refused_only_if_the_job_declares_it(state: State, kind: str) -> None:
    of = {"webhook_path": "hook", "secret": "s"} if kind == "webhook" else None
    shop = Shop(state, kind, "hold", of)

    def emit(key: str) -> bool:
        with state.write() as tx:
            body = [emission.EventBody(partition_key=key)]
            return emission.emit(tx, "d", "in", key=key, events=body, by="tests").repeated

    assert not emit("before")
    shop.overfill()
    with pytest.raises(HeldBack, match=r"d\.in accepts nothing now: job d\.slow, which it feeds, is overfull"):
        emit("meanwhile")
    assert emit("before"), "what was accepted is answered again"
    shop.drain()
    assert not emit("meanwhile")


@pytest.mark.fast
def test_a_sender_that_is_refused_is_told_when_to_come_again() -> None:
    response = error_response(Request({"type": "http"}), HeldBack("d.in accepts nothing now"))
    assert (response.status_code, response.headers["Retry-After"]) == (429, "30")
    assert b'"held_back"' in response.body


def test_people_are_heard_where_nothing_is_declared(state: State) -> None:
    shop = Shop(state, "manual", None)
    shop.overfill()
    with state.write() as tx:
        emission.emit(tx, "d", "in", key="k", events=[emission.EventBody(partition_key="a")], by="tests")


def test_the_view_says_what_is_held_by_what_and_what_must_happen(state: State, state_clock: Clock) -> None:
    shop = Shop(state, "cron", None, DAILY)
    with state.read() as tx:
        assert held_view.list_held(tx, LIMITS).held == []
    shop.overfill()
    state_clock.advance(30)
    with state.read() as tx:
        answer = held_view.list_held(tx, LIMITS)
    (target,) = answer.targets
    assert (target.kind, target.name, target.depth, target.depth_max, target.age_max_s) == (
        "job",
        "d.slow",
        3,
        2,
        None,
    )
    assert target.clears == "3 wait, and 1 or fewer must be left"
    (held,) = answer.held
    assert held.reason == "job d.slow is overfull: 3 tasks of it wait, more than 2"
    assert held.next == "job d.slow: 3 wait, and 1 or fewer must be left (d.slow must run)"
    assert held.since is not None
    assert held.since == target.tripped_at
    assert (answer.now - held.since).total_seconds() >= 30
    with state.write() as tx:
        pausing.pause(tx, "d.slow", "repairs", "ada")
    assert "(d.slow (paused: repairs) must run)" in shop.held().next
