"""Always-on sources: each has one task, and it runs, rests or has stopped for a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, HeartbeatRequest, Outcome
from qo.core.lifecycle import Lapse
from qo.core.task import Status
from qo.dispatcher.attempts import claiming, completion, running
from qo.dispatcher.engine.loops import source_monitor
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import dedupe_keys, rows
from qo.dispatcher.tasks.creation import task_id
from qo.dispatcher.versions import pausing
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.dispatcher.pipelines import job as reactive
from support.dispatcher.states import Clock

FEED = dag("feed", source("live", "always_on"), reactive("clean", reads="live"))


def count(state: State, table: sa.Table, *where: Any) -> int:
    with state.read() as tx:
        return int(tx.value(sa.select(sa.func.count()).select_from(table).where(*where)))


class Feed:
    """An always-on source, and the task that runs it."""

    def __init__(self, state: State, clock: Clock) -> None:
        self.state, self.clock = state, clock
        self.edition = live(deployed(state, FEED), "feed.live").edition_id
        self.id = task_id(self.edition, dedupe_keys.SOURCE)

    def row(self) -> sa.RowMapping:
        with self.state.read() as tx:
            found = tx.one(sa.select(schema.sources).where(schema.sources.c.edition_id == self.edition))
        assert found is not None
        return found

    def task(self) -> rows.Row:
        with self.state.read() as tx:
            return rows.load(tx, self.id, lock=False)

    def ended_at(self) -> datetime:
        with self.state.read() as tx:
            return tx.value(sa.select(sa.func.max(schema.attempts.c.ended_at)))

    def look(self) -> str:
        source_monitor.tick(self.state)
        return str(self.row()["state"])

    def claim(self) -> Claimed:
        with self.state.write() as tx:
            woken(tx, self.id)
            answer = claiming.claim(tx, ClaimRequest(task_id=self.id, worker_id="w"), "file:/data")
        assert isinstance(answer, Claimed), answer
        return answer

    def end(self, held: Claimed, outcome: Outcome) -> None:
        fence = {"task_id": self.id, "attempt": held.attempt, "lease_id": held.lease_id}
        with self.state.write() as tx:
            completion.complete(tx, CompleteRequest(**fence, outcome=outcome, error="broken"))

    def beat(self, held: Claimed) -> bool:
        with self.state.write() as tx:
            fence = HeartbeatRequest(task_id=self.id, attempt=held.attempt, lease_id=held.lease_id)
            return running.heartbeat(tx, fence).cancel_requested

    def fall_silent(self, held: Claimed) -> None:
        """Past its lease, and reaped."""
        self.clock.advance(61)
        with self.state.write() as tx:
            lapse = Lapse(tx.ambient.token(), lease_id=held.lease_id, unit=0.5)
            assert not isinstance(rows.move(tx, rows.load(tx, self.id), lapse), str)


@pytest.fixture
def feed(state: State, state_clock: Clock) -> Feed:
    return Feed(state, state_clock)


def test_an_always_on_source_gets_one_task_however_often_it_is_looked_at(feed: Feed) -> None:
    assert [feed.look() for _ in range(3)] == ["pending"] * 3
    assert count(feed.state, schema.tasks) == 1
    assert feed.task()["timeout_seconds"] is None
    feed.claim()
    assert feed.look() == "running"


def test_nothing_is_written_while_nothing_happens(feed: Feed) -> None:
    feed.look()
    assert source_monitor.tick(feed.state) == 0


def test_a_source_that_is_heard_stays_running_and_its_heartbeat_is_known(feed: Feed) -> None:
    feed.look()
    held = feed.claim()
    feed.look()
    before = feed.row()["heard_at"]
    feed.clock.advance(50)
    feed.beat(held)
    feed.clock.advance(50)
    assert feed.look() == "running"
    assert feed.row()["heard_at"] > before


def test_a_source_that_falls_silent_is_dead_and_restarts_after_a_rest_that_grows(feed: Feed) -> None:
    feed.look()
    rests: list[float] = []
    for restarts in range(1, 5):
        held = feed.claim()
        feed.look()
        feed.fall_silent(held)
        assert feed.look() == "dead"
        row = feed.row()
        assert (row["restarts"], feed.task()["available_at"]) == (restarts, row["start_after"])
        rests.append((row["start_after"] - feed.ended_at()).total_seconds())
        feed.clock.advance(20)
        assert feed.look() == "pending"
    assert rests == [1, 2, 4, 8]
    assert "lease expired" in feed.row()["last_error"]


@pytest.mark.parametrize("outcome", [Outcome.FATAL, Outcome.RETRYABLE, Outcome.SUCCESS])
def test_a_source_that_ends_by_itself_is_started_again(feed: Feed, outcome: Outcome) -> None:
    feed.look()
    for _ in range(6):  # More often than a task of its job would be tried.
        feed.end(feed.claim(), outcome)
        assert feed.look() == "dead"
        feed.clock.advance(301)
        assert feed.look() == "pending"
    assert feed.claim().attempt == 7
    assert feed.row()["last_error"]


def test_a_source_that_a_worker_gives_back_waits_for_the_next_without_a_rest(feed: Feed) -> None:
    feed.look()
    feed.end(feed.claim(), Outcome.RELEASED)
    assert feed.look() == "pending"
    assert feed.row()["restarts"] == 0
    feed.claim()


def test_a_paused_source_drains_stops_and_starts_when_resumed(feed: Feed) -> None:
    feed.look()
    held = feed.claim()
    with feed.state.write() as tx:
        pausing.pause(tx, "feed.live", "holidays", "anna")
    assert feed.look() == "draining"
    assert feed.beat(held)
    feed.end(held, Outcome.CANCELLED)
    assert feed.look() == "stopped"
    assert "holidays" in feed.row()["last_error"]
    with feed.state.write() as tx:
        pausing.resume(tx, "feed.live", "anna")
    assert feed.look() == "pending"
    assert feed.task()["status"] == Status.PENDING
    feed.claim()
    assert feed.look() == "running"


def test_a_source_of_a_version_that_was_replaced_drains_and_the_new_one_starts(
    feed: Feed, replace_version: Callable[[], None]
) -> None:
    feed.look()
    held = feed.claim()
    replace_version()
    source_monitor.tick(feed.state)
    assert feed.row()["state"] == "draining"
    assert feed.beat(held)
    feed.end(held, Outcome.CANCELLED)
    assert feed.look() == "stopped"
    new = live(loaded(feed.state), "feed.live").edition_id
    assert new != feed.edition
    with feed.state.read() as tx:
        assert rows.load(tx, task_id(new, dedupe_keys.SOURCE), lock=False)["status"] == Status.PENDING


@pytest.fixture
def replace_version(state: State) -> Callable[[], None]:
    from qo.dispatcher.versions import cutover

    def replaced() -> None:
        answer = staged(state, edited(FEED, "live", config={"faster": True}))
        with state.write() as tx:
            cutover.activate(tx, "feed", answer.version, "anna", force=True)

    return replaced


def test_two_monitors_at_once_start_it_once(feed: Feed) -> None:
    threads = [threading.Thread(target=source_monitor.tick, args=[feed.state]) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert count(feed.state, schema.tasks) == 1
