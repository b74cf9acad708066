"""What tests of the queue share: the same queue on every store, clocks that obey, and a worker for a while.

Import the fixtures in a ``conftest.py`` to use them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.lifecycle import Rejected
from qo.core.poll import Pace
from qo.core.task import RetryPolicy, Status, Task
from qo.queue.listing import pages
from qo.queue.queue import Claim, Queue
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from qo.store.port import ObjectStore
from qo.store.retrying import Retrying
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.observe.stats import Stats
from qo.worker.worker import Worker

if TYPE_CHECKING:
    from support.servers.s3 import S3Server

EVERY_STORE = [
    pytest.param("memory", marks=pytest.mark.fast),
    "local",
    pytest.param("s3", marks=pytest.mark.s3),
]

AT_ONCE = RetryPolicy(initial_interval_ms=0, max_interval_ms=0, jitter_percent=0)

# How much sooner what a worker puts off comes round again (deferred tasks, hybrid scans). Leases and due times
# are the store's and keep their pace.
HASTE = 50


def hasty() -> Ambient:
    return Ambient(monotonic=lambda: HASTE * time.monotonic())


class StoreClock:
    """A store's clock that moves only when told to."""

    def __init__(self) -> None:
        self._now = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock()


@pytest.fixture
def clocked_queue(clock: StoreClock) -> Queue:
    """A queue in memory whose time is ``clock``."""
    return Queue(MemoryStore(clock=clock.now), ambient=hasty())


@pytest.fixture
def memory_store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def local_store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    store = await LocalStore.open(tmp_path / "store", forget=keys.EPHEMERAL)
    yield store
    await store.close()


@pytest.fixture(scope="session")
def shared_bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket()


_prefixes = (f"queue-{n}" for n in itertools.count(1))


@pytest.fixture
async def prefixed_s3_store(s3_server: S3Server, shared_bucket: str) -> AsyncIterator[Retrying]:
    """Under a prefix of its own, which is as good as a bucket and quicker to have."""
    store = await s3_server.open_store(shared_bucket, prefix=next(_prefixes))
    yield Retrying(store)
    await store.close()


@pytest.fixture(params=EVERY_STORE)
def any_store(request: pytest.FixtureRequest) -> ObjectStore:
    """One store of each kind, opened as qo opens it."""
    fixture = {"memory": "memory_store", "local": "local_store", "s3": "prefixed_s3_store"}[request.param]
    return request.getfixturevalue(fixture)


@pytest.fixture
async def queue(any_store: ObjectStore) -> AsyncIterator[Queue]:
    queue = Queue(any_store, ambient=hasty())
    yield queue
    await queue.flush()


def another(queue: Queue, **options: Any) -> Queue:
    """The same queue as another process would open it."""
    store = options.pop("store", queue.store)
    return Queue(store, **{"prefix_len": queue.prefix_len, "ambient": hasty(), **options})


async def until(condition: Callable[[], Awaitable[Any]], *, within_s: float = 20.0, every_s: float = 0.01) -> Any:
    """The first true answer of the condition."""
    async with asyncio.timeout(within_s):
        while not (answer := await condition()):  # noqa: ASYNC110 - another process may bring it about.
            await asyncio.sleep(every_s)
    return answer


async def claimed(queue: Queue, task_id: str, *, worker_id: str = "w", lease_s: float | None = None) -> Claim:
    claim = await queue.claim(task_id, worker_id=worker_id, lease_s=lease_s)
    assert isinstance(claim, Claim), claim
    return claim


def rejection(answer: Claim | Rejected | None) -> Rejected:
    assert isinstance(answer, Rejected), answer
    return answer


async def all_tasks(store: ObjectStore) -> list[Task]:
    """Every task there is, as its object says."""
    found: list[Task] = []
    async for entries in pages(store, keys.TASKS):
        for entry in entries:
            stored = await store.get(entry.key)
            assert stored is not None
            found.append(wire.decode_task(stored.body, entry.key))
    return found


async def keys_under(store: ObjectStore, prefix: str) -> list[str]:
    return [entry.key async for entries in pages(store, prefix) for entry in entries]


async def hints(queue: Queue) -> set[str]:
    """Every index key there is, once pending removals are done."""
    await queue.hints.flush()
    indexes = (keys.READY, keys.LEASES, keys.WAITING, keys.INBOX)
    return {key for prefix in indexes for key in await keys_under(queue.store, prefix)}


async def path_of(queue: Queue, task_id: str) -> list[tuple[Status, int]]:
    """The states a task has been in, with the attempt each belongs to."""
    return [(task.status, task.attempt) for task in await queue.history(task_id)]


def wanted_hints(*tasks: Task) -> set[str]:
    return {key for task in tasks if (key := keys.index_key(task)) is not None}


def config(**changes: Any) -> WorkerConfig:
    """A worker that polls often, so that tests do not wait."""
    quick = {"pace": Pace(min_s=0.005, max_s=0.05), "shutdown_grace_s": 5.0, "cancel_grace_s": 1.0}
    return WorkerConfig(**{"worker_id": "w", **quick, **changes})


async def drain(queue: Queue, app: App, **changes: Any) -> Stats:
    """Work until nothing is left that is due."""
    return await Worker(queue, app, config(stop_when_empty=True, **changes)).run()


@asynccontextmanager
async def working(queue: Queue, app: App, **changes: Any) -> AsyncIterator[Worker]:
    """A worker beside the test, until the end of the block."""
    worker = Worker(queue, app, config(**changes))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


async def ended(queue: Queue, task_id: str) -> Task:
    """The task once it has ended, asked for more often than ``Queue.wait`` does."""

    async def done() -> Task | None:
        task = await queue.get(task_id)
        return task if task.ended else None

    return await until(done)


def app_of(*functions: Callable[..., Any]) -> App:
    """An app whose task types are the functions' names."""
    app = App()
    for function in functions:
        app.task(function.__name__)(function)
    return app


def virtual_queue() -> Queue:
    """A queue in memory, in virtual time: for use inside ``virtual.run``."""
    return Queue(MemoryStore(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
