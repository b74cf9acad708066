"""Onward: what the end of a task sets going is decided in the transaction of that end.

    a task ends -> its events are routed -> what they make is released -> its wake-ups go to the publisher, by hand

The loops do the same, one stage after the other, each in transactions of its own: for what comes by another way, for
what is left over here, and on PostgreSQL, where many write at once and would wait for each other at the release.
Nothing is decided here that they would not decide, and what is lost on the way from hand to hand, they find.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from qo.core.pipeline.states import EffectKind
from qo.dispatcher.engine.limits import Limits
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.outbox.outbox import Effect, TakenEffect
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.loop_names import LoopName
from qo.pipeline.registry import DEFAULT, Registry

log = logging.getLogger(__name__)

MOST = 20  # Events, and tasks, that go on with an end: it must not take long. The rest is for the loops.
STAGES = (LoopName.ROUTER, LoopName.RELEASE)
CARRIED_OUT_BY = {
    EffectKind.WAKE: LoopName.PUBLISHER,
    EffectKind.RUN: LoopName.IN_PROCESS,
    EffectKind.INVOKE: LoopName.INVOKER,
}

Nudge = Callable[[Sequence[LoopName]], None]


class Hand:
    """Passes on what was released, from any thread: wake-ups as they are, of all else only that there is some."""

    def __init__(self, nudge: Nudge) -> None:
        self._nudge = nudge
        self._wakes: deque[TakenEffect] = deque()

    def __call__(self, effects: Sequence[Effect]) -> None:
        """After the transaction that has released them. They are in the outbox, too."""
        self._wakes.extend(TakenEffect(each, 0) for each in effects if each.kind is EffectKind.WAKE)
        if effects:
            self._nudge(sorted({CARRIED_OUT_BY[each.kind] for each in effects}))

    def take(self, limit: int) -> list[TakenEffect]:
        """What was handed over, the oldest first. For one who publishes it."""
        return [self._wakes.popleft() for _ in range(min(limit, len(self._wakes)))]


class Onward:
    def __init__(self, limits: Limits, hand: Hand, nudge: Nudge, registry: Registry = DEFAULT) -> None:
        self._limits = limits
        self._hand = hand
        self._nudge = nudge
        self._registry = registry

    def __call__(self, tx: Tx) -> Callable[[], None]:
        """Go on from an end, at the end of its transaction; what it returns is to be called after it."""
        left, effects = {*STAGES}, list[Effect]()
        if not tx.on_postgres:
            try:
                with tx.savepoint():
                    left, effects = self._go(tx)
            except Exception:
                if not tx.is_open:
                    raise  # The end of the task was undone, too.
                # The task has ended all the same. The loops tell of what is wrong until it is right.
                log.warning("the end of a task could not be followed at once; the loops do it", exc_info=True)
        return partial(self._gone, sorted(left | tx.loops_to_wake), effects)

    def _go(self, tx: Tx) -> tuple[set[LoopName], list[Effect]]:
        """Those who have more to do, and what was released."""
        routed = router.route(tx, MOST)
        effects = release.release(tx, self._limits, MOST, self._registry, handed=True)
        more = {LoopName.ROUTER: routed == MOST, LoopName.RELEASE: len(effects) == MOST}
        return {name for name, is_left in more.items() if is_left}, effects

    def _gone(self, names: Sequence[LoopName], effects: Sequence[Effect]) -> None:
        self._hand(effects)
        if names:
            self._nudge(names)
