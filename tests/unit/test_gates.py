"""What may be released, how many of it, and the reason for all the rest."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from qo.core.pipeline.gates import Cap, Grants, InFlight, Waiting, open_gates
from qo.core.pipeline.topology import Topology, VersionStatus
from support.dispatcher.topologies import job, topology_of

pytestmark = pytest.mark.fast


def opened(
    topology: Topology,
    due: Mapping[str, int],
    *,
    jobs: Mapping[str, int] | None = None,
    operators: Mapping[str, int] | None = None,
    limits: Mapping[str, int] | None = None,
    held: Mapping[str, str] | None = None,
    room: int = 100,
) -> Grants:
    return open_gates(
        topology,
        [Waiting(edition, count) for edition, count in due.items()],
        InFlight(jobs or {}, operators or {}),
        operators=limits or {},
        held=held or {},
        room=room,
    )


def test_without_limits_everything_due_is_released_and_nothing_held() -> None:
    assert opened(topology_of(job("a"), job("b")), {"a": 3, "b": 1}) == Grants({"a": 3, "b": 1}, {})


def test_one_backlog_does_not_starve_the_others() -> None:
    grants = opened(topology_of(job("huge"), job("b"), job("c")), {"huge": 1000, "b": 2, "c": 50}, room=10)
    assert grants.release == {"huge": 4, "b": 2, "c": 4}
    assert grants.holds == {}, "who only waits for the next turn is not held"


def test_with_less_room_than_editions_the_first_ones_go() -> None:
    assert opened(topology_of(job("a"), job("b"), job("c")), {"b": 9, "c": 9, "a": 9}, room=2).release == {
        "b": 1,
        "c": 1,
    }


def test_max_concurrency_counts_what_is_under_way() -> None:
    grants = opened(topology_of(job("a", most=5)), {"a": 10}, jobs={"a": 3})
    assert grants.release == {"a": 2}
    assert grants.holds == {"a": "max_concurrency: 5 of this job are under way"}


def test_max_concurrency_holds_over_all_editions_of_a_job() -> None:
    old, new = job("old", logical="x", most=4), job("new", logical="x", most=4, status=VersionStatus.STAGED)
    grants = opened(topology_of(old, new), {"old": 9, "new": 9}, jobs={"x": 1})
    assert sum(grants.release.values()) == 3
    assert set(grants.holds) == {"old", "new"}


def test_where_two_versions_say_different_limits_neither_is_exceeded() -> None:
    old, new = job("old", logical="x", most=2), job("new", logical="x", status=VersionStatus.STAGED)
    assert sum(opened(topology_of(old, new), {"old": 9, "new": 9}).release.values()) == 2


def test_a_full_job_is_held_entirely() -> None:
    grants = opened(topology_of(job("a", most=1)), {"a": 1}, jobs={"a": 1})
    assert grants == Grants({}, {"a": "max_concurrency: 1 of this job are under way"})


def test_caps_count_what_is_under_way_in_their_queues_and_of_their_operator() -> None:
    shop = topology_of(job("a", operator="sql"), job("b", operator="compact"))
    queue = shop.jobs["a"].queue
    whole, compact = Cap("runtime spark", 5, frozenset({queue})), Cap("operator", 1, frozenset({queue}), "compact")
    other = Cap("queue elsewhere", 1, frozenset({"elsewhere"}))
    grants = open_gates(
        shop,
        [Waiting("a", 9), Waiting("b", 9)],
        InFlight(caps={whole: 1, other: 1}),
        operators={},
        held={},
        room=100,
        caps=(whole, compact, other),
    )
    assert grants.release == {"a": 3, "b": 1}
    assert grants.holds == dict.fromkeys(("a", "b"), "limit of runtime spark: 5 are under way")


def test_an_operator_limit_is_shared_by_the_jobs_that_use_it() -> None:
    shop = topology_of(job("a", operator="compact"), job("b", operator="compact"), job("c", operator="sql"))
    grants = opened(shop, {"a": 5, "b": 5, "c": 5}, operators={"compact": 1}, limits={"compact": 3})
    assert grants.release == {"a": 1, "b": 1, "c": 5}
    assert grants.holds == dict.fromkeys(("a", "b"), "operator limit: 3 of compact are under way")


def test_a_paused_job_is_held_with_the_words_of_who_paused_it() -> None:
    shop = topology_of(job("a"), job("b"), paused={"shop.a": "bad data"})
    assert opened(shop, {"a": 1, "b": 1}) == Grants({"b": 1}, {"a": "paused: bad data"})
    whole = topology_of(job("a"), job("b"), paused={"shop": "holidays"})
    assert opened(whole, {"a": 1, "b": 1}) == Grants({}, dict.fromkeys("ab", "paused: holidays"))


@pytest.mark.parametrize("status", [VersionStatus.STAGED, VersionStatus.READY])
def test_effects_outside_wait_for_the_cutover(status: VersionStatus) -> None:
    shop = topology_of(job("alert", outputs=0, status=status), job("table", status=status))
    grants = opened(shop, {"alert": 1, "table": 1})
    assert grants.release == {"table": 1}
    assert grants.holds["alert"].startswith("waits for cutover")


def test_effects_outside_of_the_active_version_are_released() -> None:
    assert opened(topology_of(job("alert", outputs=0)), {"alert": 1}).release == {"alert": 1}


def test_what_no_live_version_has_is_held_and_says_so() -> None:
    grants = opened(topology_of(job("a")), {"gone": 3})
    assert grants.release == {}
    assert grants.holds["gone"].startswith("no live version")


def test_pressure_holds_what_it_is_told_to() -> None:
    grants = opened(topology_of(job("a"), job("b")), {"a": 1, "b": 1}, held={"a": "queue spark is overfull"})
    assert grants == Grants({"b": 1}, {"a": "queue spark is overfull"})


def test_no_room_releases_nothing_and_holds_nothing() -> None:
    assert opened(topology_of(job("a")), {"a": 5}, room=0) == Grants({}, {})
