"""The mailbox of a worker: it looks for tasks, claims them, and hands them to slots through their inboxes.

Much goes on at once: looking, claiming and reporting never wait for each other. A task is claimed only when a slot
will be free for it. From then on it is held, until exactly one outcome is reported for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from qo.core import keys
from qo.core.discovery import Due, UnknownTypes, Verdict
from qo.core.lifecycle import Reason, Rejected
from qo.core.poll import Pace
from qo.core.task import Status, Task
from qo.errors import QoError, StoreError
from qo.queue.feed import Feed
from qo.queue.queue import Claim, Queue
from qo.worker.api.app import App
from qo.worker.api.handler import UNKNOWN, Default, Handler
from qo.worker.config import WorkerConfig
from qo.worker.loop.admission import Admission
from qo.worker.loop.attempts import Runner
from qo.worker.loop.clock import Clock, lease_time, now
from qo.worker.loop.hold import Hold
from qo.worker.observe.stats import Stats

log = logging.getLogger(__name__)

CLAIM_AGAIN_AFTER_S = 2.0
FULL_AGAIN_AFTER_S = 1.0
UNHANDLED_WARNED_MAX = 100
UNHANDLED_WARNED_EVERY_S = 600.0  # For as long as such tasks wait.
# What to change if an attempt was given too little time.
TASK_TIMEOUT = "it was submitted with this limit (qo submit --timeout, Options(timeout_s=...))"
HANDLER_TIMEOUT = "its handler has this limit (@app.task(..., timeout_s=...))"
WORKER_TIMEOUT = (
    "the limit of whatever names none (QO_TIMEOUT_S of the worker); give the handler one of its own "
    "(@app.task(..., timeout_s=...)) or the task (qo submit --timeout)"
)
STALE_AFTER = timedelta(seconds=10)


class Mailbox:
    def __init__(
        self,
        queue: Queue,
        app: App,
        config: WorkerConfig,
        *,
        feed: Feed,
        runner: Runner,
        admission: Admission,
        stats: Stats,
        paused: Callable[[str], bool],
        may_look: Callable[[], bool],
        missed: Callable[[], None],
    ) -> None:
        """``paused`` says whether a task type is; ``may_look`` whether there is anything to look for. ``missed`` is
        called when a candidate turned out to be none."""
        self._queue = queue
        self._app = app
        self._config = config
        self._feed = feed
        self._runner = runner
        self._admission = admission
        self._stats = stats
        self._paused = paused
        self._may_look = may_look
        self._tell_missed = missed
        self._otherwise = UNKNOWN if config.unknown_types is UnknownTypes.FAIL else None
        self._claiming: dict[str, asyncio.Task[None]] = {}
        self._missed = False  # Whether a candidate of late was none.
        self._unhandled: dict[str, float] = {}  # Types that were warned of, and when.
        self._open = True
        self._wake = asyncio.Event()
        self._freed = False  # Since the last look.
        self._hungry = False  # Whether a freed slot is a reason to look.

    def open(self) -> None:
        self._open = True
        self.wake()

    def shut(self) -> None:
        """Claim nothing more."""
        self._open = False

    def wake(self) -> None:
        """There may be something new to find, or what is wanted has changed."""
        self._wake.set()

    def freed(self) -> None:
        """There is more room. Who has just found nothing does not look again for that."""
        self._freed = True
        if self._hungry:
            self._wake.set()

    @property
    def claiming(self) -> int:
        return len(self._claiming)

    async def abandon_claims(self) -> None:
        """Take charge of nothing more, whatever the store still answers: a claim that has happened all the same is as
        one of a worker that died, and its lease runs out."""
        claims = dict(self._claiming)
        for task_id, claiming in claims.items():
            log.warning("task %s: whether it was claimed is not known; if it was, its lease will run out", task_id)
            claiming.cancel()
        await asyncio.gather(*claims.values(), return_exceptions=True)

    async def run(self) -> None:
        """Look, claim and hand over. Ends only if asked to stop when empty, and empty it is."""
        pace = self._config.pace
        while True:
            self._wake.clear()  # Before anything is looked at: what changes from here on is looked at again.
            self._freed = False
            free = self._free()
            if free <= 0:
                await self._rest(None, hungry=True)
                continue
            found = await self._look(free)
            if found:
                for due in found:
                    self._start(due)
                pace = pace.after(found=True)
            elif found is not None and self._empty():
                return
            else:
                pace, rest_s = self._rest_after(pace, failed=found is None)
                await self._rest(rest_s, hungry=self._feed.withheld or self._config.stop_when_empty)

    def _free(self) -> int:
        if not self._open or self._runner.settling >= self._config.result_buffer:
            return 0
        return self._runner.room - len(self._claiming)

    def _empty(self) -> bool:
        """Whether a worker that drains the queue is done: nothing in hand, and nothing ready anywhere."""
        return (
            self._config.stop_when_empty and not self._claiming and not self._runner.busy and self._feed.exhausted
        )

    def _rest_after(self, pace: Pace, *, failed: bool) -> tuple[Pace, float]:
        first, pace = pace.current_s == 0.0, pace.after(found=False)
        rest_s = pace.rest_s(self._queue.ambient.unit())
        if self._missed and first and not failed:
            rest_s = self._config.dequeue_backoff_s  # Others work here too: what they leave is soon found again.
        self._missed = False
        # A limit on starts per second tells nobody when there is room again.
        return pace, min(rest_s, FULL_AGAIN_AFTER_S) if self._feed.withheld else rest_s

    async def _look(self, wanted: int) -> list[Due] | None:
        """None if the store did not let us look: that is not to have found nothing."""
        try:
            if not self._may_look():
                return []
            before = self._feed.looks
            found = await self._feed.take(wanted)
        except StoreError as error:
            log.warning("cannot look for tasks: %s", error)
            return None
        if self._feed.looks > before:
            self._stats.looks += self._feed.looks - before
            self._stats.empty_looks += not found
        self._stats.queue_depth = self._feed.depth
        return found

    async def _rest(self, for_s: float | None, *, hungry: bool) -> None:
        """Until something has changed, or the time is over. Only the ``hungry`` are woken by a freed slot."""
        if hungry and self._freed:
            return
        self._hungry = hungry
        if for_s is None:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout(for_s):
                await self._wake.wait()
        except TimeoutError:
            return

    # Claiming

    def _start(self, due: Due) -> None:
        if due.task_id in self._claiming or self._runner.holds(due.task_id):
            # Still listed, or taken from us and put back while its handler runs here: leave it to others.
            self._feed.defer(due, CLAIM_AGAIN_AFTER_S, ready=self._runner.stuck_on(due.task_id))
            return
        self._claiming[due.task_id] = asyncio.create_task(self._take(due))

    async def _take(self, due: Due) -> None:
        """From candidate to claim, and on to a slot. Whatever goes wrong with one task stays with it."""
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
            self._feed.tried(due)
            if hold is None:
                self._missed = True
                self._tell_missed()
        if hold is not None:
            await self._runner.run(hold, open=self._open)

    async def _claim(self, due: Due) -> Hold | None:
        seen: list[Task] = []
        admitted: list[Handler] = []

        def accepts(task: Task) -> bool:
            seen.append(task)
            handler = self._admit(due, task)
            if handler is not None:
                admitted.append(handler)
                self._admission.enter(handler)
            return handler is not None

        config = self._config
        sent, leased_until = now(), lease_time() + config.lease_s
        try:
            answer = await self._queue.claim(
                due.task_id, worker_id=config.worker_id, lease_s=config.lease_s, accepts=accepts
            )
        except BaseException:
            if admitted:
                self._admission.ended(admitted[0], started=False)
            raise
        if isinstance(answer, Claim):
            clock = self._clock(answer.task, admitted[0])
            self._stats.took()
            return Hold(answer, admitted[0], clock, now=sent, leased_until=leased_until)
        if admitted:
            self._admission.ended(admitted[0], started=False)
            self._stats.claims_missed += 1
        await self._pass_over(due, answer, seen[0] if seen else None)
        return None

    def _admit(self, due: Due, task: Task) -> Handler | None:
        """The handler, if this worker has one and room for the task now."""
        self._feed.tried(due)
        if self._open and self.judge(task.task_type) is Verdict.TAKE:
            return self._handler(task.task_type)
        if task.status is Status.PENDING:
            self._feed.put_back(due, task.task_type)
        return None

    def judge(self, task_type: str, ahead: int = 0) -> Verdict:
        """Whether tasks of a type are for this worker now, if so many others of it come first."""
        if (handler := self._handler(task_type)) is None:
            self._warn_unhandled(task_type)
            return Verdict.PASS
        if self._paused(task_type):
            return Verdict.PASS
        return Verdict.TAKE if self._admission.room(handler) > ahead else Verdict.LATER

    def _warn_unhandled(self, task_type: str) -> None:
        at, warned_at = self._queue.ambient.monotonic(), self._unhandled.get(task_type)
        if warned_at is None and len(self._unhandled) >= UNHANDLED_WARNED_MAX:
            return
        if warned_at is None or at - warned_at >= UNHANDLED_WARNED_EVERY_S:
            self._unhandled[task_type] = at
            self._stats.unhandled_types = len(self._unhandled)
            log.warning(
                "tasks of type %r wait, but this worker has no handler for them; qo status TASK says whether any has",
                task_type,
            )

    def _handler(self, task_type: str) -> Handler | None:
        return self._app.handler(task_type) or self._otherwise

    def _clock(self, task: Task, handler: Handler) -> Clock:
        """The most particular wish counts: the task's, then its handler's, then the worker's."""
        if task.timeout_seconds is not None:
            return Clock(task.timeout_seconds, TASK_TIMEOUT)
        if not isinstance(handler.timeout_s, Default):
            return Clock(handler.timeout_s, HANDLER_TIMEOUT)
        return Clock(self._config.service.timeout_s, WORKER_TIMEOUT)

    async def _pass_over(self, due: Due, answer: Rejected | None, task: Task | None) -> None:
        """Remember why a candidate was none, so that it is not read again at every poll."""
        at = await self._queue.store.now()
        if task is None or answer is None:
            if due.key:
                await self._queue.hints.drop_stale(due.key, due.etag)
        elif answer.reason is Reason.NOT_DUE:
            self._feed.defer(due, (task.available_at - at).total_seconds())
        elif not due.key or task.status is Status.PENDING:
            return
        elif due.listed_at - task.updated_at <= STALE_AFTER:
            # Whoever moved it is about to drop this key, or has died: then it will still be there.
            self._feed.defer(due, STALE_AFTER.total_seconds(), gone=True)
        else:
            # Whoever moved it should have dropped this key long before we saw it, unless it died before it wrote
            # the task's new one: so that is written first.
            if (wanted := keys.index_key(task)) is not None:
                await self._queue.hints.restore(wanted, task.token)
            await self._queue.hints.drop_stale(due.key, due.etag)
