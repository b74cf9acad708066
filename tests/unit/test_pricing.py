"""Prices and the request model behind `qo cost`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.discovery import IndexMode
from qo.core.pricing import (
    DAY_S,
    MONTH_D,
    READ_PRICE,
    WRITE_PRICE,
    Load,
    Operation,
    Rhythm,
    dollars,
    estimate,
    keys_per_delete,
    monitor_per_day,
    polling_per_day,
    polls_per_day,
    requests_per_task,
)
from qo.errors import UsageError

pytestmark = pytest.mark.fast

rates = st.integers(0, 10**8)


def test_every_operation_has_a_price_of_the_published_classes() -> None:
    assert {operation.price for operation in Operation} == {0.0, READ_PRICE, WRITE_PRICE}


def test_dollars_add_up_by_operation() -> None:
    counts = {Operation.PUT: 1000, Operation.LIST: 1000, Operation.GET: 1000, Operation.DELETE: 10**9}
    assert dollars(counts) == pytest.approx(0.005 + 0.005 + 0.0004)


def test_a_million_tasks_of_a_busy_queue_cost_about_25_dollars() -> None:
    assert 1e6 * dollars(requests_per_task()) == pytest.approx(25.5)


def test_a_quiet_worker_removes_index_keys_one_by_one_and_a_busy_one_by_the_hundred() -> None:
    assert keys_per_delete(0) == 1
    assert keys_per_delete(1000) == 1
    assert keys_per_delete(10**9) == 100


def test_an_idle_worker_polls_at_the_longest_pause() -> None:
    assert polls_per_day(0) == DAY_S / 5


def test_a_lone_task_costs_one_climb_back_to_the_longest_pause() -> None:
    # At once, when finished, and after 0.1, 0.2, 0.4, 0.8, 1.6 and 3.2 s, instead of 6.3 s of the longest pause.
    assert polls_per_day(1) - polls_per_day(0) == pytest.approx(8 - 6.3 / 5)


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
    index_only, hybrid = (
        estimate(10, tasks_per_day, mode).polling for mode in (IndexMode.INDEX_ONLY, IndexMode.HYBRID)
    )
    assert index_only < hybrid
    assert estimate(10, tasks_per_day, IndexMode.LOG_SCAN).polling >= index_only


def test_a_scan_that_remembers_all_ended_tasks_reads_each_once() -> None:
    remembered = polling_per_day(Load(1, 1000, kept_d=30), IndexMode.HYBRID)
    forgotten = polling_per_day(Load(1, 1000, kept_d=30), IndexMode.HYBRID, Rhythm(log_scan_memory=100))
    assert remembered[Operation.GET] == 1000
    assert forgotten[Operation.GET] == 24 * 60 * 50


def test_an_idle_worker_costs_about_five_dollars_a_month() -> None:
    idle = estimate(1, 0, IndexMode.HYBRID)
    assert idle.tasks == 0
    assert idle.storage == 0
    assert idle.heartbeats == pytest.approx(MONTH_D * 24 * 60 * (4 * WRITE_PRICE + 12 * READ_PRICE))
    assert 4 < idle.total < 5.1


def test_an_estimate_is_the_sum_of_its_parts() -> None:
    month = estimate(20, 50_000, IndexMode.HYBRID)
    assert month.total == pytest.approx(dollars(month.requests) + month.storage)
    assert month.storage == pytest.approx(50_000 * 30 * 3 * 2048 / 1e9 * 0.023)


def test_without_workers_only_submitting_and_storing_cost() -> None:
    parked = estimate(0, 1000)
    assert parked.polling == parked.heartbeats == parked.monitor == 0
    assert parked.tasks > 0


def test_monitors_share_the_sweep_and_each_makes_its_own_checks() -> None:
    one, ten = (monitor_per_day(Load(workers, 0)) for workers in (1, 10))
    assert ten[Operation.PUT] == one[Operation.PUT]
    assert ten[Operation.LIST] - one[Operation.LIST] == 9 * (2 * DAY_S / 30 + DAY_S / 600)


def test_sweeping_can_be_switched_off() -> None:
    assert estimate(1, 0, rhythm=Rhythm(sweep_s=0)).monitor < estimate(1, 0).monitor


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="negative"):
        estimate(-1, 10)
