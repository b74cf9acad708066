"""What a completed attempt leaves behind: all of it at once, and nothing of one that does not count."""

from __future__ import annotations

import pytest

from qo.api.contract.task import Claimed, CompleteRequest, EventBody, InputMode, Outcome, OutputBody
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.attempts import completion
from qo.dispatcher.commits import replacing
from qo.dispatcher.engine.loops import invalidation
from qo.dispatcher.events import invalidations
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.errors import UsageError
from support.dispatcher.pipeline_tasks import (
    all_of,
    append,
    claimed,
    cursor_task,
    feed,
    fence,
    finish,
    lapse,
    manual_task,
    output,
    partition_task,
    route_all,
    row_of,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.statement_counts import counted
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", outputs=2),
    job("daily", reads="clean"),
    job("log", reads="orders", update_strategy="append"),
)
TICKS = dag("ticks", source("ticks"), job("follow", reads="ticks", execution_strategy="PerUpdate"))


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


@pytest.fixture
def ticks(state: State) -> Topology:
    return deployed(state, TICKS)


def generation(state: State, job_: LiveJob, index: int = 0) -> dict[str, object]:
    found = {each["id"]: each for each in all_of(state, schema.generations)}
    return found[job_.outputs[index].generation_id]


def sums(state: State, job_: LiveJob, index: int = 0) -> tuple[object, ...]:
    row = generation(state, job_, index)
    return row["partitions"], row["segments"], row["rows"], row["bytes"]


def test_multi_output_commits_all_outputs_and_announces_each(state: State, shop: Topology) -> None:
    clean = live(shop, "shop.clean")
    held = claimed(state, partition_task(state, clean, "p", start=0, end=10))
    succeed(state, held)
    partitions = all_of(state, schema.partitions)
    assert {each["dataset_id"] for each in partitions} == {each.dataset_id for each in clean.outputs}
    assert {(each["partition_key"], each["start"], each["end"]) for each in partitions} == {("p", 0, 10)}
    events = all_of(state, schema.events)
    assert {(each["dataset_id"], each["partition_key"]) for each in events} == {
        (each.dataset_id, "p") for each in clean.outputs
    }
    assert {each["producer_task_id"] for each in events} == {held.work.task_id}
    assert sums(state, clean) == (1, 0, 10, 100)


