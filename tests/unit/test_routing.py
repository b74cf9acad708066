"""Routing rules one by one, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from qo.core.pipeline.dag import Dag
from qo.core.pipeline.event import Event
from qo.core.pipeline.plan import plan
from qo.core.pipeline.routing import Create, Filter, Piece, Superseded, Unread, Wait, required_pieces, route
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus, build_topology
from support.dispatcher.pipelines import dag, edited, job, source

pytestmark = pytest.mark.fast

SHOP = dag(
    "shop",
    source("orders"),
    source("stock"),
    job("clean", reads="orders"),
    job("count", reads="orders", execution_strategy="PerUpdate"),
    job("both", reads=["clean", "stock", {"job": "count", "trigger": False}], join="all"),
    job("twice", reads=[{"job": "stock", "as": "a"}, {"job": "stock", "as": "b"}]),
    publish={"clean_orders": "clean"},
)


def live_jobs(definition: Dag, status: VersionStatus, number: int = 1, **datasets: str) -> list[LiveJob]:
    worked_out = plan(definition, datasets)
    return [
        LiveJob(
            id=f"{number}/{each.job.name}",
            edition_id=each.edition_id,
            logical_id=each.logical_id,
            dag=definition.name,
            version_id=str(number),
            version_number=number,
            status=status,
            queue=each.job.runtime,
            job=each.job,
            config_hash=each.config_hash,
            inputs=each.inputs,
            outputs=each.outputs,
        )
        for each in worked_out.jobs
    ]


def view(*jobs: LiveJob, paused: dict[str, str] | None = None) -> Topology:
    current = {
        made.dataset_id: made.generation_id
        for each in jobs
        if each.status is VersionStatus.ACTIVE
        for made in each.outputs
    }
    return build_topology(1, jobs, current, paused or {})


def find(jobs: list[LiveJob], name: str) -> LiveJob:
    return next(each for each in jobs if each.job.name == name)


def event(of: LiveJob, **fields: Any) -> Event:
    made = of.outputs[0]
    return Event(dataset_id=made.dataset_id, generation_id=made.generation_id, **fields)


ACTIVE = live_jobs(SHOP, VersionStatus.ACTIVE)
STAGED = live_jobs(edited(SHOP, "orders", config={"v": 2}), VersionStatus.STAGED, 2)


def test_each_reader_decides_for_itself() -> None:
    decisions = route(event(find(ACTIVE, "orders"), partition_key="a"), view(*ACTIVE))
    assert isinstance(decisions, tuple)
    by_job = {each.job.job.name: each for each in decisions}
    assert by_job.keys() == {"clean", "count"}
    assert by_job["clean"] == Create(find(ACTIVE, "clean"))
    assert isinstance(by_job["count"], Filter)
    assert "PerUpdate on cursor events" in by_job["count"].reason


def test_a_job_that_reads_a_dataset_twice_hears_of_it_once() -> None:
    decisions = route(event(find(ACTIVE, "stock"), partition_key="a"), view(*ACTIVE))
    assert isinstance(decisions, tuple)
    assert [each.job.job.name for each in decisions].count("twice") == 1


def test_a_join_waits_for_every_other_triggering_input_and_for_nothing_else() -> None:
    told, stock = event(find(ACTIVE, "clean"), partition_key="a"), find(ACTIVE, "stock").outputs[0]
    missing = Piece(stock.dataset_id, stock.generation_id, "a")
    assert required_pieces(told, view(*ACTIVE)) == [missing]
    both = find(ACTIVE, "both")
    assert route(told, view(*ACTIVE)) == (Wait(both, "waits for partition a on input stock"),)
    assert route(told, view(*ACTIVE), {missing}) == (Create(both),)
    assert required_pieces(event(find(ACTIVE, "clean"), cursor=3), view(*ACTIVE)) == []


def test_a_pause_does_not_keep_an_event_from_being_routed() -> None:
    paused = view(*ACTIVE, paused={"shop": "deploy", "shop.clean": "broken"})
    told = event(find(ACTIVE, "orders"), partition_key="a")
    assert route(told, paused) == route(told, view(*ACTIVE))


def test_a_generation_is_routed_within_the_versions_that_make_it() -> None:
    together = view(*ACTIVE, *STAGED)
    for version in (ACTIVE, STAGED):
        decisions = route(event(find(version, "orders"), partition_key="a"), together)
        assert isinstance(decisions, tuple)
        assert {each.job.version_number for each in decisions} == {find(version, "orders").version_number}
    unmoved = route(event(find(ACTIVE, "stock"), partition_key="a"), together)
    assert isinstance(unmoved, tuple)
    assert sorted((each.job.job.name, each.job.version_number) for each in unmoved) == [
        ("both", 1),
        ("both", 2),
        ("twice", 1),
    ]


def test_an_event_of_a_generation_that_is_gone_names_the_current_one() -> None:
    gone = route(event(find(STAGED, "orders"), partition_key="a"), view(*ACTIVE))
    assert isinstance(gone, Superseded)
    assert find(ACTIVE, "orders").outputs[0].generation_id in gone.reason
    alone = route(event(find(ACTIVE, "orders"), partition_key="a"), view())
    assert isinstance(alone, Superseded)
    assert "none is current" in alone.reason


def test_an_event_without_readers_says_why() -> None:
    assert route(event(find(ACTIVE, "both"), partition_key="a"), view(*ACTIVE)) == Unread(
        "no live job reads this dataset"
    )
    quiet = route(event(find(ACTIVE, "count"), cursor=1), view(*ACTIVE))
    assert quiet == Unread("it starts nothing: shop.both reads it with trigger: false")


def test_a_reader_in_another_dag_hears_of_the_current_generation_only() -> None:
    changed = live_jobs(edited(SHOP, "clean", config={"v": 2}), VersionStatus.STAGED, 2)
    clean = find(ACTIVE, "clean").outputs[0].dataset_id
    report = live_jobs(
        dag("report", job("sum", reads={"dataset": "clean_orders"})), VersionStatus.ACTIVE, clean_orders=clean
    )
    lone = [find(ACTIVE, "orders"), find(ACTIVE, "clean"), find(changed, "clean"), *report]
    assert route(event(find(ACTIVE, "clean"), partition_key="a"), view(*lone)) == (Create(report[0]),)
    early = route(event(find(changed, "clean"), partition_key="a"), view(*lone))
    assert isinstance(early, Unread)
    assert "at the cutover" in early.reason


def test_a_join_on_a_dataset_without_current_generation_waits() -> None:
    mixed = dag("m", source("mine"), job("both", reads=["mine", {"dataset": "theirs"}], join="all"))
    jobs = live_jobs(mixed, VersionStatus.ACTIVE, theirs="elsewhere")
    told = event(find(jobs, "mine"), partition_key="a")
    assert required_pieces(told, view(*jobs)) == []
    assert route(told, view(*jobs)) == (Wait(find(jobs, "both"), "waits for partition a on input theirs"),)
