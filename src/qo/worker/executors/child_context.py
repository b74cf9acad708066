"""What a handler in a child process can see and do beside its input: as on a thread, through the worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qo.worker.executors.messages import LOOK, Answer, Facts
from qo.worker.loop.cancel import CancelToken

if TYPE_CHECKING:  # A child that does not need these starts without them.
    from qo.core.task import Task
    from qo.queue.options import Options
    from qo.worker.api.context import TaskLog

LOOK_EVERY_S = 0.2


class ChildContext:
    """The surface of ``BlockingContext``. May be used by any thread of the handler's."""

    def __init__(
        self, task: Task, worker_id: str, cancel: CancelToken, ask: Callable[..., Answer], facts: Facts
    ) -> None:
        """``ask`` has the worker call a verb, and raises what the verb raises."""
        self.task = task
        self.worker_id = worker_id
        self.cancel = cancel
        self._ask = ask
        self._log: TaskLog | None = None
        self._know(facts)

    @property
    def task_id(self) -> str:
        return self.task.id

    @property
    def attempt(self) -> int:
        return self.task.attempt

    @property
    def cancel_requested(self) -> bool:
        return self.cancel.requested or self._facts.cancel_requested

    @property
    def deadline(self) -> float | None:
        """When the attempt is stopped, by ``time.monotonic()``; None: never."""
        return self._deadline

    @property
    def draining(self) -> bool:
        if time.monotonic() - self._known_at > LOOK_EVERY_S:  # A handler may look in every turn of a tight loop.
            self._do(LOOK)
        return self._facts.draining

    @property
    def log(self) -> TaskLog:
        if self._log is None:
            from qo.worker.api.context import TaskLog  # It brings the queue along, which takes a while to load.

            self._log = TaskLog(self.task)
        return self._log

    def progress(self, value: Any) -> None:
        self._do("progress", value)

    def extend(self, more_s: float) -> None:
        self._do("extend", more_s)

    def renew(self, lease_s: float | None = None, *, progress: Any = None) -> None:
        self._do("renew", lease_s, progress)

    def submit(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        return self._do("submit", task_type, input, options)

    def _do(self, verb: str, *arguments: Any) -> Any:
        answer = self._ask(verb, *arguments)
        self._know(answer.facts)
        return answer.value

    def _know(self, facts: Facts) -> None:
        self._facts = facts
        self._known_at = time.monotonic()
        self._deadline = None if facts.remaining_s is None else self._known_at + facts.remaining_s
