"""The dispatcher: all loops together, and the process around them.

All its state is in the state database, so it can be killed at any instant, restarted, or run twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from qo.asgi.stopping import stop_on_signals
from qo.config.settings import Settings
from qo.dispatcher.auth.local_tokens import local_tokens
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.engine.fast_path import FastPath, WakeUpBuffer
from qo.dispatcher.engine.loop import Loop, Tick
from qo.dispatcher.engine.loops import (
    backfill,
    bulk_change,
    comparison,
    history_purge,
    invalidation,
    manifest,
    pressure,
    purge,
    reaper,
    reconciler,
    refresh,
    release,
    router,
    source_monitor,
    sweeper,
    table_keeper,
)
from qo.dispatcher.engine.metrics import Counters, Metrics
from qo.dispatcher.engine.release_limits import limits, thresholds
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.metrics import exposition
from qo.dispatcher.http.serving import Addresses, serve
from qo.dispatcher.outbox import publisher
from qo.dispatcher.outbox.outbox import TakenEffect
from qo.dispatcher.outbox.queue_watch import QueueWatch
from qo.dispatcher.outbox.queues import BucketQueues, queue_settings
from qo.dispatcher.outbox.wakeup import WakeUps
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.runtimes.choice import choose_functions
from qo.dispatcher.runtimes.invoker import Invoker
from qo.dispatcher.runtimes.local_functions import Functions
from qo.dispatcher.secrets.chosen_store import open_secrets, watch
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.state.loop_names import LoopName
from qo.dispatcher.state.upgrade import upgrade
from qo.errors import ConfigError, Unavailable
from qo.pipeline.registry import Launcher, Registry, configured_registry
from qo.queue.connecting import connect
from qo.store import private
from qo.telemetry.metric_pusher import pushed_metrics

log = logging.getLogger(__name__)

WATCH_S = 1.0  # Between checks of leases, queues and sources, which are not urgent.
PURGE_S = 60.0
MANIFEST_S = 2.0
TABLES_S = 1.0
SWEEPS = 4  # Searches for lost wake-ups while one becomes old enough.


# Which loops to wake after what: each stage of an event's way wakes the next, and no other.
#
#     event -> router -> release -> publisher, in process, invoker -> (a task ends) -> event
#
# The end of a task that a worker reports wakes no loop from here: see ``fast_path``.
# After tasks have ended: their events, what they replaced or left stale, and the room that they leave.
ENDED = (LoopName.ROUTER, LoopName.INVALIDATION, LoopName.BACKFILL, LoopName.REFRESH, LoopName.RELEASE)
CHANGED = ENDED  # After a write to the state.
DEPLOYED = (*CHANGED, LoopName.TOPOLOGY_WATCH, LoopName.BULK_CHANGE)  # After a change of the topology.
FREED = (*ENDED, LoopName.INVOKER)  # After a function has ended, and freed its slot.
CREATED = (LoopName.RELEASE,)  # After tasks were created.
RELEASED = (LoopName.PUBLISHER, LoopName.IN_PROCESS, LoopName.INVOKER)
SEARCH_S = 1.0  # Between searches of the outbox while wake-ups are also handed over directly.
NUDGED_FACTOR = 5  # A loop that others wake polls so many times less often.


@dataclass(frozen=True, slots=True)
class Part:
    """The declaration of one loop. ``wakes``: the loops that have work after it did some."""

    name: LoopName
    tick: Tick
    rest_s: float
    wakes: Sequence[LoopName] = ()
    batch: int = 1  # How much one tick does.


class Dispatcher:
    def __init__(
        self,
        state: State,
        queues: WakeUps,
        settings: Settings,
        *,
        registry: Registry | None = None,
        invoke: Callable[[], int] = lambda: 0,
    ) -> None:
        """``queues``: where wake-ups go. ``registry``: None: that of the settings. ``invoke``: the tick of the invoker
        of functions.

        Raises ConfigError for settings that cannot be read.
        """
        self.state = state
        self.settings = settings
        self.registry = registry = registry or configured_registry(settings.runtimes)
        topology.use_registry(state, registry)
        self.counters = Counters()
        self._queues = queues
        self._invoke = invoke
        self._epoch: int | None = None  # Of the topology, when it was last checked.
        # Since when heartbeats can arrive, by the database's clock.
        self._reachable_since: datetime | None = None
        self._wake_ups = WakeUpBuffer(self.nudge)
        self._watch_queues = QueueWatch(state, self._is_woken)
        self._searched_at: float | None = None  # When the outbox was last searched.
        self.fast_path = FastPath(limits(settings.dispatcher, registry), self._wake_ups, self.nudge, registry)
        parts = self._parts()
        self._executor = ThreadPoolExecutor(len(parts), thread_name_prefix="qo-loop")
        self.loops = [self._build_loop(part) for part in parts]
        self._loops_by_name = {loop.name: loop for loop in self.loops}
        self._events: asyncio.AbstractEventLoop | None = None
        self.metrics = Metrics(self.loops, self.counters)

    async def run(self, stop: asyncio.Event) -> None:
        """Run all loops until ``stop``, then finish the ticks that are under way."""
        self._events = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                for loop in self.loops:
                    group.create_task(loop.run(), name=f"qo-{loop.name}")
                await stop.wait()
                for loop in self.loops:
                    loop.stop()
        finally:
            self._events = None
            self._executor.shutdown(wait=False)

    def nudge(self, names: Sequence[LoopName] = CHANGED) -> None:
        """Wake the loops, because the state has changed. From any thread; does nothing unless the loops run."""
        if (events := self._events) is not None and not events.is_closed():
            events.call_soon_threadsafe(self._wake, names)

    async def step(self) -> int:
        """Run every tick once, in a fixed order; returns how much they did. For tests and simulations."""
        return sum([await loop.once() for loop in self.loops])

    async def settle(self, max_steps: int = 100) -> int:
        """Step until there is nothing left to do; returns the number of steps. Raises RuntimeError if it never ends."""
        for number in range(max_steps):
            if await self.step() == 0:
                return number
        raise RuntimeError(f"there is still something to do after {max_steps} steps")

    def close(self) -> None:
        """Call after the last ``step``; ``run`` closes by itself."""
        self._executor.shutdown(wait=False)

    def trouble(self) -> list[str]:
        """Return why loops cannot work now, as texts for people."""
        return [trouble for loop in self.loops if (trouble := loop.trouble) is not None]

    def _wake(self, names: Sequence[LoopName]) -> None:
        for name in names:
            self._loops_by_name[name].nudge()

    def _build_loop(self, part: Part) -> Loop:
        return Loop(
            part.name,
            part.tick,
            rest_s=part.rest_s,
            batch=part.batch,
            on_work=partial(self._wake, part.wakes),
            executor=self._executor,
            ambient=self.state.ambient,
        )

    def _parts(self) -> Sequence[Part]:
        state, settings, registry = self.state, self.settings.dispatcher, self.registry
        rest_s = settings.tick_ms / 1000
        calm_s, watch_s = NUDGED_FACTOR * rest_s, max(WATCH_S, rest_s)
        bound, press = limits(settings, registry), thresholds(settings.pressure)
        released = partial(release.tick, state, bound, registry=registry, on_release=self._wake_ups)
        return (
            Part(LoopName.SOURCE_MONITOR, partial(source_monitor.tick, state), watch_s, CREATED),
            Part(LoopName.INVALIDATION, partial(invalidation.tick, state), calm_s, ENDED),
            Part(LoopName.BACKFILL, partial(backfill.tick, state), calm_s, CREATED),
            Part(LoopName.REFRESH, partial(refresh.tick, state), calm_s, CREATED),
            Part(LoopName.ROUTER, partial(router.tick, state), calm_s, CREATED, router.BATCH),
            Part(LoopName.RECONCILER, partial(reconciler.tick, state), settings.reconcile_s, ENDED),
            # Nothing wakes it when the side inputs of a staged version are complete: it polls often.
            Part(LoopName.COMPARISON, partial(comparison.tick, state), rest_s, CREATED),
            Part(LoopName.TOPOLOGY_WATCH, self._watch, watch_s),
            Part(LoopName.BULK_CHANGE, partial(bulk_change.tick, state), watch_s, CREATED),
            Part(LoopName.REAPER, self._reap, watch_s, ENDED),
            Part(LoopName.PRESSURE, partial(pressure.tick, state, press), watch_s, CREATED),
            # Nothing wakes it when the wait before a retry is over: it polls often.
            Part(LoopName.RELEASE, released, rest_s, batch=release.BATCH),
            Part(LoopName.PUBLISHER, self._publish, calm_s, batch=publisher.BATCH),
            Part(
                LoopName.IN_PROCESS,
                partial(in_process.tick, state, settings.data_root),
                calm_s,
                ENDED,
                in_process.BATCH,
            ),
            Part(LoopName.INVOKER, self._invoke, calm_s, ENDED),
            Part(
                LoopName.SWEEPER,
                partial(sweeper.tick, state, settings.sweep_s, registry=registry),
                settings.sweep_s / SWEEPS,
                RELEASED,
            ),
            Part(LoopName.PURGE, partial(purge.tick, state, settings.keep_days), PURGE_S),
            Part(
                LoopName.HISTORY_PURGE,
                partial(history_purge.tick, state, history_purge.keep_of(settings), settings.purge_per_s),
                WATCH_S,
            ),
            Part(LoopName.MANIFEST, partial(manifest.tick, state, self.settings), MANIFEST_S),
            Part(LoopName.TABLES, partial(table_keeper.tick, state, self.settings), TABLES_S),
        )

    def _watch(self) -> int:
        """Wake the reconciler after a deploy, cutover or rollback by another process."""
        with self.state.read() as tx:
            epoch = topology.load(tx).epoch
        if epoch != self._epoch and self._events is not None:
            self._epoch = epoch
            self.nudge((LoopName.RECONCILER, LoopName.REFRESH))
        return 0

    async def _publish(self) -> int:
        handed, now = self._wake_ups.take(publisher.BATCH), self.state.ambient.monotonic()
        watch, on_dead = self._watch_queues, self._gave_up
        did = await publisher.publish(self.state, self._queues, handed, on_dead=on_dead, watch=watch)
        # While all are handed over, the outbox seldom holds another.
        if not handed or self._searched_at is None or now - self._searched_at >= SEARCH_S:
            self._searched_at = now
            did += await publisher.tick(self.state, self._queues, on_dead=on_dead, watch=watch)
        did += await publisher.send_more(self._queues, watch)
        if (due_s := watch.due_in_s()) is not None and self._events is not None:
            self._events.call_later(due_s, self._wake, (LoopName.PUBLISHER,))
        return did

    def _is_woken(self, queue: str) -> bool:
        runtime = self.registry.of_queue(queue)
        return runtime is not None and runtime.launcher is Launcher.QUEUE

    def _reap(self) -> int:
        try:
            if self._reachable_since is None:
                with self.state.read() as tx:
                    self._reachable_since = tx.now
            return reaper.tick(self.state, not_before=self._reachable_since)
        except Unavailable:
            self._reachable_since = None  # Without the database no heartbeat could be stored.
            raise

    def _gave_up(self, _: TakenEffect) -> None:
        self.counters.dead += 1


async def run_dispatcher(
    settings: Settings,
    *,
    stop: asyncio.Event | None = None,
    on_start: Callable[[Addresses], None] = lambda addresses: None,
    registry: Registry | None = None,
    functions: Functions | None = None,
) -> None:
    """Serve and run until ``stop``, or SIGTERM, SIGINT or SIGHUP; a second signal ends the process at once.

    ``on_start`` gets the addresses. ``registry``: None: that of the settings. ``functions``: the runtime of
    functions; None: as the settings say.
    Raises ConfigError for settings that cannot work, Refused if the state belongs to a later qo.
    """
    queue_settings(settings, "any")  # Raises for a store that no worker could share.
    try:
        private.prepare_data_root(settings.dispatcher.data_root)
    except OSError as error:
        raise ConfigError(
            f"no data can be kept in {settings.dispatcher.data}: {error.strerror}. Name another place with QO_DATA"
        ) from None
    state = open_state(settings.dispatcher.state, durable=settings.dispatcher.state_durable)
    queues = BucketQueues(settings)
    stopped = stop or asyncio.Event()
    try:
        await asyncio.to_thread(upgrade, state)
        with stop_on_signals(stopped):
            await _run(state, queues, settings, stopped, on_start, registry, functions)
    finally:
        await queues.close()
        state.close()


async def _run(
    state: State,
    queues: WakeUps,
    settings: Settings,
    stopped: asyncio.Event,
    on_start: Callable[[Addresses], None],
    registry: Registry | None,
    functions: Functions | None,
) -> None:
    config = settings.dispatcher
    secrets = await asyncio.to_thread(open_secrets, settings, state)
    ring = await asyncio.to_thread(KeyRing.open, secrets)
    invokers: list[Invoker] = []

    def started(addresses: Addresses) -> None:
        url = config.internal_url or addresses.internal  # Functions need it, so none starts before.
        invokers.extend(_open_invokers(dispatcher, ring, functions, url))
        on_start(addresses)

    def invoke() -> int:
        return sum(each.tick() for each in invokers)

    dispatcher = Dispatcher(state, queues, settings, registry=registry, invoke=invoke)
    served_queue = await connect(settings) if config.serve_queue else None
    context = Context(
        state=state,
        settings=settings,
        keyring=ring,
        tokens=local_tokens(config),
        registry=dispatcher.registry,
        nudge=dispatcher.nudge,
        fast_path=dispatcher.fast_path,
        prepare=dispatcher.fast_path.prepare,
        deployed=partial(dispatcher.nudge, DEPLOYED),
        troubles=dispatcher.trouble,
        families=dispatcher.metrics.families,
        queue=served_queue,
    )
    running = asyncio.create_task(dispatcher.run(stopped))
    running.add_done_callback(lambda _: stopped.set())  # A dispatcher without loops must not serve.
    watching = asyncio.create_task(watch(secrets, stopped))
    try:
        with pushed_metrics(
            **settings.telemetry.push_options, service="qo-dispatcher", exposition=partial(exposition, context)
        ):
            await serve(context, config, stopped, started)
    finally:
        stopped.set()
        try:
            await asyncio.gather(running, watching)
        finally:
            for each in invokers:
                await asyncio.to_thread(each.close)
            if served_queue is not None:
                await served_queue.close()


def _open_invokers(dispatcher: Dispatcher, ring: KeyRing, functions: Functions | None, url: str) -> list[Invoker]:
    """Return an invoker for each runtime of functions. ``functions``: those of bundles; None: as the settings say."""
    settings, state = dispatcher.settings, dispatcher.state
    invokers: list[Invoker] = []
    for runtime in dispatcher.registry.runtimes.values():
        if runtime.launcher is not Launcher.INVOKE:
            continue
        own = functions if runtime.works_like == "lambda" else None
        invoker = Invoker(
            state,
            ring,
            own or choose_functions(settings, runtime, state, ring),
            data_root=settings.dispatcher.data_root,
            url=url,
            queues=runtime.queues,
            parallel=runtime.parallel,
            on_end=partial(dispatcher.nudge, FREED),
        )
        invokers.append(invoker)
    return invokers
