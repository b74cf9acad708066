"""How deep a job stands in its pipeline: by that, its wake-ups pass those of what feeds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qo.core.pipeline.topology import Topology, VersionStatus, build_topology
from support.dispatcher.topologies import job, topology_of

pytestmark = pytest.mark.fast


def test_a_job_is_deeper_than_everything_it_reads() -> None:
    shop = topology_of(
        job("report", "spark", "totals", "orders"),
        job("totals", "spark", "clean", beside=("rates",)),
        job("orders", "dispatcher"),
        job("clean", "spark", "orders"),
        job("rates", "dispatcher"),
    )
    assert shop.depth == {"orders": 0, "rates": 0, "clean": 1, "totals": 2, "report": 3}


def test_a_chain_may_be_longer_than_the_stack() -> None:
    names = [f"job{number:05d}" for number in range(5000)]
    chain = [
        job(name, "spark", *before)
        for name, before in zip(names, [(), *((each,) for each in names)], strict=False)
    ]
    assert topology_of(*reversed(chain)).depth[names[-1]] == 4999


def test_a_circle_that_several_dags_make_together_has_an_end() -> None:
    circle: Topology = topology_of(job("a", "spark", "c"), job("b", "spark", "a"), job("c", "spark", "b"))
    assert sorted(circle.depth) == ["a", "b", "c"]
    assert max(circle.depth.values()) <= 3


def test_a_job_that_reads_what_it_made_is_no_deeper_for_that() -> None:
    assert topology_of(job("a", "spark", "a")).depth == {"a": 0}


def test_what_is_kept_of_unchanged_dags_changes_nothing() -> None:
    """Of DAGs that read each other, that have two versions, and that come and go."""
    orders, clean = job("orders", "dispatcher"), job("clean", "spark", "orders", most=2)
    better = job("clean2", "spark", "orders", most=1, logical="clean", status=VersionStatus.STAGED)
    outside = replace(job("report", "spark", "clean", "rates"), dag="reports")
    rates = replace(job("rates", "dispatcher", "report"), dag="rates")
    known: Topology | None = None
    kept: list[bool] = []
    for jobs in (
        [orders, clean],
        [orders, clean, outside],
        [orders, clean, better, outside],
        [orders, better, outside, rates],
        [orders, clean, rates],
        [orders, clean, rates],
    ):
        fresh = build_topology(1, jobs, {}, {})
        again = build_topology(1, jobs, {}, {}, known)
        assert again == fresh
        kept.append(known is not None and again.dags["shop"] is known.dags.get("shop"))
        known = again
    assert kept == [False, True, False, False, False, True]
