"""What a task keeps of what was committed before: the nearest there is, written down, and there while it is read."""

from __future__ import annotations

import pytest

from qo.api.contract.garbage import JudgeRequest
from qo.api.contract.task import Claimed, KeptAnswer
from qo.core.pipeline.topology import Topology
from qo.dispatcher.commits import keeping
from qo.dispatcher.engine import garbage
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from qo.errors import NotFound
from support.dispatcher.pipeline_tasks import all_of, claimed, feed, partition_task, settle, succeed
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

SHOP = dag("shop", source("landing"), job("raw", reads="landing"))
DAY = 86_400.0


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def keep(state: State, held: Claimed) -> KeptAnswer:
    with state.write() as tx:
        return keeping.keep(tx, held.work.task_id, 0)


def rebuild(state: State, number: int, *, activate: bool = False) -> Claimed:
    """Another version, whose task for the partition is claimed."""
    version = staged(state, edited(SHOP, "raw", config={"n": number})).version
    if activate:
        with state.write() as tx:
            cutover.activate(tx, "shop", version, "ann", force=True)
    return claimed(state, partition_task(state, live(loaded(state), "shop.raw", version), "p"))


def test_the_own_rows_come_first_then_those_that_serve(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.landing"), "p")
    settle(state)
    first = live(shop, "shop.raw").outputs[0].generation_id
    held = rebuild(state, 2)
    found = keep(state, held)
    assert (found.generation_id, len(found.pieces)) == (first, 1)
    assert keep(state, held) == found  # Asked again, the same.
    succeed(state, held)
    third = rebuild(state, 3)
    assert keep(state, third).generation_id == first  # That of version 2 is newer, and does not serve.
    succeed(state, third)
    pins = [each for each in all_of(state, schema.task_inputs) if each["position"] == keeping.POSITION]
    assert {each["generation_id"] for each in pins} == {first}


def test_nothing_is_kept_of_what_never_was(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.landing"), "p")
    held = claimed(state, partition_task(state, live(shop, "shop.raw"), "p"))
    with pytest.raises(NotFound, match="never committed before"):
        keep(state, held)


def test_what_is_kept_is_there_for_as_long_as_it_is_read(state: State, state_clock: Clock, shop: Topology) -> None:
    feed(state, live(shop, "shop.landing"), "p")
    settle(state)
    held = rebuild(state, 2, activate=True)
    [piece] = keep(state, held).pieces
    prefix = (piece.location or "").removeprefix("file:/data/")
    rebuild(state, 3, activate=True)  # The first version is one that no rollback goes to.
    state_clock.advance(30 * DAY)

    def is_gone() -> bool:
        with state.write() as tx:
            return garbage.judge(tx, JudgeRequest(prefixes=[prefix], keep_s=DAY, retired=True))[0].gone

    assert not is_gone()
    succeed(state, held)
    assert is_gone()
    first = live(shop, "shop.raw").outputs[0].generation_id
    assert keep(state, rebuild(state, 4)).generation_id != first  # What was given up is no choice any more.
