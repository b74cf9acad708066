"""Tasks of one group run one at a time, in the order in which they were submitted, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import pytest

from qo.core import keys
from qo.core.task import Status, Task
from qo.core.waits import GROUP, flow_of
from qo.errors import UsageError
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.waiting import why_unclaimed
from qo.worker.api.context import Context
from support.stores.queues import (
    StoreClock,
    another,
    app_of,
    claimed,
    ended,
    hints,
    keys_under,
    wanted_hints,
    working,
)
from support.worker.processes import Place

GROUPED = Options(group="customer-7")


async def line_up(queue: Queue, count: int) -> list[Task]:
    return [await queue.submit("work", n, GROUPED) for n in range(count)]


async def ready(queue: Queue, tasks: list[Task]) -> list[int]:
    """The inputs of those whose turn it is."""
    now = [await queue.get(task.id) for task in tasks]
    return [task.input for task in now if not task.waiting and not task.ended]


async def finish(queue: Queue, task: Task) -> None:
    await queue.complete(await claimed(queue, task.id))


async def test_one_is_ready_and_its_end_readies_the_next(queue: Queue) -> None:
    tasks = await line_up(queue, 4)
    for n, task in enumerate(tasks):
        assert await ready(queue, tasks) == [n]
        assert [each.input for each in await queue.groups.line("customer-7")] == list(range(n, 4))
        await finish(queue, task)
    assert await ready(queue, tasks) == []
    assert await queue.groups.line("customer-7") == []
    late = await queue.submit("work", 9, GROUPED)
    assert await hints(queue) == wanted_hints(late), "an empty line is no obstacle"


async def test_a_retry_keeps_its_place_until_it_fails_for_good(queue: Queue) -> None:
    tasks = await line_up(queue, 2)
    await queue.fail(await claimed(queue, tasks[0].id), "again", delay_s=0)
    assert await ready(queue, tasks) == [0]
    await queue.fail(await claimed(queue, tasks[0].id), "no", permanent=True)
    assert await ready(queue, tasks) == [1]


async def test_who_is_cancelled_in_line_lets_nobody_overtake(queue: Queue) -> None:
    tasks = await line_up(queue, 5)
    await queue.cancel(tasks[1].id)
    await queue.cancel(tasks[2].id)
    assert await ready(queue, tasks) == [0]
    assert [task.input for task in await queue.groups.line("customer-7")] == [0, 3, 4]
    await finish(queue, tasks[0])
    assert await ready(queue, tasks) == [3]


async def test_who_is_replayed_keeps_its_place_or_gets_in_line_again(queue: Queue) -> None:
    tasks = await line_up(queue, 3)
    await queue.cancel(tasks[1].id)
    await queue.replay(tasks[1].id)
    assert [task.input for task in await queue.groups.line("customer-7")] == [0, 1, 2]
    await queue.fail(await claimed(queue, tasks[0].id), "no", permanent=True)
    assert await ready(queue, tasks) == [1]
    await queue.replay(tasks[0].id)
    assert [task.input for task in await queue.groups.line("customer-7")] == [1, 2, 0]
    for n in (1, 2, 0):
        assert await ready(queue, tasks) == [n]
        await finish(queue, tasks[n])


async def test_the_last_of_a_line_can_be_replayed_while_another_joins(queue: Queue) -> None:
    (only,) = await line_up(queue, 1)
    await queue.fail(await claimed(queue, only.id), "no", permanent=True)
    again, other = await asyncio.gather(another(queue).replay(only.id), another(queue).submit("work", 9, GROUPED))
    both = [again, other]
    for _ in both:
        (first,) = await ready(queue, both)
        await finish(queue, next(task for task in both if task.input == first))
    assert await ready(queue, both) == []


async def test_groups_do_not_wait_for_each_other_and_many_submitters_get_one_line(queue: Queue) -> None:
    await queue.submit("work", -1, Options(group="customer-8"))
    submitters = [another(queue) for _ in range(6)]
    tasks = list(await asyncio.gather(*(each.submit("work", n, GROUPED) for n, each in enumerate(submitters))))
    order = []
    while line := await ready(queue, tasks):
        (n,) = line
        order.append(n)
        await finish(queue, tasks[n])
    assert sorted(order) == list(range(6))
    assert await ready(queue, await queue.groups.line("customer-8")) == [-1]


async def test_many_submitted_at_once_keep_their_order(queue: Queue) -> None:
    began: list[int] = []

    async def work(input: int, ctx: Context) -> None:
        began.append(input)

    tasks = await queue.submit_many([NewTask("work", n, GROUPED) for n in range(12)])
    async with working(queue, app_of(work), worker_id="v"), working(another(queue), app_of(work)):
        await ended(queue, tasks[-1].id)
    assert began == list(range(12))


async def test_the_same_key_again_takes_no_second_place(queue: Queue) -> None:
    first = await queue.submit("work", 1, Options(group="g", key="k"))
    second = await queue.submit("work", 2, Options(group="g"))
    again = await another(queue).submit("work", 1, Options(group="g", key="k"))
    assert again.id == first.id
    assert [task.id for task in await queue.groups.line("g")] == [first.id, second.id]


async def test_a_task_with_dependencies_joins_when_they_have_completed(queue: Queue) -> None:
    dependency = await queue.submit("first")
    late = await queue.submit("work", 0, Options(group="g", depends_on=[dependency.id]))
    soon = await queue.submit("work", 1, Options(group="g"))
    assert await ready(queue, [late, soon]) == [1]
    await finish(queue, dependency)
    assert await ready(queue, [late, soon]) == [1]
    assert "before it in group 'g'" in (await why_unclaimed(queue, await queue.get(late.id)) or "")
    await finish(queue, soon)
    assert await ready(queue, [late, soon]) == [0]


async def test_a_delayed_task_whose_turn_it_is_delays_its_group_and_that_is_told(queue: Queue) -> None:
    first = await queue.submit("work", 0, Options(group="g", delay_s=3600))
    second = await queue.submit("work", 1, Options(group="g"))
    assert second.waiting
    told = await why_unclaimed(queue, second) or ""
    assert first.id in told
    assert "not due before" in told


async def die(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


def then_die(action: Any) -> Any:
    async def act(*arguments: Any) -> Any:
        await action(*arguments)
        raise asyncio.CancelledError

    return act


@pytest.mark.parametrize("where", ["before it joins", "before it knows its place", "before it is registered"])
async def test_a_submitter_that_dies_blocks_nobody_and_the_monitor_makes_good(
    clocked_queue: Queue, clock: StoreClock, where: str
) -> None:
    queue = clocked_queue
    first = await queue.submit("work", 0, GROUPED)
    dying = another(queue)
    match where:
        case "before it joins":
            dying.groups.join = die
        case "before it knows its place":
            dying.groups._replace = then_die(dying.groups._replace)
        case _:
            dying.followers._settle = die
    with pytest.raises(asyncio.CancelledError):
        await dying.submit("work", 1, Options(group="customer-7", key="k"))
    third = await queue.submit("work", 2, GROUPED)
    clock.advance(60)
    await Monitor(queue).check()
    second = await queue.submit("work", 1, Options(group="customer-7", key="k"))
    tasks, order = [first, second, third], list[int]()
    while line := await ready(queue, tasks):
        (n,) = line
        order.append(n)
        await finish(queue, tasks[n])
    assert order == ([0, 2, 1] if where == "before it joins" else [0, 1, 2])


async def test_if_all_hints_are_lost_the_line_goes_on(clocked_queue: Queue, clock: StoreClock) -> None:
    queue = clocked_queue
    tasks = await line_up(queue, 4)
    await queue.cancel(tasks[1].id)
    dying = another(queue)
    dying.tasks.release = die
    claim = await claimed(dying, tasks[0].id)
    with pytest.raises(asyncio.CancelledError):
        await dying.complete(claim)
    for prefix in (keys.READY, keys.LEASES):
        for key in await keys_under(queue.store, prefix):
            await queue.store.delete(key)
    clock.advance(60)
    await Monitor(queue).check()
    assert await ready(queue, tasks) == [2]


async def test_a_cancelled_task_that_never_joined_is_not_waited_for(queue: Queue) -> None:
    dying = another(queue)
    dying.groups.join = die
    with pytest.raises(asyncio.CancelledError):
        await dying.submit("work", 0, Options(group="g", key="k"))
    (lost,) = [task for task in await queue.list(status=Status.PENDING) if GROUP in flow_of(task).waits_for]
    await queue.cancel(lost.id)
    other = await queue.submit("work", 1, Options(group="g"))
    assert not other.waiting
    assert (await queue.replay(lost.id)).waiting


async def test_an_empty_name_is_refused(queue: Queue) -> None:
    with pytest.raises(UsageError, match="must not be empty"):
        await queue.submit("work", 0, Options(group=""))


KILLED = """
import asyncio, os, signal, sys
import qo

