"""The context of a handler in a child process: its methods are called by the worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qo.worker.executors.child_messages import LOOK, Answer, Facts
from qo.worker.loop.cancel import CancelToken

if TYPE_CHECKING:  # A child that does not need these starts faster without them.
    from qo.core.task import Task
    from qo.queue.flow_plan import FlowPlan
    from qo.queue.options import Options
    from qo.worker.api.context import TaskLog

LOOK_EVERY_S = 0.2


class ChildContext:
    """Has the interface of ``BlockingContext``. May be used by any thread of the handler."""

    def __init__(
        self, task: Task, worker_id: str, cancel: CancelToken, call: Callable[..., Answer], facts: Facts
    ) -> None:
        """``call`` has the worker call a method of the context, and raises what the method raises."""
        self.task = task
        self.worker_id = worker_id
        self.cancel = cancel
        self._call_worker = call
        self._log: TaskLog | None = None
        self._update(facts)

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
        if time.monotonic() - self._updated_at > LOOK_EVERY_S:  # A handler may read this in a tight loop.
            self._call(LOOK)
        return self._facts.draining

    @property
    def log(self) -> TaskLog:
        if self._log is None:
            from qo.worker.api.context import TaskLog  # It imports the queue, which takes a while.

            self._log = TaskLog(self.task)
        return self._log

    def progress(self, value: Any) -> None:
        self._call("progress", value)

    def extend(self, more_s: float) -> None:
        self._call("extend", more_s)

    def renew(self, lease_s: float | None = None, *, progress: Any = None) -> None:
        self._call("renew", lease_s, progress)

    def submit(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        return self._call("submit", task_type, input, options)

    def submit_flow(self, plan: FlowPlan, *, key: str | None = None) -> list[Task]:
        return self._call("submit_flow", plan, key)

    def results(self) -> list[Any]:
        return self._call("results")

    def result(self, task_id: str) -> Any:
        return self._call("result", task_id)

    def dependencies(self) -> list[Task]:
        return self._call("dependencies")

    def _call(self, method: str, *arguments: Any) -> Any:
        answer = self._call_worker(method, *arguments)
        self._update(answer.facts)
        return answer.value

    def _update(self, facts: Facts) -> None:
        self._facts = facts
        self._updated_at = time.monotonic()
        self._deadline = None if facts.remaining_s is None else self._updated_at + facts.remaining_s
