"""Laws of batches, over random arrivals, sizes, failures and cancellations, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qo
from qo.core.batch import Waiting, choose_batch, must_run_alone, next_due
from qo.core.task import RetryPolicy, Status
from qo.queue.options import Options
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.worker import Worker
from support.stores.queues import all_tasks, config, virtual_queue

pytestmark = pytest.mark.fast

waitings = st.lists(
    st.builds(Waiting, since=st.floats(0, 10), alone=st.booleans() | st.just(False)), max_size=20
).map(lambda found: sorted(found, key=lambda each: each.since))


@given(waiting=waitings, size=st.integers(1, 8), wait_s=st.floats(0, 5), now=st.floats(10, 30))
def test_a_batch_is_never_too_large_nor_mixed_nor_late(
    waiting: list[Waiting], size: int, wait_s: float, now: float
) -> None:
    chosen = choose_batch(waiting, size=size, wait_s=wait_s, now=now)
    assert len(chosen) <= size
    assert chosen == sorted(set(chosen))
    alone = [position for position in chosen if waiting[position].alone]
    assert alone == [] or alone == chosen == [chosen[0]]
    due = next_due(waiting, wait_s=wait_s)
    if due is not None and now >= due:
        assert chosen, "the first has waited long enough"
    if not chosen and waiting:
        assert len(waiting) < size


@given(retry_count=st.integers(0, 5), max_retries=st.integers(0, 5))
def test_the_last_attempt_after_a_failure_is_alone_and_no_first_one_is(retry_count: int, max_retries: int) -> None:
    alone = must_run_alone(retry_count, max_retries)
    assert not (retry_count == 0 and alone)
    if 0 < max_retries == retry_count:
        assert alone


POISON, SLOW = "poison", "slow"
inputs = st.lists(st.sampled_from(["ok", "ok", "ok", "bad", POISON, SLOW, "later"]), min_size=1, max_size=25)


@settings(deadline=None, max_examples=60)
@given(
    inputs=inputs,
    size=st.integers(1, 6),
    calls=st.integers(1, 3),
    slots=st.integers(1, 4),
    plain=st.booleans(),
    cancelled=st.sets(st.integers(0, 24), max_size=4),
    gap_s=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_each_task_has_its_own_outcome_and_no_bad_one_fails_another(
    inputs: list[str], size: int, calls: int, slots: int, plain: bool, cancelled: set[int], gap_s: float
) -> None:
    app, peak = App(), Peak()

    @app.task("many", batch=size, concurrency=calls, timeout_s=5)
    async def many(items: list[Any]) -> list[Any]:
        with peak:
            assert len(items) <= size
            await asyncio.sleep(10 if any(input == SLOW for input, _ in items) else 0.1)
            if any(input == POISON for input, _ in items):
                raise ValueError("the whole batch")
            return [outcome_of(input) for input, _ in items]

    async def main() -> tuple[Worker, dict[str, Status], dict[str, str]]:
        queue = virtual_queue()
        worker = Worker(queue, app, config(concurrency=slots))
        running = asyncio.create_task(worker.run())
        policy = RetryPolicy(initial_interval_ms=10, max_interval_ms=10)
        ids: dict[str, str] = {}
        for input in inputs:
            task = await queue.submit(
                "many", input, Options(max_retries=2, retry_policy=policy, max_reschedules=1)
            )
            ids[task.id] = input
            await asyncio.sleep(gap_s)
        for number in cancelled & set(range(len(inputs))):
            task = await queue.get(list(ids)[number])
            if not task.ended:
                await queue.cancel(task.id)
        while any(not task.ended for task in await all_tasks(queue.store)):  # noqa: ASYNC110 - virtual time.
            await asyncio.sleep(1)
        worker.stop()
        await running
        return worker, {task.id: task.status for task in await all_tasks(queue.store)}, ids

    worker, ends, ids = virtual.run(main())
    assert worker.stats.is_balanced
    assert worker.stats.held == 0
    assert peak.highest <= calls
    victims = {"ok": Status.COMPLETED, "bad": Status.FAILED, "later": Status.FAILED, POISON: Status.FAILED}
    for task_id, input in ids.items():
        if ends[task_id] is not Status.CANCELLED:
            assert ends[task_id] is victims.get(input, Status.FAILED), input


def outcome_of(input: str) -> Any:
    match input:
        case "bad":
            return qo.Reject("no use")
        case "later":
            return qo.Reschedule(0.1)
        case _:
            return {"echo": input}


class Peak:
    """How many are within at a time, at most."""

    def __init__(self) -> None:
        self.inside = self.highest = 0

    def __enter__(self) -> None:
        self.inside += 1
        self.highest = max(self.highest, self.inside)

    def __exit__(self, *error: object) -> None:
        self.inside -= 1
