"""How deep a job stands in its pipeline: by that, its wake-ups pass those of what feeds it."""

from __future__ import annotations

import pytest

from qo.core.pipeline.topology import Topology
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
