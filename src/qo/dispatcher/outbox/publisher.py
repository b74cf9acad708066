"""The publisher: moves wake-ups from the outbox to the queues.

It takes them, publishes as many as the watch over the queues chooses, and marks them as done. A crash between two of
these steps repeats at most the publishing, which enqueues nothing twice, because a wake-up's id names its message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from qo.core.pipeline.states import EffectKind
from qo.core.task import PRIORITY_MAX
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import TakenEffect
from qo.dispatcher.outbox.queue_watch import QueueWatch
from qo.dispatcher.outbox.wakeup import WakeUp, WakeUps
from qo.dispatcher.state.database import State

log = logging.getLogger(__name__)

BATCH = 256  # Wake-ups that are published at once.
PUBLISH_S = outbox.TAKEN_S - 3.0  # A publisher that takes longer has lost the rows to others anyway.


async def tick(
    state: State,
    queues: WakeUps,
    limit: int = BATCH,
    *,
    on_dead: Callable[[TakenEffect], None] = lambda effect: None,
    watch: QueueWatch | None = None,
) -> int:
    """Publish up to ``limit`` wake-ups and return how many were tried. ``on_dead`` is called for those given up.
    ``watch``: chooses which of them are enough; None: all are published."""
    effects = await asyncio.to_thread(_take, state, limit)
    return await publish(state, queues, effects, on_dead=on_dead, watch=watch)


async def send_more(queues: WakeUps, watch: QueueWatch) -> int:
    """Publish what the watch finds missing, and return how many wake-ups that were."""
    more = await watch.look()
    for queue, wakes in more.items():
        try:
            async with asyncio.timeout(PUBLISH_S):
                await queues.publish(queue, wakes)
        except Exception as error:
            log.warning("queue %s took no wake-ups: %s: %s", queue, type(error).__name__, error)
            watch.forget(queue, [each.id for each in wakes])
    return sum(map(len, more.values()))


async def publish(
    state: State,
    queues: WakeUps,
    effects: Sequence[TakenEffect],
    *,
    on_dead: Callable[[TakenEffect], None] = lambda effects: None,
    watch: QueueWatch | None = None,
) -> int:
    """As ``tick``, for wake-ups that are taken already."""
    by_queue: dict[str, list[TakenEffect]] = {}
    for each in effects:
        by_queue.setdefault(each.effect.queue, []).append(each)
    # Concurrently: one queue that does not answer delays none of the others.
    published = await asyncio.gather(*(_publish(state, queues, watch, *each) for each in by_queue.items()))
    for each in (dead for ended in published for dead in ended):
        log.error(
            "wake-up %s of task %s was given up; the sweeper makes a new one", each.effect.id, each.effect.task_id
        )
        on_dead(each)
    return len(effects)


async def _publish(
    state: State, queues: WakeUps, watch: QueueWatch | None, queue: str, effects: Sequence[TakenEffect]
) -> list[TakenEffect]:
    """Publish to one queue, and return the wake-ups that were given up."""
    wakes: list[WakeUp] = []
    try:
        wakes += [_wake(each) for each in (effects if watch is None else await watch.choose(queue, effects))]
        async with asyncio.timeout(PUBLISH_S):
            await queues.publish(queue, wakes)
    except Exception as error:
        if watch is not None:
            watch.forget(queue, [each.id for each in wakes])
        message = f"{type(error).__name__}: {error}"
        log.warning("queue %s took no wake-ups, they are kept: %s", queue, message)
        return await asyncio.to_thread(_mark_failed, state, effects, message)
    await asyncio.to_thread(_mark_done, state, [each.effect.id for each in effects])
    return []


def _wake(entry: TakenEffect) -> WakeUp:
    effect = entry.effect
    return WakeUp(effect.id, effect.task_id, priority=min(effect.depth, PRIORITY_MAX))


def _take(state: State, limit: int) -> list[TakenEffect]:
    with state.read() as tx:
        if not outbox.due(tx, {EffectKind.WAKE}):
            return []  # Without work, do not make writers wait.
    with state.write() as tx:
        return outbox.take(tx, limit, {EffectKind.WAKE})


def _mark_done(state: State, ids: Collection[str]) -> None:
    with state.write() as tx:
        outbox.mark_done(tx, ids)


def _mark_failed(state: State, effects: Sequence[TakenEffect], error: str) -> list[TakenEffect]:
    with state.write() as tx:
        return [each for each in effects if outbox.mark_failed(tx, each.effect.id, error)]
