"""What order, dependencies and uniqueness cost, metered and compared with the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

import qo
from qo.core.flow_pricing import (
    requests_per_dependency,
    requests_per_dependency_in_flow,
    requests_per_grouped_task,
    requests_per_unique_task,
)
from qo.core.limit_pricing import limit_per_day
from qo.core.load import Load
from qo.core.pricing import DAY_S, Operation, Requests
from qo.core.rhythm import RENEWALS_PER_SHARE, Rhythm
from qo.core.task import Task
from qo.core.uniqueness import Unique
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.worker.config import WorkerConfig
from support.stores.queues import claimed

pytestmark = pytest.mark.fast

SUBMIT = {Operation.PUT: 2}
END = {Operation.PUT: 1}
REMOVALS = (Operation.DELETE, Operation.DELETE_MANY)


@pytest.fixture
async def metered() -> AsyncIterator[tuple[Queue, Metered]]:
    meter = Metered(MemoryStore())
    queue = Queue(meter, meter=meter)
    queue.board.post = lambda task, hint: None  # type: ignore[method-assign] - notices cost the same for any task.
    yield queue, meter
    await queue.hints.flush()


def counted(meter: Metered, *, without: list[Requests]) -> Counter[Operation]:
    """What was counted beside what any task costs; removals of hints go in batches."""
    counts = Counter({each: n for each, n in meter.counts.items() if each not in REMOVALS})
    for requests in without:
        counts.subtract(requests)
    return +counts


async def finish(queue: Queue, meter: Metered, task: Task) -> Counter[Operation]:
    claim = await claimed(queue, task.id)
    await queue.hints.flush()
    meter.reset()
    await queue.complete(claim)
    return counted(meter, without=[END])


async def test_a_task_of_a_group(metered: tuple[Queue, Metered]) -> None:
    queue, meter = metered
    first = await queue.submit("t", 0, Options(group="g"))
    meter.reset()
    await queue.submit("t", 1, Options(group="g"))
    submitted = counted(meter, without=[SUBMIT])
    assert submitted + await finish(queue, meter, first) == requests_per_grouped_task()


async def test_a_dependency(metered: tuple[Queue, Metered]) -> None:
    queue, meter = metered
    first = await queue.submit("t")
    meter.reset()
    await queue.submit("t", 0, Options(depends_on=[first.id]))
    submitted = counted(meter, without=[SUBMIT])
    assert submitted + await finish(queue, meter, first) == requests_per_dependency()


async def test_a_dependency_in_a_flow(metered: tuple[Queue, Metered]) -> None:
    queue, meter = metered
    first, _ = await queue.submit_flow(qo.chain(qo.NewTask("t"), qo.NewTask("t")))
    submitted = counted(meter, without=[SUBMIT, SUBMIT])
    assert submitted + await finish(queue, meter, first) == requests_per_dependency_in_flow()


async def test_a_unique_task(metered: tuple[Queue, Metered]) -> None:
    queue, meter = metered
    once = Options(unique=Unique())
    first = await queue.submit("t", 0, once)
    meter.reset()
    await queue.submit("t", 0, once)
    assert meter.counts == requests_per_unique_task(existing=True)
    await finish(queue, meter, first)
    meter.reset()
    await queue.submit("t", 0, once)
    assert counted(meter, without=[SUBMIT]) == requests_per_unique_task(existing=False)


def test_a_share_is_renewed_as_often_as_the_model_says() -> None:
    for lease_s, share_s in ((60.0, 5.0), (6.0, 2.0)):
        assert WorkerConfig(worker_id="w", lease_s=lease_s).share_ttl_s == RENEWALS_PER_SHARE * share_s
        busy = limit_per_day(Load(3, 10**9), Rhythm(lease_s=lease_s))
        assert busy[Operation.GET] == busy[Operation.PUT] == 3 * DAY_S / share_s
