"""The outbox and its publisher: nothing that was decided is lost, and nothing is enqueued twice.

Named after the invariants: the outbox drives side effects and survives every restart (I5), queues carry wake-ups and
not the truth (I6), and work goes on correctly while a queue is away (I7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.config.origins import load
from qo.config.settings import Settings
from qo.core.pipeline.states import EffectKind
from qo.core.task import Status
from qo.dispatcher.engine.loops import release, sweeper
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.outbox import outbox, publisher
from qo.dispatcher.outbox.outbox import Effect
from qo.dispatcher.outbox.queues import BucketQueues, open_queue, queue_settings
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask, create
from qo.errors import Unavailable, Unproven
from qo.store import queue_manifest
from qo.store.opening import open_store
from qo.store.queue_manifest import Proof
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock
from support.servers.s3 import S3Server

SHOP = dag("shop", source("orders"), job("clean", reads="orders", runtime="spark", operator="sql"))
CHAIN = (
    "shop",
    source("orders"),
    job("clean", reads="orders", runtime="spark", operator="sql"),
    job("report", reads="clean", runtime="spark", operator="sql"),
)
SWEEP_S = 300.0


class Heard:
    """A queue that remembers, and fails when it is told to."""

    def __init__(self) -> None:
        self.wakes: dict[str, WakeUp] = {}
        self.calls = 0
        self.down = False
        self.loses_answer = False  # Enqueues, but nobody hears of it.

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        self.calls += 1
        if self.down:
            raise Unavailable("no answer")
        self.wakes.update({each.id: each for each in wakes})
        if self.loses_answer:
            raise Unavailable("the answer was lost")


@pytest.fixture
def released(state: State) -> list[str]:
    """Ten tasks whose wake-ups wait in the outbox."""
    clean = live(deployed(state, SHOP), "shop.clean")
    with state.write() as tx:
        made = create(tx, [NewTask(job=clean, dedupe_key=f"manual:{number}") for number in range(10)])
    assert release.tick(state, Limits()) == 10
    return [each.task_id for each in made]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(Settings(), store=f"local:{tmp_path / 'store'}")


def effects(state: State) -> Sequence[sa.RowMapping]:
    with state.read() as tx:
        return tx.all(sa.select(schema.outbox).order_by(schema.outbox.c.seq))


def states(state: State) -> set[str]:
    return {row["state"] for row in effects(state)}


async def messages(settings: Settings, name: str = "spark") -> list[Any]:
    queue = await open_queue(settings, name)
    async with queue:
        found = await queue.list(status=Status.PENDING, limit=1000)
        return sorted([(await queue.input(each))["task_id"] for each in found])


# Taking


def test_deciding_twice_writes_once(state: State) -> None:
    effect = Effect("one", EffectKind.WAKE, "spark", "t")
    with state.write() as tx:
        assert outbox.add(tx, [effect]) == 1
    with state.write() as tx:
        assert outbox.add(tx, [effect]) == 0
    assert len(effects(state)) == 1


def test_what_was_taken_is_kept_from_others_for_a_while_and_then_comes_back(
    state: State, released: list[str], state_clock: Clock
) -> None:
    with state.write() as tx:
        assert len(outbox.take(tx, 100)) == 10
    with state.write() as tx:
        assert outbox.take(tx, 100) == []
    state_clock.advance(outbox.TAKEN_S + 1)
    with state.write() as tx:
        assert len(outbox.take(tx, 100)) == 10


def test_each_takes_only_its_own_kinds(state: State) -> None:
    with state.write() as tx:
        outbox.add(tx, [Effect(str(kind), kind, "q", "t") for kind in EffectKind])
    with state.write() as tx:
        assert [each.effect.kind for each in outbox.take(tx, 10, {EffectKind.RUN})] == [EffectKind.RUN]
        assert outbox.due(tx, {EffectKind.INVOKE})
        assert not outbox.due(tx, {EffectKind.RUN})


def test_done_is_done_even_if_somebody_says_later_that_it_failed(state: State, released: list[str]) -> None:
    with state.write() as tx:
        [first, *_] = outbox.take(tx, 100)
        outbox.mark_done(tx, [first.effect.id])
        outbox.mark_done(tx, [first.effect.id])
        assert not outbox.mark_failed(tx, first.effect.id, "late")
    assert effects(state)[0]["state"] == "done"


def test_failures_wait_longer_each_time_and_end_after_the_last(state: State, state_clock: Clock) -> None:
    with state.write() as tx:
        outbox.add(tx, [Effect("one", EffectKind.WAKE, "spark", "t")])
    rests = []
    for attempt in range(outbox.ATTEMPTS_MAX):
        with state.write() as tx:
            assert len(outbox.take(tx, 1)) == 1, attempt
            is_dead = outbox.mark_failed(tx, "one", "no answer")
            assert is_dead == (attempt == outbox.ATTEMPTS_MAX - 1)
            row = tx.one(sa.select(schema.outbox))
            assert row is not None
            rests.append((row["available_at"] - tx.now).total_seconds())
        state_clock.advance(600)
    assert all(0.5 * min(2**n, 300) <= rest <= 1.5 * min(2**n, 300) for n, rest in enumerate(rests))
    [row] = effects(state)
    assert (row["state"], row["attempts"], row["last_error"]) == ("dead", 20, "no answer")
    with state.write() as tx:
        assert outbox.take(tx, 1) == []


def test_only_what_was_done_long_ago_is_purged_and_not_all_at_once(
    state: State, released: list[str], state_clock: Clock
) -> None:
    with state.write() as tx:
        outbox.mark_done(tx, [each.effect.id for each in outbox.take(tx, 6)])
    with state.write() as tx:
        assert outbox.purge(tx) == 0
    state_clock.advance(outbox.KEPT_S + 1)
    with state.write() as tx:
        assert outbox.purge(tx, limit=4) == 4
        assert outbox.purge(tx, limit=4) == 2
        assert outbox.purge(tx, limit=4) == 0
    assert [row["state"] for row in effects(state)] == ["pending"] * 4


# Publishing


async def test_i5_wake_ups_reach_the_queue_of_the_runtime_once(
    state: State, released: list[str], settings: Settings
) -> None:
    queues = BucketQueues(settings)
    assert await publisher.tick(state, queues) == 10
    assert await publisher.tick(state, queues) == 0
    await queues.close()
    assert await messages(settings) == sorted(released)
    assert states(state) == {"done"}


async def test_i5_a_dispatcher_killed_before_publishing_loses_nothing(
    state: State, released: list[str], state_clock: Clock
) -> None:
    with state.write() as tx:
        outbox.take(tx, 100)  # And dies.
    queues = Heard()
    assert await publisher.tick(state, queues) == 0
    state_clock.advance(outbox.TAKEN_S + 1)
    assert await publisher.tick(state, queues) == 10
    assert {each.task_id for each in queues.wakes.values()} == set(released)


async def test_i5_a_dispatcher_killed_between_publishing_and_saying_so_enqueues_once(
    state: State, released: list[str], state_clock: Clock, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = BucketQueues(settings)
    with monkeypatch.context() as killed:
        killed.setattr(outbox, "mark_done", _killed)
        with pytest.raises(Killed):
            await publisher.tick(state, queues)
    assert await messages(settings) == sorted(released)
    assert states(state) == {"pending"}
    state_clock.advance(outbox.TAKEN_S + 1)
    assert await publisher.tick(state, queues) == 10
    await queues.close()
    assert await messages(settings) == sorted(released), "draining twice enqueues once"
    assert states(state) == {"done"}


async def test_i5_a_lost_answer_of_the_queue_enqueues_once(
    state: State, released: list[str], state_clock: Clock
) -> None:
    queues = Heard()
    queues.loses_answer = True
    await publisher.tick(state, queues)
    queues.loses_answer = False
    state_clock.advance(10)
    await publisher.tick(state, queues)
    assert len(queues.wakes) == 10
    assert states(state) == {"done"}


async def test_i5_two_publishers_at_once_enqueue_each_wake_up_once(
    state: State, released: list[str], settings: Settings
) -> None:
    first, second = BucketQueues(settings), BucketQueues(settings)
    counts = await asyncio.gather(
        *(publisher.tick(state, queues, limit=3) for _ in range(4) for queues in (first, second))
    )
    await first.close()
    await second.close()
    assert sum(counts) == 10
    assert await messages(settings) == sorted(released)
    assert states(state) == {"done"}


async def test_i7_while_the_queue_is_away_nothing_is_lost_and_then_work_resumes(
    state: State, released: list[str], state_clock: Clock
) -> None:
    queues = Heard()
    queues.down = True
    for _ in range(5):
        await publisher.tick(state, queues)
        state_clock.advance(60)
    assert states(state) == {"pending"}
    assert {row["last_error"] for row in effects(state)} == {"Unavailable: no answer"}
    assert queues.calls == 5, "all of a queue's wake-ups are one call"
    queues.down = False
    await publisher.tick(state, queues)
    assert {each.task_id for each in queues.wakes.values()} == set(released)
    assert states(state) == {"done"}


async def test_i7_a_queue_that_is_away_does_not_hold_up_the_others(state: State) -> None:
    with state.write() as tx:
        outbox.add(tx, [Effect(f"{q}{n}", EffectKind.WAKE, q, "t") for n in range(3) for q in ("away", "there")])

    class Half(Heard):
        async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
            if queue == "away":
                raise Unavailable("no answer")
            await super().publish(queue, wakes)

    queues = Half()
    await publisher.tick(state, queues)
    assert sorted(queues.wakes) == ["there0", "there1", "there2"]


async def test_a_wake_up_that_was_given_up_is_told_and_the_sweeper_makes_a_new_one(
    state: State, released: list[str], state_clock: Clock
) -> None:
    queues, dead = Heard(), []
    queues.down = True
    for _ in range(outbox.ATTEMPTS_MAX):
        await publisher.tick(state, queues, on_dead=dead.append)
        state_clock.advance(600)
    assert len(dead) == 10
    assert states(state) == {"dead"}
    queues.down = False
    assert sweeper.tick(state, SWEEP_S) == 10
    await publisher.tick(state, queues)
    assert {each.task_id for each in queues.wakes.values()} == set(released)


# Where queues are


@pytest.mark.fast
@pytest.mark.parametrize(
    ("store", "queue"),
    [
        ("local:/data/qo", "local:/data/qo/queues/spark"),
        ("s3://bucket", "s3://bucket/queues/spark"),
        ("s3://bucket/team/a", "s3://bucket/team/a/queues/spark"),
    ],
)
def test_a_queue_lies_below_the_store(store: str, queue: str) -> None:
    assert queue_settings(replace(Settings(), store=store), "spark").store == queue


@pytest.mark.s3
async def test_the_proof_of_a_bucket_holds_for_the_queues_in_it_and_none_is_made_up(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment(s3_bucket).items():
        monkeypatch.setenv(name, value)
    settings = load({"store": f"s3://{s3_bucket}/team"})
    queues = BucketQueues(settings)
    with pytest.raises(Unproven, match="qo doctor"):
        await queues.publish("spark", [WakeUp("one", "t")])
    above, _ = await open_store(settings)
    proof = Proof(proven_at=await above.now(), server="test", checks=(), conditional_delete=False, versioned=True)
    await queue_manifest.record_proof(above, proof, prefix_len=2)
    await above.close()
    await queues.publish("spark", [WakeUp("one", "t")])
    await queues.publish("spark", [WakeUp("one", "t")])
    await queues.close()
    async with await open_queue(settings, "spark") as queue:
        assert queue.prefix_len == 2
        assert len(await queue.list(status=Status.PENDING)) == 1


async def test_what_is_further_down_a_pipeline_is_woken_before_what_feeds_it(
    state: State, settings: Settings
) -> None:
    shop = deployed(state, dag(*CHAIN))
    with state.write() as tx:
        for name in ("clean", "report"):
            create(tx, [NewTask(job=live(shop, f"shop.{name}"), dedupe_key=f"manual:{at}") for at in range(5)])
    assert release.tick(state, Limits()) == 10
    queues = BucketQueues(settings)
    assert await publisher.tick(state, queues) == 10
    await queues.close()
    async with await open_queue(settings, "spark") as queue:
        sent = await queue.list(status=Status.PENDING, limit=100)
        head_start = {(await queue.input(each))["task_id"]: each.priority for each in sent}
    with state.read() as tx:
        jobs = {row["id"]: row["job"] for row in tx.all(sa.select(schema.tasks))}
    assert {(jobs[task], priority) for task, priority in head_start.items()} == {("clean", 1), ("report", 2)}


# Sweeping


async def test_i6_a_wake_up_that_the_queue_lost_is_sent_again(
    state: State, released: list[str], state_clock: Clock
) -> None:
    lost = Heard()
    await publisher.tick(state, lost)
    assert sweeper.tick(state, SWEEP_S) == 0, "it may still arrive"
    state_clock.advance(SWEEP_S + 1)
    assert sweeper.tick(state, SWEEP_S) == 10
    assert sweeper.tick(state, SWEEP_S) == 0, "the new ones are on their way"
    queues = Heard()
    await publisher.tick(state, queues)
    assert {each.task_id for each in queues.wakes.values()} == set(released)
    assert not queues.wakes.keys() & lost.wakes.keys()


async def test_the_sweeper_leaves_alone_what_the_publisher_is_still_at(
    state: State, released: list[str], state_clock: Clock
) -> None:
    state_clock.advance(10 * SWEEP_S)
    assert sweeper.tick(state, SWEEP_S) == 0


async def test_a_task_that_waits_its_turn_is_woken_less_and_less_often(
    state: State, released: list[str], state_clock: Clock
) -> None:
    queues = Heard()
    await publisher.tick(state, queues)
    woken = 0
    for _ in range(40):
        state_clock.advance(SWEEP_S + 1)
        woken += sweeper.tick(state, SWEEP_S, limit=3)
        await publisher.tick(state, queues)
    assert 30 <= woken <= 60, "each of ten a few times, not forty times"


async def test_sweeping_does_not_make_a_queue_look_young(
    state: State, released: list[str], state_clock: Clock
) -> None:
    await publisher.tick(state, Heard())
    with state.read() as tx:
        before = tx.execute(sa.select(schema.tasks.c.released_at)).scalars().all()
    state_clock.advance(SWEEP_S + 1)
    sweeper.tick(state, SWEEP_S)
    with state.read() as tx:
        assert tx.execute(sa.select(schema.tasks.c.released_at)).scalars().all() == before


async def test_two_sweepers_wake_each_task_once(state: State, released: list[str], state_clock: Clock) -> None:
    await publisher.tick(state, Heard())
    state_clock.advance(SWEEP_S + 1)
    counts = await asyncio.gather(*(asyncio.to_thread(sweeper.tick, state, SWEEP_S) for _ in range(4)))
    assert sum(counts) == 10
    assert len(effects(state)) == 20


class Killed(BaseException):
    """The process is gone: no handler sees it."""


def _killed(*_: Any) -> None:
    raise Killed
