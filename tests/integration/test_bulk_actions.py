"""Many tasks are replayed, cancelled or archived by a filter, each by its own write, and a broken run can go on."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from qo.core import keys
from qo.core.task import Status
from qo.errors import UsageError
from qo.queue.bulk import Action, BulkReport, act_on_matching
from qo.queue.listing import Filter
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import Fault, Faulty
from qo.store.memory import MemoryStore
from support.stores.queues import StoreClock, another, claimed

P, F, C = Status.PENDING, Status.FAILED, Status.COMPLETED


async def fail_many(queue: Queue, task_type: str, error: str, count: int) -> list[str]:
    ids: list[str] = []
    for n in range(count):
        task = await queue.submit(task_type, n)
        ids.append((await queue.fail(await claimed(queue, task.id), error, permanent=True)).id)
    return ids


async def statuses(queue: Queue) -> dict[str, int]:
    counts: dict[str, int] = {}
    for task in await queue.list(limit=1000):
        counts[task.status] = counts.get(task.status, 0) + 1
    return counts


async def test_tasks_that_match_are_replayed_and_no_others(queue: Queue) -> None:
    lost = await fail_many(queue, "load", "connection lost", 3)
    await fail_many(queue, "load", "no such table", 2)
    await fail_many(queue, "send", "connection lost", 2)
    report = await queue.replay_many(Filter(status=F, task_type="load", error="connection"))
    assert (report.matched, report.changed, report.refused, report.failed) == (3, 3, 0, 0)
    assert report.complete
    for task_id in lost:
        assert (await queue.get(task_id)).status is P
    assert await statuses(queue) == {P: 3, F: 4}
    again = await queue.replay_many(Filter(status=F, task_type="load", error="connection"))
    assert again.matched == 0, "what was changed no longer matches"


async def test_pending_and_running_tasks_are_cancelled_through_the_indexes(queue: Queue) -> None:
    waiting = await queue.submit_many([NewTask("t", n) for n in range(4)])
    running = await claimed(queue, waiting[0].id)
    await queue.submit("u")
    report = await queue.cancel_many(Filter(task_type="t"), by="ada", reason="wrong input")
    assert (report.matched, report.changed) == (4, 4)
    assert (await queue.renew(running)).cancel_requested
    assert await statuses(queue) == {"cancelled": 3, "running": 1, P: 1}
    assert (await queue.get(waiting[1].id)).cancel_reason == "wrong input"


@pytest.mark.fast
async def test_ended_tasks_are_archived_by_age(clocked_queue: Queue, clock: StoreClock) -> None:
    await fail_many(clocked_queue, "t", "old", 2)
    clock.advance(86_400)
    await fail_many(clocked_queue, "t", "new", 1)
    await clocked_queue.submit("t")
    before = clock.now() - timedelta(hours=1)
    report = await clocked_queue.archive_many(Filter(before=before))
    assert (report.matched, report.changed) == (2, 2)
    assert await statuses(clocked_queue) == {F: 1, P: 1}
    since = await clocked_queue.archive_many(Filter(since=before))
    assert since.changed == 1


@pytest.mark.fast
async def test_a_preview_counts_and_changes_nothing(clocked_queue: Queue) -> None:
    await fail_many(clocked_queue, "t", "broken", 9)
    report = await act_on_matching(clocked_queue, Action.REPLAY, Filter(status=F), None)
    assert (report.matched, report.changed, len(report.examples)) == (9, 0, 5)
    assert report.by_type == {("t", F): 9}
    assert await statuses(clocked_queue) == {F: 9}


@pytest.mark.fast
@pytest.mark.parametrize("limit", [1, 5, 40])
async def test_runs_with_a_limit_together_change_everything_once(clocked_queue: Queue, limit: int) -> None:
    await fail_many(clocked_queue, "t", "broken", 37)
    changed, after = 0, ""
    for _ in range(40):
        report = await act_on_matching(
            clocked_queue, Action.REPLAY, Filter(status=F), clocked_queue.replay, limit=limit, after=after
        )
        assert report.matched <= limit
        changed, after = changed + report.changed, report.after
        if report.complete:
            break
    assert changed == 37
    assert await statuses(clocked_queue) == {P: 37}


@pytest.mark.fast
async def test_a_run_that_is_interrupted_goes_on_from_where_it_was(clocked_queue: Queue) -> None:
    await fail_many(clocked_queue, "t", "broken", 80)
    last: list[BulkReport] = []

    class Interrupted(Exception):
        pass

    def note(report: BulkReport) -> None:
        last.append(report)
        if report.changed > 40:
            raise Interrupted

    with pytest.raises(Interrupted):
        await act_on_matching(
            clocked_queue, Action.REPLAY, Filter(status=F), clocked_queue.replay, on_progress=note
        )
    report = await act_on_matching(
        clocked_queue, Action.REPLAY, Filter(status=F), clocked_queue.replay, after=last[-1].after
    )
    assert last[-1].changed + report.changed == 80
    assert await statuses(clocked_queue) == {P: 80}


@pytest.mark.fast
async def test_what_others_change_first_is_refused_and_what_the_store_refuses_has_failed() -> None:
    store = MemoryStore()
    queue = Queue(store)
    ids = await fail_many(queue, "t", "broken", 6)
    faulty = Faulty(store)
    broken = Queue(faulty)

    async def replay(task_id: str) -> object:
        if task_id == ids[0]:
            await queue.archive(task_id)  # Somebody else, at the last moment.
        if task_id == ids[1]:
            faulty.inject(Fault.REFUSED, on="get", under=keys.TASKS)
        return await broken.replay(task_id)

    report = await act_on_matching(queue, Action.REPLAY, Filter(status=F), replay)  # type: ignore[arg-type]
    assert (report.matched, report.changed, report.refused, report.failed) == (6, 4, 1, 1)
    assert len(report.errors) == 1
    assert (await act_on_matching(queue, Action.REPLAY, Filter(status=F), queue.replay)).changed == 1


@pytest.mark.fast
@pytest.mark.parametrize(
    ("action", "status"),
    [("replay", C), ("replay", P), ("cancel", F), ("archive", P), ("archive", Status.RUNNING)],
)
async def test_a_status_that_cannot_be_changed_so_is_refused_at_once(
    clocked_queue: Queue, action: str, status: Status
) -> None:
    with pytest.raises(UsageError, match="choose from"):
        await getattr(clocked_queue, f"{action}_many")(Filter(status=status))


@pytest.mark.fast
async def test_a_shard_limits_what_is_read(clocked_queue: Queue) -> None:
    ids = await fail_many(clocked_queue, "t", "broken", 30)
    shard = ids[0][0]
    report = await clocked_queue.replay_many(Filter(status=F, shard=shard))
    assert report.changed == sum(task_id[0] == shard for task_id in ids)


async def test_a_shard_or_a_key_that_cannot_be_is_refused_and_not_taken_for_nothing_to_do(
    clocked_queue: Queue,
) -> None:
    with pytest.raises(UsageError, match="not a shard"):
        await clocked_queue.cancel_many(Filter(shard="zz"))
    with pytest.raises(UsageError, match="interrupted run"):
        await act_on_matching(clocked_queue, Action.CANCEL, Filter(task_type="t"), None, after="zzz")


async def test_two_that_do_the_same_at_once_change_each_task_once(queue: Queue) -> None:
    await fail_many(queue, "t", "broken", 10)
    one, other = await asyncio.gather(
        another(queue).replay_many(Filter(status=F)), another(queue).replay_many(Filter(status=F))
    )
    assert one.changed + other.changed == 10
    assert one.failed == other.failed == 0
    assert await statuses(queue) == {P: 10}
    for task in await queue.list():
        assert len(await queue.history(task.id)) == 4


@pytest.mark.fast
async def test_options_of_a_task_are_as_before_after_a_replay(clocked_queue: Queue) -> None:
    task = await clocked_queue.submit("t", 1, Options(max_retries=0, priority=3))
    await clocked_queue.fail(await claimed(clocked_queue, task.id), "broken")
    await clocked_queue.replay_many(Filter(task_type="t"))
    again = await clocked_queue.get(task.id)
    assert (again.status, again.priority, again.retry_count) == (P, 3, 0)
