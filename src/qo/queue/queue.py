"""The queue: what producers, workers and operators do to tasks.

``Tasks`` reads and writes the task objects, ``Claims`` takes them for workers, ``Payloads`` keeps the large values; the
rules are in ``core.lifecycle``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from qo.ambient import SYSTEM, Ambient
from qo.core import lifecycle
from qo.core.dispatch import DispatchConfig
from qo.core.lifecycle import Command, Rejected
from qo.core.shard import validate_prefix_len, validate_task_id
from qo.core.task import Status, Task
from qo.errors import LeaseLost, Refused
from qo.queue import listing
from qo.queue.board import NoticeBoard
from qo.queue.bulk import Action, BulkReport, act_on_matching
from qo.queue.claims import Claim, Claims
from qo.queue.control import Cancels
from qo.queue.flow_plan import FlowPlan
from qo.queue.follow_up import follow_up
from qo.queue.followers import Followers
from qo.queue.groups import Groups
from qo.queue.hints import Hints
from qo.queue.listing import Filter, FoundTasks
from qo.queue.options import DELAY_S_MAX, NewTask, Options, check_number, check_text, escape_text
from qo.queue.payload import Payloads
from qo.queue.pusher import PushConfig, Pusher
from qo.queue.sealer import Sealer
from qo.queue.submitter import PreparedTask, Submission, Submitter
from qo.queue.task_router import make_router
from qo.queue.task_wait import load_again, wait_for_end
from qo.queue.tasks import Snapshot, Tasks
from qo.queue.uniques import Uniques
from qo.queue.worker_view import WorkerView
from qo.store.metered import Metered
from qo.store.port import Deletion, ObjectStore

PAYLOAD_THRESHOLD_BYTES = 256 * 1024


class Queue:
    def __init__(
        self,
        store: ObjectStore,
        *,
        prefix_len: int = 1,
        payload_threshold_bytes: int = PAYLOAD_THRESHOLD_BYTES,
        ambient: Ambient = SYSTEM,
        meter: Metered | None = None,
        sealer: Sealer | None = None,
        push: PushConfig | None = None,
        dispatch: DispatchConfig | None = None,
    ) -> None:
        """``sealer`` encrypts inputs, outputs, progress and errors; None: they are stored as they are. ``dispatch``
        says how new tasks reach workers; None: through the ready index."""
        self.store = store
        self.meter = meter  # Counts requests and their cost; None: they are not counted.
        self.prefix_len = validate_prefix_len(prefix_len)
        self.ambient = ambient
        self.hints = Hints(store)
        self.board = NoticeBoard(store, ambient)
        self.tasks = Tasks(store, self.hints, self.board, prefix_len, ambient)
        self.dispatch = dispatch or DispatchConfig()
        self._workers = WorkerView(store, ambient, self.dispatch.view_s)
        self.pusher = None if push is None else Pusher(self._workers, push, ambient)
        if self.pusher is not None:
            self.tasks.on_ready = self.pusher.note_ready
        self.payloads = Payloads(store, payload_threshold_bytes, sealer)
        self.groups = Groups(store, self.tasks, ambient)
        self.followers = Followers(self.tasks, self.groups, ambient)
        self.tasks.release = self.followers.release
        self._claims = Claims(self.tasks, self.hints, ambient)
        self._cancels = Cancels(self)
        self._submitter = Submitter(
            tasks=self.tasks,
            followers=self.followers,
            uniques=Uniques(store, self.tasks, self.payloads, ambient),
            payloads=self.payloads,
            router=make_router(self.dispatch, self._workers, ambient, self.pusher),
            prefix_len=self.prefix_len,
            ambient=ambient,
        )

    # Producing

    async def submit(self, task_type: str, input: Any = None, options: Options | None = None) -> Task:
        """Write one task; durable when this returns.

        With ``options.key`` a second submit returns the first one's task as it is now; with ``options.unique``, the
        task that stands for it. Raises IdempotencyConflict if that key was used for another type or input, NotFound if
        a task that it depends on does not exist.
        """
        return (await self.submit_or_find(task_type, input, options)).task

    async def submit_or_find(
        self, task_type: str, input: Any = None, options: Options | None = None
    ) -> Submission:
        """As ``submit``; says also whether the task was there before."""
        new = NewTask(task_type, input, options or Options())
        return await self._submitter.submit(new, await self.store.now())

    async def submit_many(self, tasks: Sequence[NewTask]) -> list[Task]:
        """Write many tasks, several at once, after checking all of them: a bad one stops everything before the
        first write. Returns them in the given order. If the store fails midway, some are written; with keys,
        submitting all again completes the rest and repeats none.
        """
        return [each.task for each in await self._submitter.submit_many(tasks, await self.store.now())]

    async def submit_flow(self, flow: FlowPlan, *, key: str | None = None) -> list[Task]:
        """Write the tasks of a flow; those that depend on others wait for them. Returns them in the flow's order.

        No task can start before all are written: those that wait are written first. With ``key``, submitting the flow
        again after a failure completes it and repeats none.
        """
        key = key if key is not None else self.ambient.token()
        return await self._submitter.submit_flow(flow, key, await self.store.now())

    def prepare(self, new: NewTask, now: datetime) -> PreparedTask:
        """Check a task, and return it as ``create`` takes it. Raises UsageError that names what is wrong with it."""
        return self._submitter.prepare(new, now)

    async def create(self, prepared: PreparedTask) -> Submission:
        """Write a prepared task, unless its key names one that is there. Raises as ``submit`` does."""
        return await self._submitter.create(prepared)

    # Looking

    async def get(self, task_id: str) -> Task:
        """Read a task. Encrypted values are decrypted, if their keys are here."""
        return self.payloads.reveal((await self._load(task_id)).task)

    async def input(self, task: Task) -> Any:
        """A copy of the task's input, fetched if it is kept apart."""
        return await self.payloads.input(task)

    async def claimed_input(self, claim: Claim) -> Any:
        """The input of a claimed task. Raises Refused if it must be encrypted here and is not, or by an unknown key."""
        return await self.payloads.stored_input(claim.task)

    async def output(self, task: Task) -> Any:
        return await self.payloads.output(task)

    async def list(
        self,
        *,
        status: Status | None = None,
        task_type: str | None = None,
        shard: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[Task]:
        """Up to ``limit`` tasks that match, last changed first; archived ones only if asked for.

        The filters apply before the limit. Keys are listed first, then as many tasks are read as it takes; active
        ones are found through the indexes.
        """
        criteria = Filter(status=status, task_type=task_type, shard=shard, since=since)
        return (await self.find(criteria, limit)).tasks

    async def find(
        self,
        criteria: Filter,
        limit: int = 100,
        *,
        scan_max: int | None = None,
        young_max: int | None = listing.YOUNG_MAX,
    ) -> FoundTasks:
        """The same by a filter. ``scan_max`` bounds the keys that are listed, ``young_max`` the due tasks that are read
        to find running ones that have just begun: then some of the newest may be missing, and the result says so."""
        bounds = {"scan_max": scan_max, "young_max": young_max}
        return await listing.find(
            self.store, self.prefix_len, criteria, limit, **bounds, reveal=self.payloads.reveal
        )

    async def history(self, task_id: str) -> list[Task]:
        """Return every state the task has been in, oldest first."""
        task_id = validate_task_id(task_id)
        states = await listing.history(self.store, self.tasks.key(task_id), task_id)
        return [self.payloads.reveal(state) for state in states]

    async def wait(self, task_id: str, timeout_s: float | None = None) -> Task:
        """Wait until the task has ended and return it. Raises TimeoutError."""
        return self.payloads.reveal(await wait_for_end(self.tasks, task_id, timeout_s, self.ambient))

    # Working

    async def claim(
        self,
        task_id: str,
        *,
        worker_id: str,
        lease_s: float | None = None,
        accepts: Callable[[Task], bool] = lambda task: True,
        on_failure: Callable[[Task], str | None] = lambda task: None,
        hint: Deletion | None = None,
        hinted: bool = False,
    ) -> Claim | Rejected | None:
        """Claim a pending task, unless ``accepts`` declines it.

        Return None if there is no such task. A task past its expiry is marked expired. ``on_failure`` names the type of
        the task that is submitted if this one fails for good, also if its worker dies; its own ``on_failure`` counts
        more. ``hint``: the hint that led to the task; ``hinted``: it has the one that it should have. That one stays
        until the task ends or ``index_lease`` is called, which should be within seconds.
        """
        return await self._claims.claim(
            task_id,
            worker_id=worker_id,
            lease_s=lease_s,
            accepts=accepts,
            on_failure=on_failure,
            hint=hint,
            hinted=hinted,
        )

    async def index_lease(self, claim: Claim) -> None:
        """Replace the ready hint of a claimed task by a lease hint, if that was not done yet."""
        await self._claims.index_lease(claim)

    async def complete(self, claim: Claim, output: Any = None, *, progress: Any = None) -> Task:
        """Complete a claimed task, with its output and final progress if there are any.

        Raises LeaseLost if another attempt owns it now: then nothing was written.
        """
        value, ref = await self.payloads.offload_output(claim.task, output)
        last = self.payloads.seal_progress(claim.task.id, progress)
        return await self._settle(
            claim, lifecycle.Complete(self.ambient.token(), claim.lease_id, value, ref, last)
        )

    async def fail(
        self,
        claim: Claim,
        error: str,
        *,
        traceback: str | None = None,
        permanent: bool = False,
        delay_s: float | None = None,
        cancelled: bool = False,
    ) -> Task:
        """Report a failed attempt: the task is retried later, or fails if no retry is left or the failure is
        ``permanent``. An attempt that was stopped on request (``cancelled``) ends the task as cancelled."""
        check_number("delay_s", delay_s, 0, DELAY_S_MAX)
        seal, task_id = self.payloads.seal_text, claim.task.id
        error = seal(task_id, "last_error", escape_text("error", error))
        if traceback is not None:
            traceback = seal(task_id, "traceback", escape_text("traceback", traceback))
        command = lifecycle.Fail(
            self.ambient.token(),
            claim.lease_id,
            error,
            self.ambient.unit(),
            traceback,
            permanent,
            delay_s,
            cancelled,
        )
        return await self._settle(claim, command)

    async def reschedule(self, claim: Claim, delay_s: float) -> Task:
        """Put a claimed task off without counting a failure, for example when a rate limit was hit."""
        check_number("delay_s", delay_s, 0, DELAY_S_MAX)
        return await self._settle(claim, lifecycle.Reschedule(self.ambient.token(), claim.lease_id, delay_s))

    async def release(self, claim: Claim, delay_s: float = 0.0) -> Task:
        """Give a claimed task back, at once or for later; it costs no retry."""
        check_number("delay_s", delay_s, 0, DELAY_S_MAX)
        return await self._settle(claim, lifecycle.Release(self.ambient.token(), claim.lease_id, delay_s))

    async def renew(self, claim: Claim, lease_s: float | None = None, *, progress: Any = None) -> Task:
        """Extend the lease of a claimed task. The returned task shows whether cancellation was requested."""
        check_number("lease_s", lease_s, 0.001, DELAY_S_MAX)
        value = self.payloads.seal_progress(claim.task.id, progress)
        command = lifecycle.Renew(self.ambient.token(), claim.lease_id, lease_s, value)
        return await self._settle(claim, command)

    async def _settle(self, claim: Claim, command: Command) -> Task:
        moved = await self.tasks.apply(claim.snapshot, command)
        if isinstance(moved, Rejected):
            raise LeaseLost(f"{moved.detail}: {moved.reason}")
        if moved.task.follow_up_due:
            moved = await follow_up(self, moved)
        claim.snapshot = moved
        return self.payloads.reveal(moved.task)

    # Operating

    async def cancel(self, task_id: str, *, by: str | None = None, reason: str | None = None) -> Task:
        """Cancel a pending task at once; ask a running one to stop, which then ends as cancelled."""
        check_text("by", by)
        check_text("reason", reason)
        task = await self._operate(task_id, lifecycle.Cancel(self.ambient.token(), by, reason))
        if task.status is Status.RUNNING:
            await self._cancels.note(task.id)  # So that its worker need not wait until it renews the lease.
        return task

    async def replay(self, task_id: str, *, dependents: bool = False) -> Task:
        """Run a failed, cancelled or expired task again, with all its retries. It waits for its dependencies no more.

        ``dependents``: tasks that were cancelled because this one did not complete wait for it again.
        """
        task = await self._operate(task_id, lifecycle.Replay(self.ambient.token()))
        if task.waiting:  # For its turn in a group.
            task = (await self.followers.settle(await self._load(task_id))).task
        if dependents:
            await self.followers.revive(task)
        return task

    async def archive(self, task_id: str) -> Task:
        """Leave an ended task out of listings. It stays in the store."""
        return await self._operate(task_id, lifecycle.Archive(self.ambient.token()))

    async def unarchive(self, task_id: str) -> Task:
        return await self._operate(task_id, lifecycle.Unarchive(self.ambient.token()))

    async def replay_many(self, criteria: Filter, *, limit: int | None = None) -> BulkReport:
        """Replay every failed, cancelled or expired task that matches. Each is changed by a write of its own."""
        return await act_on_matching(self, Action.REPLAY, criteria, self.replay, limit=limit)

    async def cancel_many(
        self, criteria: Filter, *, by: str | None = None, reason: str | None = None, limit: int | None = None
    ) -> BulkReport:
        """Cancel every pending or running task that matches."""

        def cancel(task_id: str) -> Awaitable[Task]:
            return self.cancel(task_id, by=by, reason=reason)

        return await act_on_matching(self, Action.CANCEL, criteria, cancel, limit=limit)

    async def archive_many(self, criteria: Filter, *, limit: int | None = None) -> BulkReport:
        """Archive every ended task that matches."""
        return await act_on_matching(self, Action.ARCHIVE, criteria, self.archive, limit=limit)

    async def _operate(self, task_id: str, command: Command) -> Task:
        moved = await self.tasks.apply(await self._load(task_id), command)
        if isinstance(moved, Rejected):
            raise Refused(moved.detail)
        return self.payloads.reveal(moved.task)

    async def _load(self, task_id: str) -> Snapshot:
        return await load_again(self.tasks, validate_task_id(task_id), None)

    async def close(self) -> None:
        if self.pusher is not None:
            await self.pusher.close()
        await self._workers.close()
        await self.flush()
        await self.store.close()

    async def flush(self) -> None:
        """Wait until the hints of all calls so far are removed, and their notices posted, or that has failed."""
        await asyncio.gather(self.hints.flush(), self.board.flush())

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
