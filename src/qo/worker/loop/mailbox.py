"""The mailbox of a worker: it looks for tasks, claims them, and hands them over to Attempts.

Looking, claiming and reporting never wait for each other. A task is claimed only when a slot will be free for it. From
then on the worker holds it, until exactly one outcome is reported for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from qo.core.discovery import STALE_AFTER, Due, Verdict
from qo.core.lifecycle import Reason, Rejected
from qo.core.poll import Pace
from qo.core.sweep import is_left_behind
from qo.core.task import Status, Task
from qo.errors import QoError, StoreError
from qo.queue.feed import PUSHED, Feed
from qo.queue.queue import Claim, Queue
from qo.store.port import Deletion
from qo.telemetry.log_context import set_task
from qo.worker.api.handler import Default, Handler
from qo.worker.config import WorkerConfig
from qo.worker.loop.admission import Admission
from qo.worker.loop.attempts import Attempts
from qo.worker.loop.clock import Clock, lease_time, now
from qo.worker.loop.hold import Hold
from qo.worker.loop.type_filter import TypeFilter
from qo.worker.observe.spans import EndSpan, Spans
from qo.worker.observe.stats import Stats
from qo.worker.ports import Ports

log = logging.getLogger(__name__)

CLAIM_AGAIN_AFTER_S = 2.0
FULL_AGAIN_AFTER_S = 1.0
UNREADABLE_AGAIN_AFTER_S = 600.0  # A task whose key this worker does not have: others may have it.
# Where the time limit of an attempt came from, so that an operator knows what to change.
TASK_TIMEOUT = "it was submitted with this limit (qo submit --timeout, Options(timeout_s=...))"
HANDLER_TIMEOUT = "its handler has this limit (@app.task(..., timeout_s=...))"
WORKER_TIMEOUT = (
    "the worker's limit for tasks without one (QO_TIMEOUT_S of the worker); give the handler one of its own "
    "(@app.task(..., timeout_s=...)) or the task (qo submit --timeout)"
)


class Mailbox:
    def __init__(
        self,
        queue: Queue,
        config: WorkerConfig,
        *,
        feed: Feed,
        type_filter: TypeFilter,
        attempts: Attempts,
        admission: Admission,
        stats: Stats,
        spans: Spans,
        ports: Ports,
    ) -> None:
        self._queue = queue
        self._config = config
        self._feed = feed
        self._type_filter = type_filter
        self._attempts = attempts
        self._admission = admission
        self._stats = stats
        self._spans = spans
        self._ports = ports
        self._wake_up = ports.wake_up
        queue.followers.on_ready = ports.look  # What this worker has made ready, it can take at once.
        self._claiming: dict[str, asyncio.Task[None]] = {}
        self._claimed = False  # Whether a task was claimed since the last look.
        self._missed = False  # Whether a recent candidate could not be claimed.
        self._open = True

    def open(self) -> None:
        self._open = True
        self._wake_up.look()

    def shut(self) -> None:
        """Claim nothing more."""
        self._open = False

    @property
    def claiming(self) -> int:
        return len(self._claiming)

    async def abandon_claims(self) -> None:
        """Wait no longer for claims under way. If the store has taken one all the same, its lease runs out, as if the
        worker had died."""
        claims = dict(self._claiming)
        for task_id, claiming in claims.items():
            log.warning("task %s: whether it was claimed is not known; if it was, its lease will run out", task_id)
            claiming.cancel()
        await asyncio.gather(*claims.values(), return_exceptions=True)

    async def run(self) -> None:
        """Look, claim and hand over. Returns only if asked to stop when the queue is empty, and it is."""
        pace = self._config.pace
        while True:
            self._wake_up.reset()
            free = self._free()
            if free <= 0:
                await self._wake_up.rest(None, wants_room=True)
                continue
            candidates = await self._look(free)
            self._ports.slots.report_look(bool(candidates) or self._feed.has_withheld)
            for due in candidates or ():
                self._start(due)
            if self._claimed or (candidates and (self._feed.has_listed or self._feed.has_more)):
                self._claimed = False
                pace = pace.after(found_work=True)
            elif candidates is not None and not candidates and self._is_empty():
                return
            else:
                pace, rest_s = self._rest_after(pace, failed=candidates is None)
                wants_room = self._feed.has_withheld or self._config.stop_when_empty
                await self._rest(rest_s, wants_room=wants_room)

    async def _rest(self, rest_s: float, *, wants_room: bool) -> None:
        """Rest until the next look. Tasks that are pushed meanwhile are claimed without one, so that a wake-up costs
        no LIST."""
        clock = self._queue.ambient.monotonic
        until = clock() + rest_s
        while True:
            await self._wake_up.rest(max(0.0, until - clock()), wants_room=wants_room)
            if not self._wake_up.was_only_pushed or self._free() <= 0:
                return
            self._wake_up.reset()
            for due in await self._feed.take_pushed(self._free()):
                self._start(due)

    def push(self, task_ids: Sequence[str]) -> None:
        """Claim these tasks next: a wake-up has named them."""
        self._stats.pushed += len(task_ids)
        self._feed.push(task_ids)
        self._wake_up.push()

    def _free(self) -> int:
        """How many more tasks may be claimed now."""
        if not self._open:
            self._ports.slots.report_look(False)  # Workers of other queues may have the slots meanwhile.
            return 0
        if self._attempts.settling >= self._config.result_buffer:
            return 0
        return self._ports.slots.room(self._attempts.room - len(self._claiming))

    def _is_empty(self) -> bool:
        """Whether a worker that drains the queue is done: it holds nothing, and nothing is ready anywhere. A task that
        ended during the look may have made others ready, which the look has missed."""
        idle = not self._claiming and not self._attempts.is_busy and not self._wake_up.has_changed
        return self._config.stop_when_empty and idle and self._feed.is_exhausted

    def _rest_after(self, pace: Pace, *, failed: bool) -> tuple[Pace, float]:
        first = pace.current_s == 0.0
        longest_s = self._feed.rest_max_s
        pace = pace.after(found_work=False, max_s=longest_s)
        rest_s = pace.rest_s(self._queue.ambient.unit())
        if pace.current_s == longest_s and (turn_s := self._feed.until_turn_s()) is not None:
            rest_s = turn_s
        if not failed:  # A store that does not answer is not asked sooner because something is due.
            rest_s = min(rest_s, self._feed.next_due_s())
        if self._missed and first and not failed:
            rest_s = self._config.dequeue_backoff_s  # Other workers claim here too: what they leave is soon found.
        self._missed = False
        # A limit on starts per second raises no signal when there is room again.
        return pace, min(rest_s, FULL_AGAIN_AFTER_S) if self._feed.has_withheld else rest_s

    async def _look(self, count: int) -> list[Due] | None:
        """Return up to so many candidates; None if the store could not be asked."""
        try:
            looks_before, span = self._feed.looks, self._spans.open_look()
            candidates = await self._feed.take(count)
            if span is not None and candidates:
                span.set_attribute("messaging.batch.message_count", len(candidates))
                span.end()
        except StoreError as error:
            log.warning("cannot look for tasks: %s", error)
            return None
        if self._feed.looks > looks_before:
            self._stats.looks += self._feed.looks - looks_before
            self._stats.empty_looks += not candidates
        self._stats.queue_depth = self._feed.depth
        return candidates

    def _start(self, due: Due) -> None:
        if due.task_id in self._claiming or self._attempts.holds(due.task_id):
            # Its hint is still listed, or it was taken from us and put back while its handler runs here: other
            # workers should have it.
            self._feed.defer(due, CLAIM_AGAIN_AFTER_S, ready=self._attempts.is_stuck_on(due.task_id))
            self._feed.mark_tried(due)  # Else it would take the place of another of its type for ever.
            return
        self._claiming[due.task_id] = asyncio.create_task(self._take(due))

    async def _take(self, due: Due) -> None:
        """Claim a candidate and hand it over. An error concerns this task only."""
        set_task(due.task_id)
        hold = None
        try:
            hold = await self._claim(due)
        except StoreError as error:
            self._feed.defer(due, CLAIM_AGAIN_AFTER_S, ready=True)
            log.warning("could not claim task %s: %s", due.task_id, error)
        except QoError as error:
            log.error("task %s: %s", due.task_id, error)
        except Exception:
            log.exception("task %s", due.task_id)
        finally:
            del self._claiming[due.task_id]
            self._feed.mark_tried(due)
            if hold is None:
                self._missed = True
                self._ports.slot_freed()
        if hold is not None:
            self._feed.mark_claimed(due)
            if not self._feed.has_listed:
                self._claimed = True  # Of a single notice nothing follows; of a claim, that there may be more.
                self._wake_up.look()
            await self._attempts.accept(hold, open=self._open)

    async def _claim(self, due: Due) -> Hold | None:
        tasks: list[Task] = []  # The task as the claim has read it, if there is one.
        admitted: list[Handler] = []
        spans: list[EndSpan] = []

        def accepts(task: Task) -> bool:
            tasks.append(task)
            handler = self._admit(due, task)
            if handler is not None:
                admitted.append(handler)
                spans.append(self._spans.open("claim", task))
                self._admission.count_admitted(handler)
            return handler is not None

        config = self._config
        sent_at, leased_until = now(), lease_time() + config.lease_s
        try:
            answer = await self._queue.claim(
                due.task_id,
                worker_id=config.worker_id,
                lease_s=config.lease_s,
                accepts=accepts,
                on_failure=self._type_filter.hook_of,
                hint=_hint(due),
                hinted=due.etag == PUSHED,  # A wake-up is sent when the hint is there.
            )
        except BaseException:
            if admitted:
                self._admission.count_ended(admitted[0], started=False)
            raise
        finally:
            for end_span in spans:
                end_span()
        if isinstance(answer, Claim):
            clock = self._clock(answer.task, admitted[0])
            self._stats.count_claim()
            self._ports.slots.count_start()
            hold = Hold(answer, admitted[0], clock, now=sent_at, leased_until=leased_until)
            hold.end_dispatch = self._spans.open("dispatch", answer.task)
            return hold
        if admitted:
            self._admission.count_ended(admitted[0], started=False)
            self._stats.claims_missed += 1
        await self._pass_over(due, answer, tasks[0] if tasks else None)
        return None

    def _admit(self, due: Due, task: Task) -> Handler | None:
        """Return the handler, if this worker has one and room for the task now."""
        self._feed.mark_tried(due)
        if not self._queue.payloads.can_open(task):
            self._type_filter.warn_unreadable(task)
            self._feed.defer(due, UNREADABLE_AGAIN_AFTER_S)
            return None
        group = self._type_filter.group_of(task)
        if self._open and self._type_filter.judge(group) is Verdict.TAKE:
            return self._type_filter.handler(group)
        if task.status is Status.PENDING:
            self._feed.put_back(due, group)
        return None

    def _clock(self, task: Task, handler: Handler) -> Clock:
        """Make the clock of an attempt. The task's timeout comes first, then its handler's, then the worker's."""
        if task.timeout_seconds is not None:
            return Clock(task.timeout_seconds, TASK_TIMEOUT)
        if not isinstance(handler.timeout_s, Default):
            return Clock(handler.timeout_s, HANDLER_TIMEOUT)
        return Clock(self._config.service.timeout_s, WORKER_TIMEOUT)

    async def _pass_over(self, due: Due, answer: Rejected | None, task: Task | None) -> None:
        """Defer a candidate that could not be claimed, or drop its hint, so that it is not read at every poll."""
        at = await self._queue.store.now()
        if task is None or answer is None:
            if due.key:
                await self._queue.hints.drop_stale(due.key, due.etag)
        elif answer.reason is Reason.NOT_DUE:
            self._feed.defer(due, (task.available_at - at).total_seconds())
        elif not due.key or (task.status is Status.PENDING and not task.waiting):
            return
        elif not is_left_behind(task, due.listed_at):
            # The worker that moved the task is about to drop this key, or has died: then it will still be there.
            self._feed.defer(due, STALE_AFTER.total_seconds(), expect_gone=True)
        else:
            await self._queue.tasks.repair_hint(due, task)


def _hint(due: Due) -> Deletion | None:
    """Return the hint that led to a task; None if it was found without one."""
    return Deletion(due.key, due.version, None if due.version is not None else due.etag) if due.key else None
