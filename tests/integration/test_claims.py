"""Of all who want a task, one gets it; and who has lost it changes nothing any more."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import qo
from qo.ambient import Ambient
from qo.core.task import Status
from qo.errors import LeaseLost
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Claim, Queue
from qo.store.faulty import Fault, FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.retrying import Retrying
from qo.testing import virtual
from support.stores.queues import AT_ONCE, another, claimed, hints, path_of, until, wanted_hints

P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED
CLAIMERS = 32


async def test_of_many_claimers_exactly_one_wins(queue: Queue, request: pytest.FixtureRequest) -> None:
    on_s3 = request.node.callspec.params["any_store"] == "s3"  # Slow where many write one key.
    queues = [another(queue) for _ in range(CLAIMERS)]
    for _ in range(2 if on_s3 else 50):
        task = await queue.submit("t")
        answers = await asyncio.gather(*(q.claim(task.id, worker_id=f"w{n}") for n, q in enumerate(queues)))
        (won,) = [answer for answer in answers if isinstance(answer, Claim)]
        assert await path_of(queue, task.id) == [(P, 0), (R, 1)]
        stored = await queue.get(task.id)
        assert (stored.lease_id, stored.worker_id) == (won.lease_id, won.task.worker_id)
        await queue.complete(won)
    for each in queues:
        await each.hints.flush()


CLAIM_ALL = """
import asyncio, json, sys
import qo

async def main(path, worker_id):
    async with qo.connect(f"local:{path}") as queue:
        ids = json.load(sys.stdin)
        answers = await asyncio.gather(*(queue.claim(i, worker_id=worker_id) for i in ids))
        print(json.dumps([a.task.id for a in answers if isinstance(a, qo.Claim)]))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_of_many_processes_exactly_one_wins_each_task(tmp_path: Path) -> None:
    async with qo.connect(f"local:{tmp_path}") as queue:
        tasks = await queue.submit_many([NewTask("t", n) for n in range(50)])
        ids = [task.id for task in tasks]
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLAIM_ALL, str(tmp_path), f"w{n}",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for n in range(4)
        ]  # fmt: skip
        outputs = await asyncio.gather(*(p.communicate(json.dumps(ids).encode()) for p in processes))
        assert all(p.returncode == 0 for p in processes)
        won = [json.loads(out) for out, _ in outputs]
        assert sorted(i for some in won for i in some) == sorted(ids)
        for n, some in enumerate(won):
            for task_id in some:
                task = await queue.get(task_id)
                assert (task.worker_id, task.attempt) == (f"w{n}", 1)


async def _taken_over(queue: Queue) -> tuple[Claim, Claim]:
    """A claim whose lease ran out, and that of its successor."""
    task = await queue.submit("t", options=Options(retry_policy=AT_ONCE))
    stalled = await claimed(queue, task.id, worker_id="stalled", lease_s=0.05)
    await queue.hints.flush()
    monitor = Monitor(another(queue))
    await until(lambda: _requeued(monitor))
    return stalled, await claimed(another(queue), task.id, worker_id="successor")


async def test_who_has_lost_the_lease_writes_nothing(queue: Queue) -> None:
    stalled, successor = await _taken_over(queue)
    for attempt in (
        queue.complete(stalled, "late"),
        queue.fail(stalled, "late"),
        queue.reschedule(stalled, 1),
        queue.release(stalled),
        queue.renew(stalled),
    ):
        with pytest.raises(LeaseLost):
            await attempt
    assert await queue.get(successor.task.id) == successor.task
    done = await another(queue).complete(successor, "in time")
    with pytest.raises(LeaseLost):
        await queue.complete(stalled, "late")
    assert (done.output, done.attempt) == ("in time", 2)
    assert await path_of(queue, done.id) == [(P, 0), (R, 1), (P, 1), (R, 2), (C, 2)]


async def test_a_lapsed_lease_that_nobody_took_away_still_completes(queue: Queue) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id, lease_s=0.001)
    assert (await queue.complete(claim, "late but alone")).status is C


