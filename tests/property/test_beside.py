"""Who waits for whom in a rebuild: everything that an input read beside is made from, and nobody for each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.rebuilds import find_rebuilds
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from support.dispatcher.topologies import job, topology_of

pytestmark = pytest.mark.fast

STATUSES = [VersionStatus.STAGED, VersionStatus.READY, VersionStatus.ACTIVE]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """A source and up to nine jobs, each of which reads some that come before it, some of them beside. The last, which
    nobody reads, may have no output."""
    jobs = [job("j0", "dispatcher")]
    last = draw(st.integers(1, 9))
    for index in range(1, last + 1):
        read = sorted(draw(st.sets(st.integers(0, index - 1), min_size=1, max_size=3)))
        starts = draw(st.integers(1, len(read)))
        named = [f"j{one}" for one in draw(st.permutations(read))]
        status, outputs = draw(st.sampled_from(STATUSES)), draw(st.integers(0, 1)) if index == last else 1
        own = job(
            f"j{index}", "spark", *named[:starts], beside=tuple(named[starts:]), status=status, outputs=outputs
        )
        jobs.append(own)
    return topology_of(*jobs)


def ancestors(topology: Topology, of: LiveJob, *, beside: bool) -> set[str]:
    """By the names of generations, step by step."""
    read = {each.name for each in of.inputs if not (beside and each.trigger)}
    found = set(read)
    for name in reversed(sorted(topology.jobs, key=lambda name: int(name[1:]))):
        if name in found:
            found |= {each.name for each in topology.jobs[name].inputs}
    return found


@given(topologies())
def test_it_waits_for_exactly_what_its_inputs_read_beside_are_made_from(topology: Topology) -> None:
    found = find_rebuilds(topology)
    for edition, each in topology.jobs.items():
        beside = [read for read in each.inputs if not read.trigger]
        waits = each.status is not VersionStatus.ACTIVE and bool(each.outputs) and bool(beside)
        expected = ancestors(topology, each, beside=True) if waits else set[str]()
        got = {other.edition_id for other in found[edition].waits_for} if edition in found else set[str]()
        assert got == expected


@given(topologies())
def test_nobody_waits_for_who_waits_for_it_and_each_stands_after_those(topology: Topology) -> None:
    done: set[str] = set()
    listed = find_rebuilds(topology)
    for edition, each in listed.items():
        assert edition not in {other.edition_id for other in each.makers}
        assert {other.edition_id for other in each.makers} & listed.keys() <= done
        assert all(other in each.makers for other in each.waits_for)
        done.add(edition)
        depths = [topology.depth[other.edition_id] for other in each.waits_for]
        assert depths == sorted(depths)


@given(topologies())
def test_nothing_that_serves_waits(topology: Topology) -> None:
    assert all(each.job.status is not VersionStatus.ACTIVE for each in find_rebuilds(topology).values())


def test_several_inputs_that_start_a_job_are_compared_but_not_waited_for() -> None:
    staged = VersionStatus.STAGED
    shop = topology_of(job("a"), job("b"), job("both", "spark", "a", "b", status=staged), job("c", "spark", "a"))
    found = find_rebuilds(shop)
    assert list(found) == ["both"]
    assert found["both"].waits_for == ()
    assert [each.name for each in found["both"].compared] == ["a", "b"]
    assert [each.edition_id for each in found["both"].makers] == ["a", "b"]
