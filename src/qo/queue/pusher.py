"""The sending side of push: wakes a worker for each task that this process makes ready.

It works in the background and fails silently: a task whose wake-up is lost is found by a worker that polls. The workers
are those of the roster, as the view shows them. One that does not answer is left alone for a while. A task in the inbox
of a worker wakes that worker and no other.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qo.ambient import Ambient
from qo.core import wire
from qo.core.ownership import unit_of
from qo.core.push import IDS_MAX, Network, Target, choose, is_reachable
from qo.core.task import Status, Task
from qo.queue import roster
from qo.queue.wake_client import send_wake_up
from qo.queue.worker_view import WorkerView

log = logging.getLogger(__name__)

DROPPED_FOR_S = 60.0  # A worker that did not answer, or refused the token.
FULL_FOR_S = 0.5  # A worker that had no room.
TIMEOUT_S = 0.25
CLOSE_S = 2.0
TRIES = 2  # Workers that are tried for a task.
PENDING_MAX = 1_000  # Beyond that, tasks wait for a poll.


@dataclass(frozen=True, slots=True)
class PushConfig:
    token: str
    networks: Sequence[Network]
    timeout_s: float = TIMEOUT_S


class Pusher:
    def __init__(self, view: WorkerView, config: PushConfig, ambient: Ambient) -> None:
        self._view = view
        self._workers: Sequence[roster.WorkerInfo] = ()  # Of the view that the targets were taken from.
        self._config = config
        self._ambient = ambient
        self._pending: deque[Task] = deque(maxlen=PENDING_MAX)
        self._sender: asyncio.Task[None] | None = None
        self._targets: dict[str, Target] = {}
        self._avoided: dict[str, float] = {}  # Until when a worker is not woken, by id.
        self._host = socket.gethostname()
        self.counts: Counter[str] = Counter()  # sent, refused, lost, unsent.

    def note_ready(self, task: Task) -> None:
        """Wake a worker for a task that was just written, if it is ready. Returns at once."""
        if task.status is not Status.PENDING or task.available_at > task.updated_at:
            return
        self._pending.append(task)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Let wake-ups that are being sent finish, which takes a moment at most."""
        if self._sender is None:
            return
        await asyncio.wait({self._sender}, timeout=CLOSE_S)
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)

    async def _send_all(self) -> None:
        while self._pending:
            await self._refresh_targets()
            tasks = [self._pending.popleft() for _ in range(min(IDS_MAX, len(self._pending)))]
            await self._send(tasks, TRIES)

    async def _send(self, tasks: Sequence[Task], tries: int) -> None:
        """Send each task to a worker; those that it does not take go to another one."""
        tasks_by_worker: dict[str, list[Task]] = {}
        for task in tasks:
            target = self._choose(task)
            if target is None:
                self.counts["unsent"] += 1
                continue
            self._targets[target.worker_id] = replace(target, free=max(0, target.free - 1))
            tasks_by_worker.setdefault(target.worker_id, []).append(task)
        results = await asyncio.gather(
            *(self._wake(self._targets[name], some) for name, some in tasks_by_worker.items())
        )
        rest = [
            task
            for some, was_taken in zip(tasks_by_worker.values(), results, strict=True)
            if not was_taken
            for task in some
        ]
        if rest and tries > 1:
            await self._send(rest, tries - 1)

    def avoids(self, worker_id: str) -> bool:
        """Whether a worker has not answered, or had no room, a moment ago."""
        return self._avoided.get(worker_id, 0.0) > self._ambient.monotonic()

    def _choose(self, task: Task) -> Target | None:
        able = [each for name, each in self._targets.items() if not self.avoids(name)]
        if task.inbox is not None:
            return next((each for each in able if each.worker_id == task.inbox), None)
        return choose(able, task.task_type, unit_of(task.shard), self._ambient.unit())

    async def _wake(self, target: Target, tasks: Sequence[Task]) -> bool:
        body = wire.encode({"tasks": [task.id for task in tasks]})
        config = self._config
        status = await send_wake_up(
            target.address, config.token, target.worker_id, body, config.timeout_s, place=target.place
        )
        if status == 204:
            self.counts["sent"] += 1
            return True
        full = status == 503
        self.counts["refused" if full else "lost"] += 1
        self._avoided[target.worker_id] = self._ambient.monotonic() + (FULL_FOR_S if full else DROPPED_FOR_S)
        if not full:
            log.debug("worker %s at %s was not woken: %s", target.worker_id, target.address, status or "no answer")
        return False

    async def _refresh_targets(self) -> None:
        workers = await self._view.read()
        if workers is self._workers:
            return
        self._workers, now = workers, self._ambient.monotonic()
        self._targets = {each.worker_id: _target(each) for each in workers if self._may_wake(each)}
        self._avoided = {name: until for name, until in self._avoided.items() if until > now}

    def _may_wake(self, worker: roster.WorkerInfo) -> bool:
        if worker.push is None or worker.state == roster.PAUSED:
            return False
        return is_reachable(worker.push, self._config.networks, same_host=worker.host == self._host)


def _target(worker: roster.WorkerInfo) -> Target:
    return Target(
        worker.worker_id,
        worker.push or "",
        max(0, worker.slots - len(worker.current_tasks)),
        frozenset(worker.task_types) - frozenset(worker.paused_types),
        frozenset(map(unit_of, worker.shards)) if worker.shards and not worker.leasing else None,
        worker.push_place,
    )
