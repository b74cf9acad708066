"""What follows a task that has failed for good: once in the queue for each final failure, whoever dies when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import qo
from qo.core import lifecycle
from qo.core.task import Status, Task
from qo.errors import UsageError
from qo.queue.follow_up import describe_failure
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store.faulty import Fault, Faulty
from qo.store.memory import MemoryStore
from qo.worker.api.app import App, Failure
from support.stores.queues import AT_ONCE, another, claimed, drain, hints, keys_under, until, wanted_hints

ONCE = Options(max_retries=0)


def shop(heard: list[tuple[str, Failure]]) -> App:
    app = App()

    @app.task("mail")
    async def mail(input: Any) -> None:
        if input == "ok":
            return
        raise ValueError("kaput")

    @app.task("other")
    async def other(input: Any) -> None:
        raise qo.Reject("never")

    @app.on_failure("mail")
    async def note_mail(failure: Failure) -> None:
        heard.append(("mail", failure))

    @app.on_failure()
    def note(failure: Failure) -> None:
        heard.append(("*", failure))

    return app


async def followers(queue: Queue, task_type: str) -> list[Task]:
    return await queue.list(task_type=task_type, limit=100)


async def test_a_hook_is_called_for_final_failures_and_nothing_else(queue: Queue) -> None:
    heard: list[tuple[str, Failure]] = []
    retried = Options(max_retries=1, retry_policy=AT_ONCE)
    ok, failing, other = await queue.submit_many(
        [NewTask("mail", "ok", retried), NewTask("mail", "bad", retried), NewTask("other", None, retried)]
    )
    await drain(queue, shop(heard))
    assert sorted(name for name, _ in heard) == ["*", "mail"]
    by_name = {name: failure for name, failure in heard}
    assert (by_name["mail"].task_id, by_name["mail"].attempt) == (failing.id, 2)
    assert by_name["mail"].error == "ValueError: kaput"
    assert (by_name["*"].task_id, by_name["*"].task_type) == (other.id, "other")
    failed = await queue.get(failing.id)
    assert by_name["mail"].failed_at == failed.completed_at
    assert (failed.status, failed.followed_attempt, failed.follow_up_due) == (Status.FAILED, 2, False)
    assert await hints(queue) == set(), "nothing is left to be looked at"
    assert (await queue.get(ok.id)).status is Status.COMPLETED


async def test_what_the_submitter_wants_counts_more_than_a_hook(queue: Queue) -> None:
    heard: list[tuple[str, Failure]] = []
    app = shop(heard)
    alerts: list[Any] = []

    @app.task("alert")
    async def alert(input: Any) -> None:
        alerts.append(input)

    task = await queue.submit("mail", "bad", Options(max_retries=0, on_failure="alert"))
    await drain(queue, app)
    assert heard == []
    assert alerts == [describe_failure(await queue.get(task.id))]


async def test_a_cancelled_task_has_no_follower(queue: Queue) -> None:
    task = await queue.submit("mail", options=Options(on_failure="alert"))
    await queue.cancel(task.id)
    assert await followers(queue, "alert") == []


async def test_a_task_whose_worker_died_is_followed_by_the_monitor(queue: Queue) -> None:
    heard: list[tuple[str, Failure]] = []
    app = shop(heard)
    task = await queue.submit("mail", options=ONCE)
    # As the mailbox claims it; then the worker dies.
    await queue.claim(
        task.id, worker_id="dead", lease_s=0.1, on_failure=lambda task: app.hook_type(task.task_type)
    )
    await queue.hints.flush()
    monitor = Monitor(another(queue))

    async def failed() -> bool:
        return (await monitor.check()).failed > 0

    await until(failed)
    await drain(another(queue), app)
    ((name, failure),) = heard
    assert (name, failure.task_id) == ("mail", task.id)
    assert (failure.error or "").startswith("lease expired")


async def fail_and_die(queue: Queue, task: Task) -> Task:
    """Write the failure of a task and nothing after it, as a process that is killed right then."""
    claim = await claimed(queue, task.id)
    command = lifecycle.Fail(queue.ambient.token(), claim.lease_id, "kaput", 0.0, None, True)
    moved = await queue.tasks.apply(claim.snapshot, command)
    await queue.hints.flush()
    assert not isinstance(moved, lifecycle.Rejected)
    return moved.task


async def test_what_a_dying_worker_left_out_is_made_up_for_once(queue: Queue) -> None:
    task = await queue.submit("mail", options=Options(on_failure="alert"))
    failed = await fail_and_die(queue, task)
    assert failed.follow_up_due
    assert await hints(queue) == wanted_hints(failed)
    await asyncio.gather(*(Monitor(another(queue)).check() for _ in range(3)))
    (follower,) = await followers(queue, "alert")
    assert (await queue.input(follower))["task_id"] == task.id
    assert (await queue.get(task.id)).followed_attempt == 1
    await Monitor(another(queue)).check()
    assert len(await followers(queue, "alert")) == 1
    assert await hints(queue) == wanted_hints(follower)


async def test_the_sweeper_restores_the_hint_of_a_task_that_is_not_followed(queue: Queue) -> None:
    failed = await fail_and_die(queue, await queue.submit("mail", options=Options(on_failure="alert")))
    for key in await keys_under(queue.store, "leases/"):
        await queue.store.delete(key)
    await Sweeper(another(queue), 1000).sweep()
    assert await hints(queue) == wanted_hints(failed)


@pytest.mark.fast
async def test_a_store_that_fails_then_delays_what_follows_and_nothing_else() -> None:
    store = MemoryStore()
    task = await Queue(store).submit("mail", options=Options(on_failure="alert"))
    claim = await claimed(Queue(store), task.id)
    faulty = Faulty(store)
    faulty.inject(Fault.REFUSED, on="put", under="tasks/", nth=2, times=1000)  # The failure is written, no more.
    settled = await Queue(faulty).fail(claim, "kaput", permanent=True)
    assert settled.status is Status.FAILED
    assert settled.follow_up_due
    await Monitor(Queue(store)).check()
    assert len(await followers(Queue(store), "alert")) == 1


async def test_each_final_failure_has_its_own_follower(queue: Queue) -> None:
    heard: list[tuple[str, Failure]] = []
    app = shop(heard)
    task = await queue.submit("mail", "bad", ONCE)
    await drain(queue, app)
    await queue.replay(task.id)
    await drain(another(queue), app)
    assert [failure.attempt for _, failure in heard] == [1, 2]


async def test_a_hook_that_fails_harms_nothing_and_has_no_hook(queue: Queue) -> None:
    app, calls = App(), []

    @app.task("mail")
    async def mail(input: Any) -> None:
        raise qo.Reject("no")

    @app.on_failure()
    async def hook(failure: Failure) -> None:
        calls.append(failure.task_type)
        raise qo.Reject("the hook is broken")

    task = await queue.submit("mail")
    await drain(queue, app)
    assert calls == ["mail"]
    assert (await queue.get(task.id)).last_error == "no"
    (follower,) = await followers(queue, "on_failure:*")
    assert (follower.status, follower.on_failure) == (Status.FAILED, None)


@pytest.mark.fast
def test_a_hook_for_a_type_that_is_too_long_is_refused_when_it_is_registered() -> None:
    with pytest.raises(UsageError, match="on_failure"):
        App().on_failure("x" * 195)(lambda failure: None)
