"""One process that finds tasks, runs their handlers, and reports what became of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from qo.core import keys
from qo.core.discovery import Due
from qo.core.lifecycle import Reason, Rejected
from qo.core.task import Status, Task
from qo.errors import CorruptRecord, LeaseLost, QoError, StoreError, UsageError
from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.queue import Claim, Queue
from qo.worker.app import App, Handler
from qo.worker.config import Tally, WorkerConfig
from qo.worker.context import Context
from qo.worker.execute import Broken, Done, Later, Outcome, execute, text_of, traceback_of
from qo.worker.heartbeat import Heartbeat, quietly
from qo.worker.threads import Threads, disown

log = logging.getLogger(__name__)

CLAIM_AGAIN_AFTER_S = 2.0
STALE_AFTER = timedelta(seconds=10)
SETTLE_TRIES_MAX = 8
BREAK_OFF_S = 5.0


class Worker:
    def __init__(self, queue: Queue, app: App, config: WorkerConfig) -> None:
        roster.validate_worker_id(config.worker_id)
        if config.concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, not {config.concurrency}")
        self._queue = queue
        self._app = app
        self._config = config
        self._unhandled: set[str] = set()  # Types that were warned of.
        self._feed = Feed(
            queue,
            shards=config.shards,
            mode=config.index_mode,
            ready_page_size=config.ready_page_size,
            log_scan_page_size=config.log_scan_page_size,
        )
        self._running: dict[str, asyncio.Task[None]] = {}
        self._claims: dict[str, Claim] = {}
        self._freed = asyncio.Event()
        self._threads = Threads(self._freed.set)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leaving = False
        self.tally = Tally()
        self._heartbeat = Heartbeat(
            queue,
            config,
            app=app,
            tally=self.tally,
            claims=self._claims,
            break_off=lambda task_id: self._running[task_id].cancel(),
            feed=self._feed,
        )

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
        await self._heartbeat.report(started_at)
        heartbeat = asyncio.create_task(self._heartbeat.run(started_at))
        try:
            await self._work()
        finally:
            await self._wind_down()
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
            await self._queue.hints.flush()
            await quietly(roster.leave, self._queue.store, self._config.worker_id)
            self._threads.close()
            self._heartbeat.count_requests()
        return self.tally

    async def _work(self) -> None:
        pace = self._config.pace
        while not self._stop.is_set():
            # A thread that was left behind still takes up its slot: there is none to run another task on.
            free = self._config.concurrency - len(self._running) - self._threads.left
            found = await self._candidates(free) if free > 0 else None
            if found:
                for due in found:
                    self._start(due)
                pace = pace.after(found=True)
                continue
            if found is not None and self._empty():
                return
            if free > 0:
                pace = pace.after(found=False)
            await self._rest(pace.rest_s(self._queue.ambient.unit()) if free > 0 else None)

    def _empty(self) -> bool:
        """Whether a worker that drains the queue is done: nothing in hand, and nothing ready anywhere."""
        return self._config.stop_when_empty and not self._running and self._feed.exhausted

    async def _candidates(self, wanted: int) -> list[Due] | None:
        """None if the store did not let us look: that is not to have found nothing."""
        try:
            return await self._feed.take(wanted)
        except StoreError as error:
            log.warning("cannot look for tasks: %s", error)
            return None

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
        except Exception:
            log.exception("task %s", due.task_id)
        finally:
            self._claims.pop(due.task_id, None)
            self._running.pop(due.task_id, None)
            self._freed.set()

    async def _claim(self, due: Due) -> Claim | None:
        seen: list[Task] = []

        def accepts(task: Task) -> bool:
            seen.append(task)
            handled = self._app.handler(task.task_type) is not None
            if not handled and task.task_type not in self._unhandled:
                self._unhandled.add(task.task_type)
                log.warning("tasks of type %r wait, but this worker has no handler for them", task.task_type)
            return handled

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
            # Whoever moved it should have dropped this key long before we saw it, unless it died before it wrote
            # the task's new one: so that is written first.
            if (wanted := keys.index_key(task)) is not None:
                await self._queue.hints.restore(wanted, task.token)
            await self._queue.hints.drop_stale(due.key, due.etag)

    async def _perform(self, claim: Claim) -> None:
        handler = self._app.handler(claim.task.task_type)
        assert handler is not None, "claimed only what has a handler"
        try:
            await self._settle(claim, await self._outcome(handler, claim))
        except (LeaseLost, StoreError):
            raise  # There is nothing to write, or nowhere to write it.
        except Exception as error:
            # What the handler asked for cannot be done. To say nothing would hold the task until its lease ends.
            await self._settle(claim, Broken(text_of(error), traceback_of(error)))

    async def _outcome(self, handler: Handler, claim: Claim) -> Outcome:
        try:
            return await self._execute(handler, claim)
        except asyncio.CancelledError:
            if not claim.task.cancel_requested:
                raise  # Winding down: the claim is released there.
            return Broken("cancelled while running")

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
        self.tally.failed += 1

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
        held = {task_id: (claim, self._running[task_id]) for task_id, claim in self._claims.items()}
        claiming = {task_id: self._running[task_id] for task_id in self._running if task_id not in held}
        for _, attempt in held.values():
            attempt.cancel()
        await asyncio.gather(*claiming.values(), return_exceptions=True)
        if held:
            await asyncio.wait({attempt for _, attempt in held.values()}, timeout=BREAK_OFF_S)
        await asyncio.gather(*(quietly(self._let_go, claim, attempt) for claim, attempt in held.values()))

    async def _let_go(self, claim: Claim, attempt: asyncio.Task[None]) -> None:
        """Give a task back, unless its attempt was settled after all or somebody could begin it beside us."""
        if attempt.done() and not attempt.cancelled():
            return
        if attempt.done() and not self._threads.running(claim.task.id):
            await self._give_back(claim)
            return
        log.warning(
            "task %s: its handler still runs, so it is not given back; its lease will run out and it will be tried "
            "again",
            claim.task.id,
        )
        if not attempt.done():
            disown(attempt)

    async def _give_back(self, claim: Claim) -> None:
        task = await self._queue.release(claim)
        self.tally.released += task.status is Status.PENDING
        self.tally.completed += task.status is Status.COMPLETED  # Its report came through, though we broke it off.
