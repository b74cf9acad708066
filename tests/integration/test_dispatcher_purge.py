"""Old keys and wake-ups are purged within bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from qo.api.contract.task import EventBody
from qo.core.pipeline.states import EffectKind
from qo.dispatcher.engine.loops import purge
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import IdempotencyConflict
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.states import Clock

SHOP = dag("shop", source("orders"))


DAY_S = 86_400.0


@pytest.fixture
def emitted(state: State) -> Callable[..., list[str]]:
    deployed(state, SHOP)

    def emit(*partitions: str, key: str = "k") -> list[str]:
        events = [EventBody(partition_key=each) for each in partitions]
        with state.write() as tx:
            return emission.emit(tx, "shop", "orders", key=key, events=events, by="tests").event_ids

    return emit


def count(state: State, table: sa.Table) -> int:
    with state.read() as tx:
        return tx.value(sa.select(sa.func.count()).select_from(table))


def test_old_keys_are_forgotten_and_still_count_once(
    state: State, state_clock: Clock, emitted: Callable[..., list[str]]
) -> None:
    before = emitted("a", "b")
    state_clock.advance(91 * DAY_S)
    emitted("c", key="young")
    assert purge.tick(state, 90) == 1
    assert purge.tick(state, 90) == 0
    assert count(state, schema.emissions) == 1
    events, tasks = count(state, schema.events), count(state, schema.tasks)
    assert emitted("a", "b") == before
    assert (count(state, schema.events), count(state, schema.tasks)) == (events, tasks)
    with pytest.raises(IdempotencyConflict):
        emitted("d", key="young")


def test_all_is_kept_if_so_wished(state: State, state_clock: Clock, emitted: Callable[..., list[str]]) -> None:
    emitted("a")
    state_clock.advance(10_000 * DAY_S)
    assert purge.tick(state, 0) == 0
    assert count(state, schema.emissions) == 1


def test_wake_ups_are_forgotten_some_time_after_their_end(state: State, state_clock: Clock) -> None:
    with state.write() as tx:
        outbox.add(tx, [Effect(name, EffectKind.WAKE, "python", name) for name in ("done", "dead", "pending")])
        outbox.mark_done(tx, ["done"])
        for _ in range(outbox.ATTEMPTS_MAX):
            outbox.mark_failed(tx, "dead", "no queue")
    assert purge.tick(state, 90) == 0
    state_clock.advance(2 * DAY_S)
    assert purge.tick(state, 90) == 1
    state_clock.advance(90 * DAY_S)
    assert purge.tick(state, 90) == 1
    with state.read() as tx:
        assert tx.value(sa.select(schema.outbox.c.id)) == "pending"
    assert purge.tick(state, 90) == 0


def test_purging_stays_within_its_bounds(
    state: State, state_clock: Clock, emitted: Callable[..., list[str]]
) -> None:
    for number in range(5):
        emitted("a", key=f"k{number}")
    state_clock.advance(91 * DAY_S)
    assert [purge.tick(state, 90, limit=2) for _ in range(4)] == [2, 2, 1, 0]
