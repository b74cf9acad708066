"""Purged tasks leave nothing behind, what is kept stays whole, and no race hits a task that lives again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.commands import Complete
from qo.core.pricing import Operation
from qo.core.retention import DATA_GRACE, ROUND_EVERY, Allowance, Keep, Policy
from qo.core.rhythm import MARKERS_EVERY_S
from qo.core.task import Status, Task
from qo.errors import AccessDenied, NotFound, Refused, Unavailable
from qo.queue import hint_markers, task_removal
from qo.queue.dependencies import results
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.purger import Purger, PurgeReport
from qo.queue.queue import Queue
from qo.store.faulty import Fault, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import Deletion, ObjectStore
from qo.testing import virtual
from support.stores.queues import StoreClock, another, claimed, keys_under, until, virtual_queue

ALL = Policy(Keep(**dict.fromkeys(Keep.__slots__, timedelta(0))))
DAY = timedelta(days=1)


async def complete(
    queue: Queue, task_type: str = "t", input: Any = None, output: Any = None, **options: Any
) -> Task:
    task = await queue.submit(task_type, input, Options(**options))
    return await queue.complete(await claimed(queue, task.id), output)


async def fail(queue: Queue, task_type: str = "t", **options: Any) -> Task:
    task = await queue.submit(task_type, None, Options(**options))
    return await queue.fail(await claimed(queue, task.id), "broken", permanent=True)


async def age(queue: Queue) -> None:
    """Wait until tasks are old enough for the dates of their versions to tell which is the latest."""
    dates = [(key, version.modified) for key, version in (await queue.store.list_versions(keys.TASKS)).entries]
    if len(dates) > len(set(dates)):
        last = max(modified for _, modified in dates)

        async def is_old() -> bool:
            return await queue.store.now() - last >= task_removal.SAME_SECOND

        await until(is_old)


async def purge_all(queue: Queue, **options: Any) -> PurgeReport:
    """Purge all that has ended, as another process would."""
    await age(queue)
    return await Purger(another(queue), ALL).purge_all(**options)


async def remains(store: ObjectStore, prefix: str = "") -> set[str]:
    """Every key that has any version left, delete markers included."""
    return {key for key, _ in (await store.list_versions(prefix)).entries}


async def test_a_purged_task_leaves_no_version_and_no_marker(queue: Queue) -> None:
    ended = [await complete(queue, input=n) for n in range(6)]
    waiting = await queue.submit("t")
    running = (await claimed(queue, (await queue.submit("t")).id)).task
    report = await purge_all(queue)
    assert (report.tasks, report.versions, report.changed) == (6, 18, 0)
    assert report.purged == {("t", Status.COMPLETED): 6}
    assert await remains(queue.store, keys.TASKS) == {
        keys.task(task.shard, task.id) for task in (waiting, running)
    }
    for task in ended:
        with pytest.raises(NotFound):
            await queue.get(task.id)
    assert (await purge_all(queue)).tasks == 0


async def test_few_and_many_tasks_are_removed_alike(queue: Queue) -> None:
    for many in (1, task_removal.LIST_TOGETHER_FROM + 1):
        for n in range(many):
            await complete(queue, input=n)
        assert (await purge_all(queue)).tasks == many
        assert await remains(queue.store, keys.TASKS) == set()


async def test_a_preview_counts_and_removes_nothing(queue: Queue) -> None:
    task = await complete(queue)
    report = await purge_all(queue, dry_run=True)
    assert (report.tasks, [each.id for each in report.examples]) == (1, [task.id])
    assert len(await queue.history(task.id)) == 3


@pytest.mark.fast
async def test_each_status_and_type_is_kept_as_long_as_the_policy_says(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    queue = clocked_queue
    done, failed, audited = await complete(queue), await fail(queue), await complete(queue, "audit")
    cancelled = await queue.cancel((await queue.submit("t")).id)
    archived = await queue.archive((await complete(queue)).id)
    policy = Policy(
        Keep(completed=DAY, failed=3 * DAY, archived=2 * DAY),
        {"audit": Keep(completed=None)},
    )
    purger = Purger(queue, policy)
    ids = {
        "done": done.id,
        "failed": failed.id,
        "audit": audited.id,
        "cancelled": cancelled.id,
        "archived": archived.id,
    }
    left = set(ids)
    for gone in ("done", "archived", "failed", None):
        clock.advance(DAY.total_seconds())
        report = await purger.purge()
        assert report.wrapped
        left -= {gone} if gone else set()
        there = {name for name, task_id in ids.items() if await queue.tasks.load(task_id) is not None}
        assert there == left


@pytest.mark.fast
async def test_tasks_that_are_kept_longer_are_not_read_again_and_again(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    meter = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=meter)
    for _ in range(30):
        await fail(queue)
    await complete(queue)
    purger = Purger(queue, Policy(Keep(completed=DAY, failed=20 * DAY)))
    reads: list[int] = []
    for _ in range(25):
        clock.advance(DAY.total_seconds() + 60)
        meter.reset()
        report = await purger.purge()
        assert report.requests >= meter.snapshot().requests - 1, "it knows what it costs"
        reads.append(report.read)
    assert sum(reads) == 31 + 30, "all of them after a day, and the failed ones after twenty"
    assert [n for n in reads if n] == [31, 30]
    assert not await keys_under(queue.store, keys.TASKS)


@pytest.mark.fast
async def test_another_policy_examines_everything_anew(clocked_queue: Queue, clock: StoreClock) -> None:
    await fail(clocked_queue)
    clock.advance(5 * DAY.total_seconds())
    assert (await Purger(clocked_queue, Policy(Keep(completed=DAY, failed=9 * DAY))).purge()).tasks == 0
    assert (await Purger(clocked_queue, Policy(Keep(completed=DAY, failed=2 * DAY))).purge()).tasks == 1


# Resuming, and several at once


async def test_a_round_goes_on_where_the_last_purger_stopped(queue: Queue) -> None:
    for n in range(7):
        await complete(queue, input=n)
    await age(queue)
    tasks: list[int] = []
    for _ in range(4):
        allowance = Allowance(per_minute=1, balance=1)
        report = await Purger(another(queue), ALL, page_size=2).purge(allowance)  # As after a restart.
        tasks.append(report.tasks)
    assert tasks == [2, 2, 2, 1]
    assert report.wrapped
    rest = await Purger(another(queue), ALL, page_size=2).purge()
    assert (rest.tasks, rest.listed) == (0, 0), "the next round is not due before tomorrow"


@pytest.mark.parametrize("kind", ["list", "get", "list_versions", "delete_many"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.fast
async def test_a_purger_that_dies_anywhere_loses_nothing_and_the_next_one_finishes(
    memory_store: MemoryStore, kind: str, nth: int
) -> None:
    queue = Queue(memory_store, payload_threshold_bytes=10)
    kept = await queue.submit("t", "a long input that lies beside the task")
    for n in range(9):
        await complete(queue, input=f"a long input that lies beside the task {n}", output="and a long output" * 2)
    faulty = Faulty(memory_store)
    faulty.inject(Fault.LOST_REPLY, on=kind, nth=nth, times=99)
    broken = Purger(Queue(faulty), ALL, page_size=4)
    with pytest.raises(Unavailable):
        await broken.purge()
    for key in await keys_under(memory_store, keys.TASKS):  # What is there is whole.
        task = await queue.get(key.rpartition("/")[2].removesuffix(".json"))
        assert await queue.input(task)
        assert task.ended == (task.id != kept.id)
    report = await Purger(queue, ALL, page_size=4).purge(at_once=True)
    assert report.wrapped
    assert await remains(memory_store, keys.TASKS) == {keys.task(kept.shard, kept.id)}
    assert await queue.input(await queue.get(kept.id)) == "a long input that lies beside the task"


async def test_purgers_at_once_remove_each_task_and_do_no_harm(queue: Queue) -> None:
    for n in range(12):
        await complete(queue, input=n)
    kept = await queue.submit("t")
    await age(queue)
    purgers = [Purger(another(queue), ALL, page_size=3) for _ in range(3)]
    for _ in range(20):  # Of three that write the cursor at once, one gets on.
        await asyncio.gather(*(purger.purge(at_once=True) for purger in purgers))
        if await remains(queue.store, keys.TASKS) == {keys.task(kept.shard, kept.id)}:
            break
    report = await purgers[0].purge(at_once=True)
    assert (report.tasks, report.wrapped) == (0, True)
    assert await remains(queue.store, keys.TASKS) == {keys.task(kept.shard, kept.id)}


# Races


class Interposed(MemoryStore):
    """Runs something else at the moment just before a request."""

    def __init__(self, clock: StoreClock) -> None:
        super().__init__(clock=clock.now)
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        self._task_deletes = 0

    async def _interpose(self, kind: str) -> None:
        if (act := self.before.pop(kind, None)) is not None:
            await act()

    async def versions(self, key: str) -> Any:
        await self._interpose("versions")
        return await super().versions(key)

    async def delete_many(self, deletions: Any) -> None:
        of_tasks = any(each.key.startswith("tasks/") for each in deletions)
        self._task_deletes += of_tasks
        await self._interpose(f"delete {self._task_deletes}" if of_tasks else "data")
        await super().delete_many(deletions)


@pytest.mark.fast
@pytest.mark.parametrize("moment", ["versions", "delete 1", "delete 2"])
async def test_a_task_that_is_replayed_while_it_is_purged_lives_and_keeps_its_input(
    clock: StoreClock, moment: str
) -> None:
    store = Interposed(clock)
    queue = Queue(store, payload_threshold_bytes=10)
    task = await queue.submit("t", "an input that lies beside the task")
    await queue.fail(await claimed(queue, task.id), "broken", permanent=True)
    await queue.hints.flush()
    clock.advance(2 * DATA_GRACE.total_seconds())
    replayed: list[Task] = []

    async def replay() -> None:
        replayed.append(await another(queue).replay(task.id))

    store.before[moment] = replay
    report = await Purger(queue, ALL).purge_all()
    assert replayed
    assert report.changed == (moment == "versions")
    assert report.data == 0
    found = await queue.get(task.id)
    assert found.status is Status.PENDING
    assert await queue.input(found) == "an input that lies beside the task"
    assert (await queue.complete(await claimed(queue, task.id))).status is Status.COMPLETED


async def test_of_a_replay_and_a_purge_at_once_the_task_is_whole_or_gone(queue: Queue) -> None:
    tasks = [await fail(queue) for _ in range(8)]

    async def replay(task: Task) -> Task | None:
        try:
            return await another(queue).replay(task.id)
        except (NotFound, Refused):
            return None

    await age(queue)
    purge = asyncio.create_task(Purger(another(queue), ALL).purge_all())
    replayed = await asyncio.gather(*(replay(task) for task in tasks))
    await purge
    there = {key for key in await keys_under(queue.store, keys.TASKS)}
    for task, answer in zip(tasks, replayed, strict=True):
        key = keys.task(task.shard, task.id)
        assert (key in there) == (answer is not None), "whoever was told that it is replayed finds it"
        if answer is not None:
            assert (await queue.get(task.id)).status is Status.PENDING
    assert await remains(queue.store, keys.TASKS) == there


async def test_an_idempotency_key_ends_with_its_task(queue: Queue) -> None:
    first = await complete(queue, input=1, key="k")
    assert (await queue.submit("t", 1, Options(key="k"))).status is Status.COMPLETED
    await purge_all(queue)
    again = await queue.submit("t", 2, Options(key="k"))
    assert (again.id, again.status, again.input) == (first.id, Status.PENDING, 2)
    assert [task.status for task in await queue.history(again.id)] == [Status.PENDING]


@pytest.mark.fast
async def test_a_purge_leaves_no_task_waiting_for_what_is_gone(clocked_queue: Queue, clock: StoreClock) -> None:
    first = await clocked_queue.submit("t")
    waiting = await clocked_queue.submit("t", None, Options(depends_on=[first.id]))
    claim = await claimed(clocked_queue, first.id)
    done = Complete(clocked_queue.ambient.token(), claim.lease_id, None, None, None)
    await clocked_queue.tasks.apply(claim.snapshot, done, follow=False)  # It died before it told anybody.
    clock.advance(5)
    assert (await Purger(clocked_queue, ALL).purge_all()).tasks == 1
    assert not (await clocked_queue.get(waiting.id)).waiting


@pytest.mark.fast
async def test_a_task_whose_dependents_cannot_be_told_stays_until_they_can(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    first = await clocked_queue.submit("t")
    waiting = await clocked_queue.submit("t", None, Options(depends_on=[first.id]))
    await clocked_queue.complete(await claimed(clocked_queue, first.id))
    clock.advance(5)
    faulty = Faulty(clocked_queue.store)
    faulty.inject(
        Fault.REFUSED, on="get", under=clocked_queue.tasks.key(waiting.id), nth=2
    )  # After the purger's own.
    assert (await Purger(another(clocked_queue, store=faulty), ALL).purge_all()).tasks == 0
    assert (await Purger(clocked_queue, ALL).purge_all()).tasks == 1


@pytest.mark.fast
async def test_the_results_of_a_purged_dependency_are_missing_and_the_error_says_why(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    first = await complete(clocked_queue, output=1)
    second = await clocked_queue.submit("t", None, Options(depends_on=[first.id]))
    clock.advance(5)
    assert (await Purger(clocked_queue, ALL).purge_all()).tasks == 1
    with pytest.raises(NotFound, match=f"{first.id}.*was purged meanwhile. Keep tasks of its type for longer"):
        await results(clocked_queue, await clocked_queue.get(second.id))
    with pytest.raises(NotFound, match="if it was purged, submit it again"):
        await clocked_queue.submit("t", None, Options(depends_on=[first.id]))


async def test_submitters_that_race_with_a_purge_have_one_task_or_the_old_one(queue: Queue) -> None:
    for round_ in range(4):
        key = f"k{round_}"
        old = await complete(queue, input="x", key=key)
        await age(queue)
        purge = asyncio.create_task(Purger(another(queue), ALL).purge_all())
        answers = await asyncio.gather(*(another(queue).submit("t", "x", Options(key=key)) for _ in range(4)))
        await purge
        assert {answer.id for answer in answers} == {old.id}
        fresh = {answer.token for answer in answers if answer.status is Status.PENDING}
        assert len(fresh) <= 1, "all that submitted anew have the same task"
        if fresh:
            assert (await queue.get(old.id)).token in fresh


@pytest.mark.fast
async def test_a_submitter_that_finds_its_key_purged_at_the_last_moment_submits_anew() -> None:
    class Purged(MemoryStore):
        purge: Callable[[], Awaitable[object]] | None = None

        async def get(self, key: str, **named: Any) -> Any:
            if self.purge is not None and key.startswith("tasks/"):
                purge, self.purge = self.purge, None
                await purge()
            return await super().get(key, **named)

    store = Purged()
    queue = Queue(store)
    await complete(queue, input=1, key="k")
    store.purge = Purger(Queue(store), ALL).purge_all
    again = await queue.submit("t", 1, Options(key="k"))
    assert again.status is Status.PENDING


# Data


@pytest.mark.fast
async def test_large_values_go_with_their_task_once_they_are_a_day_old(clock: StoreClock) -> None:
    queue = Queue(MemoryStore(clock=clock.now), payload_threshold_bytes=10)
    await complete(queue, input="a long input" * 3, output="a long output" * 3)
    kept = await queue.submit("t", "a long input" * 3)
    clock.advance(60)
    young = await Purger(queue, ALL).purge_all()
    assert (young.tasks, young.data) == (1, 0), "somebody may be about to submit a task that refers to them"
    clock.advance(DATA_GRACE.total_seconds() + 1)
    report = await Purger(queue, ALL).purge_all()
    assert (report.tasks, report.data, report.orphans) == (0, 2, 2)
    assert await queue.input(await queue.get(kept.id)) == "a long input" * 3
    assert len(await remains(queue.store, keys.DATA)) == 1


@pytest.mark.fast
async def test_data_of_a_task_that_was_submitted_again_under_its_key_stays(clock: StoreClock) -> None:
    store = Interposed(clock)
    queue = Queue(store, payload_threshold_bytes=10)
    task = await queue.submit("t", "a long input" * 3, Options(key="k"))
    await queue.complete(await claimed(queue, task.id))
    clock.advance(2 * DATA_GRACE.total_seconds())
    again: list[Task] = []

    async def submit() -> None:
        again.append(
            await another(queue, payload_threshold_bytes=10).submit("t", "a long input" * 3, Options(key="k"))
        )

    store.before["data"] = submit  # Its task is gone by then, and its old data is about to go.
    report = await Purger(queue, ALL).purge_all()
    assert (report.tasks, report.data) == (1, 1)
    assert await queue.input(await queue.get(again[0].id)) == "a long input" * 3


@pytest.mark.fast
async def test_data_without_a_task_is_collected_by_age_and_foreign_objects_are_not(clock: StoreClock) -> None:
    queue = Queue(MemoryStore(clock=clock.now))
    task = await queue.submit("t")
    orphan = "b3f1c0de-0000-4000-8000-000000000001"
    await queue.store.put(keys.input_data("b", orphan, "0" * 64), b"{}")
    await queue.store.put(keys.output_data(task.shard, task.id, 1), b"{}")
    foreign = {"data/readme.txt", f"data/b/{orphan}/notes.txt", f"data/c/{orphan}/input-0.json"}
    for key in foreign:
        await queue.store.put(key, b"by hand")
    assert (await Purger(queue, ALL).purge_all()).orphans == 0
    clock.advance(DATA_GRACE.total_seconds() + 1)
    assert (await Purger(queue, ALL).purge_all(dry_run=True)).orphans == 1
    assert (await Purger(queue, ALL).purge_all()).orphans == 1
    left = await remains(queue.store, keys.DATA)
    assert left == foreign | {keys.output_data(task.shard, task.id, 1)}


@pytest.mark.fast
async def test_data_is_listed_once_however_many_pages_of_tasks_there_are(clocked_queue: Queue) -> None:
    meter = Metered(clocked_queue.store)
    queue = another(clocked_queue, store=meter)
    await queue.submit_many([NewTask("t", n) for n in range(50)])
    meter.reset()
    await Purger(queue, ALL, page_size=5).purge_all()
    assert meter.counts[Operation.LIST] == 10
    assert meter.counts[Operation.VERSIONS] == 1


# Other buckets


@pytest.mark.fast
async def test_without_versioning_tasks_are_removed_by_their_etag() -> None:
    queue = Queue(MemoryStore(versioned=False))
    await complete(queue)
    waiting = await queue.submit("t")
    report = await Purger(queue, ALL).purge_all()
    assert (report.tasks, report.changed) == (1, 0)
    assert await keys_under(queue.store, keys.TASKS) == [keys.task(waiting.shard, waiting.id)]


async def test_a_deleted_task_and_a_marker_are_no_obstacle(queue: Queue) -> None:
    task = await complete(queue)
    await queue.store.delete(queue.tasks.key(task.id))
    await complete(queue)
    assert (await purge_all(queue)).tasks == 1
    versions = await queue.store.versions(queue.tasks.key(task.id))
    await queue.store.delete_many([Deletion(queue.tasks.key(task.id), each.version) for each in versions])


@pytest.mark.fast
async def test_a_task_that_cannot_be_read_stays_and_is_counted(clocked_queue: Queue, clock: StoreClock) -> None:
    await complete(clocked_queue)
    clock.advance(60)
    broken = keys.task("a", "a3f1c0de-0000-4000-8000-000000000001")
    await clocked_queue.store.put(broken, b"what is this")
    report = await Purger(clocked_queue, ALL).purge_all()
    assert (report.tasks, report.corrupt) == (1, 1)
    assert await keys_under(clocked_queue.store, keys.TASKS) == [broken]


# By the monitor


@pytest.mark.fast
def test_a_monitor_purges_in_its_budget_of_requests_and_once_a_day() -> None:
    async def scenario() -> None:
        plain = virtual_queue()
        meter = Metered(plain.store)
        queue = another(plain, store=meter, ambient=plain.ambient)
        for _ in range(300):
            await complete(queue)
        policy = Policy(Keep(completed=timedelta(hours=1)))
        config = MonitorConfig(sweep_interval_s=0, retention=policy, purge_requests_per_minute=60)
        stop = asyncio.Event()
        await asyncio.sleep(7200)
        meter.reset()
        monitor = asyncio.create_task(Monitor(queue, config).run(stop))
        await asyncio.sleep(3600)
        assert not await keys_under(plain.store, keys.TASKS)
        spent = meter.snapshot().counts
        assert spent[Operation.GET] <= 310, "each task was read once"
        meter.reset()
        half_a_day_s = ROUND_EVERY.total_seconds() / 2
        await asyncio.sleep(half_a_day_s)
        for_markers = len(hint_markers.PREFIXES) * (half_a_day_s // MARKERS_EVERY_S + 1)
        assert meter.counts[Operation.VERSIONS] <= for_markers
        assert meter.counts[Operation.GET] <= 2, "until the next round is due it asks nothing"
        stop.set()
        await monitor

    virtual.run(scenario())


@pytest.mark.fast
async def test_a_monitor_without_a_policy_purges_nothing(clocked_queue: Queue, clock: StoreClock) -> None:
    await complete(clocked_queue)
    clock.advance(9999 * DAY.total_seconds())
    report = await Monitor(clocked_queue).purge()
    assert (report.tasks, report.requests) == (0, 0)


@pytest.mark.fast
def test_a_monitor_without_the_rights_says_so_and_does_its_other_work(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(MemoryStore):
        async def delete_many(self, deletions: Any) -> None:
            if any(each.key.startswith(keys.TASKS) for each in deletions):
                raise AccessDenied("s3:DeleteObjectVersion is missing")
            await super().delete_many(deletions)

    async def scenario() -> None:
        queue = Queue(Refusing(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
        await complete(queue)
        held = await queue.submit("t", options=Options(max_retries=5))
        await claimed(queue, held.id, lease_s=60)
        await asyncio.sleep(7200)
        config = MonitorConfig(retention=Policy(Keep(completed=timedelta(hours=1))))
        running = asyncio.create_task(Monitor(queue, config).run(stop := asyncio.Event()))
        await asyncio.sleep(600)
        assert (await queue.get(held.id)).status is Status.PENDING
        stop.set()
        await running

    virtual.run(scenario())
    refused = [record for record in caplog.records if "qo policy monitor --purge" in record.getMessage()]
    assert len(refused) == 1


@pytest.mark.fast
async def test_a_version_that_is_listed_before_it_is_the_latest_is_not_taken_for_an_old_one(
    clock: StoreClock,
) -> None:
    """As some servers list it while it is being written."""

    class Hasty(MemoryStore):
        async def versions(self, key: str) -> Any:
            latest, read, *older = await super().versions(key)
            return [read._replace(latest=True), latest._replace(latest=False), *older]

        async def get(self, key: str, **named: Any) -> Any:
            stored = await super().get(key, **named)
            past = self._history.get(key, []) if key.startswith(keys.TASKS) else []
            if stored is None or len(past) < 4:
                return stored
            return stored._replace(body=past[-2].body, etag=past[-2].etag, version=past[-2].version)

    store = Hasty(clock=clock.now)
    queue = Queue(store)
    task = await fail(queue)
    clock.advance(60)
    await queue.replay(task.id)
    report = await Purger(queue, ALL).purge_all()
    assert (report.tasks, report.changed) == (0, 1)
    assert len(store._history[queue.tasks.key(task.id)]) == 4
