"""Tasks that depend on others: they start when those have completed, with their results, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest

import qo
from qo.core import keys
from qo.core.lifecycle import Reason
from qo.core.task import Status, Task
from qo.errors import NotFound, Refused, Unavailable, UsageError
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.queue.waiting import why_unclaimed
from qo.store.memory import MemoryStore
from qo.worker.api.context import BlockingContext, Context
from qo.worker.api.signals import Reject
from support.stores.queues import (
    StoreClock,
    another,
    app_of,
    claimed,
    drain,
    ended,
    hints,
    keys_under,
    rejection,
    until,
    wanted_hints,
    working,
)
from support.worker.processes import Place


async def after(queue: Queue, *tasks: Task, **options: Any) -> Task:
    return await queue.submit("next", None, Options(depends_on=[task.id for task in tasks], **options))


async def add(input: int, ctx: Context) -> int:
    return input + sum(await ctx.results())


def add_on_a_thread(input: int, ctx: BlockingContext) -> int:
    return input + sum(ctx.result(each) for each in ctx.task.flow.depends_on) + len(ctx.dependencies())


async def refuse(input: Any) -> None:
    raise Reject("never")


async def test_a_task_waits_until_what_it_depends_on_has_completed(queue: Queue) -> None:
    first = await queue.submit("first")
    second = await after(queue, first)
    assert second.waiting
    assert rejection(await queue.claim(second.id, worker_id="w")).reason is Reason.WAITING
    assert await hints(queue) == wanted_hints(first, second)
    assert [task.id for task in await queue.list(status=Status.PENDING)].count(second.id) == 1
    assert first.id in (await why_unclaimed(queue, second) or "")
    await queue.complete(await claimed(queue, first.id))
    assert not (await queue.get(second.id)).waiting
    assert await hints(queue) == wanted_hints(await queue.get(second.id))
    await claimed(queue, second.id)


async def test_of_several_it_waits_for_the_last_and_a_retry_does_not_count(queue: Queue) -> None:
    tasks = [await queue.submit("first", n) for n in range(3)]
    join = await after(queue, *tasks)
    for task in tasks:
        assert (await queue.get(join.id)).waiting
        await queue.fail(await claimed(queue, task.id), "again", delay_s=0)
        assert (await queue.get(join.id)).waiting
        await queue.complete(await claimed(queue, task.id))
    assert not (await queue.get(join.id)).waiting


async def test_it_does_not_wait_for_what_has_completed(queue: Queue) -> None:
    first = await queue.submit("first")
    await queue.complete(await claimed(queue, first.id))
    second = await after(queue, first)
    assert not second.waiting
    assert await hints(queue) == wanted_hints(second)


@pytest.mark.parametrize("end", ["fail", "cancel"])
async def test_if_a_dependency_does_not_complete_all_that_follows_is_cancelled(queue: Queue, end: str) -> None:
    first = await queue.submit("first")
    second = await after(queue, first)
    third = await after(queue, second)
    anyway = await after(queue, second, on_dependency_failure="run")
    if end == "fail":
        await queue.fail(await claimed(queue, first.id), "no", permanent=True)
    else:
        await queue.cancel(first.id)
    for task, cause in ((second, first), (third, second)):
        now = await queue.get(task.id)
        assert now.status is Status.CANCELLED
        assert cause.id in (now.cancel_reason or "")
    now = await queue.get(anyway.id)
    assert (now.status, now.waiting) == (Status.PENDING, False)
    assert await hints(queue) == wanted_hints(now)


async def test_a_task_that_depends_on_a_failed_one_is_cancelled_at_once(queue: Queue) -> None:
    first = await queue.submit("first")
    await queue.cancel(first.id)
    assert (await after(queue, first)).status is Status.CANCELLED


async def test_replaying_revives_what_was_cancelled_for_it_only_if_asked(queue: Queue) -> None:
    first = await queue.submit("first")
    second = await after(queue, first)
    third = await after(queue, second)
    await queue.fail(await claimed(queue, first.id), "no", permanent=True)
    await queue.replay(first.id)
    assert (await queue.get(second.id)).status is Status.CANCELLED
    await queue.fail(await claimed(queue, first.id), "no", permanent=True)
    await queue.replay(first.id, dependents=True)
    for task in (second, third):
        assert (await queue.get(task.id)).waiting
    for task in (first, second, third):
        await queue.complete(await claimed(queue, task.id))


async def test_a_replayed_dependent_waits_no_more(queue: Queue) -> None:
    first = await queue.submit("first")
    second = await after(queue, first)
    await queue.cancel(first.id)
    assert not (await queue.replay(second.id)).waiting
    await claimed(queue, second.id)


async def test_results_are_passed_on_in_order_also_large_ones_and_to_threads(queue: Queue) -> None:
    app = app_of(add, add_on_a_thread)

    @app.task("large")
    async def large(input: Any) -> str:
        return "x" * 400_000

    @app.task("measure")
    async def measure(input: Any, ctx: Context) -> list[int]:
        return [len(str(each)) for each in await ctx.results()]

    one, two = await queue.submit("add", 1), await queue.submit("add", 2)
    both = await queue.submit("add_on_a_thread", 10, Options(depends_on=[one.id, two.id]))
    big = await queue.submit("large")
    sizes = await queue.submit("measure", None, Options(depends_on=[big.id, one.id]))
    await drain(queue, app)
    assert (await queue.get(both.id)).output == 15
    assert (await queue.get(sizes.id)).output == [400_000, 1]


async def test_handlers_submit_flows_and_another_attempt_repeats_none(clocked_queue: Queue) -> None:
    queue, plan = clocked_queue, qo.chain(NewTask("add", 1), NewTask("add", 2))
    app, ids = app_of(add), list[str]()

    @app.task("plan")
    async def submit_plan(input: Any, ctx: Context) -> None:
        ids.extend(task.id for task in await ctx.submit_flow(plan, key=ctx.task_id))
        if ctx.attempt == 1:
            raise qo.Retry("after the flow was submitted", delay_s=0)

    @app.task("plan_on_a_thread")
    def submit_plan_on_a_thread(input: Any, ctx: BlockingContext) -> list[str]:
        return [task.id for task in ctx.submit_flow(plan)]

    await queue.submit("plan")
    other = await queue.submit("plan_on_a_thread")
    while not await queue.list(status=Status.COMPLETED, task_type="plan"):
        await drain(queue, app)
    await drain(queue, app)
    assert ids[:2] == ids[2:]
    for last in (ids[1], (await queue.get(other.id)).output[1]):
        assert (await queue.get(last)).output == 3


async def test_a_flow_runs_in_its_order_and_submitting_it_again_repeats_nothing(queue: Queue) -> None:
    plan = qo.chain(
        NewTask("add", 1),
        qo.group([NewTask("add", n) for n in range(3)], then=NewTask("add", 100)),
        NewTask("add", 1000),
    )
    tasks = await queue.submit_flow(plan, key="nightly")
    again = await another(queue).submit_flow(plan, key="nightly")
    assert [task.id for task in again] == [task.id for task in tasks]
    await drain(queue, app_of(add))
    outputs = [(await queue.get(task.id)).output for task in tasks]
    assert outputs == [1, 1, 2, 3, 106, 1106]
    assert await hints(queue) == set()
    assert {(await queue.get(task.id)).attempt for task in tasks} == {1}


@pytest.mark.parametrize("written", range(4))
async def test_a_flow_cut_short_starts_nothing_and_is_completed_by_submitting_it_again(
    queue: Queue, written: int
) -> None:
    plan = qo.dag({name: NewTask("add", 1) for name in "abcd"}, {"b": "a", "c": "a", "d": "bc"})
    create, done = queue.tasks.create, 0

    async def create_some(task: Task) -> Any:
        nonlocal done
        done += 1
        if done > written:
            raise asyncio.CancelledError
        return await create(task)

    queue.tasks.create = create_some
    with pytest.raises(asyncio.CancelledError):
        await queue.submit_flow(plan, key="k")
    assert await keys_under(queue.store, keys.READY) == [], "its first task is written last"
    tasks = await another(queue).submit_flow(plan, key="k")
    await drain(another(queue), app_of(add))
    assert [(await queue.get(task.id)).output for task in tasks] == [1, 2, 2, 5]


@pytest.mark.fast
def test_mistakes_in_a_flow_are_explained_before_anything_is_written() -> None:
    work = NewTask("work")
    with pytest.raises(UsageError, match="circle"):
        qo.dag({"a": work, "b": work}, {"a": ["b"], "b": ["a"]})
    with pytest.raises(UsageError, match="no task 'c'"):
        qo.dag({"a": work}, {"a": ["c"]})
    with pytest.raises(UsageError, match="at least one"):
        qo.chain()
    with pytest.raises(UsageError, match="key of the flow"):
        qo.chain(NewTask("work", None, Options(key="k"))).steps("f")


async def test_a_dependency_that_is_not_there_or_is_no_id_is_refused(queue: Queue) -> None:
    with pytest.raises(NotFound, match="submit that one first"):
        await queue.submit("next", None, Options(depends_on=["00000000-0000-4000-8000-000000000000"]))
    with pytest.raises(UsageError):
        await queue.submit("next", None, Options(depends_on=["x"]))
    with pytest.raises(UsageError, match="list of task ids"):
        await queue.submit("next", None, Options(depends_on="x"))
    with pytest.raises(UsageError, match="one of cancel, run"):
        await queue.submit("next", None, Options(on_dependency_failure="explode"))
    assert await keys_under(queue.store, keys.TASKS) == []


async def test_a_task_has_a_bounded_number_of_dependents(
    clocked_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("core.lifecycle", "queue.followers"):
        monkeypatch.setattr(f"qo.{module}.DEPENDENTS_MAX", 2)
    first = await clocked_queue.submit("first")
    for n in range(2):
        await after(clocked_queue, first, key=f"k{n}")
    with pytest.raises(Refused, match="task in between"):
        await after(clocked_queue, first)
    assert len(await keys_under(clocked_queue.store, keys.TASKS)) == 3, "nothing is written that is refused"
    await after(clocked_queue, first, key="k1")


async def test_of_an_end_and_a_submit_at_one_moment_no_dependent_is_forgotten(queue: Queue) -> None:
    for _ in range(5):
        first = await queue.submit("first")
        claim = await claimed(queue, first.id)
        others = [another(queue) for _ in range(4)]
        *dependents, _ = await asyncio.gather(*(after(each, first) for each in others), queue.complete(claim))
        for task in dependents:
            assert not (await queue.get(task.id)).waiting


async def test_many_that_end_at_once_ready_their_join_once(queue: Queue) -> None:
    plan = qo.group([NewTask("add", 1) for _ in range(24)], then=NewTask("add", 0))
    *_, join = await queue.submit_flow(plan)
    async with working(queue, app_of(add), worker_id="v"):
        await drain(another(queue), app_of(add))
        now = await ended(queue, join.id)
    assert (now.output, now.attempt) == (24, 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_many_that_end_at_once_tell_their_join_in_few_requests_also_if_one_fails(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    queue = Queue(MemoryStore())
    *first, join = await queue.submit_flow(
        qo.group([NewTask("add", 1) for _ in range(20)], then=NewTask("add", 0))
    )
    claims = [await claimed(queue, task.id) for task in first]
    loads, load = 0, queue.tasks.load

    async def count(task_id: str, *last: Any) -> Any:
        nonlocal loads
        await asyncio.sleep(0)
        if task_id == join.id:
            loads += 1
            if fails and loads == 1:
                raise Unavailable("no answer, once")
        return await load(task_id)

    monkeypatch.setattr(queue.tasks, "load", count)
    await asyncio.gather(*(queue.complete(claim, 1) for claim in claims))
    assert loads < 20
    waits_for = (await queue.get(join.id)).flow.waits_for
    assert waits_for == (), "whoever comes next tells it of all"


@pytest.mark.fast
async def test_a_drain_does_not_end_with_a_look_that_began_before_the_last_task_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, begun, finish = Queue(MemoryStore()), asyncio.Event(), asyncio.Event()
    first, second = await queue.submit_flow(qo.chain(NewTask("first"), NewTask("add", 1)))
    app, list_keys = app_of(add), queue.store.list

    @app.task("first")
    async def wait_for_the_look(input: Any) -> int:
        begun.set()
        await finish.wait()
        return 1

    async def is_ready(task_id: str) -> bool:
        return not (await queue.get(task_id)).waiting

    async def list_slowly(prefix: str, **how: Any) -> Any:
        page = await list_keys(prefix, **how)
        if begun.is_set() and not finish.is_set() and prefix.startswith(keys.READY):
            finish.set()  # The task ends, and its dependent is ready, before this listing arrives.
            await until(lambda: is_ready(second.id))
            await asyncio.sleep(0.05)  # Until the worker holds nothing: that shows nowhere outside.
        return page

    monkeypatch.setattr(queue.store, "list", list_slowly)
    await drain(queue, app)
    assert [(await queue.get(each.id)).output for each in (first, second)] == [1, 2]


async def die(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


async def die_after_completing(queue: Queue, task: Task) -> None:
    dying = another(queue)
    claim = await claimed(dying, task.id, lease_s=30)
    await dying.hints.flush()
    dying.tasks.release = die
    with pytest.raises(asyncio.CancelledError):
        await dying.complete(claim)


async def test_if_the_process_that_ends_a_task_dies_the_monitor_tells_its_dependents(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    first = await clocked_queue.submit("first")
    second = await after(clocked_queue, first)
    await die_after_completing(clocked_queue, first)
    monitor = Monitor(clocked_queue)
    assert (await clocked_queue.get(second.id)).waiting
    clock.advance(120)
    await monitor.check()
    assert not (await clocked_queue.get(second.id)).waiting
    assert await hints(clocked_queue) == wanted_hints(await clocked_queue.get(second.id))


@pytest.mark.parametrize("by", ["monitor", "sweeper"])
async def test_a_waiting_task_is_found_even_if_no_hint_of_the_other_is_left(
    clocked_queue: Queue, clock: StoreClock, by: str
) -> None:
    first = await clocked_queue.submit("first")
    second = await after(clocked_queue, first)
    await die_after_completing(clocked_queue, first)
    for key in await keys_under(clocked_queue.store, keys.LEASES):
        await clocked_queue.store.delete(key)
    clock.advance(60)
    if by == "monitor":
        assert (await Monitor(clocked_queue).check()).settled == 1
    else:
        while not (await Sweeper(clocked_queue).sweep()).wrapped:
            pass
    assert not (await clocked_queue.get(second.id)).waiting


async def test_if_a_submitter_dies_before_it_registers_its_task_the_monitor_does(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    first = await clocked_queue.submit("first")
    dying = another(clocked_queue)
    dying.followers.settle = die
    with pytest.raises(asyncio.CancelledError):
        await after(dying, first, key="k")
    clock.advance(60)
    await Monitor(clocked_queue).check()
    await clocked_queue.complete(await claimed(clocked_queue, first.id))
    assert not (await after(clocked_queue, first, key="k")).waiting


async def test_a_waiting_task_can_expire_and_be_cancelled(clocked_queue: Queue, clock: StoreClock) -> None:
    first = await clocked_queue.submit("first")
    late, unwanted = await after(clocked_queue, first, expires_in_s=30), await after(clocked_queue, first)
    assert (await clocked_queue.cancel(unwanted.id)).status is Status.CANCELLED
    clock.advance(60)
    await Monitor(clocked_queue).check()
    assert (await clocked_queue.get(late.id)).status is Status.EXPIRED
    await clocked_queue.complete(await claimed(clocked_queue, first.id))
    assert (await clocked_queue.get(unwanted.id)).status is Status.CANCELLED


KILLED = """
import asyncio, os, signal, sys
import qo

