"""A queue in memory whose time stands still, and what a test asks of it."""

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
from qo.testing.clock import StillClock, hasty
from qo.testing.draining import Drained
from qo.testing.wanted import ANYTHING, Wanted
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor

STORE_VARIABLE = "QO_STORE"
REST_FIRST_S = 0.001  # A store in memory is not overrun by those who ask again.


class MemoryQueue(Queue):
    """A ``Queue`` on a store in memory, behind ``faults`` and the same retries that a bucket has.

    ``plan`` says which faults there are to be by chance, drawn from ``seed``. Nothing else here is left to chance:
    the same test makes the same tasks, as long as its handlers are coroutines.
    """

    def __init__(self, plan: FaultPlan | None = None, *, seed: int = 1) -> None:
        self.clock = StillClock()
        self.truth = MemoryStore(self.clock.now)  # What is stored, faults or not.
        self.faults = Faulty(self.truth, plan, Ambient.seeded(seed, hasty))
        ambient = Ambient.seeded(seed, hasty)
        super().__init__(Retrying(self.faults, ambient=ambient, rest_first_s=REST_FIRST_S), ambient=ambient)

    @contextmanager
    def connected(self) -> Generator[None]:
        """Have ``qo.connect()`` and ``qo.blocking()`` open this queue for a while, unless they name another."""
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

    # Time

    def advance(self, seconds: float) -> None:
        """Let it be so much later for the queue. Nothing runs by that; ``drain`` runs what is then due."""
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
        """Run tasks by the handlers of an app, skipping over the time until the next is due.

        Ends when nothing is left that the app can do; with ``for_s``, when so much time has passed for the queue (0:
        only what is due now). Raises DrainFailed, an AssertionError, if tasks failed for good and none ``may_fail``;
        and if there is no end to it. ``config`` and ``executors`` are the worker's.
        """
        __tracebackhide__ = True
        drained = await draining.drain(
            self, app, self.clock, self._everything, for_s=for_s, config=config, executors=executors
        )
        if drained.failed and not may_fail:
            raise draining.failure(drained)
        return drained

    # What waits

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
        """That such a task waits to be claimed (``count``: exactly so many); the first that was submitted.

        Of an ``input`` that is a dict, the keys that are given must be so. ``delay_s`` is counted from now. Values are
        compared with ``==``, so that ``pytest.approx`` and ``mock.ANY`` will do.
        """
        __tracebackhide__ = True
        wanted = Wanted(task_type, input, delay_s, priority, key)
        waiting = self._waiting()
        found = [task for task in waiting if wanted.fits(task, self.clock.now())]
        if not found or (count is not None and len(found) != count):
            told = f"{len(found)} tasks wait, not {count}" if count is not None else "no task waits"
            raise AssertionError(f"{told}, of {wanted}{wanted.instead(waiting, self.clock.now())}")
        return found[0]

    def refute_enqueued(
        self,
        task_type: str,
        input: Any = ANYTHING,
        *,
        delay_s: Any = ANYTHING,
        priority: Any = ANYTHING,
        key: Any = ANYTHING,
    ) -> None:
        """That no such task waits to be claimed."""
        __tracebackhide__ = True
        wanted = Wanted(task_type, input, delay_s, priority, key)
        waiting = self._waiting()
        found = sum(wanted.fits(task, self.clock.now()) for task in waiting)
        if found:
            told = "a task waits" if found == 1 else f"{found} tasks wait"
            raise AssertionError(f"{told}, of {wanted}{wanted.instead(waiting, self.clock.now())}")

    def _waiting(self) -> list[Task]:
        return [task for task in self._everything() if task.status is Status.PENDING]

    def _everything(self) -> list[Task]:
        """Every task in the order of its last change, with its values; faults have no part in it."""
        return at_once(lambda: draining.everything(self.truth))


def at_once(ask: Callable[[], Any]) -> Any:
    """What a coroutine gives that never has to wait, in whatever kind of test."""
    coroutine = ask()
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise AssertionError("a store in memory never waits")