async def main():
    async with qo.connect() as queue:
        async def die(*_, **__):
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(*{"join": (queue.groups, "join", die), "place": (queue.groups, "_place", die)}[sys.argv[1]])
        await queue.submit("noted", {"notes": sys.argv[2], "s": 0}, qo.Options(group="g"))

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["join", "place"])
async def test_a_submitter_killed_anywhere_leaves_a_line_that_goes_on(place: Place, where: str) -> None:
    notes = str(place.directory / "notes")
    environment = place._qo().environment
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, where, notes, env=environment)
    assert await killed.wait() == -signal.SIGKILL
    after = await place.queue.submit("noted", {"notes": notes, "s": 0}, Options(group="g"))
    everything = await place.queue.list(status=Status.PENDING)
    assert len(everything) == 2
    async with place.worker("w", "--concurrency", "4"):
        await place.ended([*everything, after], within_s=120)


async def test_the_command_line_shows_a_line_and_skips_its_first(place: Place) -> None:
    first = (await place.ok("submit", "--type", "work", "--group", "g")).strip()
    second = (await place.ok("submit", "--type", "work", "--group", "g")).strip()
    (shown,) = await place.json("group", "list")
    assert (shown["group"], shown["length"], shown["first"], shown["status"]) == ("g", 2, first, "pending")
    assert [task["id"] for task in await place.json("group", "list", "g")] == [first, second]
    assert "cancelled" in await place.ok("group", "skip", "g")
    assert [task["id"] for task in await place.json("group", "list", "g")] == [second]
    assert (await place.qo("group", "skip", "nobody")).code == 3
