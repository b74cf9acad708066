"""The executor of handlers that take many tasks in one call (``batch=...``).

It gathers requests, calls the function once for all of them through the executor of its kind, and gives each request
its own result. Each keeps its own claim, lease, timeout and outcome. A request whose task was cancelled leaves the
call. One whose task may soon run elsewhere, because it timed out or lost its lease, stops the call, and the others are
given back. A thread cannot be stopped, so there they stay. A child process gets the inputs, and makes the contexts.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from qo.core.batch import Waiting, choose_batch, must_run_alone, next_due
from qo.errors import UsageError
from qo.telemetry.log_context import clear_task
from qo.worker.api.context import BlockingContext
from qo.worker.api.handler import Handler, Kind
from qo.worker.api.request import Request
from qo.worker.executors import Executor
from qo.worker.layers.timeout import timed_out
from qo.worker.loop.cancel import CancelToken, Stopped, Why
from qo.worker.loop.clock import Clock, now
from qo.worker.loop.outcome import Outcome, OutcomeError, Released, outcome_of, unstarted_outcome

EXPIRES_TOGETHER_S = 0.5  # Timers of one batch do not fire at one instant, and none may escape by that.
STOPPED_WITH_OTHER = "another task of its batch had to stop, and so had the handler, for all of them"


class Member:
    """A request, from when it waits for company until it leaves the call."""

    __slots__ = ("batch", "begin", "request", "result", "waiting")

    def __init__(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        task = request.task
        self.request = request
        self.waiting = Waiting(loop.time(), must_run_alone(task.retry_count, task.max_retries))
        self.begin: asyncio.Future[None] = loop.create_future()  # Done when the function is about to be called.
        self.result: asyncio.Future[Any] = loop.create_future()
        self.batch: Batch | None = None


class Batch:
    """One call of the function."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.task_id = members[0].request.task.id  # By which the executor knows the call.
        self.present = set(members)
        self.was_left = False  # Whether a request has left the call before it ended.
        self.is_stopping = False
        self.call: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Cancel the call, once: a second time would interrupt what it cleans up."""
        if self.call is not None and not self.is_stopping:
            self.is_stopping = True
            self.call.cancel()

    @property
    def is_over(self) -> bool:
        return self.call is not None and self.call.done()


class Batches:
    def __init__(self, handler: Handler, executor: Executor, on_late_return: Callable[[], None]) -> None:
        """``on_late_return`` is called when a call has ended that some request had left before."""
        self._handler = replace(handler, wants_context=False)  # Each task of the list has its context beside it.
        self._size = handler.batch or 1
        self._calls_max = handler.concurrency or 1
        self._executor = executor
        self._on_late_return = on_late_return
        self._waiting: list[Member] = []
        self._running: set[Batch] = set()
        self._departed: dict[str, Batch] = {}  # By id of a task that left while its call went on.
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, request: Request) -> Any:
        request.leave_slot()  # A batch has no slot; it would need one for each of its tasks.
        member = Member(request)
        self._waiting.append(member)
        self._start_due()
        try:
            if not member.begin.done():
                with request.clock.pause():  # Waiting for company does not count towards the timeout.
                    await member.begin
            return await member.result
        except asyncio.CancelledError:
            await self._leave(member)
            raise

    def is_running(self, task_id: str) -> bool:
        if (batch := self._departed.get(task_id)) is None:
            return False
        if batch.is_over and not self._executor.is_running(batch.task_id):
            del self._departed[task_id]
            return False
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _leave(self, member: Member) -> None:
        """Take no further part. A task that may run again must not begin elsewhere while the function works on it: so
        the call is stopped, if it can be, and has ended when this returns."""
        if member.batch is None:
            self._waiting.remove(member)
            return
        batch = member.batch
        batch.present.discard(member)
        member.result.cancel()
        if batch.call is None or batch.call.done():
            return
        batch.was_left = True
        self._departed[member.request.task.id] = batch
        ends_here = member.request.cancel.why is Why.CANCELLED or self._handler.kind is Kind.THREAD
        if not batch.present or not ends_here:
            batch.stop()
            await asyncio.wait({batch.call})

    def _start_due(self) -> None:
        """Call what is due, as far as so many calls may run at a time."""
        while len(self._running) < self._calls_max:
            staying = [member for member in self._waiting if not member.begin.cancelled()]  # Others leave next.
            waiting = [member.waiting for member in staying]
            positions = choose_batch(waiting, size=self._size, wait_s=self._handler.batch_wait_s, now=now())
            if not positions:
                break
            batch = Batch([staying[position] for position in positions])
            self._waiting = [member for member in self._waiting if member not in batch.present]
            self._start(batch)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = next_due([member.waiting for member in self._waiting], wait_s=self._handler.batch_wait_s)
        if due is not None and len(self._running) < self._calls_max:
            self._timer = asyncio.get_running_loop().call_at(due, self._start_due)

    def _start(self, batch: Batch) -> None:
        for member in batch.members:
            member.batch = batch
            member.begin.set_result(None)
        context = contextvars.copy_context()
        context.run(clear_task)  # Its log lines are about no single task.
        self._running.add(batch)
        batch.call = asyncio.get_running_loop().create_task(self._run(batch), context=context)

    async def _run(self, batch: Batch) -> None:
        try:
            batch.members = [member for member in batch.members if _check_lease(member)]
            if batch.members:
                output = await self._executor.call(self._request(batch))
                _share_output(batch.members, output, self._handler.task_type)
        except asyncio.CancelledError as error:
            if batch.is_stopping:
                _give_back(batch.members)
            else:
                _share_error(batch.members, error)
        except BaseException as error:
            _share_error(batch.members, error)
        finally:
            self._running.discard(batch)
            self._start_due()
            if batch.was_left:
                asyncio.get_running_loop().call_soon(self._on_late_return)

    def _request(self, batch: Batch) -> Request:
        """Return a request whose input is the list of all inputs, each with its context."""
        requests, loop = tuple(member.request for member in batch.members), asyncio.get_running_loop()
        first, kind = requests[0], self._handler.kind
        if kind is Kind.PROCESS:
            items = [each.input for each in requests]
        elif kind is Kind.THREAD:
            items = [(each.input, BlockingContext(each.context, loop)) for each in requests]
        else:
            items = [(each.input, each.context) for each in requests]
        return Request(
            task=first.task,
            handler=self._handler,
            input=items,
            members=requests if kind is Kind.PROCESS else (),
            context=first.context,
            producer=first.producer,
            cancel=CancelToken(),
            clock=Clock(None),
            worker_id=first.worker_id,
            slot=first.slot,
        )


def _check_lease(member: Member) -> bool:
    lease = member.request.lease
    if lease is None or lease.is_valid():
        return True
    _settle(member, OutcomeError(unstarted_outcome()))
    return False


def _share_output(members: Sequence[Member], output: Any, task_type: str) -> None:
    """Give each request what the function has returned for it."""
    if output is None:
        output = [None] * len(members)
    if not isinstance(output, list | tuple) or len(cast("list[Any]", output)) != len(members):
        raise UsageError(
            f"the handler of {task_type!r} must return None, or a list with one entry for each of its "
            f"{len(members)} tasks in their order, not {_describe(output)}"
        )
    for member, each in zip(members, cast("list[Any]", output), strict=True):
        _settle(member, OutcomeError(outcome_of(each)) if isinstance(each, BaseException) else each)


def _give_back(members: Sequence[Member]) -> None:
    """Settle the requests of a call that was stopped because of others. Who would have timed out with them has."""
    for member in members:
        clock = member.request.clock
        expires = clock.deadline is not None and clock.deadline <= now() + EXPIRES_TOGETHER_S
        _settle(member, OutcomeError(timed_out(clock) if expires else Released(STOPPED_WITH_OTHER)))


def _share_error(members: Sequence[Member], error: BaseException) -> None:
    """Give each request the error of the whole call: as an outcome, since an exception can be raised in one place."""
    outcome: Outcome = outcome_of(error)
    for member in members:
        if isinstance(error, Stopped) and not member.request.cancel.requested:
            _settle(member, OutcomeError(Released(STOPPED_WITH_OTHER)))
        elif isinstance(error, Stopped):
            _settle(member, Stopped(str(error)))
        else:
            _settle(member, OutcomeError(outcome))


def _settle(member: Member, result: Any) -> None:
    if member.result.done():
        return  # Cancelled: the request has left.
    if isinstance(result, BaseException):
        member.result.set_exception(result)
    else:
        member.result.set_result(result)


def _describe(output: Any) -> str:
    if isinstance(output, list | tuple):
        return f"one with {len(cast('list[Any]', output))}"
    return type(output).__name__
