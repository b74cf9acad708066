"""When a queue trips and clears, and which jobs that pauses."""

from __future__ import annotations

import pytest

from qo.core.pipeline.pressure import Measure, Thresholds, paused_by, trip_reason
from support.dispatcher.topologies import job, topology_of

pytestmark = pytest.mark.fast

LIMITS = Thresholds(depth=10, age_s=60.0, clear_ratio=0.5)
FULL = "it is full"


def paused(topology, *tripped: str) -> set[str]:
    return set(paused_by(topology, dict.fromkeys(tripped, FULL)))


# Tripping and clearing


@pytest.mark.parametrize(("depth", "oldest_s"), [(11, 0.0), (0, 60.1), (11, 61.0)])
def test_a_queue_trips_on_depth_or_on_age(depth: int, oldest_s: float) -> None:
    assert trip_reason(Measure(depth, oldest_s), LIMITS, None) is not None


def test_a_queue_at_its_thresholds_is_not_tripped() -> None:
    assert trip_reason(Measure(10, 60.0), LIMITS, None) is None


@pytest.mark.parametrize(("depth", "oldest_s"), [(6, 0.0), (0, 31.0), (10, 60.0), (6, 31.0)])
def test_a_tripped_queue_stays_so_until_depth_and_age_have_both_fallen_well_below(
    depth: int, oldest_s: float
) -> None:
    assert trip_reason(Measure(depth, oldest_s), LIMITS, FULL) == FULL


def test_a_tripped_queue_clears_when_both_have_fallen_to_the_ratio() -> None:
    assert trip_reason(Measure(5, 30.0), LIMITS, FULL) is None


def test_a_queue_that_stays_tripped_keeps_the_reason_it_tripped_with() -> None:
    first = trip_reason(Measure(12, 0.0), LIMITS, None)
    assert first == "12 wake-ups wait in it, more than 10"
    assert trip_reason(Measure(50, 500.0), LIMITS, first) == first


def test_a_ratio_of_one_clears_at_the_threshold_itself() -> None:
    assert trip_reason(Measure(10, 60.0), Thresholds(10, 60.0, 1.0), FULL) is None


# Who is paused


def test_nothing_is_paused_while_no_queue_is_tripped() -> None:
    assert paused(topology_of(job("a", "one"), job("b", "two", "a"))) == set()


def test_the_pause_reaches_from_the_queue_to_the_sources_and_spares_its_consumer() -> None:
    shop = topology_of(job("source", "one"), job("middle", "two", "source"), job("last", "three", "middle"))
    assert paused(shop, "three") == {"source", "middle"}
    assert paused(shop, "two") == {"source"}
    assert paused(shop, "one") == set()


def test_what_lies_downstream_or_beside_goes_on() -> None:
    shop = topology_of(
        job("source", "one"),
        job("full", "two", "source"),
        job("after", "three", "full"),
        job("other", "one"),
        job("beside", "three", "other"),
    )
    assert paused(shop, "two") == {"source"}


def test_a_shared_producer_of_a_diamond_pauses_for_its_one_tripped_branch() -> None:
    shop = topology_of(
        job("source", "one"),
        job("left", "two", "source"),
        job("right", "three", "source"),
        job("join", "four", "left", "right"),
    )
    assert paused(shop, "two") == {"source"}
    assert paused(shop, "four") == {"source", "left", "right"}
    assert paused(shop, "two", "three") == {"source"}


def test_a_job_goes_on_only_when_no_tripped_queue_is_left_downstream() -> None:
    shop = topology_of(job("source", "one"), job("left", "two", "source"), job("right", "three", "source"))
    assert paused(shop, "two", "three") == {"source"}
    assert paused(shop, "three") == {"source"}
    assert paused(shop) == set()


def test_on_one_queue_the_earlier_job_waits_for_the_later_one_which_never_does() -> None:
    shop = topology_of(job("ingest", "spark"), job("clean", "spark", "ingest"), job("report", "spark", "clean"))
    assert paused(shop, "spark") == {"ingest", "clean"}


def test_a_job_that_returns_to_the_queue_by_way_of_another_pauses_both_on_the_way() -> None:
    shop = topology_of(job("a", "spark"), job("b", "python", "a"), job("c", "spark", "b"))
    assert paused(shop, "spark") == {"a", "b"}


def test_jobs_that_start_each_other_on_one_queue_do_not_stop_each_other() -> None:
    # Two DAGs may read each other's datasets.
    shop = topology_of(job("source", "one", "b"), job("a", "spark", "b"), job("b", "spark", "a"))
    assert paused(shop, "spark") == set()
    fed = topology_of(job("feed", "one"), job("a", "spark", "b", "feed"), job("b", "spark", "a"))
    assert paused(fed, "spark") == {"feed"}


def test_an_input_that_starts_nothing_carries_no_pressure() -> None:
    shop = topology_of(
        job("rates", "one"), job("orders", "one"), job("report", "spark", "orders", beside=("rates",))
    )
    assert paused(shop, "spark") == {"orders"}


def test_the_reason_names_every_queue_that_holds_the_job_back() -> None:
    shop = topology_of(job("source", "one"), job("left", "two", "source"), job("right", "three", "source"))
    told = paused_by(shop, {"two": "12 wait", "three": "13 wait"})["source"]
    assert told == (
        "queue three, which it feeds, is overfull: 13 wait; queue two, which it feeds, is overfull: 12 wait"
    )


def test_a_tripped_queue_that_no_live_job_works_on_pauses_nobody() -> None:
    assert paused(topology_of(job("a", "one"), job("b", "two", "a")), "gone") == set()
