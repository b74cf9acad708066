"""What direct dispatch costs: the model against metered workers, and the figures that led others to reject it."""

from __future__ import annotations

import pytest

from qo.core.cost_model import estimate
from qo.core.discovery import IndexMode
from qo.core.dispatch import Dispatch
from qo.core.dispatch_pricing import estimate_direct, renewals_per_day
from qo.core.finding_pricing import views_per_day
from qo.core.load import Load
from qo.core.pricing import DAY_S, MONTH_D, Operation, dollars
from support.worker.metered_fleet import run_fleet

pytestmark = pytest.mark.fast

LOADS = [Load(4, 20_000), Load(20, 40_000), Load(20, 0)]
FIFTY = Load(50, 100_000)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.workers}w-{load.tasks_per_day}")
def test_metered_workers_with_inboxes_cost_what_the_model_says(load: Load) -> None:
    hours = 0.2
    bill = run_fleet(load, 3600 * hours, dispatch=Dispatch.DIRECT)
    expected = estimate_direct(Load(load.workers, load.tasks_per_day, kept_d=0))
    assert bill.dollars_a_month == pytest.approx(expected.total, rel=0.15)
    share = hours / (MONTH_D * 24)
    for operation in (Operation.PUT, Operation.LIST, Operation.GET):
        count = expected.requests[operation] * share
        assert bill.usage.counts.get(operation, 0) == pytest.approx(count, rel=0.25), operation


@pytest.mark.parametrize(
    ("workers", "puts", "dollars_a_day"), [(10, 43_200, 0.22), (100, 432_000, 2.16), (1_000, 4_320_000, 21.60)]
)
def test_leases_that_are_renewed_apart_from_heartbeats_cost_what_they_were_said_to(
    workers: int, puts: int, dollars_a_day: float
) -> None:
    renewals = renewals_per_day(workers, every_s=20.0)
    assert renewals == {Operation.PUT: puts}
    assert dollars(renewals) == pytest.approx(dollars_a_day, abs=0.005)
    # Here a heartbeat is the renewal: an inbox costs its worker not one write.
    load = Load(workers, 0)
    assert estimate_direct(load).heartbeats == estimate(load).heartbeats


def test_a_producer_that_looks_for_a_hundred_workers_pays_a_fraction_of_reading_them_all() -> None:
    all_records = {Operation.LIST: DAY_S / 30, Operation.GET: 100 * DAY_S / 30}
    assert all_records == {Operation.LIST: 2_880, Operation.GET: 288_000}
    assert dollars(all_records) == pytest.approx(0.13, abs=0.005)
    ours = views_per_day(Load(100, 10**9), view_s=30.0)
    assert ours[Operation.LIST] == pytest.approx(2_880, rel=0.001)
    assert dollars(ours) < dollars(all_records) / 3
    assert views_per_day(Load(100, 0)) == {}, "who submits nothing looks for nobody"


def test_polling_inboxes_by_list_costs_what_made_direct_dispatch_look_bad_and_the_board_does_not() -> None:
    """For 50 workers and 100,000 tasks a day, others have estimated 56 dollars a month with an index, 77 with leased
    shards, and 1,630 with inboxes."""
    by_list = {Operation.LIST: FIFTY.workers * DAY_S / 0.5}  # Each worker lists its inbox twice a second.
    polling = dollars(by_list) * MONTH_D
    assert 0.75 * 1_630 < polling < 1_630, "most of that estimate"
    shared, direct = estimate(FIFTY), estimate_direct(FIFTY)
    assert direct.total < shared.total < 140
    assert direct.polling < polling / 30
    assert estimate_direct(Load(50, 0)).total < 25


def test_direct_dispatch_pays_for_many_workers_and_not_for_one() -> None:
    alone, many = Load(1, 100_000), Load(16, 100_000)
    assert estimate_direct(alone).total > estimate(alone).total
    assert estimate_direct(many).total < estimate(many).total
    assert estimate_direct(many, IndexMode.LOG_SCAN) == estimate(many, IndexMode.LOG_SCAN)
