"""An idempotency key is a task id: however many submit it, there is one task."""

from __future__ import annotations

import asyncio

import pytest

from qo.core import keys
from qo.core.task import Status
from qo.errors import IdempotencyConflict
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from support.stores.queues import another, claimed, hints, keys_under, wanted_hints

KEYED = Options(key="order-17")


async def test_of_many_submitters_of_one_key_one_writes_and_all_get_its_task(
    queue: Queue, request: pytest.FixtureRequest
) -> None:
    on_s3 = request.node.callspec.params["any_store"] == "s3"  # Slow where many write one key.
    submitters = [another(queue) for _ in range(6 if on_s3 else 16)]
    tasks = await asyncio.gather(*(each.submit("bill", {"n": 17}, KEYED) for each in submitters))
    assert len({task.id for task in tasks}) == 1
    assert await keys_under(queue.store, keys.TASKS) == [queue.tasks.key(tasks[0].id)]
    assert len(await queue.history(tasks[0].id)) == 1
    assert await hints(queue) == wanted_hints(tasks[0])


async def test_a_second_submit_returns_the_task_as_it_is_now(queue: Queue) -> None:
    first = await queue.submit("bill", {"n": 17, "to": "ada"}, KEYED)
    done = await queue.complete(await claimed(queue, first.id), "billed")
    again = await another(queue).submit("bill", {"to": "ada", "n": 17}, KEYED)
    assert again == done, "the order of the keys in the input means nothing"
    assert await hints(queue) == set(), "and it is not queued again"


@pytest.mark.parametrize("other", [("bill", {"n": 18}), ("bill", None), ("bill", {"n": 17.5})])
async def test_another_input_under_the_same_key_is_refused_and_changes_nothing(
    queue: Queue, other: tuple[str, object]
) -> None:
    first = await queue.submit("bill", {"n": 17}, KEYED)
    with pytest.raises(IdempotencyConflict, match=r"'order-17'.*" + first.id):
        await queue.submit(*other, KEYED)
    assert await queue.history(first.id) == [first]
    assert len(await keys_under(queue.store, keys.TASKS)) == 1
    assert await hints(queue) == wanted_hints(first)


async def test_keys_are_apart_by_type_or_by_the_scope_given(queue: Queue) -> None:
    bill = await queue.submit("bill", 1, KEYED)
    ship = await queue.submit("ship", 1, KEYED)
    assert bill.id != ship.id
    scoped = Options(key="order-17", key_scope="orders")
    assert (await queue.submit("bill", 1, scoped)).id not in (bill.id, ship.id)
    with pytest.raises(IdempotencyConflict):
        await queue.submit("ship", 1, scoped)


async def test_a_submitter_that_died_before_writing_the_hint_is_made_good_by_the_next(queue: Queue) -> None:
    task = await queue.submit("bill", 1, KEYED)
    for key in wanted_hints(task):
        await queue.store.delete(key)
    await queue.submit("bill", 1, KEYED)
    assert await hints(queue) == wanted_hints(task)


async def test_a_batch_cut_short_is_completed_by_submitting_it_again(queue: Queue) -> None:
    batch = [NewTask("bill", n, Options(key=f"order-{n}")) for n in range(20)]
    first = await queue.submit_many(batch[:11])
    everything = await queue.submit_many(batch)
    assert [task.id for task in everything[:11]] == [task.id for task in first]
    assert len(await queue.list(status=Status.PENDING)) == 20
