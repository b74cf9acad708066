"""Object keys: built and parsed only here.

    queue.json                                format, shard count and the proof of the bucket
    tasks/{shard}/{id}.json                   the task: the truth
    ready/{shard}/{minute}/{id}               claimable tasks, by when they become claimable: a hint
    leases/{shard}/{minute}/{id}              running tasks, by when their lease ends, and failed ones that something
                                              has to follow: a hint
    data/{shard}/{id}/...                     inputs and outputs too large for the task object
    workers/{worker}.json                     registration and heartbeat
    schedules/{name}.json                     a cron schedule and its last run
    monitor/sweep.json                        how far the sweeper has come
    shard-leases/{shard}.json                 which worker polls a shard, or a range of them; and the lookout
    control/desired.json                      what operators want of the workers: pauses, drains

``minute`` is the epoch minute in ten digits, so that keys sort by time.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from qo.core.task import Status, Task

QUEUE = "queue.json"
SWEEP = "monitor/sweep.json"
DESIRED = "control/desired.json"
TASKS, READY, LEASES, DATA = "tasks/", "ready/", "leases/", "data/"
WORKERS, SCHEDULES, SHARD_LEASES = "workers/", "schedules/", "shard-leases/"

# Keys whose history is of no use: hints, heartbeats, leases, cursors and orders. Stores drop their old versions.
EPHEMERAL = (READY, LEASES, WORKERS, SHARD_LEASES, "monitor/", "control/")

AFTER_ALL = "~"  # Sorts after every character that our keys contain.

PRIORITY_HEAD_START_MIN = 10


# Foreign keys under our prefixes (such as a "folder" created in a console) do not match.
_INDEX = re.compile(
    r"[^/]+/([0-9a-f]{1,4})/([0-9]{10})/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\Z"
).match


class IndexKey(NamedTuple):
    shard: str
    minute: int
    task_id: str


def task(shard: str, task_id: str) -> str:
    return f"tasks/{shard}/{task_id}.json"


def task_id_of(key: str) -> str | None:
    """Return the id in a key under ``tasks/``, or None if it is no key of a task."""
    parts = key.split("/")
    if len(parts) != 3 or parts[0] != "tasks" or not parts[2].endswith(".json"):
        return None
    return parts[2].removesuffix(".json")


def minute_of(instant: datetime) -> int:
    return int(instant.timestamp() // 60)


def ready_minute(t: Task) -> int:
    """Return the minute that orders a pending task in the ready index.

    Priority is a head start: a task is ordered as if it had waited ten minutes longer per step. So an urgent task
    overtakes new ones, and no task waits for ever behind urgent ones. A task that is not yet due gets no head start,
    because its key would then be listed before it may be claimed.
    """
    minute = minute_of(t.available_at)
    if t.available_at <= t.updated_at:
        minute -= t.priority * PRIORITY_HEAD_START_MIN
    return minute


def index(prefix: str, shard: str, minute: int, task_id: str) -> str:
    return f"{prefix}{shard}/{minute:010d}/{task_id}"


def index_key(t: Task) -> str | None:
    """Return the one hint that this task should have: in the ready index, in the lease index, or None."""
    if t.status is Status.PENDING:
        return index(READY, t.shard, ready_minute(t), t.id)
    if t.status is Status.RUNNING and t.lease_expires_at is not None:
        return index(LEASES, t.shard, minute_of(t.lease_expires_at), t.id)
    if t.follow_up_due:  # Whoever failed it may die before it has submitted what follows: a monitor looks there.
        return index(LEASES, t.shard, minute_of(t.completed_at or t.updated_at), t.id)
    return None


def parse_index(key: str) -> IndexKey | None:
    """Parse an index key; None if it is not one."""
    matched = _INDEX(key)
    return None if matched is None else IndexKey(matched[1], int(matched[2]), matched[3])


def input_data(shard: str, task_id: str, digest: str) -> str:
    """Return the key of an input. It depends on the content, so that two submitters racing under one idempotency key do
    not overwrite each other's."""
    return f"data/{shard}/{task_id}/input-{digest[:16]}.json"


def output_data(shard: str, task_id: str, attempt: int) -> str:
    """Return the key of an output, one per attempt: a stalled attempt cannot overwrite its successor's."""
    return f"data/{shard}/{task_id}/output-{attempt}.json"


def is_data_of(shard: str, task_id: str, key: str) -> bool:
    """Whether the key may hold an input or an output of that task."""
    name = key.removeprefix(f"data/{shard}/{task_id}/")
    return name != key and name != "" and "/" not in name


def worker(worker_id: str) -> str:
    return f"workers/{worker_id}.json"


def shard_lease(unit: str) -> str:
    return f"{SHARD_LEASES}{unit}.json"


def schedule(name: str) -> str:
    return f"schedules/{name}.json"
