"""The versions of a task object, replayed: one line of history in which each state follows from the one before.

Every step must be a command that ``core.lifecycle`` carries out and that leads to exactly the state that was stored.
A version that is missing, that was written beside another or by someone without the lease is then no step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from qo.core.lifecycle import (
    Cancel,
    Claim,
    Command,
    Complete,
    Expire,
    Fail,
    Lapse,
    Offer,
    Release,
    Renew,
    Reschedule,
    decide,
)
from qo.core.task import Status, Task


def violations(states: Sequence[Task]) -> list[str]:
    """What is wrong with the history of one task, oldest state first."""
    if not states:
        return ["a task without any version"]
    first, wrong = states[0], list[str]()
    if first.status is not Status.PENDING or first.attempt or first.lease_id:
        wrong.append(f"task {first.id}: its first version is {_named(first)}: what came before is missing")
    tokens = [each.token for each in states]
    if len(set(tokens)) < len(tokens):
        wrong.append(f"task {first.id}: one write is there twice")
    for before, after in itertools.pairwise(states):
        if not _follows(before, after):
            wrong.append(f"task {first.id}: no command leads from {_named(before)} to {_named(after)}")
    completed = [each.attempt for each in states if each.status is Status.COMPLETED]
    if len(set(completed)) > 1:
        wrong.append(f"task {first.id}: attempts {completed} all completed it")
    return wrong


def standing(states: Sequence[Task], torn: Callable[[Task], bool]) -> list[Task]:
    """Without those that never were the latest. A server that dies in the middle of a write may keep the version, and
    not that it is the latest: nobody was told of it, and whoever comes next begins with the state before. Only where
    ``torn`` says that a server died as it was written, and what follows does not follow from it."""
    kept: list[Task] = []
    for each in states:
        while len(kept) > 1 and not _follows(kept[-1], each) and torn(kept[-1]):
            kept.pop()
        kept.append(each)
    return kept


def lapsed(states: Sequence[Task]) -> set[int]:
    """The attempts whose lease ran out: nobody settled them."""
    return {each.attempt for each in taken_back(states)}


def taken_back(states: Sequence[Task]) -> list[Task]:
    """The states in which a task was after its lease had run out."""
    return [
        after
        for before, after in itertools.pairwise(states)
        if before.status is Status.RUNNING
        and after.status is not Status.RUNNING
        and after.settled_lease_id != before.lease_id
    ]


def _follows(before: Task, after: Task) -> bool:
    return any(_leads(before, command, after) for command in _commands(before, after))


def _commands(before: Task, after: Task) -> Iterator[Command]:
    """Those that may have been given, by what was stored."""
    token, held = after.token, before.lease_id or ""
    rest_s = (after.available_at - after.updated_at).total_seconds()
    if after.status is Status.RUNNING:
        lease_s = (after.lease_expires_at - after.updated_at).total_seconds() if after.lease_expires_at else 0.0
        yield Claim(token, lease_id=after.lease_id or "", worker_id=after.worker_id or "", lease_s=lease_s)
        yield Renew(token, held, lease_s=lease_s, progress=after.progress)
        yield Cancel(token, by=after.cancelled_by, reason=after.cancel_reason)
        return
    yield Complete(token, held, after.output, after.output_ref, after.progress)
    yield Release(token, held, delay_s=rest_s)
    yield Reschedule(token, held, delay_s=rest_s)
    error = after.last_error or ""
    for permanent in (False, True):
        yield Fail(token, held, error, 0.5, traceback=after.traceback, permanent=permanent, delay_s=rest_s)
    yield Lapse(token, lease_id=before.lease_id, unit=0.5)
    yield Cancel(token, by=after.cancelled_by, reason=after.cancel_reason)
    yield Expire(token)
    yield Offer(token)


def _leads(before: Task, command: Command, after: Task) -> bool:
    moved = decide(before, command, now=after.updated_at)
    if not isinstance(moved, Task) or moved is before:
        return False
    if isinstance(command, Lapse) and moved.status is Status.PENDING:
        moved = replace(moved, available_at=after.available_at)  # Somewhere within the jitter of its policy.
    return moved == after


def _named(task: Task) -> str:
    lease = f", lease {task.lease_id}" if task.lease_id else ""
    return f"{task.status} (attempt {task.attempt}{lease})"
