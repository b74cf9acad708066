"""Prices and the request model behind `qo cost`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.cost_extras import Extras, requests_per_wait
from qo.core.cost_model import CostEstimate, estimate, keys_per_delete, requests_per_task
from qo.core.discovery import IndexMode
from qo.core.finding_pricing import finding_per_day, notices_per_day, polls_per_day, tries_per_task
from qo.core.limit_pricing import keyed_limits_per_day, limit_per_day
from qo.core.load import Delivery, Load
from qo.core.pricing import DAY_S, MONTH_D, READ_PRICE, WRITE_PRICE, Operation, dollars
from qo.core.rhythm import Rhythm
from qo.core.watching_pricing import monitor_per_day
from qo.errors import UsageError

pytestmark = pytest.mark.fast

rates = st.integers(0, 10**8)


def test_every_operation_has_a_price_of_the_published_classes() -> None:
    assert {operation.price for operation in Operation} == {0.0, READ_PRICE, WRITE_PRICE}


def test_dollars_add_up_by_operation() -> None:
    counts = {Operation.PUT: 1000, Operation.LIST: 1000, Operation.GET: 1000, Operation.DELETE: 10**9}
    assert dollars(counts) == pytest.approx(0.005 + 0.005 + 0.0004)


def month(
    workers: int, tasks_per_day: int, mode: IndexMode = IndexMode.HYBRID, rhythm: Rhythm | None = None
) -> CostEstimate:
    return estimate(Load(workers, tasks_per_day), mode, rhythm=rhythm or Rhythm())


def test_a_million_tasks_cost_about_20_dollars() -> None:
    assert 1e6 * dollars(requests_per_task(Load(1, 1000))) == pytest.approx(20.4)
    assert 1e6 * dollars(requests_per_task(Load(1, 10**9))) == pytest.approx(20.45)


def test_a_long_task_costs_a_hint_more_and_its_renewals() -> None:
    short, long, hour = (requests_per_task(Load(1, 1000, task_s=s))[Operation.PUT] for s in (1, 10, 3600))
    assert (short, long) == (4, 5)
    assert hour == pytest.approx(5 + 180 + 60)


def test_a_quiet_worker_removes_index_keys_one_by_one_and_a_busy_one_by_the_hundred() -> None:
    assert keys_per_delete(0) == 1
    assert keys_per_delete(1000) == 1
    assert keys_per_delete(10**9) == 100
    quiet, busy = requests_per_task(Load(1, 1000)), requests_per_task(Load(1, 10**9))
    assert (quiet[Operation.DELETE], quiet[Operation.DELETE_MANY]) == (1, 0)
    assert (busy[Operation.DELETE], busy[Operation.DELETE_MANY]) == (0, 0.01)


def test_an_idle_worker_polls_at_the_longest_pause() -> None:
    assert polls_per_day(0) == DAY_S / 5


def test_a_lone_task_costs_one_climb_back_to_the_longest_pause() -> None:
    # At once, and after 0.1, 0.2, 0.4, 0.8, 1.6 and 3.2 s, instead of 6.3 s of the longest pause.
    assert polls_per_day(1) - polls_per_day(0) == pytest.approx(7 - 6.3 / 5)


def test_a_flooded_worker_takes_a_page_with_each_poll() -> None:
    flood = 10**9
    assert polls_per_day(flood) == flood / 100


@given(rates, rates)
def test_finding_more_tasks_never_takes_fewer_polls(one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    assert polls_per_day(fewer) <= polls_per_day(more) * (1 + 1e-9)


@given(st.integers(1, 10**8))
def test_polls_per_task_stay_between_a_page_and_an_idle_wait(tasks: int) -> None:
    polls = polls_per_day(tasks)
    assert tasks / 100 <= polls <= DAY_S / 5 + 8 * tasks


@pytest.mark.parametrize("tasks_per_day", [0, 1000, 100_000, 10_000_000])
def test_reading_more_to_find_tasks_costs_more(tasks_per_day: int) -> None:
    index_only, hybrid, log_scan = (month(10, tasks_per_day, mode).polling for mode in IndexMode)
    assert index_only < hybrid < log_scan


def test_a_scan_that_remembers_all_ended_tasks_reads_each_once() -> None:
    load = Load(1, 1000, kept_d=30)
    reads = {
        memory: finding_per_day(load, IndexMode.HYBRID, Rhythm(log_scan_memory=memory))[Operation.GET]
        for memory in (100, 200_000)
    }
    assert reads[100] - reads[200_000] == pytest.approx(24 * 60 * 50 - 1000)


def test_an_idle_queue_costs_little_however_many_workers_wait() -> None:
    one, fifty = month(1, 0), month(50, 0)
    assert one.tasks == one.storage == 0
    assert one.total < 5
    assert fifty.total < 25
    assert fifty.polling == pytest.approx(MONTH_D * DAY_S / 5 * 50 * READ_PRICE, rel=0.05), "a GET every 5 s"


def test_fifty_workers_and_a_hundred_thousand_tasks_a_day_cost_less_than_140_dollars() -> None:
    assert month(50, 100_000).total < 140


@given(st.integers(1, 1000), rates)
def test_a_task_is_tried_by_one_worker_at_least_and_by_each_once_at_most(workers: int, tasks: int) -> None:
    assert 0.99 <= tries_per_task(Load(workers, tasks)) <= workers


@pytest.mark.parametrize("workers", [1, 4, 16, 50, 64, 256])
@pytest.mark.parametrize("tasks_per_day", [0, 10_000, 1_000_000])
def test_leasing_shards_costs_hardly_more_than_not_and_less_with_many_workers(
    workers: int, tasks_per_day: int
) -> None:
    shared, leased = (
        estimate(Load(workers, tasks_per_day), delivery=delivery) for delivery in (Delivery.BOARD, Delivery.LEASED)
    )
    assert leased.total < shared.total * (1.1 if workers == 1 else 1.02)
    if workers in (4, 16) and tasks_per_day <= 10_000:
        assert leased.total < shared.total


def test_wake_ups_cost_their_sender_about_a_dollar_a_month() -> None:
    pushed, shared = (
        estimate(Load(50, 10**6), delivery=delivery).total for delivery in (Delivery.PUSH, Delivery.BOARD)
    )
    assert 0.5 < pushed - shared < 1.5


def test_every_extra_has_a_price_and_none_by_default() -> None:
    plain = month(10, 1000)
    assert plain.flows == plain.serving == 0
    for name in ("grouped_per_day", "dependencies_per_day", "unique_per_day", "limits", "keyed_per_day"):
        assert estimate(Load(10, 1000), extras=Extras(**{name: 10})).flows > 0
    assert estimate(Load(10, 1000), extras=Extras(waits_per_day=10)).serving > 0
    with pytest.raises(UsageError, match="negative"):
        Extras(limits=-1)


@given(st.integers(0, 100), rates, st.integers(0, 10**6), st.floats(0, 1000))
def test_a_limit_by_key_costs_at_most_twice_one_in_use_all_day_for_each_key(
    workers: int, tasks: int, keys: int, task_s: float
) -> None:
    load = Load(workers, tasks, task_s=task_s)
    for delivery in (Delivery.BOARD, Delivery.LEASED, Delivery.DIRECT):
        keyed = keyed_limits_per_day(load, tasks, keys, delivery=delivery)
        for operation, most in limit_per_day(Load(workers, 10**9)).items():
            assert 0 <= keyed.get(operation, 0) <= 2 * keys * most  # Taken and given back in turn.


def test_a_limit_by_key_costs_two_asks_for_each_short_task_of_a_rare_key() -> None:
    asks = keyed_limits_per_day(Load(1, 1000), 1000, 10**6)
    assert asks[Operation.GET] == pytest.approx(2000, rel=0.01)
    assert asks[Operation.PUT] == pytest.approx(2000, rel=0.01)


def test_a_call_that_waits_reads_more_and_more_seldom() -> None:
    reads = [requests_per_wait(seconds)[Operation.GET] for seconds in (0, 0.1, 0.3, 10, 3600)]
    assert reads[:3] == [1, 2, 3]
    assert reads[3] == 1 + 5 + 4
    assert reads[4] == pytest.approx(3600 / 2, rel=0.01)


@given(rates)
def test_notices_never_cost_more_than_one_write_per_task_and_four_per_second(tasks: int) -> None:
    posts = notices_per_day(Load(1, tasks))[Operation.PUT]
    assert posts <= tasks
    assert posts <= 4 * DAY_S


def test_an_estimate_is_the_sum_of_its_parts() -> None:
    costs = month(20, 50_000)
    assert costs.total == pytest.approx(dollars(costs.requests) + costs.storage)
    assert costs.storage == pytest.approx(50_000 * 30 * 3 * 2048 / 1e9 * 0.023)


def test_without_workers_only_submitting_and_storing_cost() -> None:
    parked = month(0, 1000)
    assert parked.heartbeats == parked.monitor == 0
    assert parked.polling == pytest.approx(dollars(notices_per_day(Load(0, 1000))) * MONTH_D)
    assert parked.tasks > 0


def test_one_monitor_checks_for_all_workers() -> None:
    one, ten = (monitor_per_day(Load(workers, 0)) for workers in (1, 10))
    assert ten[Operation.PUT] == one[Operation.PUT]
    assert ten[Operation.LIST] == one[Operation.LIST]


def test_sweeping_can_be_switched_off() -> None:
    assert month(1, 0, rhythm=Rhythm(sweep_s=0)).monitor < month(1, 0).monitor


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="negative"):
        month(-1, 10)
