"""What holds of every history of events over every small DAG: the books balance, and order makes no difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.dag import Dag, Job
from qo.core.pipeline.event import Event
from qo.core.pipeline.plan import plan
from qo.dispatcher.engine.loops import router
from qo.dispatcher.events.event_log import accept
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.dedupe_keys import joined_prefix
from qo.dispatcher.versions import cutover
from support.dispatcher import accounting
from support.dispatcher.fresh_states import FreshStates
from support.dispatcher.pipelines import dag, deployed, edited, job, source, staged

STRATEGIES = ("PerPartition", "PerUpdate")


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    """Two sources, a job that joins them, and up to two more, each of which reads some of those before it."""
    jobs: list[Job] = [source("s0"), source("s1"), job("j0", reads=["s0", "s1"], join="all")]
    for n in range(1, draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from([each.name for each in jobs]), min_size=1, max_size=2, unique=True))
        reads = [{"job": name, "trigger": draw(st.booleans())} for name in names[1:]]
        strategy = draw(st.sampled_from(STRATEGIES))
        join = draw(st.sampled_from(("any", "all"))) if strategy == "PerPartition" else "any"
        jobs.append(job(f"j{n}", reads=[names[0], *reads], execution_strategy=strategy, join=join))
    return dag("d", *jobs)


@dataclass(frozen=True)
class Said:
    """An event by where it comes from. Version 0 is retired, 1 is active, 2 is staged."""

    version: int
    job: str
    producer: str
    partition: str | None
    cursor: int | None


SAYINGS = st.builds(
    lambda version, job, producer, scope: Said(version, job, producer, *scope),
    st.sampled_from((1, 1, 2, 0)),
    st.sampled_from(("s0", "s1", "s0", "s1", "j0", "j1")),
    st.sampled_from(("p", "q")),
    st.sampled_from((("a", None), ("b", None), ("a", None), (None, 1), (None, 2))),
)


def deploy_versions(state: State, versions: Sequence[Dag]) -> None:
    deployed(state, versions[0])
    number = staged(state, versions[1]).version
    with state.write() as tx:
        cutover.activate(tx, "d", number, "ada", force=True)
    staged(state, versions[2])


def event(said: Said, versions: Sequence[Dag]) -> Event:
    jobs = {each.job.name: each for each in plan(versions[said.version]).jobs}
    made = jobs.get(said.job, jobs["j0"]).outputs[0]
    return Event(
        dataset_id=made.dataset_id,
        generation_id=made.generation_id,
        partition_key=said.partition,
        cursor=said.cursor,
    )


def history(state: State, versions: Sequence[Dag], sayings: Sequence[Said], batch: int) -> set[tuple[str, str]]:
    """Send and route; check the books after every step. Edition and key of all tasks in the end."""
    datasets = {made.dataset_id for each in plan(versions[1]).jobs for made in each.outputs}
    for start in range(0, len(sayings), batch):
        with state.write() as tx:
            for said in sayings[start : start + batch]:
                accept(tx, said.producer, [event(said, versions)])
        _check(state, datasets)
        router.tick(state, limit=3)
        _check(state, datasets)
    while router.tick(state, limit=3):
        _check(state, datasets)
    with state.read() as tx:
        rows = tx.all(sa.select(schema.tasks.c.edition_id, schema.tasks.c.dedupe_key))
        assert tx.value(sa.select(sa.func.count()).where(schema.events.c.state == "pending")) == 0
        waits = tx.all(sa.select(schema.deliveries).where(schema.deliveries.c.outcome == "pending"))
    made = [(row["edition_id"], row["dedupe_key"]) for row in rows]
    assert len(made) == len(set(made))
    joined = {(edition, key.split(":")[2]) for edition, key in made if key.count(":") == 2}
    assert {(row["edition_id"], row["partition_key"]) for row in waits}.isdisjoint(joined)
    return set(made)


def expected(versions: Sequence[Dag], sayings: Sequence[Said]) -> set[tuple[str, str]]:
    """The tasks there must be, from what was said and in no order at all."""
    said = {
        (each.dataset_id, each.generation_id, each.partition_key, each.cursor)
        for each in _events(versions, sayings)
    }
    wanted: set[tuple[str, str]] = set()
    for reader in (each for version in versions[1:] for each in plan(version).jobs):
        inputs = {each.generation_id for each in reader.inputs if each.trigger}
        for dataset, generation, partition, cursor in said:
            takes = cursor is None if reader.job.execution_strategy == "PerPartition" else partition is None
            if generation not in inputs or not takes:
                continue
            if reader.job.join != "all":
                scope = f"partition:{dataset}:{generation}:{partition}"
                wanted.add(
                    (reader.edition_id, scope if cursor is None else f"cursor:{dataset}:{generation}:{cursor}")
                )
            elif inputs <= {other for _, other, key, _ in said if key == partition}:
                read = [each.generation_id or "" for each in reader.inputs if each.trigger]
                wanted.add((reader.edition_id, f"{joined_prefix(read)}{partition}"))
    return wanted


def _events(versions: Sequence[Dag], sayings: Sequence[Said]) -> list[Event]:
    return [event(said, versions) for said in sayings]


def _check(state: State, datasets: set[str]) -> None:
    with state.read() as tx:
        assert [problem for each in sorted(datasets) for problem in accounting.check(tx, each).problems] == []


def test_the_books_balance_at_all_times_and_order_changes_no_task(fresh_states: FreshStates) -> None:
    @fresh_states.settings(max_examples=15)
    @given(data=st.data(), first=dags(), sayings=st.lists(SAYINGS, max_size=16))
    def check(data: st.DataObject, first: Dag, sayings: list[Said]) -> None:
        versions = [edited(first, "s0", config={"v": 0}), first, edited(first, "s1", config={"v": 2})]
        shuffled = data.draw(st.permutations(sayings))
        with fresh_states.opened() as state:
            deploy_versions(state, versions)
            once = history(state, versions, sayings, batch=data.draw(st.integers(1, 5)))
        with fresh_states.opened() as state:
            deploy_versions(state, versions)
            again = history(state, versions, [*shuffled, *shuffled], batch=4)
        assert once == again == expected(versions, sayings)

    check()
