"""Running what was claimed: from an inbox through the service of its type to its one outcome."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from qo.queue.queue import Queue
from qo.telemetry.trace import current_traceparent
from qo.worker.api.context import Context
from qo.worker.api.handler import Kind
from qo.worker.api.inputs import convert
from qo.worker.api.producer import ProducerHandle
from qo.worker.api.request import Request
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor
from qo.worker.layers.stack import Service
from qo.worker.layers.timeout import timed_out
from qo.worker.loop.admission import Admission
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import now
from qo.worker.loop.hold import Hold, Holds, Lease, Phase
from qo.worker.loop.inbox import Inboxes, Slot
from qo.worker.loop.outcome import Dead, Lost, Outcome, Released, Retried, not_begun, outcome_of
from qo.worker.loop.settle import Settler
from qo.worker.observe.stats import SlotStats, Stats

log = logging.getLogger(__name__)

# Claim ahead of free slots while handlers take less than this, on average. It is a matter of speed alone: what waits is
# leased and renewed as what runs is, and simulated runs keep every promise at half a second as at a second. It must be
# well below INBOX_WAIT_MAX_S: most of what is claimed ahead would be given back otherwise.
AHEAD_BELOW_S = 1.0
INBOX_WAIT_MAX_S = 2.0  # What has waited longer than this is given back: slots have turned out to be slow.
WEIGHT = 0.1  # Of the latest run in the average.


class Runner:
    def __init__(
        self,
        queue: Queue,
        config: WorkerConfig,
        *,
        held: Holds,
        stats: Stats,
        services: Mapping[str, Service],
        executors: Mapping[Kind, Executor],
        admission: Admission,
        draining: Callable[[], bool],
        freed: Callable[[], None],
        enqueued: Callable[[], None],
    ) -> None:
        """``freed`` is called whenever there may be room for more, ``enqueued`` when a handler has submitted some."""
        self._queue = queue
        self._config = config
        self._held = held
        self._stats = stats
        self._services = services
        self._executors = executors
        self._admission = admission
        self._draining = draining
        self._freed = freed
        self._tell_enqueued = enqueued
        self._settler = Settler(queue, stats, patience_s=config.lease_s)
        self._inboxes: Inboxes[Hold] = Inboxes(config.concurrency, config.inbox_capacity)
        self._stuck: dict[Slot[Hold], Hold] = {}  # Slots whose handler was given up, but still runs.
        self._buffer = asyncio.Semaphore(config.producer_buffer)
        self._average_s: float | None = None  # Of recent runs.
        self._clean = contextvars.copy_context()  # No handler inherits what another has set.
        self._chained: set[asyncio.Task[None]] = set()
        self._shown = [stats.slots.setdefault(index, SlotStats()) for index in range(config.concurrency)]
        self.settling = 0

    @property
    def room(self) -> int:
        """How many more may be claimed."""
        quick = self._average_s is not None and self._average_s < AHEAD_BELOW_S
        return self._inboxes.room(ahead=quick, stuck=len(self._stuck))

    @property
    def busy(self) -> bool:
        return len(self._held) > 0

    @property
    def idle_slots(self) -> int:
        return self._inboxes.idle()

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    def holds(self, task_id: str) -> bool:
        return task_id in self._held or self.stuck_on(task_id)

    def stuck_on(self, task_id: str) -> bool:
        """Whether an earlier attempt at it was given up, but still runs."""
        return any(hold.task.id == task_id for hold in self._stuck.values())

    async def run(self, hold: Hold, *, open: bool) -> None:
        """Take charge of a claim. If the worker is not open for it any more, it is given back at once."""
        self._held.add(hold)
        if not open:
            await self._give_back(hold, "the worker takes no more tasks")
        elif (slot := self._inboxes.put(hold)) is not None:
            await self._work(slot, hold)

    def give_back_waiting(self, reason: str, *, for_s: float = 0.0) -> int:
        """Return what has not been started, at no cost to it, if it has waited so long. Under way when this returns;
        how many those are."""
        at, returned = now(), 0
        for hold in self._held:
            if hold.phase is Phase.WAITING and at - hold.phase_since >= for_s and self._inboxes.remove(hold):
                self._chain(asyncio.create_task(self._give_back(hold, reason)))
                returned += 1
        return returned

    def give_back_overdue(self) -> None:
        if self.give_back_waiting("no slot was free in time", for_s=INBOX_WAIT_MAX_S):
            self._average_s = INBOX_WAIT_MAX_S  # Slots are slower than the average says: claim ahead no more.

    def stop(self, hold: Hold, why: Why) -> None:
        """Ask for an attempt to stop. What was already reported, or is being, stays as it is."""
        if hold.phase is Phase.SETTLING or not hold.cancel.request(why):
            return
        if hold.phase is Phase.WAITING:
            if self._inboxes.remove(hold):
                hold.enter(Phase.SETTLING, now())
                self._admission.ended(hold.handler, started=False)
                self._chain(asyncio.create_task(self._settle(hold, self._stopped(hold))))
        elif hold.attempt is not None and not (why is Why.SHUTDOWN and hold.handler.kind is Kind.THREAD):
            # A thread cannot be interrupted, and nobody else must begin its task beside it. It was asked to stop; if
            # it ends within its grace, what it says counts.
            hold.attempt.cancel()

    def came_back(self) -> None:
        """Something that was given up has ended after all: its slot is free."""
        for slot, hold in list(self._stuck.items()):
            if not self._executors[hold.handler.kind].running(hold.task.id):
                del self._stuck[slot]
                self._release(slot, hold)

    # One attempt

    async def _work(self, slot: Slot[Hold], hold: Hold) -> None:
        hold.attempt = asyncio.current_task()
        begun = now()
        hold.enter(Phase.RUNNING, begun)
        self._stats.started += 1
        self._shown[slot.index].task_id = hold.claim.task.id
        outcome = await self._attempt(slot, hold)
        ended = now()
        took_s = ended - begun
        self._average_s = (
            took_s if self._average_s is None else self._average_s + WEIGHT * (took_s - self._average_s)
        )
        self._stats.ran(hold.task.task_type, slot.index, took_s, outcome)
        hold.enter(Phase.SETTLING, ended)
        if hold.left_slot:
            self.settling -= 1
        elif self._executors[hold.handler.kind].running(hold.task.id):
            self._stuck[slot] = hold  # There is nothing to run another task on.
        else:
            self._release(slot, hold)
        await self._settle(hold, outcome)

    def _leave(self, slot: Slot[Hold], hold: Hold) -> None:
        """The handler has only to tell somebody what it did. While too many do that, it keeps its slot."""
        if hold.phase is Phase.RUNNING and not hold.left_slot and self.settling < self._config.result_buffer:
            hold.left_slot = hold.started = True
            self.settling += 1
            self._release(slot, hold)

    def _release(self, slot: Slot[Hold], hold: Hold) -> None:
        self._shown[slot.index].task_id = None
        self._admission.ended(hold.handler, started=hold.started)
        if (following := self._inboxes.free(slot)) is not None:
            self._chain(asyncio.create_task(self._work(slot, following), context=self._clean.copy()))
        self._freed()

    def _chain(self, task: asyncio.Task[None]) -> None:
        self._chained.add(task)  # The loop itself keeps no hold on tasks.
        task.add_done_callback(self._chained.discard)

    async def _attempt(self, slot: Slot[Hold], hold: Hold) -> Outcome:
        """The outcome of one attempt, whatever happens in it."""
        if hold.cancel.requested:  # While it was on its way from the inbox.
            return self._stopped(hold)
        try:
            outcome = await self._serve(slot, hold)
        except asyncio.CancelledError:
            if hold.attempt is not None:
                hold.attempt.uncancel()
            return self._stopped(hold)
        except BaseException as error:
            log.exception("task %s: a layer let this pass", hold.task.id)
            return outcome_of(error)
        await self._absorb(hold)
        if not isinstance(outcome, Outcome):  # pyright: ignore[reportUnnecessaryIsInstance] - layers are the user's.
            return Retried(f"a layer gave {outcome!r} instead of an outcome: does it return what it awaits?")
        return self._judged(hold, outcome)

    @staticmethod
    async def _absorb(hold: Hold) -> None:
        """A handler that cancelled its own asyncio task and returned: that must not hit its report."""
        if hold.attempt is not None and hold.attempt.cancelling():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            hold.attempt.uncancel()

    def _judged(self, hold: Hold, outcome: Outcome) -> Outcome:
        """A handler that was asked to stop may say so by any exception: what counts is why it was asked."""
        broken_off = isinstance(outcome, Retried) and hold.cancel.why in (Why.SHUTDOWN, Why.CANCELLED)
        return self._stopped(hold) if broken_off or hold.cancel.why is Why.LOST else outcome

    async def _serve(self, slot: Slot[Hold], hold: Hold) -> Outcome:
        config, task = self._config, hold.task
        try:
            value = convert(hold.handler, await self._queue.input(task))
        except Exception as error:  # Missing, unreadable, or not what the handler declares.
            return outcome_of(error)
        lease = Lease(hold, config.lease_margin_s)
        if not lease.lasts():
            # As when the claim was answered very late, or the process slept: the keeper may not have noticed yet, and
            # somebody else may have begun. Looked at again when the handler is called: layers may wait.
            return not_begun()
        producer = ProducerHandle(
            self._queue,
            self._buffer,
            traceparent=lambda: current_traceparent() or task.traceparent,
            enqueued=self._count_enqueued,
        )
        context = Context(
            self._queue,
            hold.claim,
            worker_id=config.worker_id,
            producer=producer,
            cancel=hold.cancel,
            clock=hold.clock,
            lease_s=config.lease_s,
            draining=self._draining,
            free_slot=partial(self._leave, slot, hold),
        )
        request = Request(
            task=task,
            handler=hold.handler,
            input=value,
            context=context,
            producer=producer,
            cancel=hold.cancel,
            clock=hold.clock,
            worker_id=config.worker_id,
            slot=slot.index,
            lease=lease,
        )
        waited = (task.updated_at - task.available_at).total_seconds() + now() - hold.claimed_at
        self._stats.queue_wait.add(max(0.0, waited))
        try:
            return await self._services[hold.handler.task_type](request)
        finally:
            hold.started = request.started
            hold.progress = context.close()

    @staticmethod
    def _stopped(hold: Hold) -> Outcome:
        """What becomes of a claim whose attempt was broken off."""
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
        self._tell_enqueued()

    # Settling

    async def _give_back(self, hold: Hold, reason: str) -> None:
        hold.enter(Phase.SETTLING, now())
        self._admission.ended(hold.handler, started=False)
        await self._settle(hold, Released(reason))

    async def _settle(self, hold: Hold, outcome: Outcome) -> None:
        final: Outcome = Lost("the worker ended before this could be reported")
        self.settling += 1
        try:
            final = await self._settler.settle(hold.claim, outcome, progress=hold.progress)
        finally:
            self.settling -= 1
            self.forget(hold, final)

    def forget(self, hold: Hold, final: Outcome) -> None:
        """Count what became of a claim, once."""
        if self._held.get(hold.task.id) is not hold:
            return
        self._held.remove(hold)
        self._stats.settled(final)
        # The slot was freed before. This matters only to who waits for reports, or for the last of them.
        if not self._held or self.settling >= self._config.result_buffer - 1 or self._draining():
            self._freed()
