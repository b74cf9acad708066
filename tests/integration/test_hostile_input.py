"""Whatever a program hands to the queue is refused before a write, or stays readable for good."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from qo.core import keys, wire
from qo.core.task import RetryPolicy, Status, Task
from qo.errors import CorruptRecord, NotFound, UsageError
from qo.queue.options import NewTask, Options
from qo.queue.queue import Claim, Queue
from qo.queue.schedule_runner import Scheduler
from qo.queue.schedules import Schedules
from qo.worker.api.app import App
from qo.worker.api.context import Context
from support.cli.command import Qo
from support.stores.queues import AT_ONCE, StoreClock, claimed, drain

pytestmark = pytest.mark.fast


BYTE = "\udcff"  # How Python shows a byte of a command line or file name that is not UTF-8.


Move = Callable[[Queue, Claim], Awaitable[Any]]


def nested(levels: int) -> Any:
    value: Any = 1
    for n in range(levels):
        value = [value] if n % 2 else {"in": value}
    return value


async def test_a_handler_that_takes_its_input_apart_leaves_the_stored_one_whole(clocked_queue: Queue) -> None:
    app, seen = App(), []

    @app.task("pop")
    async def pop(input: Any, ctx: Context) -> Any:
        seen.append(dict(input))
        ids = input.pop("ids")
        input["connection"] = object()  # Nothing that could be written.
        if ctx.attempt == 1:
            raise OSError("network")
        return ids

    options = Options(key="k", max_retries=1, retry_policy=AT_ONCE)
    task = await clocked_queue.submit("pop", {"ids": [1, 2]}, options)
    await drain(clocked_queue, app)
    assert seen == [{"ids": [1, 2]}] * 2
    ended = await clocked_queue.submit("pop", {"ids": [1, 2]}, options)
    assert (ended.id, ended.status, ended.input) == (task.id, Status.COMPLETED, {"ids": [1, 2]})


async def test_what_is_handed_out_is_never_the_tasks_own(clocked_queue: Queue) -> None:
    task = await clocked_queue.submit("t", {"n": [1]})
    (await clocked_queue.input(task))["n"].append(2)
    assert task.input == {"n": [1]}
    done = await clocked_queue.complete(await claimed(clocked_queue, task.id), [[1]])
    (await clocked_queue.output(done))[0].append(2)
    assert done.output == [[1]]


async def test_what_is_handed_in_is_taken_as_it_was_then(clocked_queue: Queue) -> None:
    input, progress, output = {"n": [1]}, {"n": [1]}, {"n": [1]}
    (task,) = await clocked_queue.submit_many([NewTask("t", input)])
    claim = await claimed(clocked_queue, task.id)
    renewed = await clocked_queue.renew(claim, progress=progress)
    done = await clocked_queue.complete(claim, output)
    for mine in (input, progress, output):
        mine["n"].append(2)
    assert (task.input, renewed.progress, done.output) == ({"n": [1]},) * 3


async def test_progress_reported_once_is_not_rewritten_by_the_next_renewal(clocked_queue: Queue) -> None:
    claim = await claimed(clocked_queue, (await clocked_queue.submit("t")).id)
    progress: dict[str, Any] = {"rows": 1}
    await clocked_queue.renew(claim, progress=progress)
    progress["connection"] = object()
    assert (await clocked_queue.renew(claim)).progress == {"rows": 1}


async def test_a_schedules_input_is_taken_as_it_was_then(clocked_queue: Queue) -> None:
    input = {"n": [1]}
    made = await Schedules(clocked_queue).create("s", task_type="t", cron="* * * * *", input=input)
    input["n"].append(2)
    assert made.input == {"n": [1]}


def policy(**wrong: Any) -> dict[str, Any]:
    return {"retry_policy": RetryPolicy(**wrong)}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_retries": 3.0}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"max_retries": None}, "max_retries"),
        ({"max_reschedules": 1.5}, "max_reschedules"),
        ({"priority": 2.0}, "priority"),
        ({"priority": True}, "priority"),
        ({"key": 123}, "key"),
        ({"key": b"x"}, "key"),
        ({"key": BYTE}, "key"),
        ({"key": "k", "key_scope": 5}, "key_scope"),
        ({"key": "k", "key_scope": BYTE}, "key_scope"),
        ({"schedule": 5}, "schedule"),
        ({"traceparent": 5}, "traceparent"),
        ({"traceparent": BYTE}, "traceparent"),
        (policy(initial_interval_ms=500.0), "initial_interval_ms"),
        (policy(max_interval_ms=True), "max_interval_ms"),
        (policy(multiplier="2"), "multiplier"),
        (policy(jitter_percent=True), "jitter_percent"),
        ({"retry_policy": {"initial_interval_ms": 5}}, "retry_policy"),
        ({"at": "2030-01-01T00:00:00Z"}, "at"),
        ({"expires_at": 5}, "expires_at"),
        ({"delay_s": "5"}, "delay_s"),
        ({"delay_s": True}, "delay_s"),
        ({"timeout_s": "5"}, "timeout_s"),
    ],
    ids=str,
)
async def test_an_option_of_the_wrong_type_is_refused_by_name(
    clocked_queue: Queue, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(UsageError, match=rf"^(the retry policy's )?{field} must be "):
        await clocked_queue.submit("t", "x" * 300_000, Options(**wrong))
    assert not (await clocked_queue.store.list("")).entries


@pytest.mark.parametrize("task_type", [5, None, BYTE], ids=ascii)
async def test_a_task_type_that_is_no_text_is_refused(clocked_queue: Queue, task_type: Any) -> None:
    with pytest.raises(UsageError, match="task type"):
        await clocked_queue.submit(task_type)


async def test_options_of_another_kind_are_refused(clocked_queue: Queue) -> None:
    options: Any = {"key": "k"}
    with pytest.raises(UsageError, match="Options"):
        await clocked_queue.submit("t", 1, options)


MOVES: dict[str, Move] = {
    "by": lambda queue, claim: queue.cancel(claim.task.id, by=1),  # pyright: ignore[reportArgumentType]
    "by bytes": lambda queue, claim: queue.cancel(claim.task.id, by=BYTE),
    "reason": lambda queue, claim: queue.cancel(claim.task.id, reason=["a"]),  # pyright: ignore[reportArgumentType]
    "reason bytes": lambda queue, claim: queue.cancel(claim.task.id, reason=BYTE),
    "error": lambda queue, claim: queue.fail(claim, 404),  # pyright: ignore[reportArgumentType]
    "error None": lambda queue, claim: queue.fail(claim, None),  # pyright: ignore[reportArgumentType]
    "traceback": lambda queue, claim: queue.fail(claim, "e", traceback=5),  # pyright: ignore[reportArgumentType]
    "delay_s": lambda queue, claim: queue.reschedule(claim, True),
    "progress nan": lambda queue, claim: queue.renew(claim, progress=float("nan")),
    "progress set": lambda queue, claim: queue.renew(claim, progress={1, 2}),
    "progress bytes": lambda queue, claim: queue.renew(claim, progress=b"a"),
    "progress deep": lambda queue, claim: queue.renew(claim, progress=nested(201)),
    "output deep": lambda queue, claim: queue.complete(claim, nested(201)),
}


@pytest.mark.parametrize("move", MOVES)
async def test_a_move_that_could_not_be_read_back_is_refused_by_name(clocked_queue: Queue, move: str) -> None:
    task = await clocked_queue.submit("t")
    claim = await claimed(clocked_queue, task.id)
    with pytest.raises(UsageError, match=rf"^(the )?{move.split()[0]} "):
        await MOVES[move](clocked_queue, claim)
    assert await clocked_queue.get(task.id) == claim.task


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"worker_id": 7}, "worker_id"),
        ({"worker_id": None}, "worker_id"),
        ({"worker_id": BYTE}, "worker_id"),
        ({"lease_s": -5}, "lease_s"),
        ({"lease_s": float("nan")}, "lease_s"),
        ({"lease_s": 1e300}, "lease_s"),
        ({"lease_s": "60"}, "lease_s"),
    ],
    ids=ascii,
)
async def test_a_claim_that_makes_no_sense_is_refused(
    clocked_queue: Queue, wrong: dict[str, Any], field: str
) -> None:
    task = await clocked_queue.submit("t")
    with pytest.raises(UsageError, match=f"^{field} must be "):
        await clocked_queue.claim(task.id, **{"worker_id": "w", **wrong})
    assert await clocked_queue.get(task.id) == task


async def test_an_error_that_names_a_strange_file_is_still_recorded(clocked_queue: Queue) -> None:
    claim = await claimed(clocked_queue, (await clocked_queue.submit("t")).id)
    await clocked_queue.fail(claim, f"no file {BYTE}", traceback=f"at {BYTE}", permanent=True)
    failed = await clocked_queue.get(claim.task.id)
    assert (failed.last_error, failed.traceback) == (r"no file \udcff", r"at \udcff")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": 5}, "5"),
        ({"task_type": 5}, "task_type"),
        ({"cron": 5}, "cron"),
        ({"timezone": 5}, "timezone"),
        ({"enabled": "no"}, "enabled"),
        ({"catch_up": 5}, "catch_up"),
        ({"max_retries": 3.0}, "max_retries"),
        ({"priority": True}, "priority"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"input": nested(201)}, "input"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_schedule_with_a_value_of_the_wrong_type_is_never_stored(
    clocked_queue: Queue, wrong: dict[str, Any], field: str
) -> None:
    schedules = Schedules(clocked_queue)
    good: dict[str, Any] = {"name": "s", "task_type": "t", "cron": "* * * * *"}
    with pytest.raises(UsageError, match=field):
        await schedules.create(**{**good, **wrong})
    assert not (await clocked_queue.store.list("")).entries
    made = await schedules.create(**good)
    named: dict[str, Any] = {"name": "s", **wrong}
    with pytest.raises(UsageError, match=field):
        await schedules.update(**named)
    assert await schedules.list() == [made]


async def test_an_unreadable_schedule_hides_no_other_and_can_be_deleted(
    clocked_queue: Queue, clock: StoreClock, caplog: pytest.LogCaptureFixture
) -> None:
    schedules = Schedules(clocked_queue)
    good = await schedules.create("good", task_type="t", cron="* * * * *")
    await clocked_queue.store.put(keys.schedule("bad"), b'{"name": "bad", "max_retries": 3.0}')
    assert await schedules.list() == [good]
    assert "schedules/bad.json" in caplog.text
    with pytest.raises(CorruptRecord):
        await schedules.get("bad")
    await schedules.delete("bad")
    with pytest.raises(NotFound):
        await schedules.delete("bad")
    clock.advance(60)
    assert (await Scheduler(clocked_queue).tick()).failures == ()


async def test_nesting_is_taken_to_a_fixed_depth_and_stays_readable(clocked_queue: Queue) -> None:
    deep = nested(200)
    task = await clocked_queue.submit("t", deep)
    claim = await claimed(clocked_queue, task.id)
    await clocked_queue.renew(claim, progress=deep)
    await clocked_queue.complete(claim, deep)
    ended = await clocked_queue.get(task.id)
    assert (ended.input, ended.progress, ended.output) == (deep, deep, deep)
    for levels in (201, 900, 100_000):
        with pytest.raises(UsageError, match="the input is nested more than 200 levels deep"):
            await clocked_queue.submit("t", nested(levels))


@pytest.fixture
def generous_stack() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("generous_stack")
async def test_a_process_that_can_write_deeper_values_than_others_read_may_not(clocked_queue: Queue) -> None:
    with pytest.raises(UsageError, match="nested"):
        await clocked_queue.submit("t", nested(2000))


def test_many_brackets_beside_each_other_are_not_deep() -> None:
    wide = [[[]] for _ in range(1000)] + ["[" * 1000]
    assert wire.decode_json(wire.payload(wide, "the input").body, "") == wide
    tuples: Any = ()
    for _ in range(199):
        tuples = (tuples,)
    assert wire.payload(tuples, "the input").body == b"[" * 200 + b"]" * 200


async def test_no_two_pairs_of_scope_and_key_name_one_task(clocked_queue: Queue) -> None:
    pairs = [
        ("x\ny", "z"),
        ("x", "y\nz"),
        ('x","y', "z"),
        ("x", 'y","z'),
        (None, "z"),
        ("t", "z"),
        ("type:t", "z"),
    ]
    tasks: list[Task] = []
    for scope, key in pairs:
        tasks.append(await clocked_queue.submit("t", 1, Options(key=key, key_scope=scope)))
    assert len({task.id for task in tasks}) == len(pairs)


UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (["submit", "--type", "t", "--key", BYTE], "--key"),
        (["submit", "--type", "t", "--key", "k", "--key-scope", BYTE], "--key-scope"),
        (["submit", "--type", BYTE], "task type"),
        (["submit", "--type", "t", "--input", f'"{BYTE}"'], "--input"),
        (["cancel", UNKNOWN, "--reason", BYTE], "--reason"),
        (["cancel", UNKNOWN, "--by", BYTE], "--by"),
        (["schedule", "create", "s", "--type", BYTE, "--cron", "* * * * *"], "task type"),
        (["schedule", "create", "s", "--type", "t", "--cron", BYTE], "cron"),
        (["schedule", "create", "s", "--type", "t", "--cron", "* * * * *", "--timezone", BYTE], "time zone"),
        (["schedule", "show", BYTE], "schedule"),
    ],
    ids=ascii,
)
def test_bytes_on_the_command_line_that_are_no_text_are_a_slip_of_the_user(
    tmp_path: Path, args: list[str], option: str
) -> None:
    answer = Qo(tmp_path).here(*args)
    assert (answer.code, answer.out) == (2, ""), answer
    assert option in answer.err
    assert "defect" not in answer.err


async def test_times_of_any_zone_are_still_taken(clocked_queue: Queue) -> None:
    task = await clocked_queue.submit("t", None, Options(at=datetime.max.replace(tzinfo=UTC), max_reschedules=0))
    assert await clocked_queue.get(task.id) == task
