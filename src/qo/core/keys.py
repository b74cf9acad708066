"""Object keys: built and parsed only here.

    queue.json                                format, shard count and the proof of the bucket
    tasks/{shard}/{id}.json                   the task: the truth
    ready/{shard}/{minute}/{id}               claimable tasks, by when they become claimable: a hint
    ready/{shard}/{minute}.{due}/{id}         an urgent task that is not due yet: its place, and when it is due
    leases/{shard}/{minute}/{id}              running tasks, by when their lease ends, and failed ones that something
                                              has to follow: a hint
    waiting/{shard}/{minute}/{id}             tasks that wait for others, by when they would be due: a hint
    inbox/{worker}/{minute}/{id}              claimable tasks that were routed to one worker: a hint
    data/{shard}/{id}/...                     inputs and outputs too large for the task object
    workers/{worker}.json                     registration and heartbeat
    schedules/{name}.json                     a cron schedule and its last run
    monitor/sweep.json                        how far the sweeper has come
    monitor/purge.json                        how far the purger has come
    shard-leases/plan.json                    which worker polls which shards, if they are leased
    registers/groups/{hash}.json              who is the last in the line of a group
    registers/unique/{hash}.json              which task stands for all that are the same
    registers/limits/{hash}.json              the workers' shares of a limit
    control/desired.json                      what operators want of the workers: pauses, drains
    control/board.json                        notices of new tasks, how many workers there are, and the lookout: a hint

``minute`` and ``due`` are epoch minutes in ten digits, so that keys sort by time.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import NamedTuple

from qo.core.task import Status, Task

QUEUE = "queue.json"
SWEEP = "monitor/sweep.json"
PURGE = "monitor/purge.json"
DESIRED = "control/desired.json"
BOARD = "control/board.json"
SHARD_PLAN = "shard-leases/plan.json"
TASKS, READY, LEASES, WAITING, DATA = "tasks/", "ready/", "leases/", "waiting/", "data/"
INBOX = "inbox/"
WORKERS, SCHEDULES, SHARD_LEASES = "workers/", "schedules/", "shard-leases/"
REGISTERS = "registers/"
GROUPS, UNIQUE, LIMITS = f"{REGISTERS}groups/", f"{REGISTERS}unique/", f"{REGISTERS}limits/"

# Keys whose history is of no use: hints, heartbeats, leases, cursors and orders. Stores drop their old versions.
EPHEMERAL = (READY, LEASES, WAITING, INBOX, WORKERS, SHARD_LEASES, REGISTERS, "monitor/", "control/")

AFTER_ALL = "~"  # Sorts after every character that our keys contain.

PRIORITY_HEAD_START_MIN = 10


# Foreign keys under our prefixes (such as a "folder" created in a console) do not match.
_ID = r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_INDEX = re.compile(rf"(?!inbox/)[^/]+/([0-9a-f]{{1,4}})/([0-9]{{10}})(?:\.([0-9]{{10}}))?/{_ID}\Z").match
_INBOX = re.compile(rf"inbox/([A-Za-z0-9][A-Za-z0-9._-]{{0,99}})/([0-9]{{10}})/{_ID}\Z").match
_DATA = re.compile(rf"data/([0-9a-f]{{1,4}})/{_ID}/(?:input|output)-[^/]+\Z").match


class IndexKey(NamedTuple):
    shard: str
    minute: int  # Its place in the order of the index.
    task_id: str
    due_minute: int  # The same, or later for an urgent task that was written before it was due.


class InboxKey(NamedTuple):
    worker_id: str  # Whose inbox it is.
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
    overtakes new ones, and no task waits for ever behind urgent ones. That also holds for delayed and retried tasks:
    the key of one that is not due yet has its due minute beside its place, so that it is passed over unread.
    """
    return minute_of(t.available_at) - t.priority * PRIORITY_HEAD_START_MIN


