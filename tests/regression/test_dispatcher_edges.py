"""The edges of a running dispatcher: its database taken away or damaged under it, and questions with short answers."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import ClaimRequest, CompleteRequest, EventBody, Outcome
from qo.api.contract.why import Verdict, WhyAnswer
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import router
from qo.dispatcher.http import health
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema, upgrade
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.views.why.answer import why
from qo.errors import CorruptRecord, NotFound, Refused, Unavailable, UsageError
from support.cli.command import Qo
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, job, source

MAILS = dag("shop", source("orders"), job("mail", reads="orders", outputs=0, max_attempts=1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def opened(path: Path) -> State:
    state = open_state(f"sqlite:{path}")
    upgrade.upgrade(state)
    return state


def epoch(state: State) -> Any:
    with state.read() as tx:
        return tx.value(sa.select(schema.topology.c.epoch))


# The file of the database


@pytest.mark.fast
@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_taken_away_is_not_written_to(path: Path, replaced: bool) -> None:
    state = opened(path)
    path.rename(path.with_suffix(".old"))
    if replaced:
        opened(path).close()
    with pytest.raises(Unavailable, match="moved or removed"), state.write() as tx:
        tx.execute(sa.update(schema.topology).values(epoch=7))
    with pytest.raises(Unavailable, match="restart the dispatcher"):
        epoch(state)
    if not replaced:
        path.with_suffix(".old").rename(path)
        assert epoch(state) == 0  # Back in its place, it goes on.
    state.close()


@pytest.mark.fast
def test_a_dispatcher_without_its_file_is_not_ready(path: Path) -> None:
    state = opened(path)
    here: Any = type("Here", (), {"state": state})()
    assert health.readyz(here).status == "ok"
    path.unlink()
    with pytest.raises(Unavailable, match="moved or removed"):
        health.readyz(here)
    state.close()


@pytest.mark.fast
def test_a_damaged_page_is_corruption_and_not_an_outage(path: Path) -> None:
    opened(path).close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    state = open_state(f"sqlite:{path}")
    here: Any = type("Here", (), {"state": state})()
    with pytest.raises(CorruptRecord, match="restore the backup"):
        epoch(state)
    with pytest.raises(Unavailable, match="damaged"):
        health.readyz(here)
    state.close()


@pytest.mark.fast
def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE tasks (id TEXT)")
    theirs.close()
    state = open_state(f"sqlite:{path}")
    with pytest.raises(Refused, match="tables of something else: tasks"):
        upgrade.upgrade(state)
    with state.read() as tx:
        assert sa.inspect(tx.connection).get_table_names() == ["tasks"]
    state.close()


@pytest.mark.fast
def test_damage_that_is_met_late_is_one_line_too(tmp_path: Path) -> None:
    qo = Qo(tmp_path)
    qo.ok("db", "upgrade")
    path = tmp_path / ".qo/state.db"
    found = sqlite3.connect(path)
    (size,) = found.execute("PRAGMA page_size").fetchone()
    pages = found.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'dags' AND rootpage > 0").fetchall()
    found.close()
    with path.open("r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * size)
            file.write(b"damaged " * (size // 8))
    answer = qo.here("dag", "list")
    assert (answer.code, len(answer.err.splitlines())) == (7, 1), answer


# Jobs that only have effects


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
    assert "is run by w1" in ask(state, "shop.mail@a").lines[0]
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
