"""The pytest plugin: ``qo_queue``, ``qo_pipelines`` and ``qo_run``.

pytest loads it for every project in an environment that has qo, so it imports nothing of qo before a test needs it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from qo.testing.memory_queue import MemoryQueue
    from qo.testing.pipelines import Pipelines

T = TypeVar("T")


class Run(Protocol):
    def __call__(self, call: Coroutine[Any, Any, T], /) -> T: ...


@pytest.fixture
def qo_queue() -> Iterator[MemoryQueue]:
    """An empty queue in memory. While the test runs, ``qo.connect()`` opens this queue."""
    from qo.testing.memory_queue import MemoryQueue

    queue = MemoryQueue()
    with queue.connected():
        yield queue


@pytest.fixture
def qo_pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    """Everything that pipelines of Python operators need, with nothing deployed yet."""
    from qo.testing.pipelines import Pipelines

    pipelines = Pipelines(tmp_path / "qo")
    yield pipelines
    pipelines.close()


@pytest.fixture
def qo_run() -> Iterator[Run]:
    """A function that runs a coroutine, for tests that are not async."""
    import asyncio

    from qo.worker.loop.clock import running_loop

    with asyncio.Runner() as runner:

        def run(call: Coroutine[Any, Any, T], /) -> T:
            __tracebackhide__ = True
            if running_loop() is not None:
                call.close()
                pytest.fail("qo_run is for tests that are not async: in an async test, await the call")
            return runner.run(call)

        yield run
