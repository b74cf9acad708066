"""Tasks that are created completed: written once, with the rows that a worker would have left."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import EventBody
from qo.core.lifecycle import Claim, Command, Complete
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import rows
from qo.dispatcher.tasks.completed_tasks import CompletedTask, create_completed
from qo.dispatcher.tasks.creation import NewTask, create
from support.dispatcher.pipelines import dag, deployed, live, source
from support.dispatcher.statement_counts import counted

SHOP = dag("shop", source("orders"))
OWN = {"id", "dedupe_key", "token", "lease_id", "settled_lease_id", "task_id"}  # Of each task.


def new_task(job: LiveJob, key: str) -> NewTask:
    return NewTask(job=job, dedupe_key=f"manual:{key}", partition_key="p", attributes={"a": 1})


def step(tx: Tx, task_id: str, command: Command) -> None:
    moved = rows.move(tx, rows.load(tx, task_id), command)
    assert isinstance(moved, rows.Moved)


def stored(tx: Tx, task_id: str) -> list[dict[str, Any]]:
    """The row of a task and those of its attempts, without what belongs to it alone."""
    tasks, attempts = schema.tasks, schema.attempts
    found = [
        *tx.all(sa.select(tasks).where(tasks.c.id == task_id)),
        *tx.all(sa.select(attempts).where(attempts.c.task_id == task_id)),
    ]
    return [{name: value for name, value in row.items() if name not in OWN} for row in found]


def test_a_task_that_is_created_completed_is_as_a_worker_would_have_left_it(state: State) -> None:
    job = live(deployed(state, SHOP), "shop.orders")
    worked, at_once = new_task(job, "worked"), new_task(job, "at once")
    with state.write() as tx:
        create(tx, [worked])
        lease_id = derive_id("lease", worked.task_id, 1)
        step(tx, worked.task_id, Claim(tx.ambient.token(), lease_id=lease_id, worker_id="ann"))
        step(tx, worked.task_id, Complete(tx.ambient.token(), lease_id=lease_id, output={"n": 1}))
        [row] = create_completed(tx, [CompletedTask(at_once, "ann", {"n": 1})])
        assert stored(tx, at_once.task_id) == stored(tx, worked.task_id)
        assert len(stored(tx, at_once.task_id)) == 2
        assert row == rows.load(tx, at_once.task_id)
        assert create_completed(tx, [CompletedTask(at_once, "bob", {"n": 2})]) == []
        assert rows.load(tx, at_once.task_id) == row


def test_an_emission_writes_its_task_and_its_attempt_once(state: State) -> None:
    deployed(state, SHOP)
    with counted(state) as counts, state.write() as tx:
        emission.emit(tx, "shop", "orders", key="k", events=[EventBody(partition_key="p")], by="tests")
    writes = [
        text for text in counts.texts.elements() for name in ("tasks", "attempts") if f" {name} " in text[:24]
    ]
    assert sorted(text.split(" (")[0] for text in writes) == ["INSERT INTO attempts", "INSERT INTO tasks"]
