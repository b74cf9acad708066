"""Creating tasks. The id follows from what a task is about, so creating it twice creates it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from qo.core.pipeline.dag import HEARTBEAT_TIMEOUT_S, MAX_ATTEMPTS
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.topology import LiveJob
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to be created for a live job."""

    job: LiveJob
    dedupe_key: str  # See ``dedupe_keys``.
    event_seq: int | None = None  # What started it.
    dataset_id: str | None = None  # Of the event, and pinned with its generation.
    generation_id: str | None = None
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    cursor: int | None = None
    attributes: Mapping[str, Any] | None = None
    invalidation_id: str | None = None
    available_at: datetime | None = None  # None: at once.
    traceparent: str | None = None
    task_id: str = field(init=False)  # Computed once: it is a hash, and whoever creates tasks asks for it often.

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_id", task_id(self.job.edition_id, self.dedupe_key))


@dataclass(frozen=True, slots=True)
class Created:
    task_id: str
    new: bool  # False: it was there already.


def task_id(edition_id: str, dedupe_key: str) -> str:
    return derive_id("task", edition_id, dedupe_key)


def create(tx: Tx, new_tasks: Sequence[NewTask]) -> list[Created]:
    """Create the tasks that do not exist yet, and return one result for each, in order.

    New tasks are withheld: the release loop sends their wake-ups once no limit or pause holds them back.
    """
    rows = {
        each.task_id: new_row(tx, each) for each in reversed(new_tasks)
    }  # The first of several with one id counts.
    # In order of id: two routers that create the same tasks must not deadlock.
    created_ids = tx.insert_absent(schema.tasks, [rows[id_] for id_ in sorted(rows)], returning=schema.tasks.c.id)
    answers: list[Created] = []
    for each in new_tasks:
        answers.append(Created(each.task_id, each.task_id in created_ids))
        created_ids.discard(each.task_id)  # Created twice in one call is new once.
    return answers


def new_row(tx: Tx, new: NewTask) -> dict[str, Any]:
    """Return the row of a task that was never claimed; columns that are not in it are empty."""
    job = new.job.job
    attempts = job.max_attempts or MAX_ATTEMPTS
    return {
        "id": new.task_id,
        "job_id": new.job.id,
        "edition_id": new.job.edition_id,
        "logical_id": new.job.logical_id,
        "dag": new.job.dag,
        "job": job.name,
        "operator": job.operator,
        "queue": new.job.queue,
        "dedupe_key": new.dedupe_key,
        "event_seq": new.event_seq,
        "dataset_id": new.dataset_id,
        "generation_id": new.generation_id,
        "partition_key": new.partition_key,
        "start": new.start,
        "end": new.end,
        "cursor": new.cursor,
        "attributes": dict(new.attributes) if new.attributes else None,
        "invalidation_id": new.invalidation_id,
        "status": Status.PENDING.value,
        "token": tx.ambient.token(),
        "attempt": 0,
        "available_at": new.available_at or tx.now,
        "timeout_seconds": new.job.timeout_s,
        "lease_s": float(job.heartbeat_timeout_seconds or HEARTBEAT_TIMEOUT_S),
        "retry_count": 0,
        "max_retries": attempts - 1,
        "deliveries": 0,
        # Attempts that nobody ended count as retries, too; that is the limit that people set.
        "max_deliveries": attempts + 1,
        "cancel_requested": False,
        "traceparent": new.traceparent,
        "created_at": tx.now,
        "updated_at": tx.now,
        "wakes": 0,
    }
