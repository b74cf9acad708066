"""A small shop whose tasks are emitted, listed and finished in one call each."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, EventBody, Outcome
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import router
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, job, source

DAY = "2024-01-01"


SHOP = dag("shop", source("orders"), job("clean", reads="orders", max_attempts=1), job("totals", reads="clean"))


def emit(state: State, name: str, key: str = "once", **fields: Any) -> None:
    with state.write() as tx:
        emission.emit(tx, *name.split("."), key=key, events=[EventBody(output=0, **fields)], by="ada")
    router.tick(state)


def tasks(state: State, name: str) -> list[sa.RowMapping]:
    table = schema.tasks
    with state.read() as tx:
        return list(tx.all(sa.select(table).where(table.c.dag + "." + table.c.job == name)))


def finish(state: State, task_id: str, **said: Any) -> None:
    with state.write() as tx:
        woken(tx, task_id)
        claimed = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="w"), "file:/data")
        assert isinstance(claimed, Claimed)
        fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
        completion.complete(tx, CompleteRequest(**{**fence, "outcome": Outcome.SUCCESS, **said}))
