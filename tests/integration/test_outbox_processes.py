"""`qo relay` as a process that is killed or stopped at the worst moments: each row is submitted exactly once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import qo
from qo.core import keys
from qo.core.task import Status, Task
from qo.queue.queue import Queue
from support.cli.command import Qo
from support.outbox_application import Application, has_tasks, inputs, relay_all
from support.process_family import pause, resume
from support.stores.queues import all_tasks, keys_under, until
from support.stores.write_lock import writes_held_up


class Relaying(NamedTuple):
    process: subprocess.Popen[str]
    go_on: Callable[[], None]  # Let it write to the queue again.


@pytest.fixture
def command(tmp_path: Path) -> Qo:
    return Qo(tmp_path, {"QO_LOG": "warning"})


def refuse_deletes(application: Application) -> None:
    """So that a relay can submit rows and cannot delete them, as if it died in between."""
    if application.url.startswith("sqlite"):
        application.run("CREATE TRIGGER keep BEFORE DELETE ON qo_outbox BEGIN SELECT RAISE(ABORT, 'not now'); END")
        return
    application.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$"
    )
    application.run("CREATE TRIGGER keep BEFORE DELETE ON qo_outbox FOR EACH ROW EXECUTE FUNCTION refuse()")


def allow_deletes(application: Application) -> None:
    on = "" if application.url.startswith("sqlite") else " ON qo_outbox"
    application.run(f"DROP TRIGGER keep{on}")


@pytest.mark.timeout(300)
async def test_a_relay_that_is_killed_between_submit_and_delete_submits_nothing_twice(
    application: Application, command: Qo, tmp_path: Path
) -> None:
    application.insert(*range(30))
    refuse_deletes(application)
    store = f"local:{tmp_path / '.qo'}"
    async with qo.connect(store) as queue:
        process = command.start("relay", "--from", application.url, "--lease-s", "1")
        try:
            await until(lambda: has_tasks(queue, 30), within_s=60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        before = {task.id: task.input for task in await all_tasks(queue.store)}
        assert len(application.rows()) == 30
        allow_deletes(application)
        process = command.start("relay", "--from", application.url, "--lease-s", "1")
        try:
            await until(lambda: _emptied(application), within_s=60)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
        assert process.returncode == 0
        assert {task.id: task.input for task in await all_tasks(queue.store)} == before


async def _emptied(application: Application) -> bool:
    return not await asyncio.to_thread(application.rows)


@asynccontextmanager
async def relay_with_claims(application: Application, command: Qo, queue: Queue) -> AsyncIterator[Relaying]:
    """A relay that has claimed ten rows, and cannot submit any before ``Relaying.go_on``."""
    process = command.start("relay", "--from", application.url, "--lease-s", "1")
    try:
        application.insert("first")
        await until(lambda: has_tasks(queue, 1), within_s=60)  # From now on it only waits for rows.
        await until(lambda: _emptied(application), within_s=60)
        with ExitStack() as held_up:
            held_up.enter_context(writes_held_up(command.cwd / ".qo"))
            application.insert(*range(10))
            await until(lambda: _claimed(application), within_s=60)
            yield Relaying(process, held_up.close)
    finally:
        process.kill()
        process.communicate()


async def _claimed(application: Application) -> bool:
    rows = await asyncio.to_thread(application.rows)
    return len(rows) == 10 and all(claimed_by is not None for *_, claimed_by in rows)


async def test_a_relay_that_is_killed_between_claim_and_submit_leaves_the_rows_to_another(
    application: Application, command: Qo, tmp_path: Path
) -> None:
    async with qo.connect(f"local:{tmp_path / '.qo'}") as queue:
        async with relay_with_claims(application, command, queue) as relaying:
            relaying.process.kill()
            relaying.process.wait()
        assert await inputs(queue) == ["first"], "nothing of what it had claimed was submitted"
        await until(lambda: _relay_until_empty(application, queue), within_s=60)
        assert await inputs(queue) == [*range(10), "first"]


async def test_a_relay_that_stood_still_between_claim_and_delete_repeats_nothing_that_another_did(
    application: Application, command: Qo, tmp_path: Path
) -> None:
    async with qo.connect(f"local:{tmp_path / '.qo'}") as queue:
        async with relay_with_claims(application, command, queue) as relaying:
            pause(relaying.process.pid)
            relaying.go_on()
            await until(lambda: _relay_until_empty(application, queue), within_s=60)
            done = {task.id: task.input for task in await all_tasks(queue.store)}
            assert sorted(done.values(), key=str) == [*range(10), "first"]
            (task,) = [task for task in await all_tasks(queue.store) if task.input == 3]
            await queue.cancel(task.id)
            resume(relaying.process.pid)  # It submits what it had claimed, under the same keys.
            application.insert("last")
            await until(lambda: has_tasks(queue, 12), within_s=60)
            await until(lambda: _emptied(application), within_s=60)
            relaying.process.send_signal(signal.SIGTERM)
            relaying.process.communicate(timeout=60)
            assert relaying.process.returncode == 0
        after = {task.id: task.input for task in await all_tasks(queue.store)}
        assert sorted(after.values(), key=str) == [*range(10), "first", "last"]
        assert done.items() <= after.items()
        assert (await queue.get(task.id)).status is Status.CANCELLED, "and what has ended stays ended"


async def _relay_until_empty(application: Application, queue: Queue) -> bool:
    await relay_all(application, queue)
    return not application.rows()


@pytest.mark.timeout(300)
async def test_relays_that_are_killed_at_any_moment_lose_and_double_nothing(
    application: Application, command: Qo, tmp_path: Path
) -> None:
    application.insert(*range(150))
    async with qo.connect(f"local:{tmp_path / '.qo'}") as queue:
        for kill_at in (20, 50, 90):
            process = command.start("relay", "--from", application.url, "--lease-s", "1", "--batch", "10")
            try:
                await until(lambda kill_at=kill_at: _reached(queue, kill_at), within_s=120)
            finally:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        first = command.start("relay", "--from", application.url, "--lease-s", "1")
        second = command.start("relay", "--from", application.url, "--lease-s", "1")
        try:
            await until(lambda: _emptied(application), within_s=60)
        finally:
            for process in (first, second):
                process.send_signal(signal.SIGTERM)
                process.communicate()
        tasks: list[Task] = await all_tasks(queue.store)
        assert sorted(task.input for task in tasks) == list(range(150))


async def _reached(queue: Queue, count: int) -> bool:
    return len(await keys_under(queue.store, keys.TASKS)) >= count


def test_the_commands_of_an_outbox(application: Application, command: Qo) -> None:
    application.run("INSERT INTO qo_outbox (task) VALUES (?)", "{}")
    application.insert(1)
    answer = command.here("relay", "--from", application.url, "--once", "--json")
    assert (answer.code, json.loads(answer.out)["submitted"]) == (8, 1)
    assert command.json("relay", "status", "--from", application.url) == {"waiting": 0, "parked": 1}
    (row,) = command.json("relay", "parked", "--from", application.url)
    assert "type" in row["reason"]
    assert command.json("relay", "retry", "--from", application.url) == {"retried": 1}
    assert command.here("relay", "retry", "--from", application.url, "999").code == 3
    assert command.here("relay", "--once").code == 2
    assert command.here("relay", "--from", application.url, "--once", "--lease-s", "nan").code == 2
    assert "CREATE TABLE" in command.ok("relay", "table", application.url.partition(":")[0])