def index(prefix: str, shard: str, minute: int, task_id: str, due_minute: int | None = None) -> str:
    due = "" if due_minute is None or due_minute == minute else f".{due_minute:010d}"
    return f"{prefix}{shard}/{minute:010d}{due}/{task_id}"


def ready_key(t: Task) -> str:
    """Return the key of a pending task in the ready index."""
    ahead = minute_of(t.available_at) if t.available_at > t.updated_at else None
    return index(READY, t.shard, ready_minute(t), t.id, ahead)


def index_key(t: Task) -> str | None:
    """Return the one hint that this task should have: in the ready, waiting or lease index, in an inbox, or None."""
    if t.waiting:
        return index(WAITING, t.shard, minute_of(t.available_at), t.id)
    if t.status is Status.PENDING:
        return ready_key(t) if t.inbox is None else inbox_key(t.inbox, ready_minute(t), t.id)
    if t.status is Status.RUNNING and t.lease_expires_at is not None:
        return index(LEASES, t.shard, minute_of(t.lease_expires_at), t.id)
    if t.follow_up_due:  # Whoever failed it may die before it has submitted what follows: a monitor looks there.
        return index(LEASES, t.shard, minute_of(t.completed_at or t.updated_at), t.id)
    return None


def inbox_key(worker_id: str, minute: int, task_id: str) -> str:
    """Return the key of a task in the inbox of a worker. Priority orders it as in the ready index."""
    return f"{INBOX}{worker_id}/{minute:010d}/{task_id}"


def parse_inbox(key: str) -> InboxKey | None:
    """Parse a key of an inbox; None if it is not one."""
    if not key.startswith(INBOX) or (matched := _INBOX(key)) is None:
        return None
    worker_id, minute, task_id = matched.groups()
    return InboxKey(worker_id, int(minute), task_id)


def is_claimable_hint(key: str) -> bool:
    """Whether the key is that of a task that can be claimed: in the ready index, or in an inbox."""
    return key.startswith((READY, INBOX))


def parse_index(key: str) -> IndexKey | None:
    """Parse an index key; None if it is not one, or that of an inbox."""
    if (matched := _INDEX(key)) is None:
        return None
    shard, minute, due, task_id = matched.groups()
    return IndexKey(shard, int(minute), task_id, int(due or minute))


def next_start(prefix: str, key: str, minute: int) -> str:
    """Return after which key to list on if a page of an index ended with ``key``: behind keys that are not due.

    No later key of a shard is due if this one's place is later than ``minute``. If it only waits to become due, the
    keys that share its place and its due minute are passed over.
    """
    if (parsed := parse_index(key)) is None:
        return key
    if parsed.minute > minute:
        return f"{prefix}{parsed.shard}/{AFTER_ALL}"
    if parsed.due_minute > minute:
        return index(prefix, parsed.shard, parsed.minute, AFTER_ALL, parsed.due_minute)
    return key


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


def data_task_id(key: str) -> str | None:
    """Return the id of the task that a key under ``data/`` belongs to, or None if it is no such key."""
    matched = _DATA(key)
    return None if matched is None or not matched[2].startswith(matched[1]) else matched[2]


def data_end(task_key: str) -> str:
    """Return a key behind all data of a task, by the task's key. Data and tasks have the same order."""
    shard, name = task_key.split("/")[1:3]
    return f"data/{shard}/{name.removesuffix('.json')}/{AFTER_ALL}"


def worker(worker_id: str) -> str:
    return f"workers/{worker_id}.json"


def schedule(name: str) -> str:
    return f"schedules/{name}.json"


def group(name: str) -> str:
    """Return the key of a group's line. Names may contain anything, so that a hash stands for them."""
    return f"{GROUPS}{_hash(name)}.json"


def unique(identity: str) -> str:
    return f"{UNIQUE}{identity[:32]}.json"


def limit(name: str) -> str:
    return f"{LIMITS}{_hash(name)}.json"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
