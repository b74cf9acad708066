"""Months made of days: created when complete or at a deadline, made again when a day comes late, and explained."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.backfill import BackfillRequest
from qo.api.contract.first_pages import WaitingPartition
from qo.api.contract.task import Claimed, CompleteRequest, EventBody, Outcome
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.attempts import completion, pins
from qo.dispatcher.commits import removals
from qo.dispatcher.engine.loops import backfill, comparison, invalidation, reconciler, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.events import invalidations
from qo.dispatcher.sources import emission
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state import topology as topologies
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import backfills, planning
from qo.dispatcher.views import changed_inputs, staleness
from qo.dispatcher.views.waiting_partitions import list_waiting
from qo.dispatcher.views.why.answer import why
from qo.errors import NotFound, UsageError
from qo.pipeline.registry import DEFAULT
from support.dispatcher.pipeline_tasks import (
    all_of,
    claimed,
    fence,
    finish,
    output,
    route_all,
    row_of,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

DAYS = [f"2026-02-{day:02}" for day in range(1, 29)]


def shop(**monthly: Any) -> Dag:
    return dag(
        "shop",
        source("orders", partitions={"kind": "day", "timezone": "Europe/Berlin", "start": "2026-01-01"}),
        job("daily", reads="orders"),
        job("monthly", reads="daily", partitions={"kind": "month", "timezone": "Europe/Berlin"}, **monthly),
    )


def announce(state: State, days: Iterable[str], run: str = "1", of: str = "orders") -> None:
    with state.write() as tx:
        events = [EventBody(partition_key=each) for each in days]
        emission.emit(tx, "shop", of, key=f"{run} {events[0].partition_key}", events=events, by="anna")


def work_off(state: State, done: LiveJob) -> int:
    """Complete all open tasks of a job, oldest first; how many."""
    route_all(state)
    while invalidation.tick(state):
        pass
    waiting = [each["id"] for each in tasks_of(state, done) if each["status"] == "pending"]
    for each in waiting:
        succeed(state, claimed(state, each))
    route_all(state)
    while invalidation.tick(state):
        pass
    return len(waiting)


def bring(state: State, topology: Topology, days: Iterable[str], run: str = "1") -> None:
    """Announce days, and make those of the job below."""
    announce(state, days, run)
    work_off(state, live(topology, "shop.daily"))


def months(state: State, topology: Topology) -> list[tuple[str, str]]:
    return [(each["partition_key"], each["status"]) for each in tasks_of(state, live(topology, "shop.monthly"))]


def read_keys(held: Claimed, position: int = 0) -> list[str | None]:
    return [each.partition_key for each in held.work.inputs[position].pieces]


def test_a_month_is_made_once_when_its_last_day_is_there(state: State) -> None:
    topology = deployed(state, shop())
    bring(state, topology, DAYS[:-1])
    assert months(state, topology) == []
    bring(state, topology, DAYS[-1:])
    [task] = tasks_of(state, live(topology, "shop.monthly"))
    held = claimed(state, task["id"])
    assert read_keys(held) == DAYS
    assert held.work.inputs[0].revision == max(each.revision for each in held.work.inputs[0].pieces)
    succeed(state, held)
    work_off(state, live(topology, "shop.monthly"))
    while reconciler.tick(state):
        pass
    assert months(state, topology) == [("2026-02", "completed")]
    # Every day is accounted for by the month's task.
    deliveries = [each for each in all_of(state, schema.deliveries) if each["task_id"] == task["id"]]
    assert sorted(each["outcome"] for each in deliveries) == ["consumed"] + ["merged"] * 27
    assert all_of(state, schema.incomplete_partitions) == []


def test_days_that_come_while_a_month_waits_are_one_rebuild(state: State) -> None:
    topology = deployed(state, shop(complete="any"))
    monthly = live(topology, "shop.monthly")
    bring(state, topology, DAYS[:1])
    assert work_off(state, monthly) == 1
    bring(state, topology, DAYS[1:20])
    bring(state, topology, DAYS[:5], "corrected")
    assert months(state, topology) == [("2026-02", "completed"), ("2026-02", "pending")]
    held = claimed(state, tasks_of(state, monthly)[-1]["id"])
    assert read_keys(held) == DAYS[:20]
    # One that comes while it runs is not in it, so it is made once more.
    bring(state, topology, DAYS[20:22])
    succeed(state, held)
    assert [status for _, status in months(state, topology)] == ["completed", "completed", "pending"]
    assert work_off(state, monthly) == 1
    assert work_off(state, monthly) == 0


def test_a_corrected_day_rebuilds_its_month_and_no_other(state: State) -> None:
    topology = deployed(state, shop())
    bring(state, topology, DAYS)
    bring(state, topology, [f"2026-01-{day:02}" for day in range(1, 32)], "january")
    assert work_off(state, live(topology, "shop.monthly")) == 2
    bring(state, topology, [DAYS[3]], "corrected")
    assert months(state, topology)[-1] == ("2026-02", "pending")
    assert len(months(state, topology)) == 3
    work_off(state, live(topology, "shop.monthly"))
    while reconciler.tick(state):
        pass
    assert len(months(state, topology)) == 3


def test_an_attempt_that_has_read_less_replaces_no_later_month(state: State) -> None:
    topology = deployed(state, shop(complete="any"))
    monthly = live(topology, "shop.monthly")
    bring(state, topology, DAYS[:1])
    early = claimed(state, tasks_of(state, monthly)[0]["id"])
    bring(state, topology, DAYS[1:2])
    late = claimed(state, tasks_of(state, monthly)[1]["id"])
    succeed(state, late)
    succeed(state, early)
    [partition] = [
        each
        for each in all_of(state, schema.partitions)
        if each["generation_id"] == monthly.outputs[0].generation_id
    ]
    assert partition["task_id"] == late.work.task_id


def test_a_month_is_made_at_its_deadline_of_what_is_there(state: State) -> None:
    topology = deployed(state, shop(deadline="2d"))
    monthly = live(topology, "shop.monthly")
    bring(state, topology, DAYS[:20])
    [waiting] = all_of(state, schema.incomplete_partitions)
    # Counted from when the first came, since the month ended long ago, or ends later.
    ends = datetime(2026, 2, 28, 23, tzinfo=UTC)
    assert waiting["due_at"] == max(ends, waiting["since"]) + timedelta(days=2)
    assert reconciler.tick(state) >= 0
    assert months(state, topology) == []

    let_deadlines_pass(state)
    while reconciler.tick(state):
        pass
    held = claimed(state, tasks_of(state, monthly)[0]["id"])
    assert read_keys(held) == DAYS[:20]
    succeed(state, held)
    assert all_of(state, schema.incomplete_partitions) == []
    bring(state, topology, DAYS[20:])
    assert months(state, topology) == [("2026-02", "completed"), ("2026-02", "pending")]


def test_partitions_that_wait_for_others_are_listed(state: State) -> None:
    topology = deployed(state, shop(deadline="2d"))
    bring(state, topology, [*DAYS[:26], "2026-03-01", "2026-04-01"])
    listed: list[WaitingPartition] = []
    after: str | None = None
    for _ in range(3):
        with state.read() as tx:
            page = list_waiting(tx, "shop", after=after, limit=1)
        assert (page.dag, page.version) == ("shop", 1)
        listed += page.partitions
        after = page.next
    assert after is None
    assert [(each.job, each.partition_key) for each in listed] == [
        ("monthly", "2026-02"),
        ("monthly", "2026-03"),
        ("monthly", "2026-04"),
    ]
    (february,) = [
        each for each in all_of(state, schema.incomplete_partitions) if each["partition_key"] == "2026-02"
    ]
    assert (listed[0].since, listed[0].due_at) == (february["since"], february["due_at"])
    text = "monthly waits for 2 of 28 partitions of shop.daily (2026-02-27, 2026-02-28 not announced)"
    assert text in listed[0].because
    with state.read() as tx:
        assert list_waiting(tx, "shop", job="monthly").partitions == listed
        assert list_waiting(tx, "shop", job="daily").partitions == []
        with pytest.raises(NotFound, match="has no job 'weekly'"):
            list_waiting(tx, "shop", job="weekly")
        with pytest.raises(NotFound, match="has no version 2"):
            list_waiting(tx, "shop", version=2)
        with pytest.raises(UsageError, match="pass the next of the page before"):
            list_waiting(tx, "shop", after="monthly")
    bring(state, topology, DAYS[26:])
    with state.read() as tx:
        assert [each.partition_key for each in list_waiting(tx, "shop").partitions] == ["2026-03", "2026-04"]


def let_deadlines_pass(state: State) -> None:
    with state.write() as tx:
        tx.execute(sa.update(schema.incomplete_partitions).values(due_at=tx.now))


def test_days_that_nobody_expects_are_not_waited_for(state: State) -> None:
    weekdays = {"kind": "day", "weekdays": "MON-FRI", "without": ["2026-02-16"], "start": "2026-02-03"}
    topology = deployed(
        state,
        dag(
            "shop",
            source("orders", partitions=weekdays),
            job("monthly", reads="orders", partitions={"kind": "month"}),
        ),
    )
    expected = [day for day in DAYS[2:] if datetime.fromisoformat(day).weekday() < 5 and day != "2026-02-16"]
    announce(state, expected[:-1])
    announce(state, ["2026-02-14"], "a Saturday")
    route_all(state)
    assert months(state, topology) == []
    announce(state, expected[-1:])
    route_all(state)
    held = claimed(state, tasks_of(state, live(topology, "shop.monthly"))[0]["id"])
    assert read_keys(held) == sorted([*expected, "2026-02-14"])


def test_a_window_reads_the_days_before_and_the_parts_of_an_hour_are_minutes(state: State) -> None:
    days = {"kind": "day", "start": "2026-02-01"}
    topology = deployed(
        state,
        dag(
            "shop",
            source("orders", partitions=days),
            job("week", reads={"job": "orders", "window": 7}),
            job(
                "change",
                reads=["orders", {"job": "orders", "as": "before", "offset": -1}],
            ),
            job("hours", reads="orders", partitions={"kind": "hour"}),
        ),
    )
    announce(state, DAYS[1:9])
    route_all(state)
    # What lies before the first day is not waited for, and the first day is.
    assert sorted(each["partition_key"] for each in tasks_of(state, live(topology, "shop.week"))) == DAYS[7:9]
    announce(state, DAYS[:1])
    route_all(state)
    week, change, hours = (live(topology, f"shop.{name}") for name in ("week", "change", "hours"))
    assert sorted(each["partition_key"] for each in tasks_of(state, week)) == DAYS[:9]
    by_key = {each["partition_key"]: claimed(state, each["id"]) for each in tasks_of(state, week)}
    assert read_keys(by_key[DAYS[0]]) == DAYS[:1]
    assert read_keys(by_key[DAYS[8]]) == DAYS[2:9]
    changes = {each["partition_key"]: claimed(state, each["id"]) for each in tasks_of(state, change)}
    assert (read_keys(changes[DAYS[4]]), read_keys(changes[DAYS[4]], 1)) == ([DAYS[4]], [DAYS[3]])
    assert read_keys(changes[DAYS[0]], 1) == []
    assert len(tasks_of(state, hours)) == 9 * 24
    for held in by_key.values():
        succeed(state, held)
    announce(state, DAYS[:1], "corrected")
    route_all(state)
    while invalidation.tick(state):
        pass
    again = [each["partition_key"] for each in tasks_of(state, week) if each["status"] == "pending"]
    assert sorted(again) == DAYS[:7]


def test_a_staged_version_makes_months_of_all_the_days_of_its_own(state: State) -> None:
    first = shop(deadline="1d")
    topology = deployed(state, first)
    bring(state, topology, DAYS[:10])
    let_deadlines_pass(state)
    while reconciler.tick(state):
        pass
    work_off(state, live(topology, "shop.monthly"))
    staged(state, edited(first, "daily", config={"better": True}))
    topology = loaded(state)
    daily, monthly = live(topology, "shop.daily", 2), live(topology, "shop.monthly", 2)
    for _ in range(5):
        while reconciler.tick(state) or comparison.tick(state):
            pass
        waiting = [each["id"] for each in tasks_of(state, daily) if each["status"] == "pending"]
        assert all(not each["wakes"] for each in tasks_of(state, monthly)), "released before its days were there"
        if not waiting:
            break
        for each in waiting[:4]:
            succeed(state, claimed(state, each))
        route_all(state)
        release.tick(state, Limits())
    while reconciler.tick(state) or comparison.tick(state):
        pass
    release.tick(state, Limits())
    [task] = tasks_of(state, monthly)
    assert task["wakes"] == 1
    assert read_keys(claimed(state, task["id"])) == DAYS[:10]


def test_a_month_is_invalidated_by_a_person_through_its_day(state: State) -> None:
    topology = deployed(state, shop(complete="any"))
    daily, monthly = live(topology, "shop.daily"), live(topology, "shop.monthly")
    bring(state, topology, DAYS[:2])
    work_off(state, monthly)
    place = daily.outputs[0]
    with state.write() as tx:
        id_ = invalidations.invalidate(tx, place.dataset_id, place.generation_id, partition_key=DAYS[0], by="anna")
    while invalidation.tick(state):
        pass
    assert months(state, topology)[-1] == ("2026-02", "pending")
    work_off(state, monthly)
    [row] = [each for each in all_of(state, schema.invalidations) if each["id"] == id_]
    assert row["processed_at"] is not None


def test_why_names_the_days_that_a_month_waits_for(state: State) -> None:
    topology = deployed(state, shop(deadline="2d"))
    announce(state, DAYS[:25])
    route_all(state)
    daily = live(topology, "shop.daily")
    pending = [each["id"] for each in tasks_of(state, daily)]
    for each in pending[:22]:
        succeed(state, claimed(state, each))
    finish(state, claimed(state, pending[22]), Outcome.FATAL, error="no such column")
    route_all(state)
    with state.read() as tx:
        answer = why(tx, "shop.monthly@2026-02")
    text = "\n".join(answer.lines)
    assert answer.verdict == "blocked"
    assert "shop.monthly waits for 6 of 28 partitions of shop.daily" in text
    assert "failed" in text
    assert "2026-02-26, 2026-02-27, 2026-02-28 not announced" in text
    assert "it is made of what is there at" in text
    assert "no such column" in text
    assert answer.do is not None


def test_the_last_two_days_of_a_month_may_come_at_once(state: State) -> None:
    topology = deployed(state, shop())
    daily = live(topology, "shop.daily")
    bring(state, topology, DAYS[:-2])
    announce(state, DAYS[-2:])
    route_all(state)
    held = [claimed(state, each["id"]) for each in tasks_of(state, daily) if each["status"] == "pending"]
    both = Barrier(2)

    def complete(each: Claimed) -> None:
        with state.write() as tx:
            if tx.on_postgres:
                both.wait(30)  # SQLite has one writer at a time.
            request = CompleteRequest(**fence(each), outcome=Outcome.SUCCESS, outputs=[output(each)])
            completion.complete(tx, request, "file:/data")
            router.route(tx, 10)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(complete, held))
    route_all(state)
    assert months(state, topology) == [("2026-02", "pending")]


def test_what_a_month_reads_comes_in_pages(state: State) -> None:
    topology = deployed(state, shop())
    bring(state, topology, DAYS)
    held = claimed(state, tasks_of(state, live(topology, "shop.monthly"))[0]["id"])
    bring(state, topology, DAYS[5:8], "corrected")
    with state.read() as tx:
        places: list[str | None] = [None]
        keys: list[str | None] = []
        while (page := pins.page(tx, held.work.task_id, 0, places[-1], 5))[1] is not None:
            keys += [each.partition_key for each in page[0]]
            places.append(page[1])
        revisions = {each.revision for each in held.work.inputs[0].pieces}
        assert {each.revision for each in page[0]} <= revisions, "it reads what it has pinned"
    assert keys + [each.partition_key for each in page[0]] == DAYS


def test_a_month_is_stale_when_a_day_is_new_or_another(state: State) -> None:
    topology = deployed(state, shop(complete="any"))
    monthly = live(topology, "shop.monthly")
    bring(state, topology, DAYS[:3])
    work_off(state, monthly)
    announce(state, DAYS[3:4])
    announce(state, DAYS[:1], "corrected")
    work_off(state, live(topology, "shop.daily"))
    with state.read() as tx:
        live_now = topologies.load(tx)
        changes = staleness.stale_partitions(tx, live_now, monthly, monthly.outputs[0].generation_id, ["2026-02"])
        found = changed_inputs.find_changes(
            tx, changed_inputs.load_inputs(tx, live_now, monthly), [tasks_of(state, monthly)[0]["id"]]
        )
    assert list(changes) == ["2026-02"]
    [of_task] = found.values()
    assert {each.partition_key: each.read_revision is None for each in of_task} == {DAYS[0]: False, DAYS[3]: True}


def test_months_are_made_again_on_request_and_foreseen_by_a_plan(state: State) -> None:
    topology = deployed(state, shop())
    monthly = live(topology, "shop.monthly")
    bring(state, topology, [*DAYS, "2026-03-01"])
    work_off(state, monthly)
    with state.write() as tx:
        backfills.create(tx, BackfillRequest(dag="shop", job="monthly"), "anna")
    while backfill.tick(state):
        pass
    held = claimed(state, tasks_of(state, monthly)[-1]["id"])
    assert read_keys(held) == DAYS
    with state.read() as tx:
        answer = planning.forecast(tx, edited(shop(), "monthly", config={"better": True}), DEFAULT)
    [rebuilt] = [each for each in answer.rebuilds if each.job == "monthly"]
    assert (rebuilt.tasks, rebuilt.rows, [each.partition_key for each in rebuilt.first]) == (1, 280, ["2026-02"])


@pytest.mark.parametrize("complete", ["all", "any"])
def test_a_removed_day_is_taken_out_of_its_month(state: State, complete: str) -> None:
    topology = deployed(state, shop(complete=complete))
    monthly = live(topology, "shop.monthly")
    bring(state, topology, DAYS)
    work_off(state, monthly)
    with state.write() as tx:
        removals.remove(tx, datasets.resolve(tx, "shop.daily"), [DAYS[0]], by="anna", key="1")
    while invalidation.tick(state):
        pass
    held = claimed(state, tasks_of(state, monthly)[-1]["id"])
    assert read_keys(held) == DAYS[1:]
    succeed(state, held)
    with state.write() as tx:
        removals.remove(tx, datasets.resolve(tx, "shop.daily"), DAYS[1:], by="anna", key="2")
    while invalidation.tick(state):
        pass
    generation = monthly.outputs[0].generation_id
    assert not [each for each in all_of(state, schema.partitions) if each["generation_id"] == generation]
    assert row_of(state, held.work.task_id)["status"] == "completed"
