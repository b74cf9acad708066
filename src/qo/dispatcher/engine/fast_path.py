"""The fast path: the transaction that ends a task also routes its events and releases the tasks that follow.

    a task ends -> its events are routed -> the new tasks are released -> their wake-ups are passed to the publisher

The loops do the same in stages, each in its own transaction: for events from elsewhere, for what the fast path leaves
over, and on PostgreSQL, where concurrent writers would wait for each other at the release. The fast path decides
nothing that the loops would not decide, and the loops find any wake-up that it loses.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from qo.core.pipeline.states import EffectKind
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.outbox.outbox import Effect, TakenEffect
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.loop_names import LoopName
from qo.pipeline.registry import DEFAULT, Registry

log = logging.getLogger(__name__)

BATCH_MAX = 20  # Events and tasks that one end of a task handles, so that it stays short. The loops do the rest.
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

    def __call__(self, tx: Tx) -> Callable[[], None]:
        """Follow up the end of a task within its transaction. Call the returned function after the commit."""
        unfinished, effects = {*STAGES}, list[Effect]()
        if not tx.on_postgres:
            try:
                with tx.savepoint():
                    unfinished, effects = self._route_and_release(tx)
            except Exception:
                if not tx.is_open:
                    raise  # The end of the task was rolled back as well.
                # The task has ended all the same. The loops retry, and report the problem while it lasts.
                log.warning("the fast path after a task failed; the loops take over", exc_info=True)
        return partial(self._notify, sorted(unfinished | tx.loops_to_wake), effects)

    def _route_and_release(self, tx: Tx) -> tuple[set[LoopName], list[Effect]]:
        """Return the loops that have more to do, and the effects that were released."""
        routed = router.route(tx, BATCH_MAX)
        effects = release.release(tx, self._limits, BATCH_MAX, self._registry, passed_on=True)
        more = {LoopName.ROUTER: routed == BATCH_MAX, LoopName.RELEASE: len(effects) == BATCH_MAX}
        return {name for name, is_left in more.items() if is_left}, effects

    def _notify(self, names: Sequence[LoopName], effects: Sequence[Effect]) -> None:
        self._buffer(effects)
        if names:
            self._nudge(names)
