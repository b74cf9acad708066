"""Pausing, resuming and draining from the command line, on the embedded store."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qo.core import keys
from qo.core.control import Orders, orders_for
from qo.queue import control, roster
from qo.queue.roster import WorkerInfo
from qo.store.local import LocalStore
from qo.store.port import ObjectStore
from support.cli.command import Answer, Qo


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    qo = Qo(tmp_path, {"LOGNAME": "ada"})
    qo.ok("list")  # Makes the store.
    return qo


async def opened(qo: Qo) -> LocalStore:
    return await LocalStore.open(qo.cwd / ".qo", forget=keys.EPHEMERAL)


def sign_on(qo: Qo, *worker_ids: str, silent_s: float = 0.0, **more: Any) -> None:
    """Put workers on the roster that nobody runs."""

    async def report() -> None:
        store = await opened(qo)
        now = await store.now()
        for worker_id in worker_ids:
            heard = now - timedelta(seconds=silent_s)
            info = WorkerInfo(worker_id=worker_id, started_at=heard, last_heartbeat=heard, **more)
            await roster.report(store, info)
        await store.close()

    asyncio.run(report())


@contextmanager
def obedient(qo: Qo, worker_id: str) -> Iterator[None]:
    """What a worker has to do with wishes: look, follow, and say so."""
    stop, there = threading.Event(), threading.Event()

    async def work() -> None:
        store = await opened(qo)
        started_at = await store.now()
        while not stop.is_set():
            wish = orders_for(await control.read(store), worker_id, started_at)
            if wish.drain:
                await roster.leave(store, worker_id)
                break
            await report(store, wish, started_at)
            there.set()
            await asyncio.sleep(0.05)
        await store.close()

    async def report(store: ObjectStore, wish: Orders, started_at: datetime) -> None:
        now = await store.now()
        info = WorkerInfo(
            worker_id=worker_id,
            started_at=started_at,
            last_heartbeat=now,
            state="paused" if wish.paused else "running",
            task_types=["mail", "report"],
            paused_types=sorted(wish.paused_types),
        )
        await roster.report(store, info)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert there.wait(30)
        yield
    finally:
        stop.set()
        thread.join(30)


def refused(answer: Answer, code: int, *words: str) -> None:
    assert (answer.code, answer.out) == (code, ""), answer
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err


def test_the_queue_is_paused_and_resumed_and_says_by_whom(qo: Qo) -> None:
    assert qo.ok("pause", "--reason", "deploy") == "the queue is paused (by ada: deploy)\n"
    assert qo.ok("pause", "--by", "bob") == "the queue is paused (by ada: deploy) already\n"
    assert "note: the queue is paused (by ada: deploy)\n" in qo.here("worker", "list").err
    assert qo.ok("resume") == "the queue goes on\n"
    assert qo.ok("resume") == "the queue was not paused\n"
    assert "paused" not in qo.here("worker", "list").err


def test_resuming_the_queue_says_what_stays_paused(qo: Qo) -> None:
    sign_on(qo, "w-1", task_types=["mail"])
    qo.ok("pause")
    assert qo.here("pause", "--type", "mail", "--by", "bob").err == ""
    qo.ok("pause", "--worker", "w-1")
    assert qo.ok("resume").splitlines() == [
        "the queue goes on",
        "still: type mail is paused (by bob)",
        "still: worker w-1 is paused (by ada)",
    ]
    assert qo.ok("resume", "--type", "mail").splitlines()[0] == "type mail goes on"
    qo.ok("pause")
    assert qo.ok("resume", "--all").splitlines() == ["the queue goes on", "worker w-1 goes on"]
    assert qo.ok("resume", "--all") == "nothing was paused\n"


def test_a_worker_is_asked_to_leave_and_need_not_any_more(qo: Qo) -> None:
    sign_on(qo, "w-1")
    assert qo.ok("drain", "w-1", "--reason", "old machine") == "worker w-1 is to leave (by ada: old machine)\n"
    assert qo.ok("pause", "--worker", "w-1") == "worker w-1 is to leave (by ada: old machine) already\n"
    assert qo.ok("resume", "--worker", "w-1") == "worker w-1 need not leave, unless it has begun to\n"
    assert qo.ok("resume", "--worker", "w-1") == "worker w-1 was not paused\n"


def test_json_is_what_is_wanted_now(qo: Qo) -> None:
    sign_on(qo, "w-1")
    paused = qo.json("pause", "--reason", "deploy")
    assert (paused["queue"]["by"], paused["queue"]["reason"]) == ("ada", "deploy")
    drained = qo.json("drain", "w-1")
    assert drained["queue"] == paused["queue"]
    assert drained["workers"]["w-1"]["wanted"] == "drained"
    assert qo.json("pause", "--type", "mail")["types"].keys() == {"mail"}
    lifted = qo.json("resume", "--all")
    assert (lifted["queue"], lifted["types"], lifted["workers"]) == (None, {}, {})


def test_a_type_that_nobody_handles_is_paused_with_a_note(qo: Qo) -> None:
    answer = qo.here("pause", "--type", "mial")
    assert (answer.code, answer.out) == (0, "type mial is paused (by ada)\n")
    assert answer.err == "note: no worker handles type mial now; a worker that starts later will find it paused\n"


def test_an_unknown_worker_is_not_found_and_those_there_are_named(qo: Qo) -> None:
    refused(qo.here("drain", "w-1"), 3, "no worker w-1", "there is none at all", "store local:")
    sign_on(qo, "reporter", "mailer-2", "mailer-1")
    for command in (["drain", "mailer-l"], ["pause", "--worker", "mailer-l"]):
        refused(qo.here(*command), 3, "no worker mailer-l", "there are mailer-", "reporter")
    assert qo.json("resume", "--all")["updated_at"] is None, "nothing was written"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["pause", "--worker", "a/b"], ["'a/b' cannot name a worker"]),
        (["pause", "--worker", "w", "--type", "t"], ["--worker or --type, not both"]),
        (["pause", "--type", ""], ["a task type is 1 to 200 printable characters"]),
        (["pause", "--reason", "x" * 501], ["reason must be 500 characters at most"]),
        (["pause", "--wait", "soon"], ["--wait", "not a duration"]),
        (["pause", "--wait", "0"], ["--wait must be more than 0"]),
        (["pause", "w-1"], ["w-1"]),
        (["resume", "--all", "--worker", "w"], ["--all", "without --worker"]),
        (["resume", "--all", "--type", "t"], ["--all", "--type"]),
        (["resume", "--worker", ""], ["cannot name a worker"]),
        (["drain"], ["WORKER"]),
        (["drain", "../queue"], ["cannot name a worker"]),
        (["drain", "w", "--wait", "-1"], ["--wait"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
@pytest.mark.fast
def test_a_wrong_command_line_is_refused_before_anything_is_opened(
    tmp_path: Path, args: list[str], words: list[str]
) -> None:
    refused(Qo(tmp_path).here(*args), 2, *words)
    assert not (tmp_path / ".qo").exists()


def test_waiting_ends_when_the_workers_have_followed(qo: Qo) -> None:
    sign_on(qo, "dead", silent_s=3600)
    with obedient(qo, "w-1"), obedient(qo, "w-2"):
        for command in (
            ["pause"],
            ["resume"],
            ["pause", "--worker", "w-1"],
            ["resume", "--worker", "w-1"],
            ["pause", "--type", "mail"],
            ["resume", "--type", "mail"],
            ["pause"],
            ["resume", "--all"],
            ["drain", "w-2"],
        ):
            qo.ok(*command, "--wait", "30s")
        assert {info["worker_id"]: info["state"] for info in qo.json("worker", "list")} == {
            "dead": "running",
            "w-1": "running",
        }


def test_waiting_no_longer_than_asked_exits_with_8_and_the_order_stands(qo: Qo) -> None:
    sign_on(qo, "deaf")
    sign_on(qo, "leaving", state="draining")
    sign_on(qo, "dead", silent_s=3600)
    answer = qo.here("pause", "--wait", "200ms", "--json")
    refused(answer, 8, "the order stands", "deaf (running, last heard ")
    assert "leaving" not in answer.err
    assert "dead" not in answer.err
    assert qo.ok("resume").startswith("the queue goes on")
    refused(qo.here("drain", "leaving", "--wait", "200ms"), 8, "leaving (draining, ")
    refused(qo.here("pause", "--worker", "dead", "--wait", "200ms"), 8, "dead (running, last heard 1h")


def test_workers_are_shown_as_what_they_say_they_are(qo: Qo) -> None:
    counts = {"tasks_completed": 123_456, "tasks_failed": 789, "lost": 2, "slots": 16}
    sign_on(qo, "host-name-1234-abcdef", current_tasks=["a", "b"], shards=[*"0123456789"], **counts)
    sign_on(qo, "p", state="paused")
    sign_on(qo, "d", state="draining", http="127.0.0.1:9000", host="h", pid=7)
    sign_on(qo, "s", silent_s=3600)
    table = qo.ok("worker", "list")
    for worker, state in {"host-name-1234-abcdef": "active", "p": "paused", "d": "draining", "s": "stale"}.items():
        assert re.search(rf"^{worker} +{state} ", table, re.M), table
    assert re.search(r" 2/16 +123456 +789 +2 +0,1,2 \+7$", table, re.M), table
    assert max(map(len, table.splitlines())) <= 100
    (seen,) = [info for info in qo.json("worker", "list") if info["worker_id"] == "d"]
    assert (seen["state"], seen["http"], seen["host"], seen["pid"]) == ("draining", "127.0.0.1:9000", "h", 7)


def test_wishes_that_cannot_be_read_hide_no_worker_and_can_be_replaced(qo: Qo) -> None:
    async def spoil() -> None:
        store = await opened(qo)
        await store.put(keys.DESIRED, b"{broken")
        await store.close()

    sign_on(qo, "w-1")
    asyncio.run(spoil())
    shown = qo.here("worker", "list")
    assert (shown.code, "w-1" in shown.out) == (0, True)
    assert "qo resume --all" in shown.err
    refused(qo.here("pause"), 7, "control/desired.json", "qo resume --all")
    qo.ok("resume", "--all")
    qo.ok("pause")


def test_nothing_that_an_operator_says_can_move_the_terminal(qo: Qo) -> None:
    assert "\x1b" not in qo.ok("pause", "--reason", "\x1b[2J")
    assert "\x1b" not in qo.here("worker", "list").err
