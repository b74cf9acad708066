"""Staleness against a plain model, under any history of commits, claims and completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from qo.api.contract.task import Claimed
from qo.core.pipeline.topology import Topology
from qo.core.task import Status
from qo.dispatcher.engine.loops import invalidation, refresh
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from support.dispatcher.fresh_states import FreshStates
from support.dispatcher.pipeline_tasks import claimed, route_all, succeed, tasks_of
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.stale_pipelines import announce, run_all, stale_keys

KEYS = ("a", "b", "c")
SOURCES = ("left", "right", "rates")
JOBS = ("clean", "priced", "summed")
READS = {
    "clean": ("left",),
    "priced": ("left", "rates"),
    "summed": ("right", "priced", "rates"),
}

Content = Mapping[str, str]  # Of a dataset: which task has made each of its partitions.


def pipeline(how: str) -> Topology | object:
    beside = {"trigger": False, "refresh": how}
    return dag(
        "shop",
        *map(source, SOURCES),
        job("clean", reads="left"),
        job("priced", reads=["left", {"job": "rates", **beside}]),
        job("summed", reads=["right", {"job": "priced", **beside}, {"job": "rates", **beside}]),
    )


steps = st.one_of(
    st.tuples(st.just("announce"), st.sampled_from(SOURCES), st.sampled_from(KEYS)),
    st.tuples(st.just("claim"), st.sampled_from(JOBS), st.integers(0, 3)),
    st.tuples(st.just("finish"), st.just(""), st.integers(0, 3)),
    st.tuples(st.just("route"), st.just(""), st.just(0)),
    st.tuples(st.just("refresh"), st.just(""), st.integers(1, 3)),
)
histories = st.lists(steps, max_size=40)


@dataclass
class World:
    """The database, and what a task would remember if it wrote down all that it has read."""

    state: State
    live: Topology
    held: list[Claimed] = field(default_factory=list)
    read: dict[str, dict[str, Content]] = field(default_factory=dict)  # By task and input.

    def content(self, name: str) -> Content:
        made = live(self.live, f"shop.{name}").outputs[0].generation_id
        table = schema.partitions
        with self.state.read() as tx:
            rows = tx.all(sa.select(table).where(table.c.generation_id == made))
        return {row["partition_key"]: row["task_id"] for row in rows}

    def waiting(self, name: str) -> list[str]:
        found = tasks_of(self.state, live(self.live, f"shop.{name}"))
        return [each["id"] for each in found if each["status"] == Status.PENDING]

    def claim(self, name: str, which: int) -> None:
        waiting = self.waiting(name)
        if not waiting:
            return
        held = claimed(self.state, waiting[which % len(waiting)])
        key = held.work.partition_key or ""
        self.read[held.work.task_id] = {each: self.seen(each, key) for each in READS[name]}
        self.held.append(held)

    def seen(self, name: str, key: str) -> Content:
        """Its partition, where there is one; else everything."""
        whole = self.content(name)
        return {key: whole[key]} if key in whole else whole

    def stale(self, name: str) -> list[str]:
        return [
            key
            for key, task_id in sorted(self.content(name).items())
            if any(self.changed(each, key, was) for each, was in self.read[task_id].items())
        ]

    def changed(self, name: str, key: str, was: Content) -> bool:
        now = self.content(name)
        return now.get(key) != was[key] if was.keys() == {key} else now != was


@contextmanager
def opened_world(fresh_states: FreshStates, how: str) -> Iterator[World]:
    with fresh_states.opened() as state:
        yield World(state, deployed(state, pipeline(how)))


def act(world: World, what: str, name: str, which: object) -> None:
    match what:
        case "announce":
            announce(world.state, f"shop.{name}", str(which))
        case "claim":
            world.claim(name, int(str(which)))
        case "finish" if world.held:
            succeed(world.state, world.held.pop(int(str(which)) % len(world.held)))
        case "route":
            route_all(world.state)
            while invalidation.tick(world.state):
                pass
        case "refresh":
            refresh.tick(world.state, limit=int(str(which)))
        case _:
            pass


def test_a_partition_is_called_stale_exactly_if_a_task_would_read_something_else_now(
    fresh_states: FreshStates,
) -> None:
    @fresh_states.settings()
    @given(history=histories, how=st.sampled_from(["manual", "on_change"]))
    def check(history: list[tuple[str, str, object]], how: str) -> None:
        with opened_world(fresh_states, how) as world:
            for each in history:
                act(world, *each)
            for name in JOBS:
                assert stale_keys(world.state, f"shop.{name}") == world.stale(name)

    check()


def test_with_on_change_nothing_is_stale_once_all_is_quiet(fresh_states: FreshStates) -> None:
    @fresh_states.settings()
    @given(history=histories)
    def check(history: list[tuple[str, str, object]]) -> None:
        with opened_world(fresh_states, "on_change") as world:
            for each in history:
                act(world, *each)
            for held in world.held:
                succeed(world.state, held)
            run_all(world.state)
            for name in JOBS:
                assert stale_keys(world.state, f"shop.{name}") == []

    check()
