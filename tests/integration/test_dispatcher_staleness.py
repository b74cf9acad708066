"""Staleness: what was made from inputs that have changed since is called stale, and what refreshes it is said."""

from __future__ import annotations

import shlex

import pytest

from qo.api.contract.backfill import BackfillRequest
from qo.api.contract.why import Verdict
from qo.dispatcher.engine.loops import backfill, invalidation
from qo.dispatcher.events import invalidations
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import backfills, cutover
from qo.dispatcher.views import datasets, staleness
from support.dispatcher.pipeline_tasks import append, claimed, cursor_task, settle, succeed, tasks_of
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.stale_pipelines import (
    activate,
    announce,
    ask_why,
    calendar,
    partition,
    run_all,
    stale_keys,
)


def built(state: State, refresh: str = "manual") -> None:
    """Two days, one month of them, and sales with a rate for the first day only."""
    deployed(state, calendar(refresh))
    announce(state, "shop.rates", "d1")
    announce(state, "shop.days", "d1", "d2")
    run_all(state)
    announce(state, "shop.months", "m1")
    run_all(state)
    for name in ("shop.day", "shop.month", "shop.sales"):
        assert stale_keys(state, name) == []


def test_what_was_made_from_a_whole_dataset_is_stale_once_that_has_changed(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    run_all(state)
    assert stale_keys(state, "shop.month") == ["m1"]
    assert stale_keys(state, "shop.day") == []
    [reason] = partition(state, "shop.month", "m1").stale_inputs
    assert (reason.input, reason.dataset, reason.partition_key) == ("day", "shop.day", "d1")
    assert reason.read_revision is not None
    assert reason.revision is not None
    assert reason.read_revision < reason.revision
    assert reason.text == f"day has changed since (d1 was committed again as revision {reason.revision})"


def test_a_new_partition_leaves_what_was_made_from_the_whole_dataset_stale(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d3")
    run_all(state)
    [reason] = partition(state, "shop.month", "m1").stale_inputs
    assert reason.text == f"day has changed since (d3 was committed as revision {reason.revision})"


def test_what_was_made_from_a_partition_is_stale_once_that_partition_has_changed(state: State) -> None:
    built(state)
    announce(state, "shop.rates", "d1")
    run_all(state)
    assert stale_keys(state, "shop.sales") == ["d1", "d2"]  # d2 has read all rates: there were none of its own.
    announce(state, "shop.days", "d2")
    run_all(state)
    assert stale_keys(state, "shop.sales") == ["d1"]


def test_another_partition_of_the_input_changes_nothing(state: State) -> None:
    deployed(state, calendar())
    announce(state, "shop.rates", "d1", "d2")
    announce(state, "shop.days", "d1", "d2")
    run_all(state)
    announce(state, "shop.rates", "d2", "d3")
    run_all(state)
    assert stale_keys(state, "shop.sales") == ["d2"]


def test_a_partition_that_was_not_there_and_is_now_leaves_its_reader_stale(state: State) -> None:
    built(state)
    announce(state, "shop.rates", "d2")
    run_all(state)
    assert stale_keys(state, "shop.sales") == ["d2"]


def test_what_a_trigger_makes_again_is_stale_until_then(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    assert stale_keys(state, "shop.day") == ["d1"]
    answer = ask_why(state, "shop.day@d1")
    assert answer.stale
    assert answer.do is None
    run_all(state)
    assert stale_keys(state, "shop.day") == []


def test_why_says_that_something_is_stale_and_what_refreshes_it(state: State) -> None:
    built(state)
    assert "stale" not in ask_why(state, "shop.month@m1").lines[0]
    announce(state, "shop.days", "d1")
    run_all(state)
    answer = ask_why(state, "shop.month@m1")
    made = partition(state, "shop.month", "m1").revision
    [reason] = answer.stale_inputs
    assert (answer.verdict, answer.stale) == (Verdict.THERE, True)
    assert answer.lines[0] == f"shop.month@m1 is there: committed as revision {made}, and stale: {reason.text}"
    assert answer.do == (
        "qo backfill shop.month --from m1 --to m1, or write 'refresh: on_change' at its input day"
    )


def test_the_backfill_that_why_names_refreshes_it(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    run_all(state)
    command, _, _ = (ask_why(state, "shop.month@m1").do or "").partition(",")
    _, _, name, _, first, _, last = shlex.split(command)
    dag_name, _, job_name = name.partition(".")
    with state.write() as tx:
        wanted = BackfillRequest(dag=dag_name, job=job_name, from_key=first, to_key=last, key="k")
        backfills.create(tx, wanted, "tests")
    assert backfill.tick(state) == 1
    assert "is being remade" in ask_why(state, "shop.month@m1").lines[0]
    run_all(state)
    assert not ask_why(state, "shop.month@m1").stale
    assert stale_keys(state, "shop.month") == []


def test_what_refreshes_by_itself_needs_nobody(state: State) -> None:
    built(state, "on_change")
    announce(state, "shop.days", "d1")
    settle(state)
    answer = ask_why(state, "shop.month@m1")
    assert answer.stale
    assert answer.do is None


def test_another_generation_of_another_dag_leaves_its_readers_stale(state: State) -> None:
    prices = dag("prices", source("list"), job("clean", reads="list"), publish={"prices": "clean"})
    shop = dag("shop", source("days"), job("sales", reads=["days", {"dataset": "prices", "trigger": False}]))
    deployed(state, prices)
    announce(state, "prices.list", "p")
    run_all(state)
    deployed(state, shop)
    announce(state, "shop.days", "d1")
    run_all(state)
    assert stale_keys(state, "shop.sales") == []
    staged(state, edited(prices, "clean", config={"a": 1}))
    run_all(state)
    assert stale_keys(state, "shop.sales") == []  # It is not current yet.
    activate(state, "prices", 2)
    [reason] = partition(state, "shop.sales", "d1").stale_inputs
    assert reason.other_generation
    assert reason.text == "prices has changed since (another generation of prices is current)"
    with state.write() as tx:
        cutover.rollback(tx, "prices", "tests")
    assert stale_keys(state, "shop.sales") == []


def test_an_input_of_which_nothing_was_there_leaves_its_readers_stale_once_it_is(state: State) -> None:
    built_without = dag("prices", source("list"), publish={"prices": "list"})
    shop = dag("shop", source("days"), job("sales", reads=["days", {"dataset": "prices", "trigger": False}]))
    deployed(state, built_without)
    deployed(state, shop)
    announce(state, "shop.days", "d1")
    run_all(state)
    assert stale_keys(state, "shop.sales") == []
    announce(state, "prices.list", "p")
    assert stale_keys(state, "shop.sales") == ["d1"]


def test_what_several_have_appended_to_is_stale_if_one_part_is(state: State) -> None:
    appending = {"update_strategy": "append", "unique_key": ["id"]}
    reads = ["left", "right", {"job": "rates", "trigger": False}]
    deployed(state, dag("shop", *map(source, ("left", "right", "rates")), job("both", reads=reads, **appending)))
    announce(state, "shop.rates", "p")
    announce(state, "shop.left", "p")
    run_all(state)
    announce(state, "shop.rates", "p")
    announce(state, "shop.right", "p")
    run_all(state)
    assert stale_keys(state, "shop.both") == ["p"]  # What came from the left, which is not the last commit.


def test_a_range_is_stale_once_a_segment_of_it_was_replaced(state: State) -> None:
    wanted = dag(
        "shop",
        source("feed"),
        job("clean", reads="feed", execution_strategy="PerUpdate"),
        job("sums", reads="clean", execution_strategy="PerUpdate"),
    )
    topology = deployed(state, wanted)
    feed, clean, sums = (live(topology, f"shop.{name}") for name in ("feed", "clean", "sums"))
    for cursor in (1, 2):
        append(state, feed, cursor)
        succeed(state, claimed(state, cursor_task(state, clean, cursor)), cursor=cursor)
        succeed(state, claimed(state, cursor_task(state, sums, cursor)), cursor=cursor)
    assert not ask_why(state, "shop.sums@cursor:1").stale
    told = feed.outputs[0]
    with state.write() as tx:
        invalidations.invalidate(tx, told.dataset_id, told.generation_id, start=1, end=2)
    assert invalidation.tick(state) == 1
    assert not ask_why(state, "shop.sums@cursor:1").stale
    [again] = [each for each in tasks_of(state, clean) if each["status"] == "pending"]
    succeed(state, claimed(state, again["id"]), cursor=1)
    assert ask_why(state, "shop.sums@cursor:1").stale
    assert not ask_why(state, "shop.sums@cursor:2").stale


def test_what_no_live_version_makes_is_never_stale(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    run_all(state)
    old = live(loaded(state), "shop.month").outputs[0].generation_id
    staged(state, edited(calendar(), "month", config={"a": 1}))
    run_all(state)
    activate(state, "shop", 2)
    with state.read() as tx:
        [found] = datasets.list_partitions(tx, "shop.month", generation_id=old).partitions
    assert not found.stale


def test_sources_are_never_stale(state: State) -> None:
    built(state)
    announce(state, "shop.days", "d1")
    assert stale_keys(state, "shop.days") == []


def test_a_page_of_stale_partitions_goes_on_where_it_ended(state: State) -> None:
    deployed(state, calendar())
    announce(state, "shop.days", *(f"d{n}" for n in range(7)))
    announce(state, "shop.rates", *(f"d{n}" for n in range(7)))
    run_all(state)
    announce(state, "shop.days", *(f"d{n}" for n in range(7)))
    run_all(state)
    announce(state, "shop.rates", "d1", "d4", "d5")
    run_all(state)
    found: list[str] = []
    after, pages = None, 0
    while True:
        with state.read() as tx:
            page = datasets.list_partitions(tx, "shop.sales", after, 2, stale=True)
        found += [each.partition_key for each in page.partitions]
        after, pages = page.next, pages + 1
        assert len(page.partitions) <= 2
        assert pages < 9
        if after is None:
            break
    assert found == ["d1", "d4", "d5"]


def test_counts_are_bounded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    built(state)
    announce(state, "shop.rates", "d1")
    run_all(state)
    monkeypatch.setattr(staleness, "COUNT_MAX", 1)
    with state.read() as tx:
        found = datasets.show_dataset(tx, "shop.sales").stale
    assert found is not None
    assert (found.partitions, found.at_least) == (1, True)
