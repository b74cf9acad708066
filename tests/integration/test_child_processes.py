# ruff: noqa: F811
"""Handlers in child processes: values, errors, and the context."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import child_functions as functions
import pytest

from qo.errors import UsageError
from qo.queue.queue import Queue
from qo.store.local import LocalStore
from qo.worker.loop.outcome import Dead, Released, Retried
from support.stores.queues import until
from support.worker.attempts import Attempts
from support.worker.child_pools import Pool, alive, attempts, begun, failure, holds, pool, pool_of  # noqa: F401


@pytest.mark.parametrize(
    "value", [21, "text", None, [1, {"a": 2.5}], "x" * 3_000_000], ids=lambda value: str(value)[:9]
)
async def test_a_value_goes_there_and_back(pool: Pool, attempts: Attempts, value: Any) -> None:
    expected = None if value is None else [value] * 2
    call = pool.call(await attempts.request(functions.double, [value]))
    assert await call == (expected or [None, None])


async def test_an_input_of_a_declared_type_arrives_as_such(pool: Pool, attempts: Attempts) -> None:
    assert await pool.call(await attempts.request(functions.order, functions.Order(7))) == ["Order", 7]


@pytest.mark.parametrize(
    ("which", "error"),
    [
        ("value", "ValueError: no such thing"),
        ("unsendable", "Unsendable: this and that"),
        ("exit", "SystemExit: 3"),
        ("stop", "StopIteration: empty"),
        ("surrogate", "OSError: caf?"),
        ("interrupt", "KeyboardInterrupt"),
        ("bare", "AttributeError: 'BareReschedule' object has no attribute 'delay_s'"),
    ],
)
async def test_an_exception_keeps_its_text_and_its_traceback(
    pool: Pool, attempts: Attempts, which: str, error: str
) -> None:
    outcome = await failure(pool, await attempts.request(functions.raises, which))
    assert isinstance(outcome, Retried)
    assert outcome.error == error
    assert "in raises" in (outcome.traceback or "") or which == "bare"
    assert await pool.call(await attempts.request(functions.double, 2)) == 4, "the child goes on"


async def test_what_a_handler_says_of_its_task_keeps_its_meaning(pool: Pool, attempts: Attempts) -> None:
    said = [await failure(pool, await attempts.request(functions.raises, word)) for word in ("reject", "retry")]
    assert said == [Dead("never"), Retried("soon", delay_s=7)]
    outcome = await failure(pool, await attempts.request(functions.raises, "reschedule"))
    assert isinstance(outcome, Released)
    assert (outcome.delay_s, outcome.by_handler) == (9, True)


@pytest.mark.parametrize(("which", "told"), [(None, "not to be sent"), (1, "pickle")])
async def test_an_output_that_cannot_be_sent_fails_its_attempt(
    pool: Pool, attempts: Attempts, which: Any, told: str
) -> None:
    outcome = await failure(pool, await attempts.request(functions.unsendable, which))
    assert isinstance(outcome, Retried)
    assert told in outcome.error


async def test_a_function_that_children_cannot_find_is_refused(pool: Pool, attempts: Attempts) -> None:
    def local(input: Any) -> None: ...

    with pytest.raises(UsageError, match="at the top level of a module"):
        await pool.call(await attempts.request(local))
    assert pool.pids == set()


async def test_a_child_is_kept_warm_for_the_next_task(attempts: Attempts) -> None:
    async with pool_of(3) as pool:
        pids = {await pool.call(await attempts.request(functions.pid)) for _ in range(3)}
        assert pids == pool.pids
        assert len(pids) == 1
        requests = [await attempts.request(functions.pid, 0.3) for _ in range(3)]
        assert len(set(await asyncio.gather(*map(pool.call, requests)))) == 3


async def test_no_more_children_run_than_there_are_slots(attempts: Attempts) -> None:
    async with pool_of(2) as pool:
        requests = [await attempts.request(functions.pid, 0.05) for _ in range(8)]
        assert len(set(await asyncio.gather(*map(pool.call, requests)))) == 2


async def test_a_handler_sees_its_task(pool: Pool, attempts: Attempts) -> None:
    request = await attempts.request(functions.facts)
    assert await pool.call(request) == {
        "task_id": request.task.id,
        "type": "facts",
        "attempt": 1,
        "worker_id": "w",
        "remaining_s": None,
        "cancel_requested": False,
        "draining": False,
    }


async def test_a_handler_can_ask_for_more_time(pool: Pool, attempts: Attempts) -> None:
    request = await attempts.request(functions.extends, 100.0, timeout_s=30)
    request.clock.start(lambda: None)
    before, after, renewed = await pool.call(request)
    request.clock.stop()
    assert 20 < before <= 30
    assert 90 < after <= 100
    assert 190 < renewed <= 200


async def test_loading_a_handler_does_not_count_against_its_time(pool: Pool, attempts: Attempts) -> None:
    expired: list[bool] = []
    request = await attempts.request(functions.double, 1, timeout_s=0.05)
    request.clock.start(lambda: expired.append(True))
    assert await pool.call(request) == 2
    request.clock.stop()
    assert expired == [], "a child takes longer than that to start"


async def test_a_submission_is_durable_before_the_call_returns(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path / "store")
    try:
        queue = Queue(store)
        attempts, written = Attempts(queue), tmp_path / "id"
        async with pool_of() as pool:
            outcome = await failure(pool, await attempts.request(functions.submits_then_dies, str(written)))
            assert outcome == Retried("the child process died of SIGKILL (out of memory?)")
            assert (await queue.get(written.read_text())).task_type == "double"
            answer = await pool.call(await attempts.request(functions.submits))
            assert (await queue.get(answer["id"])).input["from"]
            first, second, *again = await pool.call(await attempts.request(functions.submits_a_flow))
            assert again == [first, second], "the same key is the same flow"
            assert (await queue.get(second)).waiting
    finally:
        await store.close()
    assert attempts.enqueued == 6
    assert answer["type"] == "double"
    assert "a task type is" in answer["refused"]


async def test_threads_of_a_handler_may_all_ask(pool: Pool, attempts: Attempts) -> None:
    ids = await pool.call(await attempts.request(functions.asks_from_threads, 12))
    assert len(set(ids)) == attempts.enqueued == 12


async def test_progress_and_logs_reach_the_worker(
    pool: Pool, attempts: Attempts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    request = await attempts.request(functions.tells)
    assert "the progress" in await pool.call(request)
    await until(holds(lambda: request.context.task.progress == {"percent": 50}))
    request.context.close()
    told = {record.name: record for record in caplog.records if record.process not in (None, os.getpid())}
    assert told["somebody.else"].getMessage().startswith("caught\nTraceback")
    assert f"tells {request.task.id}#1: half of it" in caplog.text
    assert told["somebody.else"].__dict__["task_id"] == request.task.id
    assert ("somebody.else", logging.WARNING, "careful") in caplog.record_tuples


async def test_a_handler_sees_that_the_worker_drains(pool: Pool, attempts: Attempts, tmp_path: Path) -> None:
    call = asyncio.create_task(pool.call(await attempts.request(functions.drains, str(tmp_path / "begun"))))
    await until(holds((tmp_path / "begun").exists))
    attempts.draining = True
    assert await call is True
