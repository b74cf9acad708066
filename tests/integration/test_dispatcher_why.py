"""qo why: the chain from the source to the output, or the first thing that blocks it."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import ClaimRequest, CompleteRequest, EventBody, Outcome, OutputBody
from qo.api.contract.why import StepKind, Verdict, WhyAnswer
from qo.core.lifecycle import Cancel
from qo.core.pipeline.event import Event
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import router
from qo.dispatcher.events.event_log import accept
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import rows
from qo.dispatcher.versions import cutover, pausing
from qo.dispatcher.views.why.answer import why
from qo.errors import NotFound
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged

DAY = "2024-01-02"
SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", max_attempts=1),
    job("daily", reads="clean"),
    publish={"orders_clean": "clean", "totals": "daily"},
)
JOIN = dag("j", source("left"), source("right"), job("both", reads=["left", "right"], join="all"))
COUNT = dag("c", source("feed"), job("count", reads="feed", execution_strategy="PerUpdate"))


def ask(state: State, target: str) -> WhyAnswer:
    with state.read() as tx:
        return why(tx, target)


def emit(state: State, name: str, **fields: Any) -> None:
    said = EventBody(output=0, **fields)
    with state.write() as tx:
        emission.emit(tx, *name.split("."), key=str(sorted(fields.items())), events=[said], by="ada")


def task_of(state: State, name: str) -> str:
    with state.read() as tx:
        table = schema.tasks
        query = (
            sa.select(table.c.id)
            .where(table.c.dag + "." + table.c.job == name)
            .order_by(table.c.created_at.desc())
        )
        return tx.value(query)


def begin(state: State, task_id: str) -> dict[str, Any]:
    with state.write() as tx:
        woken(tx, task_id)
        claimed = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="w1"), "file:data")
    assert claimed.status == "claimed"
    return {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}


def finish(state: State, task_id: str, **fields: Any) -> None:
    fence = begin(state, task_id)
    with state.write() as tx:
        completion.complete(tx, CompleteRequest(**{**fence, "outcome": Outcome.SUCCESS, **fields}))


def kinds(answer: WhyAnswer) -> list[str]:
    return [str(step.kind) for step in answer.steps]


def test_what_is_there_is_explained_from_the_source_event_down(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    router.tick(state)
    finish(state, task_of(state, "shop.clean"), outputs=[OutputBody(output=0, rows=7)])
    router.tick(state)
    finish(state, task_of(state, "shop.daily"), outputs=[OutputBody(output=0, rows=1)])
    answer = ask(state, f"totals@{DAY}")
    assert answer.verdict is Verdict.THERE
    assert (answer.blocked_by, answer.do) == (None, None)
    below = ["event", "delivery", "task", "commit"]
    assert kinds(answer)[-8:] == [*below, *below]
    assert [step.job for step in answer.steps if step.kind is StepKind.TASK][-2:] == ["shop.clean", "shop.daily"]
    assert "7 rows" in next(step.text for step in answer.steps if step.dataset == "orders_clean")
    assert answer.lines[0].startswith(f"totals@{DAY} is there: committed as revision")
    assert ask(state, f"shop.daily@{DAY}").steps == answer.steps
    assert ask(state, "totals").verdict is Verdict.THERE
    assert "has been processed" in ask(state, "totals").lines[0]


def test_what_nobody_announced_leads_to_the_source(state: State) -> None:
    deployed(state, SHOP)
    answer = ask(state, f"totals@{DAY}")
    assert answer.verdict is Verdict.UNKNOWN
    assert answer.blocked_by is not None
    assert f"source shop.orders (manual) has not announced shop.orders@{DAY}" in answer.blocked_by
    assert answer.do is not None
    assert "qo emit shop.orders" in answer.do
    assert ask(state, "totals").verdict is Verdict.UNKNOWN


def test_an_event_that_is_not_routed_yet_is_under_way(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    answer = ask(state, f"totals@{DAY}")
    assert answer.verdict is Verdict.UNDER_WAY
    assert "waits to be routed" in str(answer.blocked_by)
    assert "1 event of shop.orders waits to be routed" in str(ask(state, "totals").blocked_by)


def test_a_pause_upstream_is_found_with_who_and_why_and_what_to_do(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    router.tick(state)
    with state.write() as tx:
        pausing.pause(tx, "shop.clean", "deploy", "ada")
    for target in (f"orders_clean@{DAY}", f"totals@{DAY}", "totals"):
        answer = ask(state, target)
        assert answer.verdict is Verdict.BLOCKED
        assert f"task {task_of(state, 'shop.clean')} of shop.clean waits: paused by ada: deploy" in answer.lines[0]
        assert answer.do == "qo dag resume shop.clean"


def test_a_failed_task_is_named_with_its_error_and_how_to_replay_it(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    router.tick(state)
    task = task_of(state, "shop.clean")
    finish(state, task, outcome=Outcome.RETRYABLE, error="ValueError: no such column\nmore")
    answer = ask(state, f"totals@{DAY}")
    assert answer.verdict is Verdict.BLOCKED
    assert "failed after 1 attempt: ValueError: no such column" in answer.lines[0]
    assert "more" not in answer.lines[0]
    assert f"qo run replay {task}" in str(answer.do)
    assert kinds(answer)[-3:] == ["event", "delivery", "task"]


def test_a_task_says_whether_it_waits_runs_or_was_cancelled(state: State) -> None:
    deployed(state, SHOP)
    for key in ("a", "b", "c", "d"):
        emit(state, "shop.orders", partition_key=key)
        router.tick(state)
    with state.read() as tx:
        table = schema.tasks
        found = tx.all(sa.select(table.c.partition_key, table.c.id).where(table.c.job == "clean"))
        by_key = {row["partition_key"]: row["id"] for row in found}
    begin(state, by_key["b"])
    with state.write() as tx:
        row = rows.load(tx, by_key["c"])
        rows.move(tx, row, Cancel(token=tx.ambient.token(), by="ada", reason="wrong day"))
        tx.execute(sa.update(table).where(table.c.id == by_key["d"]).values(released_at=tx.now))
    said = {key: ask(state, f"totals@{key}") for key in by_key}
    assert "waits to be released" in said["a"].lines[0]
    assert "is running on w1, attempt 1, lease until" in said["b"].lines[0]
    with state.write() as tx:
        missing = {"phase": "start", "waiting": "waits for Spark executors: spark://h:7077 has given none for 9 s"}
        tx.execute(sa.update(table).where(table.c.id == by_key["b"]).values(progress=missing))
    assert " UTC; waits for Spark executors: spark://h:7077" in ask(state, "totals@b").lines[0]
    assert "was cancelled by ada: wrong day" in said["c"].lines[0]
    assert "not claimed since" in said["d"].lines[0]
    assert said["d"].do == "see whether a worker runs: qo worker list --runtime python"
    assert [said[key].verdict for key in "abc"] == [Verdict.UNDER_WAY, Verdict.UNDER_WAY, Verdict.BLOCKED]
    with state.write() as tx:
        edition = live(loaded(state), "shop.clean").edition_id
        tx.insert(schema.holds, [{"edition_id": edition, "reason": "queue spark is full", "since": tx.now}])
    assert "waits: queue spark is full" in ask(state, "totals@a").lines[0]


def test_a_task_that_completed_without_the_partition_is_told(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    router.tick(state)
    finish(state, task_of(state, "shop.clean"))
    answer = ask(state, f"orders_clean@{DAY}")
    assert answer.verdict is Verdict.BLOCKED
    assert f"completed and committed nothing as orders_clean@{DAY}" in answer.lines[0]


def test_a_join_leads_to_the_side_that_is_missing(state: State) -> None:
    deployed(state, JOIN)
    emit(state, "j.left", partition_key=DAY)
    router.tick(state)
    answer = ask(state, f"j.both@{DAY}")
    assert answer.verdict is Verdict.UNKNOWN
    assert f"j.both waits for partition {DAY} on input right: nothing upstream has announced it" in answer.lines[0]
    assert "waits for partition" in str(ask(state, "j.both").blocked_by)


def test_a_join_that_is_younger_than_its_input_leads_to_the_side_that_is_missing(state: State) -> None:
    deployed(state, dag("up", source("a"), job("left", reads="a"), publish={"left": "left"}))
    emit(state, "up.a", partition_key=DAY)
    router.tick(state)
    finish(state, task_of(state, "up.left"), outputs=[OutputBody(output=0, partition_key=DAY)])
    router.tick(state)
    deployed(state, dag("j", source("right"), job("both", reads=[{"dataset": "left"}, "right"], join="all")))
    answer = ask(state, f"j.both@{DAY}")
    assert answer.verdict is Verdict.UNKNOWN
    assert f"j.both waits for partition {DAY} on input right: nothing upstream has announced it" in answer.lines[0]
    emit(state, "j.right", partition_key=DAY)
    assert ask(state, f"j.both@{DAY}").verdict is Verdict.UNDER_WAY


def test_a_cursor_is_explained_like_a_partition(state: State) -> None:
    deployed(state, COUNT)
    emit(state, "c.feed", cursor=7)
    router.tick(state)
    assert ask(state, "c.feed@7").verdict is Verdict.THERE
    assert ask(state, "c.feed@cursor:8").verdict is Verdict.UNKNOWN
    waiting = ask(state, "c.count@cursor:7")
    assert waiting.verdict is Verdict.UNDER_WAY
    assert "of c.count waits to be released" in waiting.lines[0]
    finish(state, task_of(state, "c.count"), outputs=[OutputBody(output=0, cursor=7, rows=3)])
    done = ask(state, "c.count@7")
    assert done.verdict is Verdict.THERE
    assert kinds(done)[-4:] == ["event", "delivery", "task", "commit"]
    beyond = ask(state, "c.count@8")
    assert beyond.verdict is Verdict.UNKNOWN
    assert "made no c.count@8 from it" in beyond.lines[0]


def test_an_event_and_a_task_can_be_asked_for_by_id(state: State) -> None:
    topology = deployed(state, SHOP)
    made = live(topology, "shop.orders").outputs[0]
    said = Event(dataset_id=made.dataset_id, generation_id=made.generation_id, partition_key=DAY)
    with state.write() as tx:
        id_ = accept(tx, "p", [said]).ids[0]
    assert ask(state, id_).verdict is Verdict.UNDER_WAY
    router.tick(state)
    assert "at shop.clean it is consumed by task" in ask(state, id_).lines[-1]
    by_task = ask(state, task_of(state, "shop.clean"))
    assert kinds(by_task) == ["event", "delivery", "task"]
    with pytest.raises(NotFound):
        ask(state, "00000000-0000-5000-8000-000000000000")
    with pytest.raises(NotFound):
        ask(state, "nowhere@a")


def test_before_its_first_cutover_and_after_a_new_one_the_right_generation_is_meant(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    router.tick(state)
    finish(state, task_of(state, "shop.clean"), outputs=[OutputBody(output=0)])
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    assert ask(state, f"orders_clean@{DAY}").verdict is Verdict.THERE
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ada", force=True)
    answer = ask(state, f"orders_clean@{DAY}")
    assert answer.verdict is Verdict.UNDER_WAY
    assert "the reconciler will create one" in answer.lines[0]
