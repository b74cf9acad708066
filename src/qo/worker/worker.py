"""One process that finds tasks, runs their handlers, and reports what became of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from qo.core.discovery import Due, IndexMode
from qo.core.lifecycle import Reason, Rejected
from qo.core.poll import Pace
from qo.core.task import Status, Task
from qo.errors import CorruptRecord, LeaseLost, QoError, StoreError, UsageError
from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.queue import Claim, Queue
from qo.worker.app import App, Handler
from qo.worker.context import Context
from qo.worker.execute import Broken, Done, Later, Outcome, execute

log = logging.getLogger(__name__)

CLAIM_AGAIN_AFTER_S = 2.0
SHARE_AGAIN_AFTER_S = 0.5
STALE_AFTER = timedelta(seconds=10)
SETTLE_TRIES_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    worker_id: str
    shards: tuple[str, ...] = ()  # Empty: all.
    concurrency: int = 16
    index_mode: IndexMode = IndexMode.HYBRID
    ready_page_size: int = 100
    log_scan_page_size: int = 50
    pace: Pace = field(default_factory=Pace)
    heartbeat_s: float = 15.0
    shutdown_grace_s: float = 30.0
    stop_when_empty: bool = False


@dataclass(slots=True)
class Tally:
    claimed: int = 0
    completed: int = 0
    failed: int = 0  # Attempts that failed, retried or not.
    lost: int = 0
    released: int = 0
    requests: int = 0  # Sent to the store by this process, and what S3 would charge for them.
    dollars: float = 0.0


class Worker:
    def __init__(self, queue: Queue, app: App, config: WorkerConfig) -> None:
        roster.validate_worker_id(config.worker_id)
        if config.concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, not {config.concurrency}")
        self._queue = queue
        self._app = app
        self._config = config
        self._feed = Feed(
            queue,
            shards=config.shards,
            mode=config.index_mode,
            ready_page_size=config.ready_page_size,
            log_scan_page_size=config.log_scan_page_size,
        )
        self._threads = ThreadPoolExecutor(config.concurrency, thread_name_prefix="qo-handler")
        self._running: dict[str, asyncio.Task[None]] = {}
        self._claims: dict[str, Claim] = {}
        self._freed = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leaving = False
        self.tally = Tally()

    def stop(self) -> None:
        """Take no more tasks; ``run`` returns once those in hand are finished or given back."""
        self._stop.set()
        self._freed.set()

    def hurry(self) -> None:
        """Do not wait for running tasks any longer: give them back."""
        self._hurry.set()

    async def run(self) -> Tally:
        """Work until stopped. Unexpected errors of the machinery itself end the worker; those of tasks do not."""
        started_at = await self._queue.store.now()
        await self._report(started_at)
        heartbeat = asyncio.gather(self._heartbeat(started_at), self._share())
        try:
            await self._work()
        finally:
            await self._wind_down()
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
            await self._queue.hints.flush()
            await self._quietly(roster.leave(self._queue.store, self._config.worker_id))
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._count_requests()
        return self.tally

    async def _work(self) -> None:
        pace = self._config.pace
        while not self._stop.is_set():
            free = self._config.concurrency - len(self._running)
            found = await self._candidates(free) if free > 0 else []
            for due in found:
                self._start(due)
            if found:
                pace = pace.after(found=True)
                continue
            if free > 0:
                if self._config.stop_when_empty and not self._running:
                    return
                pace = pace.after(found=False)
            await self._rest(pace.rest_s(self._queue.ambient.unit()) if free > 0 else None)

    async def _candidates(self, wanted: int) -> list[Due]:
        try:
            return await self._feed.take(wanted)
        except StoreError as error:
            log.warning("cannot look for tasks: %s", error)
            return []

    async def _rest(self, for_s: float | None) -> None:
        """Until a slot is freed, the worker is stopped, or the time is over."""
        self._freed.clear()
        if self._stop.is_set():
            return
        try:
            async with asyncio.timeout(for_s):
                await self._freed.wait()
        except TimeoutError:
            return

    def _start(self, due: Due) -> None:
        if due.task_id in self._running:
            return  # Still listed, or taken from us and put back while its handler runs here: leave it to others.
        self._running[due.task_id] = asyncio.create_task(self._attempt(due))

    async def _attempt(self, due: Due) -> None:
        """From candidate to settled. Whatever goes wrong with one task stays with it."""
        try:
            claim = await self._claim(due)
            if claim is not None:
                self.tally.claimed += 1
                self._claims[due.task_id] = claim
                await (self._give_back(claim) if self._leaving else self._perform(claim))
        except LeaseLost as lost:
            self.tally.lost += 1
            log.warning("%s", lost)
        except StoreError as error:
            log.warning("task %s: %s; its lease will run out and it will be tried again", due.task_id, error)
        except QoError as error:
            log.error("task %s: %s", due.task_id, error)
        finally:
            self._claims.pop(due.task_id, None)
            self._running.pop(due.task_id, None)
            self._freed.set()

    async def _claim(self, due: Due) -> Claim | None:
        seen: list[Task] = []

        def accepts(task: Task) -> bool:
            seen.append(task)
            return self._app.handler(task.task_type) is not None

        try:
            answer = await self._queue.claim(due.task_id, worker_id=self._config.worker_id, accepts=accepts)
        except StoreError:
            self._feed.defer(due, CLAIM_AGAIN_AFTER_S)
            raise
        if isinstance(answer, Claim):
            return answer
        await self._pass_over(due, answer, seen[0] if seen else None)
        return None

    async def _pass_over(self, due: Due, answer: Rejected | None, task: Task | None) -> None:
        """Remember why a candidate was none, so that it is not read again at every poll."""
        now = await self._queue.store.now()
        if task is None or answer is None:
            if due.key:
                await self._queue.hints.drop_stale(due.key, due.etag)
        elif answer.reason is Reason.NOT_DUE:
            self._feed.defer(due, (task.available_at - now).total_seconds())
        elif due.key and task.status is not Status.PENDING and due.listed_at - task.updated_at > STALE_AFTER:
            # Whoever moved it should have dropped this key long before we saw it.
            await self._queue.hints.drop_stale(due.key, due.etag)

    async def _perform(self, claim: Claim) -> None:
        handler = self._app.handler(claim.task.task_type)
        assert handler is not None, "claimed only what has a handler"
        try:
            outcome = await self._execute(handler, claim)
        except asyncio.CancelledError:
            if not claim.task.cancel_requested:
                raise  # Winding down: the claim is released there.
            outcome = Broken("cancelled while running")
        await self._settle(claim, outcome)

    async def _execute(self, handler: Handler, claim: Claim) -> Outcome:
        try:
            value = await self._queue.input(claim.task)
        except CorruptRecord as error:
            return Broken(str(error))
        context = Context(self._queue, claim, self._config.worker_id)
        return await execute(handler, value, context, self._threads)

    async def _settle(self, claim: Claim, outcome: Outcome) -> None:
        match outcome:
            case Done(output):
                try:
                    await self._insist(lambda: self._queue.complete(claim, output))
                except UsageError as error:
                    outcome = Broken(str(error), permanent=True)  # An output that no JSON can hold.
                else:
                    self.tally.completed += 1
                    return
            case Later(delay_s):
                await self._insist(lambda: self._queue.reschedule(claim, delay_s))
                return
            case Broken():
                pass
        broken = outcome
        self.tally.failed += 1
        log.info("task %s attempt %d failed: %s", claim.task.id, claim.task.attempt, broken.error)
        await self._insist(
            lambda: self._queue.fail(
                claim,
                broken.error,
                traceback=broken.traceback,
                permanent=broken.permanent,
                delay_s=broken.delay_s,
            )
        )

    async def _insist(self, settle: Callable[[], Awaitable[object]]) -> None:
        """Finished work is worth repeating its report for: the fence makes a repetition harmless."""
        rest_s = 0.2
        for attempt in range(1, SETTLE_TRIES_MAX + 1):
            try:
                await settle()
                return
            except LeaseLost:
                raise
            except StoreError:
                if attempt == SETTLE_TRIES_MAX:
                    raise
                await asyncio.sleep(rest_s)
                rest_s = min(rest_s * 2, 5.0)

    async def _heartbeat(self, started_at: datetime) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            await self._quietly(self._report(started_at))
            await self._quietly(self._keep_all())

    async def _share(self) -> None:
        """While there is work, learn who else is at it and begin with different shards than they do."""
        rest_s, claimed = SHARE_AGAIN_AFTER_S, -1
        while True:
            if claimed != self.tally.claimed:
                claimed = self.tally.claimed
                await self._quietly(self._take_share())
            await asyncio.sleep(rest_s)
            rest_s = min(rest_s * 2, self._config.heartbeat_s)

    async def _take_share(self) -> None:
        since = await self._queue.store.now() - timedelta(seconds=2 * self._config.heartbeat_s)
        heard = await roster.last_heard(self._queue.store)
        here = sorted(worker_id for worker_id, at in heard.items() if at >= since)
        if self._config.worker_id in here:
            self._feed.prefer(here.index(self._config.worker_id), len(here))

    async def _keep_all(self) -> None:
        now = await self._queue.store.now()
        for task_id, claim in list(self._claims.items()):
            if (now - claim.task.updated_at).total_seconds() >= self._config.heartbeat_s / 2:
                await self._keep(task_id, claim)

    async def _keep(self, task_id: str, claim: Claim) -> None:
        """Renew a long-running task's lease, and stop it if that is lost or cancellation was requested."""
        try:
            task = await self._queue.renew(claim)
        except LeaseLost as lost:
            self.tally.lost += 1
            log.warning("%s", lost)
        except QoError as error:
            log.warning("could not renew task %s: %s", task_id, error)
            return
        else:
            if not task.cancel_requested:
                return
        if (running := self._running.get(task_id)) is not None:
            running.cancel()

    def _count_requests(self) -> None:
        if self._queue.meter is not None:
            usage = self._queue.meter.snapshot()
            self.tally.requests, self.tally.dollars = usage.requests, usage.dollars()

    async def _report(self, started_at: datetime) -> None:
        self._count_requests()
        held = list(self._claims)
        info = roster.WorkerInfo(
            worker_id=self._config.worker_id,
            started_at=started_at,
            last_heartbeat=await self._queue.store.now(),
            shards=list(self._config.shards),
            current_task=held[0] if held else None,
            current_tasks=held,
            tasks_completed=self.tally.completed,
            tasks_failed=self.tally.failed,
            task_types=list(self._app.task_types),
            requests=self.tally.requests,
            dollars=self.tally.dollars,
        )
        await roster.report(self._queue.store, info)

    async def _wind_down(self) -> None:
        """Let what runs finish within the grace; give back the rest at no cost to it."""
        if self._running:
            hurry = asyncio.create_task(self._hurry.wait())
            finish = asyncio.create_task(asyncio.wait(set(self._running.values())))
            await asyncio.wait(
                {hurry, finish},
                timeout=self._config.shutdown_grace_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            hurry.cancel()
            finish.cancel()
        self._leaving = True  # Who is just claiming gives the task back: a claim broken off may have happened.
        held = dict(self._claims)
        for task_id in held:
            self._running[task_id].cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await asyncio.gather(*(self._quietly(self._give_back(claim)) for claim in held.values()))

    async def _give_back(self, claim: Claim) -> None:
        task = await self._queue.release(claim)
        self.tally.released += task.status is Status.PENDING
        self.tally.completed += task.status is Status.COMPLETED  # Its report came through, though we broke it off.

    async def _quietly(self, call: Awaitable[object]) -> None:
        try:
            await call
        except QoError as error:
            log.warning("%s", error)
