"""How far a rebuild is, and what keeps it from activation."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.api.contract.task import Outcome, OutputBody
from qo.cli.pipelines import deployment
from qo.dispatcher.engine.loops import reconciler, router
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from qo.errors import Refused
from qo.pipeline.rendering import to_yaml
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import deployed, edited, live, loaded, staged
from support.dispatcher.shop_tasks import DAY, SHOP, emit, finish, tasks


def _failed(state: State) -> int:
    """The number of a version whose rebuild has failed for one day of two."""
    deployed(state, SHOP)
    emit(state, "shop.orders", "a", partition_key=DAY)
    emit(state, "shop.orders", "b", partition_key="2024-01-02")
    number = staged(state, edited(SHOP, "clean", config={"revision": 2})).version
    reconciler.tick(state)
    mine = live(loaded(state), "shop.clean", number).edition_id
    good, bad = (each["id"] for each in tasks(state, "shop.clean") if each["edition_id"] == mine)
    finish(state, good, outputs=[OutputBody(output=0)])
    finish(state, bad, outcome=Outcome.FATAL, error="no")
    router.tick(state)
    (total,) = (each["id"] for each in tasks(state, "shop.totals"))
    finish(state, total, outputs=[OutputBody(output=0)])
    return number


def test_a_rebuild_that_failed_in_part_takes_over_only_by_force(state: State) -> None:
    number = _failed(state)
    with state.write() as tx, pytest.raises(Refused, match=r"1 of its tasks failed.*--force"):
        cutover.mark_ready(tx, "shop", number, "ada")
    with state.write() as tx:
        answer = cutover.mark_ready(tx, "shop", number, "ada", force=True)
    assert (answer.status, answer.rebuilt, answer.failed) == ("ready", 2, 1)
    # Whoever called it ready did not decide that it takes over.
    with state.write() as tx, pytest.raises(Refused, match="1 of its tasks failed"):
        cutover.activate(tx, "shop", number, "ada")
    with state.write() as tx:
        answer = cutover.activate(tx, "shop", number, "ada", force=True)
    assert (answer.active, answer.rebuilt, answer.failed) == (number, 2, 1)


def test_what_is_not_rebuilt_yet_is_counted_when_it_is_called_ready(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    number = staged(state, edited(SHOP, "clean", config={"revision": 2})).version
    reconciler.tick(state)
    with state.write() as tx:
        answer = cutover.mark_ready(tx, "shop", number, "ada")
    assert (answer.status, answer.rebuilt, answer.left, answer.failed) == ("ready", 0, 1, 0)


class Enough(Exception):
    """What was waited for has been said."""


async def test_a_rebuild_that_nobody_works_on_is_said_to_wait_for_a_dispatcher(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "POLL_S", 0.01)
    monkeypatch.setattr(deployment, "SILENT_S", 0.05)
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    source = to_yaml(edited(SHOP, "clean", config={"revision": 2}))
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "is a dispatcher running?" in text:
            raise Enough

    work = deployment.Deployment("shop", source, None, wait=True, activate=True, timeout_s=None)
    async with served(state, tmp_path) as dispatcher, dispatcher.user() as client:
        with pytest.raises(Enough):
            await work.run(client, say)
    assert said[:-1] == ["version 2 is being rebuilt: 0 tasks done, 1 left"]
