"""Unique tasks: while one stands for another, the other is not submitted, however many try."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.core import keys
from qo.core.task import Status
from qo.core.uniqueness import Unique
from qo.errors import UsageError
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from support.stores.queues import StoreClock, another, claimed, keys_under

ONCE = Options(unique=Unique())


async def test_while_one_is_pending_or_running_it_stands_for_the_next(queue: Queue) -> None:
    first = await queue.submit_or_find("report", {"day": 1}, ONCE)
    assert first.created
    again = await another(queue).submit_or_find("report", {"day": 1}, ONCE)
    assert (again.task.id, again.created) == (first.task.id, False)
    claim = await claimed(queue, first.task.id)
    assert (await queue.submit("report", {"day": 1}, ONCE)).id == first.task.id
    await queue.complete(claim)
    after = await queue.submit_or_find("report", {"day": 1}, ONCE)
    assert after.task.id != first.task.id
    assert after.created


async def test_what_is_equal_is_chosen_by_its_parts(queue: Queue) -> None:
    def by(*parts: str) -> Options:
        return Options(unique=Unique(by=parts))

    one = await queue.submit("report", {"who": {"id": 7}, "at": 1}, by("type", "input.who.id"))
    assert (await queue.submit("report", {"who": {"id": 7}, "at": 2}, by("type", "input.who.id"))).id == one.id
    assert (await queue.submit("report", {"who": {"id": 8}, "at": 1}, by("type", "input.who.id"))).id != one.id
    assert (await queue.submit("other", {"who": {"id": 7}}, by("type", "input.who.id"))).id != one.id
    shared = await queue.submit("report", {"n": 1}, by("input"))
    assert (await queue.submit("other", {"n": 1}, by("input"))).id == shared.id
    keyed = Options(unique=Unique(key="k"))
    assert (await queue.submit("report", 1, keyed)).id == (await queue.submit("report", 2, keyed)).id


async def test_for_a_time_it_also_stands_when_it_has_completed(clocked_queue: Queue, clock: StoreClock) -> None:
    hourly = Options(unique=Unique(for_s=3600))
    first = await clocked_queue.submit("report", 1, hourly)
    await clocked_queue.complete(await claimed(clocked_queue, first.id))
    await clocked_queue.archive(first.id)
    clock.advance(3599)
    assert (await clocked_queue.submit("report", 1, hourly)).id == first.id
    clock.advance(2)
    second = await clocked_queue.submit("report", 1, hourly)
    assert second.id != first.id
    await clocked_queue.cancel(second.id)
    assert (await clocked_queue.submit("report", 1, hourly)).id != second.id, (
        "what was cancelled stands for nothing"
    )


async def test_the_statuses_can_be_chosen(queue: Queue) -> None:
    waiting = Options(unique=Unique(while_in=frozenset({Status.PENDING})))
    first = await queue.submit("report", 1, waiting)
    await claimed(queue, first.id)
    assert (await queue.submit("report", 1, waiting)).id != first.id


async def test_of_many_submitters_one_creates_the_task(queue: Queue, request: pytest.FixtureRequest) -> None:
    on_s3 = request.node.callspec.params["any_store"] == "s3"
    submitters = [another(queue) for _ in range(6 if on_s3 else 16)]
    found = await asyncio.gather(*(each.submit_or_find("report", 1, ONCE) for each in submitters))
    assert len({each.task.id for each in found}) == 1
    assert [each.created for each in found].count(True) == 1
    assert len(await keys_under(queue.store, keys.TASKS)) == 1


async def test_of_many_that_find_it_completed_one_creates_the_next(queue: Queue) -> None:
    first = await queue.submit("report", 1, ONCE)
    await queue.complete(await claimed(queue, first.id))
    found = await asyncio.gather(*(another(queue).submit("report", 1, ONCE) for _ in range(6)))
    assert len({task.id for task in found}) == 1
    assert len(await keys_under(queue.store, keys.TASKS)) == 2


async def test_a_submitter_that_dies_before_it_creates_the_task_is_made_good_by_the_next(queue: Queue) -> None:
    dying = another(queue)

    async def die(*_: Any) -> Any:
        raise asyncio.CancelledError

    dying.tasks.create = die
    with pytest.raises(asyncio.CancelledError):
        await dying.submit("report", 1, ONCE)
    assert await keys_under(queue.store, keys.TASKS) == []
    first = await queue.submit_or_find("report", 1, ONCE)
    again = await queue.submit_or_find("report", 1, ONCE)
    assert (first.created, again.created) == (True, False)
    assert first.task.id == again.task.id


async def test_many_at_once_are_told_apart(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("report", n % 2, ONCE) for n in range(6)])
    assert len({task.id for task in tasks}) == 2


@pytest.mark.parametrize(
    ("unique", "message"),
    [
        (Unique(by=()), "list such as"),
        (Unique(by="type"), "list such as"),
        (Unique(by=("customer",)), "input.customer"),
        (Unique(by=("input.customer",)), "no such member"),
        (Unique(key=""), "must not be empty"),
        (Unique(for_s=-1), "for_s"),
    ],
)
async def test_mistakes_are_explained(queue: Queue, unique: Unique, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        await queue.submit("report", {"n": 1}, Options(unique=unique))
    with pytest.raises(UsageError, match="not both"):
        await queue.submit("report", 1, Options(unique=Unique(), key="k"))
    assert await keys_under(queue.store, keys.TASKS) == []