async def main(task_id):
    async with qo.connect() as queue:
        async def die(task):
            os.kill(os.getpid(), signal.SIGKILL)
        claim = await queue.claim(task_id, worker_id="doomed", lease_s=2)
        await queue.hints.flush()
        queue.tasks.release = die
        await queue.complete(claim)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_process_killed_right_after_ending_a_task_leaves_nothing_waiting(place: Place) -> None:
    first = await place.queue.submit("first")
    second = await place.queue.submit("work", {"s": 0}, Options(depends_on=[first.id]))
    environment = place._qo().environment
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, first.id, env=environment)
    assert await killed.wait() == -signal.SIGKILL
    assert (await place.queue.get(first.id)).status is Status.COMPLETED
    assert (await place.queue.get(second.id)).waiting
    async with place.worker("w"):
        (now,) = await place.ended([second], within_s=120)
    assert now.status is Status.COMPLETED


async def test_the_command_line_submits_shows_and_revives_dependents(place: Place) -> None:
    first = (await place.ok("submit", "--type", "first")).strip()
    second = (await place.ok("submit", "--type", "next", "--depends-on", first)).strip()
    assert "waits" in await place.ok("list", "--status", "pending")
    shown = await place.ok("status", second)
    assert first in shown
    await place.ok("cancel", first)
    assert (await place.json("status", second))["status"] == "cancelled"
    await place.ok("replay", first, "--dependents")
    assert (await place.json("status", second))["flow"]["waits_for"] == [first]
    missing = await place.qo("submit", "--type", "next", "--depends-on", os.urandom(4).hex())
    assert missing.code == 2
