"""When a queue trips and clears, and which jobs that pauses."""

from __future__ import annotations

import pytest

from qo.core.pipeline.dag import BackpressureMode, Source, SourceKind
from qo.core.pipeline.pressure import (
    TASKS,
    Measure,
    Target,
    TargetKind,
    Thresholds,
    clear_condition,
    mode_of,
    paused_by,
    trip_reason,
)
from qo.core.pipeline.topology import VersionStatus
from support.dispatcher.topologies import job, topology_of

pytestmark = pytest.mark.fast

LIMITS = Thresholds(depth=10, age_s=60.0, clear_ratio=0.5)
FULL = "it is full"


def queue(name: str) -> Target:
    return Target(TargetKind.QUEUE, name)


def of_job(name: str) -> Target:
    return Target(TargetKind.JOB, name)


def paused(topology, *tripped: str) -> set[str]:
    return set(paused_by(topology, {queue(each): FULL for each in tripped}))


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
    told = paused_by(shop, {queue("two"): "12 wait", queue("three"): "13 wait"})["source"]
    assert told == (
        "queue three, which it feeds, is overfull: 13 wait; queue two, which it feeds, is overfull: 12 wait"
    )


def test_a_tripped_queue_that_no_live_job_works_on_pauses_nobody() -> None:
    assert paused(topology_of(job("a", "one"), job("b", "two", "a")), "gone") == set()


# Thresholds of single queues and jobs


def test_a_queue_has_its_own_thresholds_or_the_common_ones() -> None:
    limits = Thresholds(10, 60.0, queues={"spark": Thresholds(2, 5.0)})
    assert (limits.of_queue("spark").depth, limits.of_queue("python").depth) == (2, 10)


def test_a_job_has_the_thresholds_that_it_sets_and_no_others() -> None:
    assert LIMITS.of_job(job("a")) is None
    deep, old = LIMITS.of_job(job("a", depth=3)), LIMITS.of_job(job("a", age="2m"))
    assert deep is not None
    assert old is not None
    assert (deep.depth, deep.age_s, deep.clear_ratio) == (3, None, 0.5)
    assert (old.depth, old.age_s) == (None, 120.0)


def test_a_version_that_is_being_built_holds_nobody_back() -> None:
    assert LIMITS.of_job(job("a", depth=3, status=VersionStatus.STAGED)) is None


def test_a_job_trips_by_what_it_sets_alone_and_clears_even_with_a_ratio_of_nothing() -> None:
    limits = Thresholds(depth=3, age_s=None, clear_ratio=0.0)
    reason = trip_reason(Measure(4, 1e9), limits, None, TASKS)
    assert reason == "4 tasks of it wait, more than 3"
    assert trip_reason(Measure(1, 1e9), limits, reason, TASKS) == reason
    assert trip_reason(Measure(0, 0.0), limits, reason, TASKS) is None


def test_an_overfull_job_pauses_what_feeds_it_and_not_itself_nor_others_on_its_queue() -> None:
    shop = topology_of(
        job("source", "one"),
        job("middle", "spark", "source"),
        job("last", "spark", "middle"),
        job("other", "spark"),
    )
    assert set(paused_by(shop, {of_job("middle"): FULL})) == {"source"}
    assert set(paused_by(shop, {of_job("last"): FULL})) == {"source", "middle"}
    assert paused_by(shop, {of_job("middle"): FULL}) == {
        "source": "job shop.middle, which it feeds, is overfull: it is full"
    }


def test_a_job_that_ignores_pressure_goes_on_and_what_feeds_it_does_not() -> None:
    shop = topology_of(
        job("source", "one"), job("middle", "two", "source", mode="ignore"), job("last", "three", "middle")
    )
    assert paused(shop, "three") == {"source"}


def test_people_and_webhooks_are_heard_unless_the_job_says_otherwise() -> None:
    def mode(kind: SourceKind, declared: BackpressureMode | None = None) -> BackpressureMode:
        live = job("a", source=Source(kind=kind), mode=declared)
        return mode_of(live.job)

    assert {kind for kind in SourceKind if mode(kind) is BackpressureMode.IGNORE} == {
        SourceKind.MANUAL,
        SourceKind.WEBHOOK,
    }
    assert mode(SourceKind.WEBHOOK, BackpressureMode.HOLD) is BackpressureMode.HOLD
    assert mode_of(job("b", "spark", "a").job) is BackpressureMode.HOLD


def test_what_must_happen_is_said_with_figures() -> None:
    assert clear_condition(Measure(12, 0.0), LIMITS) == "12 wait, and 5 or fewer must be left"
    assert clear_condition(Measure(5, 40.0), LIMITS) == "the oldest waits for 40 s, and must wait 30 s or less"
    assert " and " in clear_condition(Measure(12, 40.0), LIMITS)
    assert clear_condition(Measure(1, 1.0), LIMITS) == "it clears with the next measurement"