def test_multi_output_one_wrong_output_commits_none(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    with pytest.raises(UsageError):
        finish(state, held, outputs=[output(held, 0), output(held, 1, location="file:/elsewhere")])
    assert (all_of(state, schema.commits), all_of(state, schema.events)) == ([], [])
    assert row_of(state, held.work.task_id)["status"] == "running"


def test_the_event_of_a_commit_makes_the_task_of_its_reader(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.orders"), "p")
    route_all(state)
    [task] = tasks_of(state, live(shop, "shop.clean"))
    held = claimed(state, task["id"])
    assert len(held.work.inputs[0].pieces) == 1
    succeed(state, held)
    route_all(state)
    [next_] = tasks_of(state, live(shop, "shop.daily"))
    assert next_["partition_key"] == "p"


@pytest.mark.parametrize(
    "wrong",
    [
        {"location": "file:/data/elsewhere/"},
        {"location": "s3://other/{own}"},
        {"location": "{prefix}../up"},
        {"location": None, "files": ["a"]},
        {"files": ["../a"]},
        {"files": ["/etc/passwd"]},
        {"partition_key": "not a key"},
        {"cursor": 4, "partition_key": "p"},
        {"start": 3},
        {"start": 3, "end": 3},
        {"output": 2},
    ],
)
def test_an_output_that_is_not_the_attempts_own_is_refused(
    state: State, shop: Topology, wrong: dict[str, object]
) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    prefix = held.work.outputs[0].prefix
    own = prefix.removeprefix("file:/data/")
    body = output(held, 0).model_dump() | {
        key: value.format(prefix=prefix, own=own) if isinstance(value, str) else value
        for key, value in wrong.items()
    }
    with pytest.raises(UsageError):
        finish(state, held, outputs=[OutputBody(**body)])
    assert all_of(state, schema.commits) == []


def test_the_prefix_of_an_earlier_attempt_is_refused(state: State, shop: Topology) -> None:
    task = partition_task(state, live(shop, "shop.clean"), "p")
    first = claimed(state, task)
    finish(state, first, Outcome.RELEASED)
    second = claimed(state, task)
    with pytest.raises(UsageError):
        finish(state, second, outputs=[output(first, 0)])


def test_without_a_root_no_location_is_accepted(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    request = CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, outputs=[output(held, 0)])
    with pytest.raises(UsageError, match="write it below"), state.write() as tx:
        completion.complete(tx, request)


def test_the_same_partition_twice_in_one_completion_is_refused(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    with pytest.raises(UsageError, match="twice"):
        finish(state, held, outputs=[output(held, 0), output(held, 0, partition_key="p")])


def test_the_row_of_a_new_partition_is_written_once(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    writes: list[int] = []
    for run in ("1", "2"):
        with counted(state) as counts:
            feed(state, orders, "p", run)
        writes.append(sum(n for text, n in counts.texts.items() if text.startswith("INSERT INTO partitions")))
    on_sqlite = state.engine.dialect.name == "sqlite"
    assert writes == [1, 1 if on_sqlite else 2], "one that is there is locked, and then points to the new commit"


def test_replacing_points_to_the_new_files_and_keeps_the_old_commit(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "p", "1", rows=10)
    second = feed(state, orders, "p", "2", rows=4, bytes=7)
    [partition] = all_of(state, schema.partitions)
    assert partition["location"] == second.work.outputs[0].prefix
    old, new = sorted(all_of(state, schema.commits), key=lambda each: each["revision"])
    assert (old["replaced_by"], new["replaced_by"]) == (new["revision"], None)
    assert partition["revision"] == new["revision"]
    assert sums(state, orders) == (1, 0, 4, 7)
    [invalidation] = all_of(state, schema.invalidations)
    assert (invalidation["partition_key"], invalidation["revision"]) == ("p", new["revision"])


def test_a_first_commit_and_its_repeat_invalidate_nothing(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    succeed(state, held)
    succeed(state, held)
    assert all_of(state, schema.invalidations) == []


def test_a_failure_commits_nothing(state: State, shop: Topology) -> None:
    for outcome in (Outcome.RETRYABLE, Outcome.FATAL, Outcome.CANCELLED, Outcome.RELEASED):
        held = claimed(state, partition_task(state, live(shop, "shop.clean"), str(outcome)))
        finish(state, held, outcome, outputs=[output(held, 0)], events=[EventBody(output=0, cursor=1)])
    assert (all_of(state, schema.commits), all_of(state, schema.events)) == ([], [])


def test_the_slower_of_two_does_not_undo_what_was_made_from_later_inputs(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "p", "1")
    slow = claimed(state, partition_task(state, clean, "p"))
    feed(state, orders, "p", "2")
    again = manual_task(
        state,
        clean,
        "again",
        dataset_id=clean.inputs[0].dataset_id,
        generation_id=clean.inputs[0].generation_id,
        partition_key="p",
    )
    fast = claimed(state, again)
    succeed(state, fast)
    assert succeed(state, slow).status == "completed"
    made = {each.dataset_id for each in clean.outputs}
    owners = {each["task_id"] for each in all_of(state, schema.partitions) if each["dataset_id"] in made}
    assert owners == {fast.work.task_id}


# Lineage


def test_lineage_names_the_revision_that_was_read(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "p", "1")
    task = partition_task(state, clean, "p")
    finish(state, claimed(state, task), Outcome.RELEASED)
    feed(state, orders, "p", "2")
    succeed(state, claimed(state, task))  # The next attempt reads anew, and says so.
    with state.read() as tx:
        shown = operator_actions.show_task(tx, task)
    [partition] = [each for each in all_of(state, schema.partitions) if each["task_id"] not in {task}]
    assert [(each.partition_key, each.revision) for each in shown.inputs] == [("p", partition["revision"])]
    assert len(shown.commits) == 2


# Appending


def test_appending_adds_to_a_partition_and_readers_see_all_of_it(state: State) -> None:
    wanted = dag("logs", source("a"), source("b"), job("log", reads=["a", "b"], update_strategy="append"),
                 job("read", reads="log"))  # fmt: skip
    topology = deployed(state, wanted)
    log = live(topology, "logs.log")
    for of in log.inputs:
        task = manual_task(
            state, log, of.name, dataset_id=of.dataset_id, generation_id=of.generation_id, partition_key="p"
        )
        succeed(state, claimed(state, task))
    assert sums(state, log) == (1, 0, 20, 200)
    held = claimed(state, partition_task(state, live(topology, "logs.read"), "p"))
    assert len(held.work.inputs[0].pieces) == 2


def test_appending_replaces_what_the_same_work_had_appended(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    of = log.inputs[0]
    for key in ("1", "2"):
        task = manual_task(
            state, log, key, dataset_id=of.dataset_id, generation_id=of.generation_id, partition_key="p"
        )
        succeed(state, claimed(state, task))
    assert sums(state, log) == (1, 0, 10, 100)
    assert len([each for each in all_of(state, schema.commits) if each["replaced_by"] is None]) == 1


def test_ranges_that_append_to_one_partition_leave_each_other_alone(state: State) -> None:
    follow = job("follow", reads="ticks", execution_strategy="PerUpdate", update_strategy="append")
    topology = deployed(state, dag("days", source("ticks"), follow))
    feeder, follow = live(topology, "days.ticks"), live(topology, "days.follow")
    for cursor in (1, 2):
        append(state, feeder, cursor)
        held = claimed(state, cursor_task(state, follow, cursor))
        finish(state, held, outputs=[output(held, partition_key="2024-03-01")])
    assert sums(state, follow) == (1, 0, 20, 200)

    of = follow.inputs[0]
    with state.write() as tx:
        invalidations.invalidate(tx, of.dataset_id, of.generation_id or "", start=2, end=3)
    while invalidation.tick(state):
        pass
    [again] = [each for each in tasks_of(state, follow) if each["invalidation_id"] is not None]
    held = claimed(state, again["id"])
    finish(state, held, outputs=[output(held, partition_key="2024-03-01", rows=3)])
    assert sums(state, follow) == (1, 0, 13, 200)


def test_who_appends_once_more_is_not_compared_with_what_it_replaces(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    of = log.inputs[0]

    def begun(run: str, key: str) -> Claimed:
        about = {"dataset_id": of.dataset_id, "generation_id": of.generation_id, "partition_key": key}
        return claimed(state, manual_task(state, log, run, **about))

    def compared(held: Claimed) -> list[str | None]:
        keys: list[str | None] = []
        after, more = None, True
        while more:
            with state.read() as tx:
                page = replacing.others(tx, held.work.task_id, 0, after, None, limit=1)
            keys += [each.partition_key for each in page.pieces]
            after, more = page.after, page.after is not None
        return keys

    for key in ("p", "q", "r"):
        succeed(state, begun(f"first {key}", key))
    again = begun("second q", "q")
    assert compared(again) == ["p", "r"]
    succeed(state, again, rows=3)
    assert compared(begun("first s", "s")) == ["p", "q", "r"]
    assert sums(state, log) == (3, 0, 23, 300)


# Cursors


def test_a_cursor_task_reads_what_lies_between_the_last_and_its_own(state: State, ticks: Topology) -> None:
    feeder, follow = live(ticks, "ticks.ticks"), live(ticks, "ticks.follow")
    for cursor in (1, 2, 3):
        append(state, feeder, cursor)
    assert sums(state, feeder) == (0, 3, 30, 300)
    held = claimed(state, cursor_task(state, follow, 2))
    read = held.work.inputs[0]
    assert (read.mode, read.cursor_after, read.cursor_upto) == (InputMode.CURSOR, None, 2)
    assert [each.cursor for each in read.pieces] == [1, 2]
    succeed(state, held)
    assert [each["value"] for each in all_of(state, schema.cursors)] == [2]
    last = claimed(state, cursor_task(state, follow, 3))
    assert [each.cursor for each in last.work.inputs[0].pieces] == [3]


def test_cursors_never_go_back(state: State, ticks: Topology) -> None:
    feeder, follow = live(ticks, "ticks.ticks"), live(ticks, "ticks.follow")
    append(state, feeder, 5)
    append(state, feeder, 9)
    early = claimed(state, cursor_task(state, follow, 5))
    succeed(state, claimed(state, cursor_task(state, follow, 9)))
    assert succeed(state, early).status == "completed"
    assert [each["value"] for each in all_of(state, schema.cursors)] == [9]
    # What the slower one made is in what the faster one made: it is not there twice.
    assert sums(state, follow) == (0, 1, 10, 100)


def test_a_range_of_which_others_have_read_some_is_read_again_without_it(state: State, ticks: Topology) -> None:
    feeder, follow = live(ticks, "ticks.ticks"), live(ticks, "ticks.follow")
    append(state, feeder, 5)
    append(state, feeder, 9)
    late = claimed(state, cursor_task(state, follow, 9))
    succeed(state, claimed(state, cursor_task(state, follow, 5)))
    assert succeed(state, late).status == "pending"
    assert succeed(state, late).repeated
    again = claimed(state, late.work.task_id)
    assert [each.cursor for each in again.work.inputs[0].pieces] == [9]
    assert succeed(state, again).status == "completed"
    assert sums(state, follow) == (0, 2, 20, 200)


def test_a_late_reply_that_has_been_read_by_another_task_commits_nothing(
    state: State, ticks: Topology, state_clock: Clock
) -> None:
    feeder, follow = live(ticks, "ticks.ticks"), live(ticks, "ticks.follow")
    append(state, feeder, 5)
    held = claimed(state, cursor_task(state, follow, 5))
    state_clock.advance(61)
    lapse(state, held)
    append(state, feeder, 9)
    succeed(state, claimed(state, cursor_task(state, follow, 9)))
    assert succeed(state, held).status == "completed"
    assert sums(state, follow) == (0, 1, 10, 100)


def test_the_cursor_moves_on_even_if_nothing_was_made(state: State, ticks: Topology) -> None:
    feeder, follow = live(ticks, "ticks.ticks"), live(ticks, "ticks.follow")
    append(state, feeder, 5)
    finish(state, claimed(state, cursor_task(state, follow, 5)))
    assert [each["value"] for each in all_of(state, schema.cursors)] == [5]


def test_a_cursor_that_has_been_passed_commits_nothing(state: State, ticks: Topology) -> None:
    feeder, follow = live(ticks, "ticks.ticks"), live(ticks, "ticks.follow")
    append(state, feeder, 5)
    append(state, feeder, 9)
    succeed(state, claimed(state, cursor_task(state, follow, 9)))
    held = claimed(state, cursor_task(state, follow, 5))
    assert held.work.inputs[0].pieces == []
    assert succeed(state, held).status == "completed"
    assert sums(state, follow) == (0, 1, 10, 100)