async def test_settling_twice_is_settling_once(queue: Queue) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id)
    first = await queue.complete(claim, 1)
    assert await queue.complete(claim, 2) == first
    assert await path_of(queue, task.id) == [(P, 0), (R, 1), (C, 1)]


async def test_renewing_moves_the_lease_and_its_hint(queue: Queue) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id, lease_s=60)
    for lease_s in (3600, 7200):
        renewed = await queue.renew(claim, lease_s, progress={"done": lease_s})
        assert await hints(queue) == wanted_hints(renewed)
        assert renewed.progress == {"done": lease_s}
    assert (await queue.complete(claim)).status is C, "the ETag follows every renewal"


async def test_a_retry_within_the_same_minute_keeps_its_hint(queue: Queue) -> None:
    """The ready key comes back while its removal is still pending, or under way."""
    task = await queue.submit("t", options=Options(retry_policy=AT_ONCE))
    for _ in range(2):
        claim = await claimed(queue, task.id)
        task = await queue.fail(claim, "again")
        assert await hints(queue) == wanted_hints(task)
    claim = await claimed(queue, task.id)
    flushing = asyncio.create_task(queue.hints.flush())
    await asyncio.sleep(0)  # The removal is on its way.
    task = await queue.release(claim)
    await flushing
    assert await hints(queue) == wanted_hints(task)


async def test_a_process_held_up_after_a_claim_does_not_hide_the_task_that_came_back(tmp_path: Path) -> None:
    """As a handler does that blocks the event loop for longer than the lease, before the ready key was removed."""

    async def take_back() -> None:
        async with qo.connect(f"local:{tmp_path}") as elsewhere:
            await until(lambda: _requeued(Monitor(elsewhere)))

    async with qo.connect(f"local:{tmp_path}") as queue:
        task = await queue.submit("t", options=Options(retry_policy=AT_ONCE))
        await claimed(queue, task.id, lease_s=1.2)
        thread = threading.Thread(target=asyncio.run, args=(take_back(),))
        thread.start()
        thread.join()  # Nothing else runs in this event loop meanwhile.
        back = await queue.get(task.id)
        assert back.status is P
        assert await hints(queue) >= wanted_hints(back)


async def _requeued(monitor: Monitor) -> bool:
    return (await monitor.check()).requeued == 1


@pytest.mark.fast
async def test_a_write_refused_by_itself_is_recognised() -> None:
    """Each conditional write is written, sent again on the way, and so answered with a 412."""
    store = Faulty(MemoryStore(), FaultPlan(own_412=1), Ambient.seeded(1))
    queue = Queue(store, ambient=Ambient.seeded(2))
    task = await queue.submit("t")
    assert await hints(queue) == wanted_hints(task), "submit is not told 'exists already' and left without a hint"
    await queue.board.flush()
    of_the_board = store.injected[Fault.OWN_412] - 1
    claim = await claimed(queue, task.id)
    await queue.renew(claim)
    assert (await queue.complete(claim, "done")).output == "done"
    assert store.injected[Fault.OWN_412] == 4 + of_the_board
    assert await path_of(queue, task.id) == [(P, 0), (R, 1), (R, 1), (C, 1)]


@pytest.mark.fast
def test_a_write_whose_reply_was_lost_is_recognised() -> None:
    async def main() -> None:
        ambient = Ambient.seeded(3, virtual.monotonic)
        faulty = Faulty(MemoryStore(clock=virtual.wall_clock), FaultPlan(lost_reply=0.4), ambient)
        queue = Queue(Retrying(faulty, ambient=ambient, attempts=50), ambient=ambient)
        for n in range(30):
            task = await queue.submit("t", n)
            claim = await claimed(queue, task.id)
            assert (await queue.complete(claim, n)).output == n
            assert await path_of(queue, task.id) == [(P, 0), (R, 1), (C, 1)], "each write happened once"
        assert faulty.injected[Fault.LOST_REPLY] > 60

    virtual.run(main())
