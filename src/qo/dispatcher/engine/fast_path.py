"""The fast path: the transaction that stores events also routes them, and releases the tasks that follow.

    a task ends, a source emits -> events are routed -> new tasks are released -> wake-ups go to the publisher

The loops do the same in stages, each in its own transaction: for events from elsewhere, and for what the fast path
leaves over. On PostgreSQL it leaves over whatever another transaction is at work on: it waits for nobody longer than
``WAIT_MS``, and releases only what nobody else is releasing. The fast path decides nothing that the loops would not
decide, and the loops find any wake-up that it loses.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from qo.core.pipeline.states import EffectKind
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.events import routed_here
from qo.dispatcher.events.routed_here import RoutedHere
from qo.dispatcher.outbox.outbox import Effect, TakenEffect
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.drivers import is_lock_timeout
from qo.dispatcher.state.loop_names import LoopName
from qo.pipeline.registry import DEFAULT, Registry

log = logging.getLogger(__name__)

BATCH_MAX = 128  # Events and tasks that one transaction handles, so that it stays short. The loops do the rest.
WAIT_MS = (
    100  # For a lock, on PostgreSQL. Shorter than it takes to find a deadlock, so nobody else is aborted for one.
)
STAGES = (LoopName.ROUTER, LoopName.RELEASE)
EXECUTED_BY = {
    EffectKind.WAKE: LoopName.PUBLISHER,
    EffectKind.RUN: LoopName.IN_PROCESS,
    EffectKind.INVOKE: LoopName.INVOKER,
}

Nudge = Callable[[Sequence[LoopName]], None]


class WakeUpBuffer:
    """Passes released wake-ups to the publisher, and wakes the loops of other effects. Safe from any thread."""

    def __init__(self, nudge: Nudge) -> None:
        self._nudge = nudge
        self._wakes: deque[TakenEffect] = deque()

    def __call__(self, effects: Sequence[Effect]) -> None:
        """Pass on effects, after the transaction that released them. They are in the outbox as well."""
        self._wakes.extend(TakenEffect(each, 0) for each in effects if each.kind is EffectKind.WAKE)
        if effects:
            self._nudge(sorted({EXECUTED_BY[each.kind] for each in effects}))

    def take(self, limit: int) -> list[TakenEffect]:
        """Take up to ``limit`` wake-ups, oldest first, to publish them."""
        return [self._wakes.popleft() for _ in range(min(limit, len(self._wakes)))]


class FastPath:
    def __init__(self, limits: Limits, buffer: WakeUpBuffer, nudge: Nudge, registry: Registry = DEFAULT) -> None:
        self._limits = limits
        self._buffer = buffer
        self._nudge = nudge
        self._registry = registry

    def prepare(self, tx: Tx) -> None:
        """Have events stored as routed from here on. The transaction must end with a call of this object."""
        routed_here.begin(tx, BATCH_MAX)

    def __call__(self, tx: Tx) -> Callable[[], None]:
        """Follow up what was written, as the last of its transaction. Call the returned function after the commit."""
        unfinished, effects = {*STAGES}, list[Effect]()
        stored = routed_here.take(tx)
        try:
            with tx.savepoint(wait_ms=WAIT_MS):
                unfinished, effects = self._route_and_release(tx, stored)
        except Exception as error:
            if not tx.is_open:
                raise  # What was written before was rolled back as well.
            # It stays written all the same. The loops retry, and report the problem while it lasts.
            if not is_lock_timeout(error):
                log.warning("the fast path failed; the loops take over", exc_info=True)
            routed_here.postpone(tx, [] if stored is None else stored.events)
        return partial(self._notify, sorted(unfinished | tx.loops_to_wake), effects)

    def _route_and_release(self, tx: Tx, stored: RoutedHere | None) -> tuple[set[LoopName], list[Effect]]:
        """Return the loops that have more to do, and the effects that were released."""
        if stored is None:
            more_events = router.route(tx, BATCH_MAX) == BATCH_MAX
        else:
            router.route_stored(tx, stored.events)
            more_events = stored.is_more
        released = release.release_free(tx, self._limits, BATCH_MAX, self._registry)
        more = {LoopName.ROUTER: more_events, LoopName.RELEASE: released.is_more}
        return {name for name, is_left in more.items() if is_left}, released.effects

    def _notify(self, names: Sequence[LoopName], effects: Sequence[Effect]) -> None:
        self._buffer(effects)
        if names:
            self._nudge(names)
