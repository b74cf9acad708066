"""Claims: a worker takes a pending task, and holds it until its lease ends."""

from __future__ import annotations

from collections.abc import Callable

from qo.ambient import Ambient
from qo.core import keys, lifecycle
from qo.core.lifecycle import Reason, Rejected
from qo.core.task import Task
from qo.queue.hints import Hints
from qo.queue.options import DELAY_S_MAX, check_number, require_text
from qo.queue.tasks import Snapshot, Tasks
from qo.store.port import Deletion


class Claim:
    """A claimed task, held until its lease ends. Pass it to complete, fail, reschedule, release or renew."""

    __slots__ = ("lease_id", "snapshot")

    def __init__(self, snapshot: Snapshot, lease_id: str) -> None:
        self.snapshot = snapshot  # Follows every write, so that the next one needs no read before it.
        self.lease_id = lease_id

    @property
    def task(self) -> Task:
        return self.snapshot.task


class Claims:
    def __init__(self, tasks: Tasks, hints: Hints, ambient: Ambient) -> None:
        self._tasks = tasks
        self._hints = hints
        self._ambient = ambient

    async def claim(
        self,
        task_id: str,
        *,
        worker_id: str,
        lease_s: float | None,
        accepts: Callable[[Task], bool],
        on_failure: Callable[[Task], str | None],
        hint: Deletion | None,
        hinted: bool,
    ) -> Claim | Rejected | None:
        """Claim a pending task. See ``Queue.claim``."""
        require_text("worker_id", worker_id)
        check_number("lease_s", lease_s, 0.001, DELAY_S_MAX)
        snapshot = await self._tasks.load(task_id)
        if snapshot is None:
            return None
        if not accepts(snapshot.task):
            return Rejected(Reason.WRONG_STATE, f"task {task_id} is not for this worker")
        if hint is not None and hint.key == keys.index_key(snapshot.task):
            snapshot = snapshot._replace(hints=(hint,))
        elif hinted:
            snapshot = snapshot._replace(hints=snapshot.old_hints)
        lease_id = self._ambient.task_id()
        follows = on_failure(snapshot.task)
        command = lifecycle.Claim(self._ambient.token(), lease_id, worker_id, lease_s, follows)
        moved = await self._tasks.apply(snapshot, command)
        if isinstance(moved, Snapshot):
            return Claim(moved, lease_id)
        if moved.reason is Reason.PAST_EXPIRY:
            await self._tasks.apply(snapshot, lifecycle.Expire(self._ambient.token()))
        return moved

    async def index_lease(self, claim: Claim) -> None:
        """Replace the ready hint of a claimed task by a lease hint, if that was not done yet."""
        snapshot = claim.snapshot
        hint = await self._tasks.index_lease(snapshot)
        if hint is None:
            return
        if claim.snapshot is snapshot:
            claim.snapshot = snapshot._replace(hints=(hint,))
            self._tasks.drop_hints(snapshot.old_hints, instead=hint)
        elif all(hint.key != each.key for each in claim.snapshot.old_hints):
            self._hints.drop(hint)  # It was renewed or settled meanwhile, and has another hint or none.
