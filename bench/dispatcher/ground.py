"""What the measurements of a dispatcher stand on: state databases, a pipeline, and a dispatcher that runs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.lab import TESTS
from qo.api.contract.task import EventBody
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag
from qo.dispatcher.outbox.wakeup import WakeUps
from qo.dispatcher.service import Dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.state.upgrade import upgrade
from qo.dispatcher.versions.deploy import deploy
from qo.pipeline.parsing import read
from qo.pipeline.registry import DEFAULT
from qo.pipeline.rendering import to_yaml

assert TESTS  # The import lets the modules of the tests be found: PostgreSQL is started as they start it.

DATABASES = ("sqlite", "postgres")
DURABLE = ("fsync=on", "synchronous_commit=on", "max_connections=200")  # PostgreSQL, as it comes.
EMITTED_MAX = 500  # Events of one emission.
WITHIN_S = 120.0
POLL_S = 0.02

# For the record, in the settings of each figure.
HOW: Mapping[str, str] = {
    "sqlite": "SQLite, WAL, synchronous NORMAL",
    "postgres": "PostgreSQL on loopback, fsync and synchronous_commit on",
}


@contextmanager
def databases() -> Iterator[Callable[..., State]]:
    """Makes fresh state databases, "sqlite" or "postgres", the latter like another one if it is named; all are gone
    after the block."""
    from support.servers.postgres import start_postgres

    opened: list[State] = []
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        server = start_postgres(_made(Path(directory) / "postgres"), DURABLE)

        def fresh(database: str, template: str = "template1") -> State:
            path = Path(directory) / f"{len(opened)}.db"
            state = open_state(server.make_database(template) if database == "postgres" else f"sqlite:{path}")
            opened.append(state)
            upgrade(state)
            return state

        try:
            yield fresh
        finally:
            for each in opened:
                each.close()
            server.stop()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def pipeline(runtime: str = "dispatcher", operator: str = "noop", config: str = "{}") -> Dag:
    """A source, and one job that reads it by partition. Another ``config`` makes it another edition."""
    return read(
        f"""
        name: shop
        jobs:
          - name: orders
            activation: source
            outputs: 1
            source: {{kind: manual}}
          - name: clean
            activation: reactive
            runtime: {runtime}
            operator: {operator}
            outputs: 1
            inputs: [{{from: {{job: orders}}}}]
            execution_strategy: PerPartition
            config: {config}
        """
    )


def deployed(state: State, dag: Dag) -> None:
    with state.write() as tx:
        deploy(tx, dag, to_yaml(dag), "bench", DEFAULT)


def emit(state: State, first: int, count: int) -> None:
    """Announce so many partitions of the source."""
    for low in range(first, first + count, EMITTED_MAX):
        numbers = range(low, min(low + EMITTED_MAX, first + count))
        with state.write() as tx:
            emission.emit(tx, "shop", "orders", key=f"from-{low}", events=said(numbers), by="bench")


def said(numbers: Sequence[int]) -> list[EventBody]:
    return [EventBody(partition_key=f"p{number}", start=number, end=number + 1) for number in numbers]


@asynccontextmanager
async def running(state: State, queues: WakeUps, settings: Settings | None = None) -> AsyncIterator[Dispatcher]:
    """A dispatcher with all its loops, as its process runs it, until the end of the block."""
    dispatcher = Dispatcher(state, queues, settings or Settings(dispatcher=DispatcherSettings()))
    stop = asyncio.Event()
    loops = asyncio.create_task(dispatcher.run(stop))
    try:
        yield dispatcher
    finally:
        stop.set()
        await loops


async def reached(state: State, status: str, count: int) -> None:
    """Wait until so many tasks of the pipeline's job are there. Raises TimeoutError."""
    deadline = time.monotonic() + WITHIN_S
    while await asyncio.to_thread(counted, state, status) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} tasks were not {status} within {WITHIN_S:g} s")
        await asyncio.sleep(POLL_S)


def counted(state: State, status: str) -> int:
    tasks = schema.tasks
    query = sa.select(sa.func.count()).where(tasks.c.job == "clean", tasks.c.status == status)
    with state.read() as tx:
        return int(tx.value(query))


class Unheard:
    """Queues that nobody listens to."""

    async def publish(self, queue: str, wakes: Sequence[Any]) -> None:
        del queue, wakes
