"""Object keys: how they are built, and read back. Nothing else in qo spells a key.

    queue.json                                format, shard count and the proof of the bucket
    tasks/{shard}/{id}.json                   the task: the truth
    ready/{shard}/{minute}/{id}               claimable tasks, by when they become claimable: a hint
    leases/{shard}/{minute}/{id}              running tasks, by when their lease ends: a hint
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

# History of these is worth nothing: hints, heartbeats, ownership, cursors and wishes. Stores drop their old
# versions.
EPHEMERAL = (READY, LEASES, WORKERS, SHARD_LEASES, "monitor/", "control/")

AFTER_ALL = "~"  # Sorts after every character that our keys contain.

PRIORITY_HEAD_START_MIN = 10


# Strangers' keys under our prefixes (a "folder" made in a console, say) are no index keys.
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
    """The id in a key under ``tasks/``, or None if something else lies there."""
    parts = key.split("/")
    if len(parts) != 3 or parts[0] != "tasks" or not parts[2].endswith(".json"):
        return None
    return parts[2].removesuffix(".json")


def minute_of(instant: datetime) -> int:
    return int(instant.timestamp() // 60)


def ready_minute(t: Task) -> int:
    """Where a pending task stands in line.

    Priority is a head start: a task joins the line as if it had waited ten minutes longer per step. So an
    urgent task passes fresh ones, and none waits for ever behind it. A task that is not yet due gets no head
    start, because its key would then be listed before it may be claimed.
    """
    minute = minute_of(t.available_at)
    if t.available_at <= t.updated_at:
        minute -= t.priority * PRIORITY_HEAD_START_MIN
    return minute


def index(prefix: str, shard: str, minute: int, task_id: str) -> str:
    return f"{prefix}{shard}/{minute:010d}/{task_id}"


def index_key(t: Task) -> str | None:
    """The one hint this task should have: where it waits, when its lease ends, or none."""
    if t.status is Status.PENDING:
        return index(READY, t.shard, ready_minute(t), t.id)
    if t.status is Status.RUNNING and t.lease_expires_at is not None:
        return index(LEASES, t.shard, minute_of(t.lease_expires_at), t.id)
    return None


def parse_index(key: str) -> IndexKey | None:
    """What an index key says, or None if it is not one."""
    matched = _INDEX(key)
    return None if matched is None else IndexKey(matched[1], int(matched[2]), matched[3])


def input_data(shard: str, task_id: str, digest: str) -> str:
    """Named by content: of two submitters racing under one idempotency key, neither overwrites the other."""
    return f"data/{shard}/{task_id}/input-{digest[:16]}.json"


def output_data(shard: str, task_id: str, attempt: int) -> str:
    """One object per attempt: a stalled attempt cannot overwrite the output of its successor."""
    return f"data/{shard}/{task_id}/output-{attempt}.json"


def is_data_of(shard: str, task_id: str, key: str) -> bool:
    """Whether this is a place for an input or an output of that task."""
    name = key.removeprefix(f"data/{shard}/{task_id}/")
    return name != key and name != "" and "/" not in name


def worker(worker_id: str) -> str:
    return f"workers/{worker_id}.json"


def shard_lease(unit: str) -> str:
    return f"{SHARD_LEASES}{unit}.json"


def schedule(name: str) -> str:
    return f"schedules/{name}.json"
