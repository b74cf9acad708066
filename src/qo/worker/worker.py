"""One worker: its parts put together, started and stopped in order. ``qo.worker.ports`` shows how they connect."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from qo.errors import LeaseLost, UsageError
from qo.queue import roster
from qo.queue.queue import Queue
from qo.store.metered import Metered
from qo.telemetry.log_context import set_worker
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor, executors_for
from qo.worker.layers.services import build_services, share_limits
from qo.worker.loop.admission import Admission
from qo.worker.loop.attempts import Attempts
from qo.worker.loop.best_effort import best_effort
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import call_on_loop
from qo.worker.loop.control import Control
from qo.worker.loop.crew import Crew
from qo.worker.loop.drain import Drain
from qo.worker.loop.hold import Hold, Holds
from qo.worker.loop.keeper import Keeper, KeeperHost, OpenQueue
from qo.worker.loop.loop_lag import LoopLag
from qo.worker.loop.mailbox import Mailbox
from qo.worker.loop.slot_share import SharedSlotsMember
from qo.worker.loop.state import State
from qo.worker.loop.type_filter import TypeFilter
from qo.worker.observe.gauge import Gauge
from qo.worker.observe.heartbeat import Heartbeat
from qo.worker.observe.orphan_types import OrphanTypes
from qo.worker.observe.spans import Spans
from qo.worker.observe.stats import Stats, StatsSnapshot
from qo.worker.observe.subscriptions import Subscription, Subscriptions
from qo.worker.ports import FixedShards, Ports, ShardScope

if TYPE_CHECKING:
    from qo.worker.observe.status import Health, StatusServer


class Worker:
    """Runs the tasks of one queue by the handlers of one app. Make and run it within one event loop; only methods
    that say so may be called from elsewhere."""

    def __init__(
        self,
        queue: Queue,
        app: App,
        config: WorkerConfig,
        *,
        executors: Mapping[str, Executor] | None = None,
        open_queue: OpenQueue | None = None,
        slot_share: SharedSlotsMember | None = None,
    ) -> None:
        """``open_queue`` opens the same queue once more, for the thread that renews leases; without it they are
        renewed in the worker's own event loop. ``executors`` adds to those for async, thread and process.
        ``slot_share`` is for a worker that shares its slots with those of other queues."""
        roster.validate_worker_id(config.worker_id)
        self._queue = queue
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._ran = False
        self._background: list[asyncio.Task[None]] = []
        self._ports = Ports() if slot_share is None else Ports(slots=slot_share)
        self._lifecycle = self._ports.lifecycle
        self.stats = Stats()
        self._holds = Holds()
        self._spans = Spans(config.worker_id)
        self._subscriptions = Subscriptions(config.worker_id, self.snapshot)
        self._control = Control(self._apply_control)
        self._admission = Admission(config.limits)
        self._shared_limits = share_limits(app, queue, config, self._admission, self._ports.slot_freed)
        self._executors = executors_for(app, config, self._on_late_return, executors)
        self._type_filter = self._make_type_filter(app)
        self._crew = Crew(queue, config, self._ports)
        self._feed = self._crew.make_feed(self._type_filter.judge)
        self._attempts = self._make_attempts(app)
        self._scope: ShardScope = self._crew.tenure or FixedShards(config.shards)
        self._mailbox = self._make_mailbox()
        self._drain = Drain(
            config,
            holds=self._holds,
            mailbox=self._mailbox,
            attempts=self._attempts,
            control=self._control,
            changed=self._lifecycle.changed,
        )
        self._follower = self._crew.make_follower(self._control, self._holds, self._attempts, self._feed)
        self._keeper = Keeper(self._holds, self.stats, config.lease_times, stop_attempt=self._stop_attempt)
        self._keeper_host = KeeperHost(self._keeper, queue, open_queue)
        self._loop_lag = LoopLag(self.stats)
        self._gauge = self._make_gauge()
        self._heartbeat = self._make_heartbeat(app)
        if slot_share is not None:
            slot_share.attach(self._used_slots, self._ports.wake_up.room_offered)
        self._status: StatusServer | None = None
        self._failure: LeaseLost | None = None

    def _make_type_filter(self, app: App) -> TypeFilter:
        return TypeFilter(
            app,
            unknown_types=self._config.unknown_types,
            control=self._control,
            admission=self._admission,
            stats=self.stats,
            ambient=self._queue.ambient,
        )

    def _make_attempts(self, app: App) -> Attempts:
        return Attempts(
            self._queue,
            self._config,
            holds=self._holds,
            stats=self.stats,
            services=build_services(
                app, self._config.service, self._executors, self._admission, self._on_late_return
            ),
            admission=self._admission,
            spans=self._spans,
            tell_failure=self._subscriptions.tell_failure,
            ports=self._ports,
            paused_types=lambda: self._control.paused_types,
        )

    def _make_mailbox(self) -> Mailbox:
        return Mailbox(
            self._queue,
            self._config,
            feed=self._feed,
            type_filter=self._type_filter,
            attempts=self._attempts,
            admission=self._admission,
            stats=self.stats,
            spans=self._spans,
            ports=self._ports,
        )

    def _make_gauge(self) -> Gauge:
        return Gauge(
            self._config,
            self.stats,
            holds=self._holds,
            attempts=self._attempts,
            admission=self._admission,
            control=self._control,
            keeper=self._keeper,
            loop_lag=self._loop_lag,
            lifecycle=self._lifecycle,
            scope=self._scope,
            time=self._loop.time,
            meters=self._meters,
        )

    def _make_heartbeat(self, app: App) -> Heartbeat:
        return Heartbeat(
            self._queue,
            self._config,
            task_types=app.task_types,
            stats=self.stats,
            holds=self._holds,
            control=self._control,
            scope=self._scope,
            ports=self._ports,
            count_requests=self._gauge.count_requests,
            inbox_lease=self._crew.inbox_lease,
            on_lost=self._fail,
        )

    def _fail(self, error: LeaseLost) -> None:
        """Stop all handlers at once and end with this error: another worker runs under the same id."""
        self._failure = error
        self._control.hurry()

    def pause(self) -> None:
        """Claim nothing more until resumed. Waiting tasks are given back, running ones go on. Callable from any
        thread, as are ``resume``, ``stop``, ``hurry`` and ``cancel``."""
        call_on_loop(self._loop, self._control.pause)

    def resume(self) -> None:
        call_on_loop(self._loop, self._control.resume)

    def stop(self) -> None:
        """Take no more tasks; ``run`` returns once the running ones have finished, or their grace is over."""
        call_on_loop(self._loop, self._control.stop)

    def hurry(self) -> None:
        """Do not wait for running tasks any longer: stop them and give them back."""
        call_on_loop(self._loop, self._control.hurry)

    def cancel(self, task_id: str) -> bool:
        """Stop the attempt at a task here; it ends as cancelled. False if this worker does not hold it."""
        if (hold := self._holds.get(task_id)) is None:
            return False
        self._stop_attempt(hold, Why.CANCELLED)
        return True

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that it lists now, if they are leased or chosen; empty: all."""
        return self._scope.owned

    @property
    def on_duty(self) -> bool:
        """Whether its monitor should check: one worker does so for all."""
        return self._crew.on_duty

    @property
    def http(self) -> str | None:
        """Where its status is served."""
        return self._heartbeat.http

    async def reached(self, *states: State) -> State:
        """Return when the worker is in one of these states."""
        return await self._lifecycle.reached(*states)

    def snapshot(self) -> StatsSnapshot:
        """May be called from any thread."""
        return self._gauge.snapshot()

    def subscribe(self, *, every_s: float = 1.0, buffer: int = 1_000) -> Subscription:
        """Return an async iterator: a ``StatsSnapshot`` every so often, and a ``TerminalFailure`` for each task that
        fails for good here. See ``Subscription``. Call it in the worker's event loop."""
        return self._subscriptions.add(every_s, buffer)

    def health(self) -> Health:
        """May be called from any thread."""
        return self._gauge.health()

    async def run(self) -> Stats:
        """Work until stopped. Errors of tasks end nothing; an error of the worker's own code ends the worker in order,
        and is then raised."""
        if self._ran:
            raise UsageError("a worker runs once: make a new one")
        self._ran = True
        set_worker(self._config.worker_id)
        try:
            await self._begin()
            await self._work()
            if self._failure is not None:
                raise self._failure
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
            self._serve_status()
        self._spawn(self._loop_lag.run(self._attempts.tick))
        self._follower.begin(await self._heartbeat.begin())
        await self._crew.join()
        await self._follower.look()  # Before the first claim: the queue may be paused.
        self._ports.enter(State.RUNNING)
        self._apply_control()
        self._keeper_host.start()
        self._spawn(self._heartbeat.run(), self._shared_limits.run(), self._follower.run(config.board_s))
        self._spawn(OrphanTypes(self._queue, self._type_filter, self.stats).run())
        self._spawn(self._crew.lookout.run())
        if self._crew.tenure is not None:
            self._spawn(self._crew.tenure.run())

    def _serve_status(self) -> None:
        from qo.worker.observe.status import serve_status

        self._status, self._heartbeat.http, self._heartbeat.push = serve_status(
            self._config,
            snapshot=self.snapshot,
            stats=self.stats,
            health=self.health,
            take=lambda task_ids: call_on_loop(self._loop, lambda: self._mailbox.push(task_ids)),
            has_room=self._has_room,
        )

    async def _work(self) -> None:
        """Run the mailbox until the worker is stopped, or the mailbox returns (an empty queue) or breaks."""
        mailbox = asyncio.create_task(self._mailbox.run())
        try:
            while not self._control.stopping and not mailbox.done():
                changed = self._lifecycle.changed.wait()
                await asyncio.wait({mailbox, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if mailbox.done():
                mailbox.result()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._ports.enter(State.FAILED)
            raise
        finally:
            mailbox.cancel()
            await asyncio.gather(mailbox, return_exceptions=True)

    async def _end(self) -> None:
        """Give up every claim and lease, and stop all parts."""
        self._mailbox.shut()
        self._ports.enter(State.DRAINING)
        # First: other workers can take over while this one finishes.
        await best_effort(self._crew.release_shards(), "giving shards back")
        self._crew.start_emptying()
        await self._drain.finish_running()
        if not self._drain.is_done:
            self._ports.enter(State.CANCELLING)
            await self._drain.cancel_running()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._keeper_host.stop()
        await self._crew.finish_emptying()
        await self._queue.flush()
        await best_effort(self._sign_off(), "signing off")
        for executor in self._executors.values():
            executor.close()
        if self._status is not None:
            self._status.stop()
        self._gauge.count_requests()
        self._ports.enter(State.STOPPED)
        await self._subscriptions.close()

    async def _sign_off(self) -> None:
        if await self._heartbeat.leave():
            await self._crew.leave()

    def _apply_control(self) -> None:
        """Do what the worker is asked to do now: pause, resume or stop."""
        if self.state in (State.RUNNING, State.PAUSED):
            paused = self._control.paused
            self._ports.enter(State.PAUSED if paused else State.RUNNING)
            if paused:
                self._mailbox.shut()
                self._attempts.give_back_waiting("the worker was paused")
            elif not self._control.stopping:
                self._mailbox.open()
        self._ports.changed()

    def _has_room(self) -> bool:
        return self.state is State.RUNNING and self._attempts.idle_slots > 0

    def _used_slots(self) -> int:
        return self._attempts.used_slots + self._mailbox.claiming

    def _on_late_return(self) -> None:
        """A handler that was given up has ended."""
        self._attempts.reclaim_slots()
        self._ports.slot_freed()

    def _stop_attempt(self, hold: Hold, why: Why) -> None:
        """Callable from any thread."""
        call_on_loop(self._loop, lambda: self._attempts.stop(hold, why))

    def _spawn(self, *work: Coroutine[Any, Any, None]) -> None:
        self._background.extend(asyncio.create_task(each) for each in work)

    def _meters(self) -> list[Metered]:
        return [meter for meter in (self._queue.meter, self._keeper_host.meter) if meter is not None]
