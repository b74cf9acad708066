"""Submitting: everything is checked before the first write, then tasks are written and connected with others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import wire
from qo.core.shard import shard_of
from qo.core.task import Task
from qo.errors import IdempotencyConflict
from qo.queue.concurrency import gather_cancellable
from qo.queue.flow_plan import FlowPlan, Step, layers
from qo.queue.followers import Followers
from qo.queue.options import NewTask, build
from qo.queue.payload import Payloads
from qo.queue.task_router import Router
from qo.queue.tasks import Snapshot, Tasks
from qo.queue.uniques import Uniques

SUBMITS_AT_ONCE = 64


class Submission(NamedTuple):
    """What a submit returns."""

    task: Task
    created: bool  # False: it was there before, under the same key, or because it stands for the new one.


class PreparedTask(NamedTuple):
    """A task that has been checked, and can be written."""

    new: NewTask
    task: Task
    body: bytes  # The JSON of its input.
    within: frozenset[str] = frozenset()  # What it depends on and is submitted together with it.

    def with_id(self, task_id: str, prefix_len: int) -> PreparedTask:
        return self._replace(task=replace(self.task, id=task_id, shard=shard_of(task_id, prefix_len)))


class Submitter:
    def __init__(
        self,
        *,
        tasks: Tasks,
        followers: Followers,
        uniques: Uniques,
        payloads: Payloads,
        router: Router | None,
        prefix_len: int,
        ambient: Ambient,
    ) -> None:
        """``router`` puts new tasks into the inboxes of workers; None: they go to the ready index."""
        self._tasks = tasks
        self._followers = followers
        self._uniques = uniques
        self._payloads = payloads
        self._router = router
        self._prefix_len = prefix_len
        self._ambient = ambient

    async def submit(self, new: NewTask, now: datetime) -> Submission:
        return await self.create(self.prepare(new, now))

    async def create(self, prepared: PreparedTask) -> Submission:
        """Write a prepared task. Raises IdempotencyConflict, and NotFound if a task that it depends on is missing."""
        prepared = await self._check_dependencies(prepared)
        return await self._connect(prepared, *await self._create(prepared))

    async def submit_many(self, tasks: Sequence[NewTask], now: datetime) -> list[Submission]:
        prepared = [self.prepare(new, now) for new in tasks]
        return await self._create_all([await self._check_dependencies(each) for each in prepared])

    async def submit_flow(self, flow: FlowPlan, key: str, now: datetime) -> list[Task]:
        steps = flow.steps(key)
        prepared = [self.prepare(step.new, now, step) for step in steps]
        checked = dict(zip(flow.names, [await self._check_dependencies(each) for each in prepared], strict=True))
        by_name: dict[str, Task] = {}
        for layer in layers(steps):
            submissions = await self._create_all([checked[name] for name in layer])
            by_name.update({name: each.task for name, each in zip(layer, submissions, strict=True)})
        return [by_name[name] for name in flow.names]

    def prepare(self, new: NewTask, now: datetime, step: Step | None = None) -> PreparedTask:
        value, body = self._payloads.take(new.input, "the input")
        new = NewTask(new.task_type, value, new.options)  # From here on, the caller may change its input.
        dependents = () if step is None else step.dependents
        task = build(new, now=now, prefix_len=self._prefix_len, ambient=self._ambient, dependents=dependents)
        return PreparedTask(new, task, body, frozenset(() if step is None else step.within))

    async def _check_dependencies(self, prepared: PreparedTask) -> PreparedTask:
        """Raise NotFound unless all tasks exist that this one depends on, or are about to be written with it."""
        flow = prepared.task.flow
        if flow is None or not flow.depends_on:
            return prepared
        return prepared._replace(task=await self._followers.check_targets(prepared.task, prepared.within))

    async def _create_all(self, prepared: Sequence[PreparedTask]) -> list[Submission]:
        submitted: list[Submission] = []
        for start in range(0, len(prepared), SUBMITS_AT_ONCE):
            batch = prepared[start : start + SUBMITS_AT_ONCE]
            created = await gather_cancellable(self._create(each) for each in batch)
            # One after another: tasks of one group get in line in the order given.
            submitted += [await self._connect(p, *each) for p, each in zip(batch, created, strict=True)]
        return submitted

    async def _create(self, prepared: PreparedTask) -> tuple[Snapshot, bool]:
        """Write a task. Return it and True or, if it is there already, what is there, and False."""
        new, task = prepared.new, prepared.task
        if new.options.unique is not None:
            holder = await self._uniques.find(new.options.unique, new.task_type, new.input, task.id)
            if isinstance(holder, Snapshot):
                return holder, False
            task = prepared.with_id(holder, self._prefix_len).task
        task = await self._payloads.offload_input(task, prepared.body)
        if self._router is not None:
            task = await self._router.route(task)
        snapshot, created = await self._tasks.create(task)
        if not created and new.options.unique is None:
            await self._check_same(snapshot.task, new)
        if not created:
            await self._tasks.project(snapshot.task)  # The first submitter may have died before it wrote the hint.
        return snapshot, created

    async def _check_same(self, there: Task, new: NewTask) -> None:
        was = wire.fingerprint([there.task_type, await self._payloads.input(there)])
        if was != wire.fingerprint([new.task_type, new.input]):
            raise IdempotencyConflict(
                f"key {new.options.key!r} was used before for another type or input, by task {there.id}"
            )

    async def _connect(self, prepared: PreparedTask, snapshot: Snapshot, created: bool) -> Submission:
        """Have a waiting task told of what it waits for."""
        if snapshot.task.waiting:
            # What a flow's task depends on within the flow is written after it, and names it from its first version.
            but = prepared.within if created else ()
            snapshot = await self._followers.settle(snapshot, but)
        return Submission(self._payloads.reveal(snapshot.task), created)
