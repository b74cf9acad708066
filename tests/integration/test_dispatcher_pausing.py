"""Pauses hold jobs, sources and schedules, with or without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.cli.pipelines import dag_view
from qo.dispatcher.engine.loops import release, source_monitor
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import overview, pausing
from qo.dispatcher.views.why.answer import why
from qo.scheduler import cron
from support.dispatcher.local_emitter import LocalEmitter
from support.dispatcher.pipelines import dag, deployed, live, source
from support.dispatcher.shop_tasks import DAY, SHOP, emit, tasks
from support.dispatcher.states import Clock


def pause(state: State, scope: str, reason: str = "") -> None:
    with state.write() as tx:
        pausing.pause(tx, scope, reason, "ada")


def lines(state: State, target: str) -> str:
    with state.read() as tx:
        return "\n".join(why(tx, target).lines)


@pytest.mark.parametrize("scope", ["shop", "shop.clean"])
def test_a_pause_without_a_reason_holds(state: State, scope: str) -> None:
    deployed(state, SHOP)
    pause(state, scope)
    emit(state, "shop.orders", partition_key=DAY)
    assert release.tick(state, Limits()) == 0
    assert "paused by ada\n" in lines(state, f"shop.clean@{DAY}")
    with state.read() as tx:
        shown = {each.name: each.paused for each in overview.show(tx, "shop").jobs}
    assert shown["clean"] == ""
    with state.write() as tx:
        pausing.resume(tx, scope, "ada")
    assert release.tick(state, Limits()) == 1


@pytest.mark.parametrize("scope", ["feed", "feed.live"])
def test_a_source_that_is_paused_without_a_reason_stops(state: State, scope: str) -> None:
    feed = dag("feed", source("live", "always_on"))
    edition = live(deployed(state, feed), "feed.live").edition_id
    pause(state, scope)
    source_monitor.tick(state)
    with state.read() as tx:
        row = tx.one(sa.select(schema.sources).where(schema.sources.c.edition_id == edition))
    assert row is not None
    assert (row["state"], row["last_error"]) == ("stopped", "paused")
    assert not tasks(state, "feed.live")


async def test_a_schedule_that_is_paused_without_a_reason_is_silent(state: State, state_clock: Clock) -> None:
    deployed(state, dag("d", source("tick", "cron", of={"schedule": "0 * * * *"})))
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    pause(state, "d.tick")
    state_clock.advance(3600)
    assert (await cron.poll(emitter)).emitted == 0


def test_a_pause_is_shown_once(tmp_path: Path, state: State) -> None:
    deployed(state, SHOP)
    pause(state, "shop.clean", "the move")
    emit(state, "shop.orders", partition_key=DAY)
    release.tick(state, Limits())
    with state.read() as tx:
        (clean,) = (each.model_dump() for each in overview.show(tx, "shop").jobs if each.name == "clean")
    assert dag_view._job(clean)[-1] == "paused: the move; runs the worker's own code"
