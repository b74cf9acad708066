"""A bucket that looks at every write to a task or a schedule: is it a move that may follow the one before?"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.schedule import Schedule, _between, run_key
from qo.core.task import Status, Task
from qo.queue.options import build
from qo.queue.schedules import new_task
from qo.store.memory import MemoryStore
from qo.testing import virtual
from simulation.engine.faults import Faults
from simulation.engine.machines import PROCESS, machines

SKEW_MAX = timedelta(seconds=2)  # Of two processes' ideas of the store's clock.
_ANY = Ambient.seeded(0)  # For what has a key, chance plays no part.


class Ledger(MemoryStore):
    def __init__(self, faults: Faults) -> None:
        super().__init__(clock=virtual.wall_clock)
        self.wrong: list[str] = []
        self.histories: dict[str, list[Task]] = {}  # By key: every state, as it was written.
        self.schedules: dict[str, Schedule] = {}
        self._trace = faults.trace

    def check(self) -> None:
        """Raises with everything that was wrong so far."""
        assert self.wrong == [], self.wrong[:5]

    def _add(self, key: str, body: bytes | None, etag: str) -> Any:
        added = super()._add(key, body, etag)
        if PROCESS.get() and machines().over:
            self._say(key, f"{PROCESS.get()} wrote it while it was buried")
        if key.startswith(keys.TASKS):
            self._task(key, body)
        elif key.startswith(keys.SCHEDULES) and body is not None:
            self._schedule(key, wire.decode(Schedule, body, key))
        return added

    def _say(self, key: str, what: str) -> None:
        self.wrong.append(f"{virtual.monotonic():.3f} {key}: {what}")

    def _task(self, key: str, body: bytes | None) -> None:
        if body is None:
            self._say(key, "a task is lost: its object was deleted")
            return
        task, history = wire.decode_task(body, key), self.histories.setdefault(key, [])
        self._trace.say(f"{virtual.monotonic():.3f} = {task.id} {task.status} {task.attempt} {task.lease_id}")
        if (problem := misstep(history[-1], task) if history else misbegun(task)) is not None:
            self._say(key, problem)
        history.append(task)
        if (problem := self._too_early(task)) is not None:
            self._say(key, problem)

    def _too_early(self, task: Task) -> str | None:
        """What is wrong if this task may be claimed, with those that it has to wait for; None if nothing is."""
        if task.flow is None or task.ended or task.waiting:
            return None
        last = {history[-1].id: history[-1] for history in self.histories.values()}
        if any(not last[each].ended for each in task.flow.depends_on):
            return "it is ready before its dependencies have ended"
        for other in last.values():
            in_turn = not other.ended and not other.waiting and other.id != task.id
            if task.flow.group is not None and in_turn and other.flow and other.flow.group == task.flow.group:
                return f"it is ready beside {other.id} of the same group"
        return None

    def _schedule(self, key: str, schedule: Schedule) -> None:
        before = self.schedules.get(key)
        self.schedules[key] = schedule
        if before is None or schedule.last_run_at == before.last_run_at or schedule.last_run_at is None:
            return
        done = before.last_run_at or schedule.active_since
        if schedule.last_run_at < done:
            self._say(key, "a run was recorded after a later one")
        there = {history[-1].id for history in self.histories.values()}
        for instant in _between(schedule, done, schedule.last_run_at):
            if planned(schedule, instant) not in there:
                self._say(key, f"the run of {instant} is recorded, and was never submitted")


def planned(schedule: Schedule, instant: datetime) -> str:
    """The id of the task that this run of the schedule submits."""
    return build(new_task(schedule, run_key(schedule, instant)), now=instant, prefix_len=1, ambient=_ANY).id


def misbegun(task: Task) -> str | None:
    new = (task.status, task.attempt, task.lease_id) == (Status.PENDING, 0, None)
    return None if new else f"it begins as {task.status}, attempt {task.attempt}"


def misstep(before: Task, after: Task) -> str | None:
    """What is wrong with this move; None if nothing is."""
    if before.token == after.token:
        return "the same write twice"
    if after.updated_at < before.updated_at:
        return "its time runs backwards"
    if before.follow_up_due and _is_followed(before, after):
        return None
    if before.ended:
        connects = after.status is before.status and after.flow != before.flow
        return None if connects else f"it was {before.status}, and what has ended stays ended"
    if after.status is Status.RUNNING:
        return _begun(before, after)
    return _left(before, after)


def _is_followed(before: Task, after: Task) -> bool:
    """Whether a move only records that what follows a failure was submitted."""
    recorded = replace(before, followed_attempt=before.attempt, token=after.token, updated_at=after.updated_at)
    return after == recorded


def _begun(before: Task, after: Task) -> str | None:
    if before.waiting:
        return "claimed while it waits for others"
    if before.status is Status.PENDING:
        return None if after.attempt == before.attempt + 1 else "a claim that is not the next attempt"
    same = (before.lease_id, before.attempt) == (after.lease_id, after.attempt)
    return None if same else "taken over from who holds it"


def _left(before: Task, after: Task) -> str | None:
    if after.attempt != before.attempt:
        return "an attempt without a claim"
    if before.status is Status.PENDING:
        if after.status is Status.PENDING and after.flow != before.flow:
            return None
        offered = replace(before, inbox=None, token=after.token, updated_at=after.updated_at)
        if before.inbox is not None and after == offered:
            return None
        # Only who asks for it cancels what nobody holds.
        return None if after.status is Status.CANCELLED else f"from pending to {after.status} without a claim"
    if after.settled_lease_id == before.lease_id:
        return None
    assert before.lease_expires_at is not None
    late = min(after.updated_at, virtual.wall_clock() + SKEW_MAX) >= before.lease_expires_at
    return None if late else "taken back from who was not late"
