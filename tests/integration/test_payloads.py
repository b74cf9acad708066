"""Inputs and outputs of any size: moved aside when large, and seen whole by whoever asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from qo.core import keys
from qo.core.task import Status
from qo.errors import CorruptRecord
from qo.queue.monitor import Monitor
from qo.queue.options import Options
from qo.queue.queue import PAYLOAD_THRESHOLD_BYTES, Queue
from qo.worker.api.app import App
from support.stores.queues import AT_ONCE, another, claimed, drain, hasty, keys_under, until

LARGE = {"rows": ["x" * 1000] * 300}
C, F = Status.COMPLETED, Status.FAILED


async def test_a_large_input_is_kept_apart_and_the_handler_sees_it_whole(queue: Queue) -> None:
    app, seen = App(), []

    @app.task("t")
    def handle(input: Any) -> int:
        seen.append(input)
        return len(input["rows"])

    task = await queue.submit("t", LARGE)
    assert task.input is None
    assert task.input_ref is not None
    assert task.input_ref.startswith(f"{keys.DATA}{task.shard}/{task.id}/")
    assert await queue.input(task) == LARGE
    await drain(queue, app)
    assert seen == [LARGE]
    assert (await queue.get(task.id)).output == 300


async def test_a_large_output_is_kept_apart_and_read_back_whole(queue: Queue) -> None:
    app = App()

    @app.task("t")
    async def handle(input: Any) -> Any:
        return LARGE

    task = await queue.submit("t")
    await drain(queue, app)
    task = await queue.get(task.id)
    assert (task.status, task.output) == (C, None)
    assert await queue.output(task) == LARGE
    stored = await queue.store.get(queue.tasks.key(task.id))
    assert stored is not None
    assert len(stored.body) < 2_000, "the task object stays small"


async def test_a_value_is_moved_exactly_when_it_is_over_the_threshold(any_store: Any) -> None:
    queue = Queue(any_store, payload_threshold_bytes=100, ambient=hasty())
    fits, over = "x" * 98, "x" * 99  # And two quotes.
    assert (await queue.submit("t", fits)).input == fits
    assert (await queue.submit("t", over)).input_ref is not None
    assert len(await keys_under(any_store, keys.DATA)) == 1


@pytest.mark.fast
async def test_the_default_threshold_is_256_kib(clocked_queue: Queue) -> None:
    fits = "x" * (PAYLOAD_THRESHOLD_BYTES - 2)
    assert (await clocked_queue.submit("t", fits)).input_ref is None
    assert (await clocked_queue.submit("t", fits + "x")).input_ref is not None


async def test_the_output_of_a_stalled_attempt_does_not_overwrite_its_successors(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(retry_policy=AT_ONCE))
    stalled = await claimed(queue, task.id, lease_s=0.05)
    await queue.hints.flush()
    monitor = Monitor(another(queue))

    async def requeued() -> bool:
        return (await monitor.check()).requeued == 1

    await until(requeued)
    successor = await claimed(another(queue), task.id)
    results = await asyncio.gather(
        another(queue).complete(successor, {"by": "successor", **LARGE}),
        queue.complete(stalled, {"by": "stalled", **LARGE}),
        return_exceptions=True,
    )
    assert type(results[1]).__name__ == "LeaseLost"
    task = await queue.get(task.id)
    assert (await queue.output(task))["by"] == "successor"
    assert task.output_ref == keys.output_data(task.shard, task.id, 2)


async def test_two_submitters_of_one_key_with_different_large_inputs_do_not_mix_them_up(queue: Queue) -> None:
    options = Options(key="k")
    results = await asyncio.gather(
        *(another(queue).submit("t", {"n": n, **LARGE}, options) for n in range(4)), return_exceptions=True
    )
    (won,) = [result for result in results if not isinstance(result, BaseException)]
    assert await queue.input(await queue.get(won.id)) == await queue.input(won)


async def test_a_reference_that_leads_nowhere_fails_the_attempt_and_says_why(queue: Queue) -> None:
    app = App()

    @app.task("t")
    async def handle(input: Any) -> None: ...

    task = await queue.submit("t", LARGE, Options(max_retries=0))
    assert task.input_ref is not None
    await queue.store.delete(task.input_ref)
    with pytest.raises(CorruptRecord, match="is missing"):
        await queue.input(task)
    await drain(queue, app)
    task = await queue.get(task.id)
    assert task.status is F
    assert task.input_ref in (task.last_error or "")


async def test_a_reference_leads_to_the_data_of_its_own_task_and_nowhere_else(queue: Queue) -> None:
    """Who may write tasks, and not read those of others, must not have a worker read them for it."""
    theirs = await queue.submit("t", LARGE)
    mine = await queue.submit("t", {"rows": []})
    assert theirs.input_ref is not None
    for ref in (
        theirs.input_ref,
        keys.QUEUE,
        f"{keys.DATA}{mine.shard}/{mine.id}/../x",
        queue.tasks.key(theirs.id),
    ):
        for forged in (replace(mine, input=None, input_ref=ref), replace(mine, output_ref=ref)):
            with pytest.raises(CorruptRecord, match="not its own"):
                await (queue.input(forged) if forged.input_ref else queue.output(forged))
