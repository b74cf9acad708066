"""What producers and operators do to tasks, on every store."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

import qo
from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.lifecycle import Reason
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.errors import CorruptRecord, NotFound, Refused, UsageError
from qo.queue.listing import Filter
from qo.queue.options import NewTask, Options
from qo.queue.queue import Claim, Queue
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import UNCHANGED, Deletion, Stored, Unchanged
from qo.testing import virtual
from support.stores.queues import (
    AT_ONCE,
    StoreClock,
    another,
    claimed,
    hints,
    path_of,
    rejection,
    until,
    wanted_hints,
)

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED
FORTY_TWO = "00000000-0000-4000-8000-000000000042"


async def test_a_task_goes_from_submitted_to_completed_and_its_hints_follow(queue: Queue) -> None:
    task = await queue.submit("add", {"a": 1, "b": 2})
    assert await hints(queue) == wanted_hints(task)
    assert task.status is P

    claim = await claimed(queue, task.id, worker_id="ada")
    assert await hints(queue) == wanted_hints(claim.task)
    assert claim.task.worker_id == "ada"

    done = await queue.complete(claim, {"sum": 3})
    assert await hints(queue) == set()
    assert await queue.get(task.id) == done
    assert (done.status, done.input, done.output) == (C, {"a": 1, "b": 2}, {"sum": 3})
    assert done.lease_id is None
    assert done.completed_at == done.updated_at


async def test_history_is_exactly_what_happened(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(retry_policy=AT_ONCE))
    await queue.fail(await claimed(queue, task.id), "no luck")
    await queue.complete(await claimed(queue, task.id), "luck")
    assert await path_of(queue, task.id) == [(P, 0), (R, 1), (P, 1), (R, 2), (C, 2)]
    states = await queue.history(task.id)
    assert [state.last_error for state in states] == [None, None, "no luck", "no luck", None]
    assert [state.updated_at for state in states] == sorted(state.updated_at for state in states)


async def test_a_task_fails_for_good_after_its_last_retry(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(max_retries=2, retry_policy=AT_ONCE))
    for attempt in range(1, 4):
        task = await queue.fail(await claimed(queue, task.id), f"boom {attempt}", traceback="where")
    assert (task.status, task.attempt, task.retry_count) == (F, 3, 2)
    assert (task.last_error, task.traceback) == ("boom 3", "where")
    assert rejection(await queue.claim(task.id, worker_id="w")).reason is Reason.WRONG_STATE
    assert await hints(queue) == set()


async def test_a_permanent_failure_uses_no_retry(queue: Queue) -> None:
    task = await queue.submit("t")
    failed = await queue.fail(await claimed(queue, task.id), "never", permanent=True)
    assert (failed.status, failed.retry_count, failed.attempt) == (F, 0, 1)


@pytest.mark.fast
async def test_a_retry_rests_as_long_as_its_policy_says(clocked_queue: Queue, clock: StoreClock) -> None:
    queue = clocked_queue
    policy = qo.RetryPolicy(initial_interval_ms=10_000, multiplier=3, jitter_percent=0)
    task = await queue.submit("t", options=Options(retry_policy=policy))
    for rest_s in (10, 30):
        task = await queue.fail(await claimed(queue, task.id), "no")
        assert task.available_at == clock.now() + timedelta(seconds=rest_s)
        clock.advance(rest_s - 1)
        assert rejection(await queue.claim(task.id, worker_id="w")).reason is Reason.NOT_DUE
        clock.advance(1)


async def test_rescheduling_and_releasing_cost_no_retry(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(max_retries=0, max_reschedules=1))
    released = await queue.release(await claimed(queue, task.id))
    assert (released.status, released.retry_count, released.attempt) == (P, 0, 1)
    later = await queue.reschedule(await claimed(queue, task.id), 0)
    assert (later.status, later.retry_count, later.reschedule_count) == (P, 0, 1)
    assert await hints(queue) == wanted_hints(later)
    ended_ = await queue.reschedule(await claimed(queue, task.id), 0)
    assert ended_.status is F
    assert "rescheduled more than 1 time" in (ended_.last_error or "")


async def test_a_delayed_task_is_not_claimed_early(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(delay_s=3600))
    assert rejection(await queue.claim(task.id, worker_id="w")).reason is Reason.NOT_DUE
    assert await path_of(queue, task.id) == [(P, 0)]
    (key,) = await hints(queue)
    parsed = keys.parse_index(key)
    assert parsed is not None
    assert parsed.minute == keys.minute_of(task.available_at)


@pytest.mark.fast
async def test_a_delayed_task_is_claimed_when_its_moment_has_come(clocked_queue: Queue, clock: StoreClock) -> None:
    at = clock.now() + timedelta(days=2)
    task = await clocked_queue.submit("t", options=Options(at=at))
    clock.advance(2 * 86_400)
    assert (await claimed(clocked_queue, task.id)).task.available_at == at


async def test_a_task_that_nobody_claims_in_time_expires(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(expires_in_s=0.2))

    expires_at = task.expires_at
    assert expires_at is not None

    async def past() -> bool:
        return await queue.store.now() >= expires_at

    await until(past)
    assert rejection(await queue.claim(task.id, worker_id="w")).reason is Reason.PAST_EXPIRY
    assert await path_of(queue, task.id) == [(P, 0), (Status.EXPIRED, 0)]
    assert await hints(queue) == set()


async def test_cancelling_a_pending_task_ends_it_at_once(queue: Queue) -> None:
    task = await queue.submit("t")
    cancelled = await queue.cancel(task.id, by="ada", reason="not needed")
    assert (cancelled.status, cancelled.cancelled_by, cancelled.cancel_reason) == (
        Status.CANCELLED,
        "ada",
        "not needed",
    )
    assert rejection(await queue.claim(task.id, worker_id="w")).reason is Reason.WRONG_STATE
    assert await hints(queue) == set()
    assert await queue.cancel(task.id, by="bob") == cancelled, "cancelling twice is cancelling once"


@pytest.mark.fast
async def test_running_tasks_that_a_long_backlog_hides_are_said_to_be_missing_or_all_read(
    clocked_queue: Queue,
) -> None:
    submitted = await clocked_queue.submit_many([NewTask("t", n) for n in range(12)])
    for task in submitted:
        hint = Deletion(keys.ready_key(task))
        assert isinstance(await clocked_queue.claim(task.id, worker_id="w", hint=hint), Claim)
    running = Filter(status=Status.RUNNING)
    partial = await clocked_queue.find(running, young_max=5)
    assert (len(partial.tasks), partial.complete) == (5, False)
    assert len((await clocked_queue.find(running, young_max=12)).tasks) == 12
    whole = await clocked_queue.find(running, young_max=None)
    assert (len(whole.tasks), whole.complete) == (12, True)


async def test_cancelling_a_running_task_is_seen_at_renewal_and_decides_how_it_ends(queue: Queue) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id)
    asked = await queue.cancel(task.id, reason="stop")
    assert (asked.status, asked.cancel_requested) == (R, True)
    assert (await queue.renew(claim)).cancel_requested
    done = await queue.complete(claim, "kept for whoever looks")
    assert (done.status, done.output) == (Status.CANCELLED, "kept for whoever looks")
    assert await hints(queue) == set()


@pytest.mark.parametrize("end", ["complete", "fail", "reschedule", "release"])
async def test_no_ending_contradicts_a_requested_cancellation(queue: Queue, end: str) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id)
    await queue.cancel(task.id)
    # The claim has not heard of it: its ETag is stale, and that must not matter.
    arguments: dict[str, tuple[Any, ...]] = {"fail": ("boom",), "reschedule": (1.0,)}
    ended_ = await getattr(queue, end)(claim, *arguments.get(end, ()))
    assert ended_.status is Status.CANCELLED


async def test_replay_starts_an_ended_task_over_with_all_its_retries(queue: Queue) -> None:
    task = await queue.submit("t", "in", Options(max_retries=1, retry_policy=AT_ONCE))
    for _ in range(2):
        await queue.fail(await claimed(queue, task.id), "boom")
    again = await queue.replay(task.id)
    assert (again.status, again.retry_count, again.attempt, again.input) == (P, 0, 2, "in")
    assert await hints(queue) == wanted_hints(again)
    await queue.complete(await claimed(queue, task.id))
    with pytest.raises(Refused, match="only a failed, cancelled or expired task"):
        await queue.replay(task.id)


async def test_replay_revives_a_cancelled_task(queue: Queue) -> None:
    task = await queue.submit("t")
    await queue.cancel(task.id)
    await queue.replay(task.id)
    assert (await queue.complete(await claimed(queue, task.id))).status is C


async def test_archived_tasks_are_put_away_and_come_back_as_they_were(queue: Queue) -> None:
    task = await queue.submit("t")
    with pytest.raises(Refused, match="wait until it has ended"):
        await queue.archive(task.id)
    await queue.complete(await claimed(queue, task.id), 1)
    assert (await queue.archive(task.id)).status is Status.ARCHIVED
    assert await queue.list() == []
    assert [t.id for t in await queue.list(status=Status.ARCHIVED)] == [task.id]
    back = await queue.unarchive(task.id)
    assert (back.status, back.output) == (C, 1)
    assert [t.id for t in await queue.list()] == [task.id]


async def test_filters_apply_before_the_limit(queue: Queue) -> None:
    many = [NewTask("common", n) for n in range(40)]
    await queue.submit_many([*many, NewTask("rare", options=Options(key="r"))])
    (rare,) = await queue.list(task_type="rare", limit=1)
    assert rare.task_type == "rare"

    await queue.complete(await claimed(queue, rare.id))
    assert [t.id for t in await queue.list(status=C, limit=1)] == [rare.id]
    assert [t.id for t in await queue.list(since=(await queue.get(rare.id)).updated_at, limit=40)] == [rare.id]
    assert len(await queue.list(status=P, limit=7)) == 7
    assert len(await queue.list(status=P)) == 40
    assert {t.shard for t in await queue.list(shard=rare.shard)} == {rare.shard}


async def test_listing_by_status_sees_pending_running_and_ended(queue: Queue) -> None:
    pending, running, done = [await queue.submit("t", n) for n in range(3)]
    await claimed(queue, running.id)
    await queue.complete(await claimed(queue, done.id))
    for status, task in ((P, pending), (R, running), (C, done)):
        assert [t.id for t in await queue.list(status=status)] == [task.id]
    assert {t.id for t in await queue.list()} == {pending.id, running.id, done.id}


async def test_a_corrupt_task_hides_no_other_from_a_listing(queue: Queue) -> None:
    broken, good, done = [await queue.submit("t", n) for n in range(3)]
    await queue.complete(await claimed(queue, done.id))
    await queue.store.put(queue.tasks.key(broken.id), b"[]")
    assert {t.id for t in await queue.list()} == {good.id, done.id}
    assert [t.id for t in await queue.list(status=P)] == [good.id]
    with pytest.raises(CorruptRecord, match=broken.id):
        await queue.get(broken.id)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"shard": "xyz"}, {"shard": "00"}])
async def test_a_listing_that_makes_no_sense_is_refused(queue: Queue, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        await queue.list(**wrong)


async def test_wait_returns_the_task_once_it_has_ended(queue: Queue) -> None:
    task = await queue.submit("t")
    with pytest.raises(TimeoutError):
        await queue.wait(task.id, timeout_s=0.05)
    waiting = asyncio.create_task(queue.wait(task.id, timeout_s=20))
    await queue.complete(await claimed(queue, task.id), "done")
    assert (await waiting).output == "done"
    assert (await queue.wait(task.id, timeout_s=20)).output == "done"


class CountingStore(MemoryStore):
    """Counts how often a whole object was sent."""

    sent = 0

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        self.sent += 1
        return await super().get(key, version=version)

    async def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        answer = await super().get_if_changed(key, etag)
        self.sent += answer is not UNCHANGED
        return answer


@pytest.mark.fast
def test_a_task_that_is_waited_for_is_sent_only_when_it_has_changed() -> None:
    async def scenario() -> None:
        store = CountingStore()
        queue = Queue(store, ambient=Ambient(monotonic=asyncio.get_running_loop().time))
        task = await queue.submit("t")
        claim = await claimed(queue, task.id)
        before = store.sent
        waiting = asyncio.create_task(queue.wait(task.id))
        await asyncio.sleep(600)
        assert store.sent == before + 1
        await queue.complete(claim, "done")
        assert (await waiting).output == "done"
        assert store.sent == before + 2

    virtual.run(scenario())


async def test_an_unknown_task_is_not_found_and_a_malformed_id_is_refused(queue: Queue) -> None:
    for ask in (queue.get, queue.cancel, queue.replay, queue.archive, queue.history, queue.wait):
        with pytest.raises(NotFound, match=FORTY_TWO):
            await ask(FORTY_TWO)
        with pytest.raises(UsageError, match="not a task id"):
            await ask("../tasks/0/x")
    assert await queue.claim(FORTY_TWO, worker_id="w") is None


async def test_an_id_is_found_however_it_is_spelt(queue: Queue) -> None:
    task = await queue.submit("t")
    assert await queue.get(f" {task.id.upper()}\n") == task


async def test_many_are_submitted_in_order(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("t", n) for n in range(150)])
    assert [task.input for task in tasks] == list(range(150))
    assert await hints(queue) == wanted_hints(*tasks)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (NewTask("t", {1, 2}), "input"),
        (NewTask("t", float("nan")), "input"),
        (NewTask("", 1), "task type"),
        (NewTask("t", 1, Options(at=datetime(2030, 1, 1))), "time zone"),  # noqa: DTZ001 - that is the point.
        (NewTask("t", 1, Options(delay_s=-1)), "delay_s"),
        (NewTask("t", 1, Options(priority=10)), "priority"),
        (NewTask("t", 1, Options(max_retries=-1)), "max_retries"),
        (NewTask("t", 1, Options(timeout_s=0)), "timeout_s"),
        (NewTask("t", 1, Options(delay_s=5, expires_in_s=1)), "expire before"),
        (NewTask("t", 1, Options(key="")), "idempotency key"),
        (NewTask("t", 1, Options(retry_policy=qo.RetryPolicy(multiplier=0))), "multiplier"),
        (NewTask("t", "x" * (64 * 1024 * 1024)), "Put the data in the bucket"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.fast
async def test_a_bad_task_is_refused_with_the_reason_and_nothing_is_written(
    clocked_queue: Queue, bad: NewTask, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        await clocked_queue.submit_many([NewTask("good", 1), bad])
    assert not (await clocked_queue.store.list("")).entries


async def test_scripts_without_an_event_loop_use_the_same_queue(tmp_path: Any) -> None:
    def script() -> str:
        with qo.blocking(f"local:{tmp_path / 'store'}") as (queue, run):
            task = run(queue.submit("t", {"n": 1}))
            return run(queue.get(task.id)).task_type

    assert await asyncio.to_thread(script) == "t"


async def test_two_queues_in_two_stores_do_not_meet(tmp_path: Any) -> None:
    async with (
        qo.connect(f"local:{tmp_path / 'one'}") as one,
        qo.connect(f"local:{tmp_path / 'two'}") as two,
    ):
        task = await one.submit("t")
        with pytest.raises(NotFound):
            await two.get(task.id)


@pytest.mark.fast
async def test_a_bounded_list_is_exact_if_everything_fits_and_says_so_if_not(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    tasks = await clocked_queue.submit_many([NewTask("t", n) for n in range(2_500)])
    clock.advance(60)
    await clocked_queue.complete(await claimed(clocked_queue, tasks[0].id))
    whole = await clocked_queue.find(Filter(), 5, scan_max=100_000)
    assert whole.complete
    assert whole.tasks[0].id == tasks[0].id, "the last that changed"
    part = await clocked_queue.find(Filter(), 5, scan_max=160)
    assert not part.complete
    assert len(part.tasks) == 5
    shard = tasks[0].shard
    assert (await clocked_queue.find(Filter(shard=shard), 5, scan_max=1_000)).complete
    assert {task.shard for task in (await clocked_queue.find(Filter(shard=shard), 5)).tasks} == {shard}


@pytest.mark.fast
async def test_a_list_of_something_rare_reads_no_more_than_it_may(clocked_queue: Queue) -> None:
    await clocked_queue.submit_many([NewTask("t", n) for n in range(1_200)])
    meter = Metered(clocked_queue.store)
    found = await another(clocked_queue, store=meter).find(Filter(task_type="rare"), 5, scan_max=2_000)
    assert (found.tasks, found.complete) == ([], False)
    assert meter.counts[Operation.GET] <= 200 + 32


@pytest.mark.fast
async def test_a_list_within_a_crowded_shard_covers_all_of_it(clocked_queue: Queue) -> None:
    ids = [f"a{n:07x}-0000-4000-8000-000000000000" for n in range(0, 2**28, 2**28 // 1_500)]
    task = await clocked_queue.submit("t")
    for task_id in ids:
        body = wire.encode(msgspec.structs.replace(task, id=task_id, shard="a", status=Status.COMPLETED))
        await clocked_queue.store.put(keys.task("a", task_id), body)
    found = await clocked_queue.find(Filter(shard="a"), 5_000)
    assert {each.id for each in found.tasks} >= set(ids)
