"""`qo why` about tasks of jobs without datasets, and about questions that make no sense."""

from __future__ import annotations

import pytest

from qo.api.contract.task import ClaimRequest, CompleteRequest, EventBody, Outcome
from qo.api.contract.why import Verdict, WhyAnswer
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import router
from qo.dispatcher.sources import emission
from qo.dispatcher.state.database import State
from qo.dispatcher.views.why.answer import why
from qo.errors import NotFound, UsageError
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, job, source

MAILS = dag("shop", source("orders"), job("mail", reads="orders", outputs=0, max_attempts=1))


def ask(state: State, target: str) -> WhyAnswer:
    with state.read() as tx:
        return why(tx, target)


def emit(state: State, partition: str) -> None:
    with state.write() as tx:
        said = EventBody(output=0, partition_key=partition)
        emission.emit(tx, "shop", "orders", key=partition, events=[said], by="ada")


def test_why_tells_of_the_task_of_a_job_without_datasets(state: State) -> None:
    deployed(state, MAILS)
    silent = ask(state, "shop.mail@a")
    assert (silent.verdict, "has not announced" in str(silent.blocked_by)) == (Verdict.UNKNOWN, True)
    emit(state, "a")
    assert "waits to be routed" in str(ask(state, "shop.mail@a").blocked_by)
    router.tick(state)
    waiting = ask(state, "shop.mail@a")
    assert waiting.verdict is Verdict.UNDER_WAY
    assert [str(step.kind) for step in waiting.steps][-3:] == ["event", "delivery", "task"]
    (task_id,) = {step.task_id for step in waiting.steps if step.job == "shop.mail" and step.task_id}
    assert ask(state, "shop.mail").verdict is Verdict.UNDER_WAY

    with state.write() as tx:
        woken(tx, task_id)
    assert ask(state, "shop.mail@a").do == "see whether a worker runs: qo worker list --runtime python"
    with state.write() as tx:
        claimed = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="w1"), "file:data")
        assert claimed.status == "claimed"
        fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
    assert "is running on w1" in ask(state, "shop.mail@a").lines[0]
    with state.write() as tx:
        completion.complete(tx, CompleteRequest(**fence, outcome=Outcome.SUCCESS))
    done = ask(state, "shop.mail@a")
    assert (done.verdict, done.lines[0].startswith("shop.mail@a is done: ")) == (Verdict.THERE, True)
    assert done.dataset == "shop.mail"
    assert ask(state, "shop.mail").verdict is Verdict.THERE


def test_what_to_do_about_a_task_that_failed_is_a_command_there_is(state: State) -> None:
    deployed(state, MAILS)
    emit(state, "a")
    router.tick(state)
    (task_id,) = {step.task_id for step in ask(state, "shop.mail@a").steps if step.job == "shop.mail"}
    assert task_id is not None
    with state.write() as tx:
        woken(tx, task_id)
        claimed = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="w1"), "file:data")
        assert claimed.status == "claimed"
        fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
        completion.complete(tx, CompleteRequest(**fence, outcome=Outcome.FATAL, error="no"))
    failed = ask(state, "shop.mail@a")
    assert (failed.verdict, failed.do) == (Verdict.BLOCKED, f"fix the cause, then qo run replay {task_id}")


def test_why_refuses_what_is_no_cursor_and_no_job(state: State) -> None:
    deployed(state, MAILS)
    for target in ("shop.orders@cursor:abc", "shop.orders@cursor:", "shop.mail@cursor:-1"):
        with pytest.raises(UsageError, match="cursor:N"):
            ask(state, target)
    with pytest.raises(NotFound, match="there is no dataset"):
        ask(state, "shop.nope@a")
