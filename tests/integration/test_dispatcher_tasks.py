"""A pipeline task from claim to end: who may move it, and who may not any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from qo.api.contract.task import Claimed, EventBody, EventsRequest, NotClaimed, Outcome
from qo.core.lifecycle import Rejected
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import running
from qo.dispatcher.attempts.claiming import REPORT_S
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import creation, operator_actions
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.versions import cutover
from qo.errors import Forbidden, LeaseLost, NotFound, UsageError
from support.dispatcher.pipeline_tasks import (
    all_of,
    ask,
    beat,
    claimed,
    feed,
    fence,
    finish,
    lapse,
    partition_task,
    row_of,
    succeed,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", max_attempts=2, timeout_seconds=100, heartbeat_timeout_seconds=60),
    job("daily", reads="clean"),
)


@pytest.fixture
def clean(state: State) -> LiveJob:
    return live(deployed(state, SHOP), "shop.clean")


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run them in threads that start together; their answers or errors."""
    gate = threading.Barrier(len(calls))
    answers: list[object] = [None] * len(calls)

    def run(at: int) -> None:
        gate.wait()
        try:
            answers[at] = calls[at]()
        except Exception as error:
            answers[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return answers


def test_creating_twice_creates_once(state: State, clean: LiveJob) -> None:
    wanted = NewTask(job=clean, dedupe_key="manual:a")
    with state.write() as tx:
        assert [each.new for each in creation.create(tx, [wanted, wanted])] == [True, False]
    with state.write() as tx:
        assert [each.new for each in creation.create(tx, [wanted])] == [False]
    assert len(all_of(state, schema.tasks)) == 1


def test_a_task_takes_its_limits_from_its_job(state: State, clean: LiveJob) -> None:
    row = row_of(state, partition_task(state, clean, "p"))
    assert (row["max_retries"], row["lease_s"], row["timeout_seconds"]) == (1, 60.0, 100.0)
    assert (row["queue"], row["operator"]) == ("python", "shop.clean:run")
    assert row["released_at"] is None


def test_of_two_claims_at_once_one_gets_the_task(state: State, clean: LiveJob) -> None:
    for round_ in range(5):
        task = partition_task(state, clean, f"p{round_}")
        answers = at_once(*[partial(ask, state, task)] * 4)
        assert sum(isinstance(each, Claimed) for each in answers) == 1
        assert {each.reason for each in answers if isinstance(each, NotClaimed)} == {"running"}


def test_a_claim_repeated_with_its_lease_gets_the_same_answer(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    orders = live_source(state)
    feed(state, orders, "p", "1")
    task = partition_task(state, clean, "p")
    first = claimed(state, task, "lease-1")
    feed(state, orders, "p", "2")  # Replaced meanwhile: the pinned state stays.
    state_clock.advance(5)
    assert claimed(state, task, "lease-1") == first
    assert row_of(state, task)["attempt"] == 1


def test_a_claim_that_cannot_be_is_answered_with_the_reason(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    def reason(task_id: str) -> str:
        answer = ask(state, task_id)
        assert isinstance(answer, NotClaimed)
        return answer.reason

    assert reason("nothing") == "not_found"
    task = partition_task(state, clean, "p")
    held = claimed(state, task)
    assert reason(task) == "running"
    finish(state, held, Outcome.RETRYABLE)
    assert reason(task) == "not_due"
    state_clock.advance(60)
    finish(state, claimed(state, task), Outcome.RETRYABLE)
    assert reason(task) == "failed"
    done = partition_task(state, clean, "q")
    succeed(state, claimed(state, done))
    assert reason(done) == "completed"
    gone = partition_task(state, clean, "r")
    with state.write() as tx:
        operator_actions.cancel(tx, gone, "somebody")
    assert reason(gone) == "cancelled"


def test_a_task_of_a_retired_edition_is_not_due_until_a_rollback(state: State, clean: LiveJob) -> None:
    task = partition_task(state, clean, "p")
    staged(state, edited(SHOP, "clean", config={"a": 1}))
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "somebody", force=True)
    answer = ask(state, task)
    assert isinstance(answer, NotClaimed)
    assert answer.reason == "not_due"
    assert row_of(state, task)["released_at"] is None
    with state.write() as tx:
        cutover.rollback(tx, "shop", "somebody")
    claimed(state, task)


def test_an_exact_repeat_is_answered_and_changes_nothing(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    first = succeed(state, held)
    again = succeed(state, held)
    assert (first.repeated, again.repeated) == (False, True)
    assert (first.status, again.status) == ("completed", "completed")
    assert len(all_of(state, schema.commits)) == 1
    assert len(all_of(state, schema.events)) == 1


def test_two_completions_at_once_commit_once(state: State, clean: LiveJob) -> None:
    for round_ in range(5):
        held = claimed(state, partition_task(state, clean, f"p{round_}"))
        answers = at_once(partial(succeed, state, held), partial(succeed, state, held))
        assert sorted(each.repeated for each in answers) == [False, True]
    assert len(all_of(state, schema.commits)) == 5


def test_a_failure_is_repeated_even_after_the_next_attempt_has_begun(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    task = partition_task(state, clean, "p")
    held = claimed(state, task)
    finish(state, held, Outcome.RETRYABLE, error="no")
    state_clock.advance(60)
    claimed(state, task)
    assert finish(state, held, Outcome.RETRYABLE, error="no").repeated
    assert row_of(state, task)["attempt"] == 2


def test_who_has_failed_cannot_succeed_afterwards(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    finish(state, held, Outcome.RETRYABLE)
    with pytest.raises(LeaseLost, match="retried"):
        succeed(state, held)
    assert all_of(state, schema.commits) == []


def test_events_sent_again_by_the_same_attempt_are_kept_once(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    request = EventsRequest(**fence(held), events=[EventBody(output=0, cursor=5), EventBody(cursor=6)])
    with state.write() as tx:
        first = running.emit(tx, request)
    with state.write() as tx:
        again = running.emit(tx, request)
    assert (first.accepted, first.repeated) == (2, 0)
    assert (again.accepted, again.repeated) == (0, 2)
    assert first.event_ids == again.event_ids
    finish(state, held, events=[EventBody(cursor=6), EventBody(cursor=7)])
    assert len(all_of(state, schema.events)) == 3


def test_a_task_emits_events_of_its_own_outputs_only(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    of = clean.inputs[0]
    with state.write() as tx, pytest.raises(Forbidden):
        running.emit(tx, EventsRequest(**fence(held), events=[EventBody(dataset_id=of.dataset_id, cursor=1)]))
    with state.write() as tx, pytest.raises(UsageError):
        running.emit(tx, EventsRequest(**fence(held), events=[EventBody(output=1, cursor=1)]))
    assert all_of(state, schema.events) == []


def test_a_stale_attempt_changes_nothing(state: State, clean: LiveJob, state_clock: Clock) -> None:
    task = partition_task(state, clean, "p")
    old = claimed(state, task)
    state_clock.advance(61)
    lapse(state, old)
    state_clock.advance(60)
    new = claimed(state, task)
    before = row_of(state, task)
    with pytest.raises(LeaseLost):
        succeed(state, old)
    with pytest.raises(LeaseLost):
        beat(state, old)
    with state.write() as tx, pytest.raises(LeaseLost):
        running.emit(tx, EventsRequest(**fence(old), events=[EventBody(cursor=1)]))
    with state.write() as tx, pytest.raises(LeaseLost):
        running.page(tx, EventsRequest(**fence(old), events=[EventBody(cursor=1)]), 0, None)
    assert row_of(state, task) == before
    assert (all_of(state, schema.commits), all_of(state, schema.events)) == ([], [])
    assert succeed(state, new).status == "completed"


def test_a_wrong_lease_is_refused(state: State, clean: LiveJob) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    wrong = held.model_copy(update={"lease_id": "another"})
    ahead = held.model_copy(update={"attempt": 2})
    for each in (wrong, ahead):
        with pytest.raises(LeaseLost):
            finish(state, each)
        with pytest.raises(LeaseLost):
            beat(state, each)
    with pytest.raises(NotFound):
        finish(state, held.model_copy(update={"work": held.work.model_copy(update={"task_id": "nothing"})}))


def test_a_lease_name_that_is_used_again_does_not_let_the_old_attempt_in(
    state: State, clean: LiveJob, state_clock: Clock
) -> None:
    task = partition_task(state, clean, "p")
    old = claimed(state, task, "same")
    state_clock.advance(61)
    lapse(state, old)
    state_clock.advance(60)
    claimed(state, task, "same")
    with pytest.raises(LeaseLost):
        succeed(state, old)


def test_a_worker_that_died_is_replaced(state: State, clean: LiveJob, state_clock: Clock) -> None:
    task = partition_task(state, clean, "p")
    dead = claimed(state, task)
    assert isinstance(lapse(state, dead), Rejected)
    state_clock.advance(61)
    lapse(state, dead)
    row = row_of(state, task)
    assert (row["status"], row["released_at"], row["late_lease_id"]) == ("pending", None, dead.lease_id)
    state_clock.advance(60)
    second = claimed(state, task)
    assert second.attempt == 2
    assert row_of(state, task)["late_lease_id"] is None
    assert second.work.outputs[0].prefix != dead.work.outputs[0].prefix
    outcomes = {each["attempt"]: each["outcome"] for each in all_of(state, schema.attempts)}
    assert outcomes == {1: "timed_out", 2: None}


def test_who_is_heard_of_keeps_its_lease_until_its_time_is_over(
    state: State, clean: LiveJob, state_clock: Clock
) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    state_clock.advance(40)
    beat(state, held)
    state_clock.advance(40)
    assert beat(state, held, progress={"rows": 7}).cancel_requested is False
    assert row_of(state, held.work.task_id)["progress"] == {"rows": 7}
    state_clock.advance(61)
    with pytest.raises(LeaseLost):
        beat(state, held)


def test_a_lease_reaches_beyond_the_time_of_the_attempt_only_for_its_report(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    started = row_of(state, held.work.task_id)["started_at"]
    assert (held.lease_expires_at - started).total_seconds() == pytest.approx(60)
    assert held.heartbeat_s == 20
    for _ in range(3):
        state_clock.advance(30)
        assert (beat(state, held).lease_expires_at - started).total_seconds() <= 100 + REPORT_S
    state_clock.advance(10 + REPORT_S + 1)
    with pytest.raises(LeaseLost):
        beat(state, held)


def test_late_reply_an_attempt_that_was_given_up_may_still_succeed(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    task = partition_task(state, clean, "p")
    held = claimed(state, task)
    state_clock.advance(61)
    lapse(state, held)
    assert succeed(state, held).status == "completed"
    assert succeed(state, held).repeated
    assert len(all_of(state, schema.commits)) == 1
    assert [each["outcome"] for each in all_of(state, schema.attempts)] == ["completed"]


def test_late_reply_counts_after_the_last_attempt_too(state: State, clean: LiveJob, state_clock: Clock) -> None:
    task = partition_task(state, clean, "p")
    for _ in range(2):
        held = claimed(state, task)
        state_clock.advance(61)
        lapse(state, held)
        state_clock.advance(60)
    assert row_of(state, task)["status"] == "failed"
    assert succeed(state, held).status == "completed"


def test_late_reply_of_a_failure_is_refused_as_it_has_been_counted(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    state_clock.advance(61)
    lapse(state, held)
    with pytest.raises(LeaseLost):
        finish(state, held, Outcome.RETRYABLE)
    assert row_of(state, held.work.task_id)["retry_count"] == 1


def test_late_reply_does_not_undo_a_cancellation(state: State, clean: LiveJob, state_clock: Clock) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    state_clock.advance(61)
    lapse(state, held)
    with state.write() as tx:
        operator_actions.cancel(tx, held.work.task_id, "somebody")
    with pytest.raises(LeaseLost):
        succeed(state, held)
    assert all_of(state, schema.commits) == []


def test_completing_against_the_reaper_ends_in_one_of_both_ways(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    for round_ in range(5):
        held = claimed(state, partition_task(state, clean, f"p{round_}"))
        state_clock.advance(61)
        at_once(partial(succeed, state, held), partial(lapse, state, held))
        assert row_of(state, held.work.task_id)["status"] == "completed"
    assert len(all_of(state, schema.commits)) == 5


def test_completing_against_the_next_claim_commits_from_one_attempt(
    state: State,
    clean: LiveJob,
    state_clock: Clock,
) -> None:
    for round_ in range(5):
        held = claimed(state, partition_task(state, clean, f"p{round_}"))
        state_clock.advance(61)
        lapse(state, held)
        state_clock.advance(60)
        late, next_ = at_once(partial(succeed, state, held), partial(ask, state, held.work.task_id))
        if isinstance(late, LeaseLost):
            assert isinstance(next_, Claimed)
            succeed(state, next_)
        else:
            assert isinstance(next_, NotClaimed)
    assert len(all_of(state, schema.commits)) == 5


def live_source(state: State) -> LiveJob:
    return live(loaded(state), "shop.orders")
