"""Attempts: from an inbox through the service of the task's type to the one outcome of the claim."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from qo.core.rhythm import INDEX_LEASE_AFTER_S
from qo.core.task import Task
from qo.queue.queue import Queue
from qo.telemetry.log_context import set_task, set_worker
from qo.telemetry.trace import current_traceparent
from qo.worker.api.context import Context
from qo.worker.api.handler import Kind
from qo.worker.api.inputs import convert
from qo.worker.api.producer import ProducerHandle
from qo.worker.api.request import Request
from qo.worker.config import WorkerConfig
from qo.worker.layers.services import Services
from qo.worker.layers.timeout import timed_out
from qo.worker.loop.admission import Admission
from qo.worker.loop.best_effort import best_effort
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import now
from qo.worker.loop.hold import Hold, Holds, Lease, Phase
from qo.worker.loop.inbox import Inboxes, Slot
from qo.worker.loop.outcome import Dead, Lost, Outcome, Released, Retried, outcome_of, unstarted_outcome
from qo.worker.loop.settle import Settler
from qo.worker.loop.state import State
from qo.worker.observe.spans import Spans
from qo.worker.observe.stats import SlotStats, Stats
from qo.worker.ports import Ports

log = logging.getLogger(__name__)

# Claim ahead of free slots while handlers take less than this, on average. This is only a matter of speed: waiting
# tasks are leased and renewed like running ones, and simulated runs keep every promise at half a second as at a second.
# It must be well below INBOX_WAIT_MAX_S, or most of what is claimed ahead would be given back.
AHEAD_BELOW_S = 1.0
INBOX_WAIT_MAX_S = 2.0  # A task that has waited longer is given back: slots have turned out to be slow.
WEIGHT = 0.1  # Of the latest run in the average.


class Attempts:
    def __init__(
        self,
        queue: Queue,
        config: WorkerConfig,
        *,
        holds: Holds,
        stats: Stats,
        services: Services,
        admission: Admission,
        spans: Spans,
        tell_failure: Callable[[Task, str], None],
        ports: Ports,
        paused_types: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._queue = queue
        self._config = config
        self._holds = holds
        self._stats = stats
        self._services = services.by_type
        self._executors = services.executors
        self._admission = admission
        self._spans = spans
        self._ports = ports
        self._paused_types = paused_types
        self._is_leaving = ports.lifecycle.is_leaving
        self._settler = Settler(queue, stats, patience_s=config.lease_s, tell_failure=tell_failure)
        self._inboxes: Inboxes[Hold] = Inboxes(config.concurrency, config.inbox_capacity)
        # Those whose handler was given up, but still runs, and the slot that it occupies; None: it is in a batch.
        self._stuck: dict[Hold, Slot[Hold] | None] = {}
        self._buffer = asyncio.Semaphore(config.producer_buffer)
        self._average_s: float | None = None  # Of recent runs.
        self._clean_context = contextvars.copy_context()  # No handler inherits what another one has set.
        self._tasks: set[asyncio.Task[None]] = set()
        self._slot_stats = [stats.slots.setdefault(index, SlotStats()) for index in range(config.concurrency)]
        self.settling = 0

    @property
    def room(self) -> int:
        """How many more tasks may be claimed."""
        quick = self._average_s is not None and self._average_s < AHEAD_BELOW_S
        return self._inboxes.room(ahead=quick, stuck=self.stuck_slots)

    @property
    def is_busy(self) -> bool:
        return len(self._holds) > 0

    @property
    def idle_slots(self) -> int:
        return self._inboxes.idle()

    @property
    def used_slots(self) -> int:
        """How many slots run a task, or will run one that waits for them."""
        return self._inboxes.used()

    @property
    def stuck_slots(self) -> int:
        return sum(slot is not None for slot in list(self._stuck.values()))

    def holds(self, task_id: str) -> bool:
        return task_id in self._holds or self.is_stuck_on(task_id)

    def is_stuck_on(self, task_id: str) -> bool:
        """Whether an earlier attempt at the task was given up, but still runs."""
        return any(hold.task.id == task_id for hold in self._stuck)

    async def accept(self, hold: Hold, *, open: bool) -> None:
        """Take charge of a claim. If the mailbox was shut meanwhile (not ``open``), give it back at once."""
        self._holds.add(hold)
        if not open:
            await self._give_back(hold, "the worker takes no more tasks")
        elif (slot := self._inboxes.add(hold)) is not None:
            await self._run(slot, hold)

    def give_back_waiting(self, reason: str, *, for_s: float = 0.0) -> int:
        """Begin to give back the tasks that have waited in an inbox for so long, at no cost to them. Return their
        number."""
        at, returned = now(), 0
        for hold in self._holds:
            if hold.phase is Phase.WAITING and at - hold.phase_since >= for_s and self._inboxes.remove(hold):
                self._keep(asyncio.create_task(self._give_back(hold, reason)))
                returned += 1
        return returned

    def give_back_overdue(self) -> None:
        if self.give_back_waiting("no slot was free in time", for_s=INBOX_WAIT_MAX_S):
            self._average_s = INBOX_WAIT_MAX_S  # Slots are slower than the average says: claim ahead no more.

    def tick(self) -> None:
        """Do what is due every second."""
        self.give_back_overdue()
        at = now()
        for hold in self._holds:
            if (
                not hold.indexed
                and at - hold.claimed_at >= INDEX_LEASE_AFTER_S
                and hold.phase is not Phase.SETTLING
            ):
                hold.indexed = True
                index_lease = best_effort(self._queue.index_lease(hold.claim), "writing the hint of a lease")
                self._keep(asyncio.create_task(index_lease))

    def stop(self, hold: Hold, why: Why) -> None:
        """Ask for an attempt to stop. An outcome that is reported, or being reported, stays as it is."""
        if hold.phase is Phase.SETTLING or not hold.cancel.request(why):
            return
        if hold.phase is Phase.WAITING:
            if self._inboxes.remove(hold):
                hold.enter(Phase.SETTLING, now())
                self._admission.count_ended(hold.handler, started=False)
                self._keep(asyncio.create_task(self._settle(hold, self._outcome_of_stop(hold))))
        elif hold.attempt is not None and not (why is Why.SHUTDOWN and hold.handler.kind is Kind.THREAD):
            # A thread cannot be interrupted, and no other worker may begin its task beside it. It was asked to stop; if
            # it ends within its grace, its outcome counts.
            hold.attempt.cancel()

    def reclaim_slots(self) -> None:
        """Free the slots of handlers that were given up and have now ended."""
        for hold, slot in list(self._stuck.items()):
            if not self._executors[hold.handler.task_type].is_running(hold.task.id):
                del self._stuck[hold]
                self._end_run(slot, hold)

    async def _run(self, slot: Slot[Hold], hold: Hold) -> None:
        """Run one attempt on a slot, free the slot, and settle the claim."""
        set_worker(self._config.worker_id)
        set_task(hold.task.id)
        hold.attempt = asyncio.current_task()
        started_at = now()
        hold.enter(Phase.RUNNING, started_at)
        self._stats.started += 1
        self._slot_stats[slot.index].task_id = hold.claim.task.id
        outcome = await self._run_attempt(slot, hold)
        ended_at = now()
        self._count(slot, hold, ended_at - started_at, outcome)
        hold.enter(Phase.SETTLING, ended_at)
        if hold.left_slot:
            self.settling -= 1
        else:
            own_slot = None if hold.batched else slot
            if self._executors[hold.handler.task_type].is_running(hold.task.id):
                self._stuck[hold] = own_slot  # There is nothing to run another task on.
            else:
                self._end_run(own_slot, hold)
        await self._settle(hold, outcome)

    def _count(self, slot: Slot[Hold], hold: Hold, seconds: float, outcome: Outcome) -> None:
        average_s = self._average_s
        self._average_s = seconds if average_s is None else average_s + WEIGHT * (seconds - average_s)
        self._stats.count_run(hold.task.task_type, slot.index, seconds, outcome)

    def _free_slot_early(self, slot: Slot[Hold], hold: Hold) -> None:
        """Free the slot of a handler that has only to report elsewhere. While too many do that, it keeps its slot."""
        has_slot = not hold.left_slot and not hold.batched
        if hold.phase is Phase.RUNNING and has_slot and self.settling < self._config.result_buffer:
            hold.left_slot = hold.started = True
            self.settling += 1
            self._end_run(slot, hold)

    def _keep_slot(self, hold: Hold) -> bool:
        running = self._ports.lifecycle.state is State.RUNNING and not hold.left_slot
        return running and hold.handler.task_type not in self._paused_types() and self._ports.slots.keep()

    def _leave_slot(self, slot: Slot[Hold], hold: Hold) -> None:
        """Free the slot of a task that joins a batch. The task still counts towards the limits of its handler."""
        if hold.phase is Phase.RUNNING and not hold.left_slot and not hold.batched:
            hold.batched = True
            self._free_slot(slot)

    def _end_run(self, slot: Slot[Hold] | None, hold: Hold) -> None:
        """Give back what a run has occupied."""
        self._admission.count_ended(hold.handler, started=hold.started)
        if slot is None:
            self._ports.slot_freed()
        else:
            self._free_slot(slot)

    def _free_slot(self, slot: Slot[Hold]) -> None:
        self._slot_stats[slot.index].task_id = None
        if (following := self._inboxes.free(slot)) is not None:
            self._keep(asyncio.create_task(self._run(slot, following), context=self._clean_context.copy()))
        self._ports.slot_freed()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)  # The loop itself holds only weak references to tasks.
        task.add_done_callback(self._tasks.discard)

    async def _run_attempt(self, slot: Slot[Hold], hold: Hold) -> Outcome:
        """Return the outcome of one attempt, whatever happens in it."""
        if hold.cancel.requested:  # While it was on its way from the inbox.
            return self._outcome_of_stop(hold)
        try:
            outcome = await self._call_service(slot, hold)
        except asyncio.CancelledError:
            if hold.attempt is not None:
                hold.attempt.uncancel()
            return self._outcome_of_stop(hold)
        except BaseException as error:
            log.exception("task %s: a layer let this exception pass", hold.task.id)
            return outcome_of(error)
        await self._absorb_own_cancel(hold)
        if not isinstance(outcome, Outcome):  # pyright: ignore[reportUnnecessaryIsInstance] - layers are the user's.
            return Retried(f"a layer gave {outcome!r} instead of an outcome: does it return what it awaits?")
        # A handler that was asked to stop may end with any exception: what counts is why it was asked.
        interrupted = isinstance(outcome, Retried) and hold.cancel.why in (Why.SHUTDOWN, Why.CANCELLED)
        return self._outcome_of_stop(hold) if interrupted or hold.cancel.why is Why.LOST else outcome

    @staticmethod
    async def _absorb_own_cancel(hold: Hold) -> None:
        """Keep the cancellation of a handler that cancelled its own asyncio task, and returned, from its report."""
        if hold.attempt is not None and hold.attempt.cancelling():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            hold.attempt.uncancel()

    async def _call_service(self, slot: Slot[Hold], hold: Hold) -> Outcome:
        try:
            value = convert(hold.handler, await self._queue.claimed_input(hold.claim))
        except Exception as error:  # Missing, unreadable, or not what the handler declares.
            return outcome_of(error)
        request = self._request(slot, hold, value)
        if request.lease is not None and not request.lease.is_valid():
            # The claim was answered very late, or the process slept: the keeper may not have noticed yet, and another
            # worker may have begun. The executor checks again when it calls the handler, since layers may wait.
            return unstarted_outcome()
        waited_s = (hold.task.updated_at - hold.task.available_at).total_seconds() + now() - hold.claimed_at
        self._stats.queue_wait.add(max(0.0, waited_s))
        try:
            return await self._services[hold.handler.task_type](request)
        finally:
            hold.started = request.started
            hold.progress = request.context.close()

    def _request(self, slot: Slot[Hold], hold: Hold, value: object) -> Request:
        config, task = self._config, hold.task
        producer = ProducerHandle(
            self._queue,
            self._buffer,
            traceparent=lambda: current_traceparent() or task.traceparent,
            on_enqueued=self._count_enqueued,
        )
        context = Context(
            self._queue,
            hold.claim,
            worker_id=config.worker_id,
            producer=producer,
            cancel=hold.cancel,
            clock=hold.clock,
            lease_s=config.lease_s,
            draining=self._is_leaving,
            free_slot=partial(self._free_slot_early, slot, hold),
            keep_slot=partial(self._keep_slot, hold),
        )
        return Request(
            task=task,
            handler=hold.handler,
            input=value,
            context=context,
            producer=producer,
            cancel=hold.cancel,
            clock=hold.clock,
            worker_id=config.worker_id,
            slot=slot.index,
            leave_slot=partial(self._leave_slot, slot, hold),
            places=(hold.end_dispatch,),
            lease=Lease(hold, config.lease_margin_s),
        )

    @staticmethod
    def _outcome_of_stop(hold: Hold) -> Outcome:
        """Return what becomes of a claim whose attempt was stopped."""
        match hold.cancel.why:
            case Why.CANCELLED:
                return Dead(str(Why.CANCELLED), cancelled=True)
            case Why.LOST:
                return Lost(str(Why.LOST))
            case Why.TIMEOUT:
                return timed_out(hold.clock)
            case None:
                return Retried("the handler cancelled its own asyncio task")
            case Why.SHUTDOWN:
                return Released(str(Why.SHUTDOWN))

    def _count_enqueued(self, count: int) -> None:
        self._stats.enqueued += count
        self._ports.look()

    async def _give_back(self, hold: Hold, reason: str) -> None:
        hold.enter(Phase.SETTLING, now())
        self._admission.count_ended(hold.handler, started=False)
        await self._settle(hold, Released(reason))

    async def _settle(self, hold: Hold, outcome: Outcome) -> None:
        set_task(hold.task.id)
        hold.end_dispatch()  # If it was not started.
        final: Outcome = Lost("the worker ended before this could be reported")
        end_span = self._spans.open("settle", hold.task)
        self.settling += 1
        try:
            final = await self._settler.settle(hold.claim, outcome, progress=hold.progress)
        finally:
            end_span()
            self.settling -= 1
            self.forget(hold, final)

    def forget(self, hold: Hold, final: Outcome) -> None:
        """Count what became of a claim, once, and hold it no more."""
        if self._holds.get(hold.task.id) is not hold:
            return
        self._holds.remove(hold)
        self._stats.count_outcome(final)
        # The slot was freed before. The signal matters only where reports, or the last of them, are waited for.
        if not self._holds or self.settling >= self._config.result_buffer - 1 or self._is_leaving():
            self._ports.slot_freed()
