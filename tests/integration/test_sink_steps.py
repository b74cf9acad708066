"""Steps lead from one state that a dataset had to another, however many commits there were."""

from __future__ import annotations

import random

import sqlalchemy as sa

from qo.dispatcher.commits import pieces, removals, sink_steps
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.state.datasets import resolve
from support.dispatcher.pipeline_tasks import append, feed
from support.dispatcher.pipelines import dag, deployed, live, source

SHOP = dag("shop", source("orders"), source("log"), publish={"orders": "orders"})


def _revisions(state: State, generation: str, upto: int) -> set[int]:
    with state.read() as tx:
        return {each.revision for each in pieces.standing(tx, generation, None, 1000, upto)[0]}


def _follow(state: State, generation: str, limit: int) -> set[int]:
    """Apply all steps, and compare with what stood at the end of each."""
    held: set[int] = set()
    revision = 0
    while (step := sink_steps.find_step(state, generation, revision, limit)).upto > revision:
        assert set(step.drop) <= held
        held = (held - set(step.drop)) | {each.revision for each in step.add}
        revision = step.upto
        assert held == _revisions(state, generation, revision)
    assert revision == step.latest
    return held


def _history(state: State) -> str:
    job = live(deployed(state, SHOP), "shop.orders")
    chance, present = random.Random(7), set[str]()
    for number in range(40):
        key = f"p{chance.randrange(6)}"
        if key in present and chance.random() < 0.25:
            with state.write() as tx:
                removals.remove(tx, resolve(tx, "orders"), [key], by="ann", key=f"r{number}")
            present.discard(key)
        else:
            feed(state, job, key, str(number))
            present.add(key)
    return job.outputs[0].generation_id


def test_each_step_ends_at_a_state_that_the_dataset_had(state: State) -> None:
    generation = _history(state)
    ends = [_follow(state, generation, limit) for limit in (1, 3, 7, 1000)]
    assert all(each == ends[0] for each in ends)


def test_files_that_were_collected_are_stepped_over(state: State) -> None:
    generation = _history(state)
    with state.write() as tx:
        replaced = sa.and_(schema.commits.c.replaced_by.is_not(None), schema.commits.c.files.is_not(None))
        tx.execute(sa.update(schema.commits).where(replaced).values(collected_at=tx.now))
        collected = set(
            tx.execute(
                sa.select(schema.commits.c.revision).where(schema.commits.c.collected_at.is_not(None))
            ).scalars()
        )
    assert collected
    revision = 0
    while (step := sink_steps.find_step(state, generation, revision, 3)).upto > revision:
        assert not collected & {each.revision for each in step.add}
        revision = step.upto
    assert _revisions(state, generation, revision) == _follow(state, generation, 1000)


def test_segments_are_steps_as_well(state: State) -> None:
    job = live(deployed(state, SHOP), "shop.log")
    for cursor in range(1, 6):
        append(state, job, cursor)
    assert len(_follow(state, job.outputs[0].generation_id, 2)) == 5
