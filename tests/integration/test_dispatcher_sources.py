"""What sources say: kept once, as a task, its commits and its events, or not at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from qo.api.contract.source import EmitAnswer
from qo.api.contract.task import EventBody, EventsRequest
from qo.core.pipeline.dag import SourceKind
from qo.dispatcher.attempts import running
from qo.dispatcher.sources import emission, live_sources
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import pausing
from qo.errors import Forbidden, IdempotencyConflict, NotFound, Refused, UsageError
from support.dispatcher.pipeline_tasks import claimed, feed, fence, route_all, tasks_of, woken
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.dispatcher.pipelines import job as reactive

SHOP = dag("shop", source("orders"), reactive("clean", reads="orders"))
FEED = dag("feed", source("live", "always_on"), reactive("clean", reads="live"))
DAY = EventBody(partition_key="2024-01-01", start=0, end=10)


def emit(state: State, *events: EventBody, key: str = "k", **how: Any) -> EmitAnswer:
    with state.write() as tx:
        return emission.emit(tx, "shop", "orders", key=key, events=events or [DAY], by="anna", **how)


def count(state: State, table: sa.Table, *where: Any) -> int:
    with state.read() as tx:
        return int(tx.value(sa.select(sa.func.count()).select_from(table).where(*where)))


def test_an_emission_is_a_completed_task_a_partition_and_an_event(state: State) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    answer = emit(state)
    assert (answer.accepted, answer.repeated, answer.paused) == (1, False, False)
    with state.read() as tx:
        task = tx.one(sa.select(schema.tasks).where(schema.tasks.c.id == answer.task_ids[0]))
        partition = tx.one(sa.select(schema.partitions))
        event = tx.one(sa.select(schema.events))
    assert task is not None
    assert (task["status"], task["dedupe_key"], task["worker_id"]) == ("completed", "manual:k", "anna")
    assert partition is not None
    assert (partition["partition_key"], partition["start"], partition["end"]) == ("2024-01-01", 0, 10)
    assert (partition["location"], partition["task_id"]) == (None, task["id"])
    assert event is not None
    assert (event["id"], event["producer_task_id"]) == (answer.event_ids[0], task["id"])
    assert event["generation_id"] == orders.outputs[0].generation_id


def test_the_same_emission_again_is_answered_as_before_and_does_nothing(state: State) -> None:
    deployed(state, SHOP)
    first, again = emit(state), emit(state)
    assert again == first.model_copy(update={"repeated": True})
    assert count(state, schema.events) == count(state, schema.commits) == 1
    assert count(state, schema.invalidations) == 0


def test_a_key_that_came_with_other_events_is_refused(state: State) -> None:
    deployed(state, SHOP)
    emit(state)
    with pytest.raises(IdempotencyConflict, match="another key"):
        emit(state, EventBody(partition_key="2024-01-02"))
    assert count(state, schema.events) == 1


def test_the_same_key_belongs_to_each_source_by_itself(state: State) -> None:
    deployed(state, dag("shop", source("orders"), source("returns")))
    emit(state)
    with state.write() as tx:
        other = emission.emit(tx, "shop", "returns", key="k", events=[EventBody(cursor=5)], by="anna")
    assert not other.repeated


def test_two_who_emit_the_same_at_once_emit_it_once(state: State) -> None:
    deployed(state, SHOP)
    answers: list[EmitAnswer] = []
    threads = [threading.Thread(target=lambda: answers.append(emit(state))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(each.repeated for each in answers) == [False] + [True] * 7
    assert len({each.event_ids[0] for each in answers}) == 1
    assert count(state, schema.events) == count(state, schema.commits) == 1


def test_a_partition_that_is_emitted_under_another_key_replaces_and_invalidates(state: State) -> None:
    deployed(state, SHOP)
    emit(state, key="one")
    emit(state, key="two")
    assert count(state, schema.partitions) == 1
    assert count(state, schema.commits) == count(state, schema.events) == 2


def test_a_cursor_moves_its_generation_on_and_commits_nothing(state: State) -> None:
    deployed(state, SHOP)
    emit(state, EventBody(cursor=9), key="nine")
    emit(state, EventBody(cursor=4), key="four")
    with state.read() as tx:
        assert tx.value(sa.select(sa.func.max(schema.generations.c.cursor))) == 9
    assert count(state, schema.commits) == 0


def test_where_the_data_lies_is_committed_but_not_on_the_word_of_a_webhook(state: State) -> None:
    deployed(state, SHOP)
    placed = {"location": "s3://in/a/", "files": ["x.csv"], "size": 12}
    emit(state, EventBody(partition_key="a", attributes=placed), key="a")
    with state.read() as tx:
        row = tx.one(sa.select(schema.partitions))
    assert row is not None
    assert (row["location"], row["files"], row["bytes"]) == ("s3://in/a/", ["x.csv"], 12)
    deployed(state, dag("hooks", source("in", "webhook", of={"webhook_path": "/in", "secret": "s"})))
    with state.write() as tx:
        said = [EventBody(partition_key="b", attributes=placed)]
        emission.emit(tx, "hooks", "in", key="b", events=said, by="webhook", kind=SourceKind.WEBHOOK)
        row = tx.one(sa.select(schema.partitions).where(schema.partitions.c.partition_key == "b"))
    assert row is not None
    assert (row["location"], row["files"]) == (None, None)


def test_an_emission_reaches_the_active_and_the_staged_edition(state: State) -> None:
    deployed(state, SHOP)
    emit(state, key="before")
    staged(state, edited(SHOP, "orders", config={"more": True}))
    both = emit(state, key="both")
    assert len(both.task_ids) == len(set(both.event_ids)) == 2
    assert emit(state, key="both") == both.model_copy(update={"repeated": True})
    late = emit(state, key="before")
    assert (len(late.task_ids), late.repeated) == (2, False)
    assert emit(state, key="before").repeated


def test_one_edition_can_be_spoken_to_alone(state: State) -> None:
    first = live(deployed(state, SHOP), "shop.orders")
    staged(state, edited(SHOP, "orders", config={"more": True}))
    answer = emit(state, edition_id=first.edition_id)
    assert len(answer.task_ids) == 1
    rest = emit(state)
    assert set(rest.task_ids) > set(answer.task_ids)
    with pytest.raises(NotFound):
        emit(state, key="other", edition_id="gone")


def test_who_is_no_live_source_cannot_speak(state: State) -> None:
    deployed(
        state, dag("shop", source("orders", "cron", of={"schedule": "* * * * *"}), reactive("c", reads="orders"))
    )
    deployed(state, FEED)

    def said(dag_: str, job: str, kind: SourceKind | None = None) -> EmitAnswer:
        with state.write() as tx:
            return emission.emit(tx, dag_, job, key="k", events=[DAY], by="anna", kind=kind)

    with pytest.raises(NotFound):
        said("shop", "nothing")
    with pytest.raises(Refused, match="no source"):
        said("shop", "c")
    with pytest.raises(Refused, match="always on"):
        said("feed", "live")
    with pytest.raises(Refused, match="cron source"):
        said("shop", "orders", SourceKind.WEBHOOK)
    assert said("shop", "orders", SourceKind.CRON).accepted == 1


@pytest.mark.parametrize(
    "events",
    [
        [EventBody(partition_key="a"), EventBody(partition_key="a")],
        [EventBody(partition_key="a/b")],
        [EventBody()],
        [EventBody(partition_key="a", output=7)],
        [EventBody(partition_key="a", generation_id="g")],
        [EventBody(partition_key="a", attributes={"location": 7})],
        [EventBody(partition_key="a", attributes={"location": "s3://x/", "files": [7]})],
    ],
)
def test_a_malformed_event_leaves_nothing(state: State, events: list[EventBody]) -> None:
    deployed(state, SHOP)
    with pytest.raises((UsageError, Refused)):
        emit(state, EventBody(partition_key="good"), *events)
    assert count(state, schema.events) == count(state, schema.emissions) == count(state, schema.tasks) == 0
    assert emit(state).accepted == 1


def test_what_a_paused_source_says_is_kept(state: State) -> None:
    deployed(state, SHOP)
    with state.write() as tx:
        pausing.pause(tx, "shop.orders", "holidays", "anna")
    assert emit(state).paused
    assert count(state, schema.events) == 1


def test_live_sources_are_listed_in_pages_with_what_they_remember(state: State) -> None:
    cron = {"schedule": "0 3 * * *", "timezone": "Europe/Berlin"}
    deployed(state, dag("shop", source("orders"), source("nightly", "cron", of=cron)))
    nightly = live(loaded(state), "shop.nightly").edition_id
    with state.write() as tx:
        live_sources.remember(tx, nightly, {"after": 1})
    with state.read() as tx:
        first = live_sources.list_sources(tx, limit=1)
        second = live_sources.list_sources(tx, after=first.next, limit=1)
        assert second.next is None
        (found,) = live_sources.list_sources(tx, kind="cron").sources
    assert {each.job for page in (first, second) for each in page.sources} == {"orders", "nightly"}
    assert (found.edition_id, found.memory, found.config) == (nightly, {"after": 1}, cron | found.config)
    assert found.active


def test_what_is_too_large_or_nobodys_is_not_remembered(state: State) -> None:
    deployed(state, FEED)
    deployed(state, SHOP)
    topology = loaded(state)
    with state.write() as tx, pytest.raises(NotFound):
        live_sources.remember(tx, "gone", {})
    with state.write() as tx, pytest.raises(Refused):
        live_sources.remember(tx, live(topology, "feed.live").edition_id, {})
    with state.write() as tx, pytest.raises(UsageError):
        live_sources.remember(tx, live(topology, "shop.orders").edition_id, "x" * 300_000)


def test_events_of_a_task_may_name_their_dataset_in_either_spelling(state: State) -> None:
    shop = deployed(state, SHOP)
    feed(state, live(shop, "shop.orders"), "2024-01-01")
    route_all(state)
    (task,) = tasks_of(state, live(shop, "shop.clean"))
    with state.write() as tx:
        woken(tx, task["id"])
    held, made = claimed(state, task["id"]), live(shop, "shop.clean").outputs[0]
    ours = {"dataset_id": made.dataset_id, "generation_id": made.generation_id, "partition_key": "a"}
    theirs = {"dataset_uuid": made.dataset_id, "dataset_version": made.generation_id, "partition_key": "a"}
    for told, repeated in ((ours, 0), (theirs, 1), ({**theirs, "dataset_id": made.dataset_id}, 1)):
        request = EventsRequest.model_validate({**fence(held), "events": [told]})
        with state.write() as tx:
            assert running.emit(tx, request).repeated == repeated, told
    with pytest.raises(ValidationError, match="dataset_uuid is another name of dataset_id: give one of them"):
        EventBody.model_validate({**theirs, "dataset_id": "another"})
    other = EventsRequest.model_validate({**fence(held), "events": [{**theirs, "dataset_version": "another"}]})
    with state.write() as tx, pytest.raises(Forbidden):
        running.emit(tx, other)
    assert {"dataset_uuid", "dataset_version"} <= EventBody.model_json_schema()["properties"].keys()
