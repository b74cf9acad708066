"""A queue in memory with a stopped clock, and assertions about its tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from qo.ambient import Ambient
from qo.core.task import Status, Task
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.opening import shared
from qo.store.retrying import Retrying
from qo.testing import draining
from qo.testing.clock import StillClock, hasty_monotonic
from qo.testing.draining import Drained
from qo.testing.expected import ANYTHING, ExpectedTask
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor

STORE_VARIABLE = "QO_STORE"
REST_FIRST_S = 0.001  # Retries need not be spread: they cannot overload a store in memory.


class MemoryQueue(Queue):
    """A ``Queue`` on a store in memory, behind ``faults`` and the same retries that a bucket has.

    ``plan`` names the faults that occur at random, drawn from ``seed``. Nothing else is random: the same test creates
    the same tasks, as long as its handlers are coroutines.
    """

    def __init__(self, plan: FaultPlan | None = None, *, seed: int = 1) -> None:
        self.clock = StillClock()
        self.truth = MemoryStore(self.clock.now)  # The store itself, without faults.
        self.faults = Faulty(self.truth, plan, Ambient.seeded(seed, hasty_monotonic))
        ambient = Ambient.seeded(seed, hasty_monotonic)
        super().__init__(Retrying(self.faults, ambient=ambient, rest_first_s=REST_FIRST_S), ambient=ambient)

    @contextmanager
    def connected(self) -> Generator[None]:
        """Make ``qo.connect()`` and ``qo.blocking()`` open this queue, unless they name another."""
        import os

        name = f"test-{id(self):x}"
        before = os.environ.get(STORE_VARIABLE)
        with shared(name, self.store):
            os.environ[STORE_VARIABLE] = f"memory:{name}"
            try:
                yield
            finally:
                if before is None:
                    del os.environ[STORE_VARIABLE]
                else:
                    os.environ[STORE_VARIABLE] = before

    def advance(self, seconds: float) -> None:
        """Move the clock of the queue forward. That runs nothing; ``drain`` runs the tasks that are due then."""
        self.clock.advance(seconds)

    async def drain(
        self,
        app: App,
        *,
        for_s: float | None = None,
        may_fail: bool = False,
        config: WorkerConfig | None = None,
        executors: Mapping[str, Executor] | None = None,
    ) -> Drained:
        """Run tasks with the handlers of an app, skipping the time until the next task is due.

        Ends when the app can run no more tasks; with ``for_s``, when that much time has passed for the queue (0: only
        tasks that are due now). Raises DrainFailed, an AssertionError, if a task failed for good, unless ``may_fail``;
        and if it does not end. ``config`` and ``executors`` are the worker's.
        """
        __tracebackhide__ = True
        drained = await draining.drain(
            self, app, self.clock, self._all_tasks, for_s=for_s, config=config, executors=executors
        )
        if drained.failed and not may_fail:
            raise draining.failure(drained)
        return drained

    def assert_enqueued(
        self,
        task_type: str,
        input: Any = ANYTHING,
        *,
        count: int | None = None,
        delay_s: Any = ANYTHING,
        priority: Any = ANYTHING,
        key: Any = ANYTHING,
    ) -> Task:
        """Assert that such a task waits to be claimed (``count``: exactly so many), and return the first submitted.

        Of an ``input`` that is a dict, only the given keys are compared. ``delay_s`` counts from now. Values are
        compared with ``==``, so ``pytest.approx`` and ``mock.ANY`` can be used.
        """
        __tracebackhide__ = True
        expected = ExpectedTask(task_type, input, delay_s, priority, key)
        waiting = self._waiting()
        matches = [task for task in waiting if expected.fits(task, self.clock.now())]
        if not matches or (count is not None and len(matches) != count):
            problem = f"{len(matches)} tasks wait, not {count}" if count is not None else "no task waits"
            raise AssertionError(f"{problem}, of {expected}{expected.describe_instead(waiting, self.clock.now())}")
        return matches[0]

    def refute_enqueued(
        self,
        task_type: str,
        input: Any = ANYTHING,
        *,
        delay_s: Any = ANYTHING,
        priority: Any = ANYTHING,
        key: Any = ANYTHING,
    ) -> None:
        """Assert that no such task waits to be claimed."""
        __tracebackhide__ = True
        expected = ExpectedTask(task_type, input, delay_s, priority, key)
        waiting = self._waiting()
        count = sum(expected.fits(task, self.clock.now()) for task in waiting)
        if count:
            problem = "a task waits" if count == 1 else f"{count} tasks wait"
            raise AssertionError(f"{problem}, of {expected}{expected.describe_instead(waiting, self.clock.now())}")

    def _waiting(self) -> list[Task]:
        return [task for task in self._all_tasks() if task.status is Status.PENDING]

    def _all_tasks(self) -> list[Task]:
        """Return all tasks with their payloads, in the order of their last changes; no faults occur."""
        return run_without_waiting(lambda: draining.read_tasks(self.truth))


def run_without_waiting(call: Callable[[], Any]) -> Any:
    """Return the result of a coroutine that never waits; works inside and outside an event loop."""
    coroutine = call()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("a store in memory never waits")
