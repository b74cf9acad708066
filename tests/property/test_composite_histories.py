"""Whatever order the days of weeks come in, each week ends up made of its days as they are.

Days come late, twice and in any order, and go, while tasks are claimed, complete and wait. In the end every complete
week was made by a task that read each of its days as it is now, and no event is unaccounted for.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qo.api.contract.task import Claimed, EventBody
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import removals
from qo.dispatcher.engine.loops import invalidation, reconciler
from qo.dispatcher.sources import emission
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import State
from support.dispatcher import accounting
from support.dispatcher.fresh_states import FreshStates
from support.dispatcher.pipeline_tasks import all_of, claimed, route_all, succeed, tasks_of
from support.dispatcher.pipelines import dag, deployed, job, live, source

# Two whole weeks and the first day of a third.
DAYS = [f"2026-03-{day:02}" for day in range(2, 17)]
WEEKS = {"2026-W10": DAYS[:7], "2026-W11": DAYS[7:14], "2026-W12": DAYS[14:]}
SHOP = dag(
    "shop",
    source("orders", partitions={"kind": "day", "start": DAYS[0]}),
    job("weekly", reads="orders", partitions={"kind": "week"}),
    job("to_date", reads="orders", partitions={"kind": "week"}, complete="any"),
)
STEPS = st.one_of(
    st.tuples(st.just("announce"), st.lists(st.sampled_from(DAYS), min_size=1, max_size=6, unique=True)),
    st.tuples(st.just("announce"), st.sampled_from([DAYS[:7], DAYS[7:14]])),
    st.tuples(st.sampled_from(["route", "spread", "reconcile", "claim", "complete"]), st.integers(0, 5)),
    st.tuples(st.just("remove"), st.sampled_from(DAYS)),
)


class Site:
    def __init__(self, state: State) -> None:
        self.state = state
        self.topology: Topology = deployed(state, SHOP)
        self.held: list[Claimed] = []
        self.emissions = 0

    def step(self, action: str, value: Any) -> None:
        match action:
            case "announce":
                self.emissions += 1
                events = [EventBody(partition_key=day) for day in value]
                with self.state.write() as tx:
                    emission.emit(tx, "shop", "orders", key=str(self.emissions), events=events, by="anna")
            case "remove":
                self.remove(value)
            case "route":
                route_all(self.state)
            case "spread":
                invalidation.tick(self.state)
            case "reconcile":
                reconciler.tick(self.state)
            case "claim":
                waiting = [each["id"] for each in self.tasks() if each["status"] == "pending"]
                self.held += [claimed(self.state, waiting[value % len(waiting)])] if waiting else []
            case _:
                if self.held:
                    succeed(self.state, self.held.pop(value % len(self.held)))

    def remove(self, day: str) -> None:
        if day in self.days():
            self.emissions += 1
            with self.state.write() as tx:
                ref = datasets.resolve(tx, "shop.orders")
                removals.remove(tx, ref, [day], by="anna", key=str(self.emissions))

    def settle(self) -> None:
        for _ in range(20):
            route_all(self.state)
            while invalidation.tick(self.state) or reconciler.tick(self.state):
                pass
            while self.held:
                succeed(self.state, self.held.pop())
            waiting = [each["id"] for each in self.tasks() if each["status"] == "pending"]
            if not waiting:
                return
            self.held += [claimed(self.state, each) for each in waiting]
        raise AssertionError("it does not end")

    def job(self, name: str) -> LiveJob:
        return live(self.topology, f"shop.{name}")

    def tasks(self) -> list[dict[str, Any]]:
        return [each for name in ("weekly", "to_date") for each in tasks_of(self.state, self.job(name))]

    def days(self) -> dict[str, int]:
        return self.partitions("orders")

    def partitions(self, name: str) -> dict[str, int]:
        """The revision of each partition that is there."""
        generation = self.job(name).outputs[0].generation_id
        rows = [each for each in all_of(self.state, schema.partitions) if each["generation_id"] == generation]
        return {each["partition_key"]: each["revision"] for each in rows}

    def made_of(self, name: str, week: str) -> dict[str, int]:
        """The days that the current state of a week was made of, by revision."""
        generation = self.job(name).outputs[0].generation_id
        [commit] = [
            each
            for each in all_of(self.state, schema.partitions)
            if (each["generation_id"], each["partition_key"]) == (generation, week)
        ]
        pins = [each for each in all_of(self.state, schema.task_inputs) if each["task_id"] == commit["task_id"]]
        return {each["partition_key"]: each["revision"] for each in pins if each["partition_key"]}


def test_in_the_end_each_week_is_made_of_its_days_as_they_are(fresh_states: FreshStates) -> None:
    @fresh_states.settings(max_examples=20)
    @given(steps=st.lists(STEPS, max_size=25))
    def check(steps: list[tuple[str, Any]]) -> None:
        with fresh_states.opened() as state:
            site = Site(state)
            for action, value in steps:
                site.step(action, value)
            site.settle()
            days = site.days()
            to_date = {week for week, of_week in WEEKS.items() if days.keys() & set(of_week)}
            assert site.partitions("to_date").keys() == to_date
            complete = {
                week for week, of_week in WEEKS.items() if len(of_week) == 7 and days.keys() >= set(of_week)
            }
            assert site.partitions("weekly").keys() >= complete
            for name in ("weekly", "to_date"):
                for week in site.partitions(name):
                    there = {day: days[day] for day in WEEKS[week] if day in days}
                    read = site.made_of(name, week)
                    assert {day: read.get(day) for day in there} == there
            with state.read() as tx:
                dataset = site.job("orders").outputs[0].dataset_id
                assert not accounting.check(tx, dataset).problems

    check()
