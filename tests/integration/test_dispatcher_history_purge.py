"""What ``keep_history_days`` and ``keep_versions_days`` delete, and what is kept whatever they say."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from qo.api.contract.garbage import JudgeRequest
from qo.api.contract.task import Claimed, EventBody, Outcome
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.engine import garbage
from qo.dispatcher.engine.loops import history_purge, invalidation, router
from qo.dispatcher.engine.purging import purge_round
from qo.dispatcher.engine.purging.purge_round import Keep, PurgeCounts
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from qo.errors import Refused
from support.dispatcher.pipeline_tasks import ROOT, all_of, claimed, feed, finish, partition_task, settle, succeed
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

DAY = 86_400.0
SHOP = dag("shop", source("orders"), job("clean", reads="orders"), job("daily", reads="clean"))
KEEP = Keep(history=timedelta(days=90), versions=timedelta(days=90))


def purged(state: State, keep: Keep = KEEP, limit: int = 500) -> PurgeCounts:
    return sum(purge_round.run(state, keep, limit), start=PurgeCounts())


def ids(state: State, table: sa.Table) -> set[str]:
    return {row[next(iter(table.primary_key)).name] for row in all_of(state, table)}


def corrected(state: State, clock: Clock, times: int = 3) -> list[Claimed]:
    """A partition that came once and was corrected, with a month between."""
    orders = live(deployed(state, SHOP), "shop.orders")
    runs: list[Claimed] = []
    for number in range(times):
        runs.append(feed(state, orders, "a", str(number)))
        settle(state)
        clock.advance(20 * DAY)
    return runs


def place(held: Claimed) -> str:
    return held.work.outputs[0].prefix.removeprefix(f"{ROOT}/").rstrip("/")


def test_work_that_was_done_again_long_ago_goes_and_what_stands_stays(state: State, state_clock: Clock) -> None:
    runs = corrected(state, state_clock, times=4)
    assert purged(state).tasks == 0, "nothing of it is old enough"
    state_clock.advance(200 * DAY)
    before = ids(state, schema.tasks)
    current = {row["task_id"] for row in all_of(state, schema.partitions)}
    commits, partitions = all_of(state, schema.commits), all_of(state, schema.partitions)
    done = purged(state)
    left = ids(state, schema.tasks)
    # Of four feeds the first started what is kept, and the last stands. Of the readers' four tasks each, two go.
    assert done.tasks == len(before - left) == 2 + 2 + 2
    assert current <= left
    assert ids(state, schema.purged_tasks) == before - left
    assert {row["task_id"] for row in all_of(state, schema.attempts)} <= left
    assert {row["task_id"] for row in all_of(state, schema.task_inputs)} <= left
    assert {row["producer_task_id"] for row in all_of(state, schema.events)} <= left
    assert (all_of(state, schema.commits), all_of(state, schema.partitions)) == (commits, partitions)
    assert {row["task_id"] for row in all_of(state, schema.invalidation_readers)} <= left
    assert runs[3].work.task_id in left
    assert purged(state).tasks == purged(state).events == 0, "once was enough"


def test_without_a_setting_everything_is_kept(state: State, state_clock: Clock) -> None:
    corrected(state, state_clock, times=4)
    state_clock.advance(10_000 * DAY)
    before = [all_of(state, table) for table in schema.metadata.sorted_tables]
    for _ in range(3):
        assert history_purge.tick(state, history_purge.keep_of(Settings().dispatcher), 500) == 0
    assert [all_of(state, table) for table in schema.metadata.sorted_tables] == before


def test_the_loop_purges_as_the_settings_say_a_chunk_at_a_time(state: State, state_clock: Clock) -> None:
    corrected(state, state_clock, times=4)
    state_clock.advance(200 * DAY)
    keep = history_purge.keep_of(DispatcherSettings(keep_history_days=90))
    for _ in range(40):
        before = len(all_of(state, schema.tasks)) + len(all_of(state, schema.events))
        assert history_purge.tick(state, keep, 2) == 0, "the loop rests after each"
        assert before - len(all_of(state, schema.tasks)) - len(all_of(state, schema.events)) <= 2
    assert len(all_of(state, schema.purged_tasks)) == 6


def test_a_failure_is_kept_until_later_work_has_mended_it(state: State, state_clock: Clock) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    feed(state, orders, "a", "1")
    settle(state)
    feed(state, orders, "a", "2")
    settle_failing(state, "shop.clean")
    state_clock.advance(200 * DAY)
    purged(state)
    failed = [row["id"] for row in all_of(state, schema.tasks) if row["status"] == "failed"]
    assert len(failed) == 1
    feed(state, orders, "a", "3")
    settle(state)
    state_clock.advance(200 * DAY)
    purged(state)
    assert failed[0] not in ids(state, schema.tasks)


def settle_failing(state: State, name: str) -> None:
    """Run everything, and let this job fail for good."""
    while router.tick(state) or invalidation.tick(state):
        pass
    for row in all_of(state, schema.tasks):
        if row["status"] == "pending" and f"{row['dag']}.{row['job']}" == name:
            finish(state, claimed(state, row["id"]), Outcome.FATAL, error="no")


def test_a_key_counts_once_although_its_task_was_purged(state: State, state_clock: Clock) -> None:
    deployed(state, SHOP)

    def emit(key: str, partition: str) -> list[str]:
        with state.write() as tx:
            events = [EventBody(partition_key=partition)]
            return emission.emit(tx, "shop", "orders", key=key, events=events, by="tests").event_ids

    answers = []
    for number in range(3):
        answers.append(emit(f"k{number}", "a"))
        settle(state)
        state_clock.advance(60.0)
    state_clock.advance(200 * DAY)
    purged(state)
    assert len(ids(state, schema.purged_tasks)) > 0
    with state.write() as tx:
        tx.execute(sa.delete(schema.emissions))  # As the purge of keys does.
    before = [all_of(state, table) for table in (schema.tasks, schema.events, schema.commits)]
    assert [emit(f"k{number}", "a") for number in range(3)] == answers
    assert [all_of(state, table) for table in (schema.tasks, schema.events, schema.commits)] == before


def test_files_of_a_purged_attempt_are_garbage_and_those_of_an_unknown_one_are_not(
    state: State, state_clock: Clock
) -> None:
    runs = corrected(state, state_clock, times=4)
    state_clock.advance(200 * DAY)
    purged(state)
    gone = [each for each in runs if each.work.task_id in ids(state, schema.purged_tasks)]
    assert gone
    unknown = place(gone[0]).replace(gone[0].work.task_id, "00000000-0000-4000-8000-000000000000")
    with state.write() as tx:
        asked = JudgeRequest(prefixes=[*(place(each) for each in gone), unknown, place(runs[-1])], keep_s=DAY)
        verdicts = [each.gone for each in garbage.judge(tx, asked)]
    assert verdicts == [True] * len(gone) + [False, False]


def abandoned(state: State, times: int = 3) -> LiveJob:
    """A version that was abandoned with its tasks, some of them done; its job."""
    orders = live(deployed(state, SHOP), "shop.orders")
    for number in range(times):
        feed(state, orders, f"p{number}")
    settle(state)
    staged(state, edited(SHOP, "clean", config={"v": 2}))
    clean = live(loaded(state), "shop.clean", 2)
    tasks = [partition_task(state, clean, f"p{number}") for number in range(times)]
    succeed(state, claimed(state, tasks[0]))
    router.tick(state)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    feed(state, orders, "later")
    settle(state)
    return clean


def test_a_version_that_ended_long_ago_goes_with_its_tasks_and_cannot_come_back(
    state: State, state_clock: Clock
) -> None:
    clean = abandoned(state)
    only_versions = Keep(versions=timedelta(days=90))
    state_clock.advance(89 * DAY)
    early = purged(state, only_versions)
    assert (early.generations, early.tasks, early.events) == (0, 0, 0)
    state_clock.advance(2 * DAY)
    preview = sum(purge_round.preview(state, only_versions), start=PurgeCounts())
    done = purged(state, only_versions)
    assert (done.generations, done.tasks) == (2, 4)
    assert (preview.generations, 0 < preview.tasks <= done.tasks) == (2, True)
    assert not [row for row in all_of(state, schema.tasks) if row["edition_id"] == clean.edition_id]
    generation = clean.outputs[0].generation_id
    for table in (schema.commits, schema.partitions, schema.events):
        assert not [row for row in all_of(state, table) if row["generation_id"] == generation]
    assert not ids(state, schema.purged_tasks), "nothing about it can come again"
    with pytest.raises(Refused, match="collected"):
        staged(state, edited(SHOP, "clean", config={"v": 2}))


def test_a_version_that_a_rollback_leads_to_is_never_given_up(state: State, state_clock: Clock) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    feed(state, orders, "a")
    settle(state)
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    settle(state)
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "tests", force=True)
    state_clock.advance(1000 * DAY)
    assert purged(state).generations == 0
    with state.write() as tx:
        assert cutover.rollback(tx, "shop", "tests").active == 1


def test_what_a_listed_snapshot_shows_is_kept_until_the_table_drops_it(state: State, state_clock: Clock) -> None:
    clean = abandoned(state)
    state_clock.advance(400 * DAY)
    generation, dataset = clean.outputs[0].generation_id, clean.outputs[0].dataset_id
    row = {"dag": "shop", "name": "t", "dataset_id": dataset, "table_uuid": "u", "metadata_version": 1}
    with state.write() as tx:
        listed = [[generation, 1]]
        tx.execute(sa.insert(schema.open_tables).values(**row, updated_at=tx.now, listed=listed))
    purged(state)
    assert [each for each in all_of(state, schema.commits) if each["generation_id"] == generation]
    with state.write() as tx:
        tx.execute(sa.update(schema.open_tables).values(listed=[]))
    purged(state)
    assert not [each for each in all_of(state, schema.commits) if each["generation_id"] == generation]


def test_a_round_is_taken_up_where_it_was_left_and_starts_once_a_day(state: State, state_clock: Clock) -> None:
    corrected(state, state_clock, times=4)
    state_clock.advance(200 * DAY)
    steps = [purge_round.step(state, KEEP, limit=2) for _ in range(40)]
    taken = [each for each in steps if each is not None]
    assert all(each.examined <= 2 for each in taken)
    assert sum(taken, start=PurgeCounts()).tasks == 6
    assert steps[-1] is None, "the round is over"
    state_clock.advance(DAY)
    assert purge_round.step(state, KEEP) is not None


def test_one_dispatcher_purges_at_a_time(state: State, state_clock: Clock) -> None:
    if state.engine.dialect.name != "postgresql":
        pytest.skip("on SQLite a writer is alone")
    corrected(state, state_clock)
    purge_round.step(state, KEEP)
    with state.write() as tx:
        table = schema.operator_state
        tx.execute(tx.lock(sa.select(table.c.value).where(table.c.key == "purge"))).all()
        assert purge_round.step(state, KEEP) is None
    assert purge_round.step(state, KEEP) is not None
