"""The router: puts a new task into the inbox of one worker, where the queue is dispatched directly.

Without a live worker that takes the task, it goes to the ready index, where every worker finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core.dispatch import Dispatch, DispatchConfig, Routing, choose_owner, is_routable
from qo.core.ownership import unit_of
from qo.core.task import Task
from qo.queue.pusher import Pusher
from qo.queue.roster import PAUSED, WorkerInfo
from qo.queue.worker_view import WorkerView

log = logging.getLogger(__name__)

TURNS = 1_000_000


class Router:
    def __init__(
        self,
        view: WorkerView,
        ambient: Ambient,
        routing: Routing,
        *,
        avoids: Callable[[str], bool] = lambda worker_id: False,
    ) -> None:
        """``avoids``: whether a worker is known to be away, or full, for the moment."""
        self._view = view
        self._ambient = ambient
        self._routing = routing
        self._avoids = avoids
        self._turn = int(ambient.unit() * TURNS)  # Submitters that start together begin with different workers.
        self.routed = 0  # Tasks that went to an inbox, and those that could have, but for want of a worker.
        self.shared = 0

    async def route(self, task: Task) -> Task:
        """Return a new task as it should be written: for the inbox of a worker, or for the ready index."""
        if not is_routable(task):
            return task
        owners = [each.worker_id for each in await self._view.peek() if _takes(each, task, task.updated_at)]
        # If all are away or full, one of them may have come back.
        near = [each for each in owners if not self._avoids(each)] or owners
        owner = choose_owner(near, self._routing, task_id=task.id, turn=self._turn, chance=self._ambient.unit())
        if owner is None:
            self.shared += 1
            return task
        self._turn += 1
        self.routed += 1
        return replace(task, inbox=owner)


def make_router(
    config: DispatchConfig, view: WorkerView, ambient: Ambient, pusher: Pusher | None
) -> Router | None:
    """None: tasks are not dispatched directly."""
    if config.dispatch is not Dispatch.DIRECT:
        return None
    if pusher is None:
        return Router(view, ambient, config.routing)
    return Router(view, ambient, config.routing, avoids=pusher.avoids)


def _takes(worker: WorkerInfo, task: Task, now: datetime) -> bool:
    """Whether a worker owns an inbox and runs such tasks."""
    if not worker.owns_inbox(now) or worker.state == PAUSED:
        return False
    if task.task_type not in worker.task_types or task.task_type in worker.paused_types:
        return False
    return not worker.shards or unit_of(task.shard) in map(unit_of, worker.shards)
