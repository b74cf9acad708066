"""Short words for what workers of pipelines do, against a state database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import (
    Claimed,
    ClaimRequest,
    CompleteAnswer,
    CompleteRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    NotClaimed,
    Outcome,
    OutputBody,
)
from qo.core.lifecycle import Lapse, Rejected
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import claiming, completion, running
from qo.dispatcher.engine.loops import comparison, invalidation, router
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import creation, dedupe_keys, rows
from qo.dispatcher.tasks.creation import NewTask

ROOT = "file:/data"


def partition_task(state: State, job: LiveJob, key: str, **fields: Any) -> str:
    """A task of the job for a partition of its first input, as the router would make it; its id."""
    of = job.inputs[0]
    generation = of.generation_id or ""
    wanted = NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_partition(job, of.dataset_id, generation, key, {}),
        dataset_id=of.dataset_id,
        generation_id=generation,
        partition_key=key,
        **fields,
    )
    return made(state, wanted)


def cursor_task(state: State, job: LiveJob, cursor: int) -> str:
    of = job.inputs[0]
    generation = of.generation_id or ""
    wanted = NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_cursor(of.dataset_id, generation, cursor),
        dataset_id=of.dataset_id,
        generation_id=generation,
        cursor=cursor,
    )
    return made(state, wanted)


def manual_task(state: State, job: LiveJob, key: str, **fields: Any) -> str:
    """A task of a source."""
    return made(state, NewTask(job=job, dedupe_key=f"manual:{key}", **fields))


def made(state: State, wanted: NewTask) -> str:
    with state.write() as tx:
        return creation.create(tx, [wanted])[0].task_id


def woken(tx: Tx, task_id: str) -> None:
    """Its wake-up is on its way, as the release loop would have it once the task is due."""
    table = schema.tasks
    withheld = sa.and_(table.c.id == task_id, table.c.status == "pending", table.c.released_at.is_(None))
    tx.execute(sa.update(table).where(withheld).values(released_at=tx.now))


def ask(state: State, task_id: str, lease_id: str | None = None, worker: str = "w") -> Claimed | NotClaimed:
    with state.write() as tx:
        woken(tx, task_id)
        return claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id=worker, lease_id=lease_id), ROOT)


def claimed(state: State, task_id: str, lease_id: str | None = None) -> Claimed:
    answer = ask(state, task_id, lease_id)
    assert isinstance(answer, Claimed), answer
    return answer


def beat(state: State, held: Claimed, progress: Any = None) -> HeartbeatAnswer:
    with state.write() as tx:
        return running.heartbeat(tx, HeartbeatRequest(**fence(held), progress=progress))


def fence(held: Claimed) -> dict[str, Any]:
    return {"task_id": held.work.task_id, "attempt": held.attempt, "lease_id": held.lease_id}


def output(held: Claimed, index: int = 0, **fields: Any) -> OutputBody:
    """An output at its place, with one file of ten rows unless said otherwise."""
    values = {"location": held.work.outputs[index].prefix, "files": ["part-0.parquet"], "rows": 10, "bytes": 100}
    return OutputBody(output=index, **(values | fields))


def finish(state: State, held: Claimed, outcome: Outcome = Outcome.SUCCESS, **fields: Any) -> CompleteAnswer:
    with state.write() as tx:
        return completion.complete(tx, CompleteRequest(**fence(held), outcome=outcome, **fields), ROOT)


def succeed(state: State, held: Claimed, **fields: Any) -> CompleteAnswer:
    """With all outputs of the work, each once."""
    return finish(state, held, outputs=[output(held, each.index, **fields) for each in held.work.outputs])


def feed(state: State, job: LiveJob, key: str, run: str = "1", **fields: Any) -> Claimed:
    """A source commits a partition."""
    held = claimed(state, manual_task(state, job, f"{key}-{run}"))
    finish(state, held, outputs=[output(held, partition_key=key, **fields)])
    return held


def append(state: State, job: LiveJob, cursor: int) -> Claimed:
    """A source commits a segment."""
    held = claimed(state, manual_task(state, job, f"cursor-{cursor}"))
    finish(state, held, outputs=[output(held, cursor=cursor)])
    return held


def lapse(state: State, held: Claimed) -> rows.Moved | Rejected:
    """As the reaper does."""
    with state.write() as tx:
        row = rows.load(tx, held.work.task_id)
        return rows.move(tx, row, Lapse(token=tx.ambient.token(), lease_id=held.lease_id, unit=0.5))


def route_all(state: State) -> None:
    while router.tick(state):
        pass


def row_of(state: State, task_id: str) -> dict[str, Any]:
    with state.read() as tx:
        return dict(rows.load(tx, task_id, lock=False))


def tasks_of(state: State, job: LiveJob) -> list[dict[str, Any]]:
    """Oldest first."""
    table = schema.tasks
    with state.read() as tx:
        found = tx.all(
            sa.select(table).where(table.c.edition_id == job.edition_id).order_by(table.c.created_at, table.c.id)
        )
        return [dict(each) for each in found]


def settle(state: State) -> int:
    """Run everything until nothing is left to do; how many tasks ran. Bounded, so that a cascade shows."""
    ran = 0
    for _ in range(30):
        route_all(state)
        while invalidation.tick(state) or comparison.tick(state):
            pass
        waiting = [each for each in all_of(state, schema.tasks) if each["status"] == "pending"]
        if not waiting:
            return ran
        for each in waiting:
            succeed(state, claimed(state, each["id"]))
            ran += 1
    raise AssertionError("it does not end")


def all_of(state: State, table: sa.Table) -> list[dict[str, Any]]:
    with state.read() as tx:
        return [dict(each) for each in tx.all(sa.select(table).order_by(*table.primary_key))]
