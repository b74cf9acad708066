"""Executors call the functions of handlers: one for each kind of handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from qo.errors import UsageError

if TYPE_CHECKING:  # Child processes import this package too, and should start quickly.
    from qo.worker.api.app import App
    from qo.worker.api.handler import Kind
    from qo.worker.api.request import Request
    from qo.worker.config import WorkerConfig


KILL_AFTER_S_MAX = 5.0


class Executor(Protocol):
    async def call(self, request: Request) -> Any:
        """Call the handler's function for this request; return what it returns, raise what it raises.

        When this is cancelled, the function must be made to stop. A call that cannot be stopped is abandoned and
        keeps its slot: while it ``is_running``, its slot is not given to another task.
        """
        ...

    def is_running(self, task_id: str) -> bool:
        """Whether a call for this task was abandoned and has not returned."""
        ...

    def close(self) -> None:
        """Release threads and processes, without waiting for any."""
        ...


def executors_for(
    app: App,
    config: WorkerConfig,
    on_late_return: Callable[[], None],
    custom: Mapping[str, Executor] | None = None,
) -> dict[Kind, Executor]:
    """Return the executors that the handlers of an app need: ``custom`` ones, and built-in ones for the other kinds.

    Spark has no built-in one. ``on_late_return`` is called whenever an abandoned call has ended.

    Raises UsageError for a handler that child processes could not find, so that a worker which would fail its tasks
    does not start.
    """
    from qo.worker.api.handler import Kind
    from qo.worker.executors.event_loop import LoopExecutor
    from qo.worker.executors.processes import ProcessExecutor, check_function
    from qo.worker.executors.threads import ThreadExecutor

    try:
        executors = {Kind(name): executor for name, executor in (custom or {}).items()}
    except ValueError as error:
        raise UsageError(f"{error}: executors are for {', '.join(Kind)}") from None
    # The handler of unknown task types is async, too.
    needed = {Kind.ASYNC, *(handler.kind for handler in app.handlers)} - set(executors)
    if Kind.ASYNC in needed:
        executors[Kind.ASYNC] = LoopExecutor()
    if Kind.THREAD in needed:
        executors[Kind.THREAD] = ThreadExecutor(on_late_return)
    if Kind.PROCESS in needed:
        for handler in app.handlers:
            if handler.kind is Kind.PROCESS:
                check_function(handler)
        executors[Kind.PROCESS] = ProcessExecutor(
            config.limits[Kind.PROCESS],
            tasks_max=config.process_tasks_max,
            memory_max_mb=config.process_memory_max_mb,
            # Early enough to give the task back.
            kill_after_s=min(KILL_AFTER_S_MAX, config.cancel_grace_s / 2),
            on_late_return=on_late_return,
        )
    return executors
