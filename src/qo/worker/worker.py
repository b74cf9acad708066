"""One worker: its parts put together, the states it goes through, and what is wanted of it.

STARTING ─▶ RUNNING ◀─▶ PAUSED ─▶ DRAINING ─▶ CANCELLING ─▶ STOPPED
               └────────────────▶ FAILED ──────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from qo.errors import UsageError
from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.queue import Queue
from qo.store.metered import Metered
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor, executors_for
from qo.worker.layers.services import services
from qo.worker.leasing.ownership import Ownership
from qo.worker.loop.admission import Admission
from qo.worker.loop.attempts import Runner
from qo.worker.loop.best_effort import quietly
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import running_loop
from qo.worker.loop.condition import Bell
from qo.worker.loop.control import Control, Follower
from qo.worker.loop.drain import Departure
from qo.worker.loop.hold import Hold, Holds
from qo.worker.loop.keeper import Keeper, KeeperThread, Open
from qo.worker.loop.loop_lag import Pulse
from qo.worker.loop.mailbox import Mailbox
from qo.worker.loop.state import LEAVING, SAID, State
from qo.worker.observe.gauge import Gauge
from qo.worker.observe.heartbeat import Heartbeat
from qo.worker.observe.stats import Stats, StatsSnapshot

if TYPE_CHECKING:
    from qo.worker.observe.status import Health, StatusServer

log = logging.getLogger(__name__)


class Worker:
    """Runs the tasks of one queue by the handlers of one app. To be made and run within one event loop; only what
    is said to be so may be called from elsewhere."""

    def __init__(
        self,
        queue: Queue,
        app: App,
        config: WorkerConfig,
        *,
        executors: Mapping[str, Executor] | None = None,
        open_queue: Open | None = None,
    ) -> None:
        """``open_queue`` opens the same queue once more, for the thread that renews leases; without it they are
        renewed in the worker's own event loop. ``executors`` adds to those for async, thread and process."""
        roster.validate_worker_id(config.worker_id)
        self._queue = queue
        self._config = config
        self._open_queue = open_queue
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._state = State.STARTING
        self._turned = Bell()  # Rung at each change.
        self._background: list[asyncio.Task[None]] = []
        self.stats = Stats()
        self._held = Holds()
        self._control = Control(self._obey)
        self._admission = Admission(config.limits)
        self._executors = executors_for(app, config, self._came_back, executors)
        self._feed = Feed(
            queue,
            shards=config.shards,
            mode=config.index_mode,
            ready_page_size=config.ready_page_size,
            log_scan_page_size=config.log_scan_page_size,
            judge=lambda task_type, ahead: self._mailbox.judge(task_type, ahead),
        )
        self._runner = self._make_runner(app)
        self._mailbox = self._make_mailbox(app)
        self._departure = Departure(
            config,
            held=self._held,
            mailbox=self._mailbox,
            runner=self._runner,
            control=self._control,
            turned=self._turned,
        )
        self._follower = Follower(
            queue,
            self._control,
            worker_id=config.worker_id,
            held=self._held,
            cancelled=lambda hold: self._runner.stop(hold, Why.CANCELLED),
        )
        self._heartbeat = self._make_heartbeat(app)
        self._ownership = self._make_ownership()
        self._leasing: asyncio.Task[None] | None = None
        self._keeper = Keeper(self._held, self.stats, config.lease_times, news=self._news)
        self._threaded: KeeperThread | None = None
        self._pulse = Pulse(self.stats)
        self._gauge = self._make_gauge()
        self._status: StatusServer | None = None

    def _make_runner(self, app: App) -> Runner:
        return Runner(
            self._queue,
            self._config,
            held=self._held,
            stats=self.stats,
            services=services(app, self._config.service, self._executors, self._admission),
            executors=self._executors,
            admission=self._admission,
            draining=lambda: self._state in LEAVING,
            freed=self._wake,
            enqueued=lambda: self._mailbox.wake(),
        )

    def _make_mailbox(self, app: App) -> Mailbox:
        return Mailbox(
            self._queue,
            app,
            self._config,
            feed=self._feed,
            runner=self._runner,
            admission=self._admission,
            stats=self.stats,
            paused=lambda task_type: task_type in self._control.paused_types,
            may_look=lambda: self._ownership is None or self._ownership.may_look(),
            missed=self._wake,
        )

    def _make_heartbeat(self, app: App) -> Heartbeat:
        return Heartbeat(
            self._queue,
            self._config,
            task_types=app.task_types,
            stats=self.stats,
            held=self._held,
            state=lambda: self._state,
            shards=lambda: self.shards,
            paused_types=lambda: self._control.paused_types,
            count_requests=lambda: self._gauge.count_requests(),
        )

    def _make_gauge(self) -> Gauge:
        return Gauge(
            self._config,
            self.stats,
            held=self._held,
            runner=self._runner,
            admission=self._admission,
            control=self._control,
            keeper=self._keeper,
            pulse=self._pulse,
            time=self._loop.time,
            state=lambda: self._state,
            shards=lambda: self.shards,
            meters=self._meters,
        )

    def _make_ownership(self) -> Ownership | None:
        leasing = self._config.shard_leasing
        if leasing is None or self._config.stop_when_empty:  # Who is to leave nothing behind must look everywhere.
            return None
        told: tuple[str, ...] = ()

        def changed() -> None:
            nonlocal told
            if told != self.shards:
                told = self.shards
                self._heartbeat.changed()
            self._mailbox.wake()

        return Ownership(
            self._queue,
            leasing,
            worker_id=self._config.worker_id,
            feed=self._feed,
            has_room=lambda: self._state is State.RUNNING and self._runner.idle_slots > 0,
            heartbeat_s=self._config.heartbeat_s,
            changed=changed,
        )

    # What is wanted: callable from any thread

    def pause(self) -> None:
        """Claim nothing more until resumed; what has not been started is given back, what runs goes on."""
        self._on_loop(self._control.pause)

    def resume(self) -> None:
        self._on_loop(self._control.resume)

    def stop(self) -> None:
        """Take no more tasks; ``run`` returns once those that run have finished, or their grace is over."""
        self._on_loop(self._control.stop)

    def hurry(self) -> None:
        """Do not wait for running tasks any longer: stop them and give them back."""
        self._on_loop(self._control.hurry)

    def cancel(self, task_id: str) -> bool:
        """Stop the attempt at a task here; it ends as cancelled. False if this worker does not hold it."""
        if (hold := self._held.get(task_id)) is None:
            return False
        self._on_loop(lambda: self._runner.stop(hold, Why.CANCELLED))
        return True

    # What is

    @property
    def state(self) -> State:
        return self._state

    @property
    def shards(self) -> tuple[str, ...]:
        """Those it looks after now; empty: all."""
        return self._config.shards if self._ownership is None else self._ownership.owned

    @property
    def on_duty(self) -> bool:
        """Whether its monitor should check: with shard leasing, one worker does so for all."""
        return self._ownership is None or self._ownership.on_duty

    @property
    def http(self) -> str | None:
        """Where its status is served."""
        return self._heartbeat.http

    async def reached(self, *states: State) -> State:
        """Return when the worker is in one of these states."""
        while self._state not in states:
            await self._turned.heard()
        return self._state

    def snapshot(self) -> StatsSnapshot:
        """May be called from any thread."""
        return self._gauge.snapshot()

    def health(self) -> Health:
        """May be called from any thread."""
        return self._gauge.health()

    # Running

    async def run(self) -> Stats:
        """Work until stopped. Errors of tasks end nothing; one of the machinery itself ends the worker in order, and
        is then raised."""
        if self._begun:
            raise UsageError("a worker runs once: make a new one")
        self._begun = True
        try:
            await self._begin()
            await self._work()
        except asyncio.CancelledError:
            self._control.hurry()
            raise
        finally:
            # In a task of its own: before Python 3.11.3, a timeout within one that was cancelled is a cancellation.
            await asyncio.create_task(self._end())
        return self.stats

    async def _begin(self) -> None:
        config = self._config
        if config.http != "off":
            from qo.worker.observe.status import StatusServer

            self._status = StatusServer(config.http, snapshot=self.snapshot, stats=self.stats, health=self.health)
            self._heartbeat.http = self._status.start()
        self._heartbeat.leasing = self._ownership is not None
        self._spawn(self._pulse.run(self._runner.give_back_overdue))
        self._follower.begin(await self._heartbeat.begin())
        await self._follower.look()  # Before the first claim: the queue may be paused.
        self._enter(State.RUNNING)
        self._obey()
        if self._open_queue is None:
            self._spawn(self._keeper.run(self._own_queue))
        else:
            self._threaded = KeeperThread(self._keeper, self._open_queue)
            self._threaded.start()
        self._spawn(self._heartbeat.run())
        self._spawn(self._follower.run(config.control_s))
        if self._ownership is None:
            self._spawn(self._heartbeat.share(self._feed))
        else:
            self._leasing = asyncio.create_task(self._ownership.run())

    async def _work(self) -> None:
        """Until stopped, or the queue is empty and that was asked for, or the mailbox breaks."""
        looking = asyncio.create_task(self._mailbox.run())
        try:
            while not self._control.stopping and not looking.done():
                turned = self._turned.heard()
                await asyncio.wait({looking, turned}, return_when=asyncio.FIRST_COMPLETED)
                turned.cancel()
            if looking.done():
                looking.result()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._enter(State.FAILED)
            raise
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _end(self) -> None:
        """Let go of everything, and leave in order."""
        self._mailbox.shut()
        self._enter(State.DRAINING)
        await self._disown_shards()  # First: others can look after them while we finish.
        await self._departure.drain()
        if not self._departure.done:
            self._enter(State.CANCELLING)
            await self._departure.cancel()
        for each in self._background:
            each.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._threaded is not None:
            await self._threaded.stop()
        await self._queue.hints.flush()
        await quietly(self._heartbeat.leave(), "signing off")
        for executor in self._executors.values():
            executor.close()
        if self._status is not None:
            self._status.stop()
        self._gauge.count_requests()
        self._enter(State.STOPPED)

    async def _disown_shards(self) -> None:
        if self._ownership is not None and self._leasing is not None:
            self._leasing.cancel()
            await asyncio.gather(self._leasing, return_exceptions=True)
            await quietly(self._ownership.leave(), "giving shards back")

    # Turning

    def _enter(self, state: State) -> None:
        if state is self._state or (self._state is State.FAILED and state is not State.STOPPED):
            return
        if (said := SAID.get(state)) is not None and self._state is not State.STARTING:
            log.info("%s", said)
        self._state = state
        self._heartbeat.changed()
        self._turned.ring()

    def _obey(self) -> None:
        """What is wanted has changed."""
        if self._state in (State.RUNNING, State.PAUSED):
            paused = self._control.paused
            self._enter(State.PAUSED if paused else State.RUNNING)
            if paused:
                self._mailbox.shut()
                self._runner.give_back_waiting("the worker was paused")
            elif not self._control.stopping:
                self._mailbox.open()
        self._heartbeat.changed()
        self._turned.ring()

    def _wake(self) -> None:
        """A claim was missed or settled, or a slot freed."""
        self._mailbox.freed()
        if self._state in LEAVING:  # Otherwise nobody waits for that, and it happens all the time.
            self._turned.ring()

    def _came_back(self) -> None:
        self._runner.came_back()
        self._wake()

    def _news(self, hold: Hold, why: Why) -> None:
        """From the keeper, on whichever thread it runs."""
        self._on_loop(lambda: self._runner.stop(hold, why))

    def _on_loop(self, act: Callable[[], None]) -> None:
        if running_loop() is self._loop:
            act()
            return
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            log.debug("the worker has ended")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.append(asyncio.create_task(work))

    async def _own_queue(self) -> Queue:
        return self._queue

    def _meters(self) -> list[Metered]:
        meters = (self._queue.meter, None if self._threaded is None else self._threaded.meter)
        return [meter for meter in meters if meter is not None]
