"""Tasks that wait for others: whoever ends a task tells those that wait for it.

A waiting task names what it waits for, and each of those tasks names it among its dependents: so the process that ends
a task knows whom to tell, and nobody polls. If that process dies first, the ended task's hint is still there, and
whoever follows the hint tells the dependents (``release``); the waiting task's own hint leads a monitor to it, which
looks at what it waits for (``settle``). Both may be repeated by anybody at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import commands
from qo.core.commands import Reason, Rejected
from qo.core.task import Task
from qo.core.waits import (
    DEPENDENTS_MAX,
    GROUP,
    Verdict,
    assess,
    conditions_about,
    ended_as,
    flow_of,
    is_in_line,
    target_of,
    wants_place,
    without,
)
from qo.errors import Contended, CorruptRecord, NotFound, Refused, StoreError
from qo.queue.concurrency import gather_cancellable
from qo.queue.groups import Groups
from qo.queue.listing import READS_AT_ONCE
from qo.queue.tasks import Snapshot, Tasks

log = logging.getLogger(__name__)

NOTICES_MAX = 5  # How often one process tries to tell a dependent that others are changing all the time.
REST_FIRST_S = 0.05


class Followers:
    def __init__(self, tasks: Tasks, groups: Groups, ambient: Ambient) -> None:
        self._tasks = tasks
        self._groups = groups
        self._ambient = ambient
        self._notices: dict[str, dict[str, Task]] = {}  # By dependent: tasks whose end it has not been told.
        self._locks: dict[str, asyncio.Lock] = {}  # By dependent: one write of this process at a time.
        self.on_ready: Callable[[], None] = lambda: None  # Called when a waiting task has become ready.

    async def release(self, task: Task) -> bool:
        """Tell the dependents of a task that has ended, and theirs if they end by that.

        Return False if that failed for one: then a hint must stay that leads to it. Raises no error of the store.
        """
        ended, is_complete = deque([task]), True
        while ended:
            each = ended.popleft()
            for batch in _batches(flow_of(each).dependents):
                for moved in await gather_cancellable(self._notify(dependent, each) for dependent in batch):
                    is_complete = is_complete and moved is not False
                    if isinstance(moved, Task) and moved.ended:
                        ended.append(moved)
        return is_complete

    async def _notify(self, dependent_id: str, ended: Task) -> Task | bool:
        """Tell one dependent. Return it if it was changed, True if there was nothing to change, False on failure."""
        self._notices.setdefault(dependent_id, {})[ended.id] = ended
        lock = self._locks.setdefault(dependent_id, asyncio.Lock())
        try:
            async with lock:
                return await self._tell_all(dependent_id, ended.id)
        except (StoreError, CorruptRecord) as error:
            log.warning(
                "could not tell task %s that %s has ended: %s; a monitor will", dependent_id, ended.id, error
            )
            return False
        finally:
            if not self._notices.get(dependent_id) and not lock.locked():
                self._notices.pop(dependent_id, None)
                self._locks.pop(dependent_id, None)

    async def _tell_all(self, dependent_id: str, ended_id: str) -> Task | bool:
        """Tell a dependent of all tasks whose end it has not been told; many that end at once make few requests."""
        notices = self._notices.get(dependent_id, {})
        if ended_id not in notices:
            return True  # Told along with another.
        self._notices[dependent_id] = {}
        try:
            return await self._tell(dependent_id, notices)
        except BaseException:
            if len(notices) > 1 or self._notices.get(dependent_id):  # Whoever comes next tries again, for all.
                self._notices.setdefault(dependent_id, {}).update(notices)
            raise

    async def _tell(self, dependent_id: str, ended: dict[str, Task]) -> Task | bool:
        rest_s = REST_FIRST_S
        for attempt in range(1, NOTICES_MAX + 1):
            snapshot = await self._tasks.load(dependent_id)
            if snapshot is None:
                return True
            verdicts = {
                condition: assess(snapshot.task, condition, ended[target_of(condition)])
                for condition in conditions_about(snapshot.task, ended)
            }
            try:
                moved = await self._conclude(snapshot, verdicts, ended)
            except Contended:
                if attempt == NOTICES_MAX:
                    raise
                await asyncio.sleep(rest_s * (0.5 + self._ambient.unit()))
                rest_s *= 2
            else:
                return True if moved is snapshot else moved.task
        raise AssertionError("unreachable")

    async def _conclude(
        self, snapshot: Snapshot, verdicts: dict[str, Verdict], targets: dict[str, Task]
    ) -> Snapshot:
        """Remove the conditions that are met, or cancel the task if one is broken."""
        broken = next((each for each, verdict in verdicts.items() if verdict is Verdict.BROKEN), None)
        met = tuple(condition for condition, verdict in verdicts.items() if verdict is Verdict.MET)
        if broken is not None:
            status = ended_as(targets[target_of(broken)])
            command = commands.Break(self._ambient.token(), target_of(broken), status)
        elif met:
            command = commands.Meet(self._ambient.token(), met)
        else:
            return snapshot
        was_waiting = snapshot.task.waiting
        moved = await self._tasks.apply(snapshot, command, follow=False)
        if isinstance(moved, Rejected):
            return snapshot  # It was cancelled or replayed meanwhile.
        if moved.task.waiting and wants_place(flow_of(moved.task)):
            moved = await self.settle(moved)  # That was the last dependency: it gets in line.
        if was_waiting and not moved.task.waiting and not moved.task.ended:
            self.on_ready()
        return moved

    async def check_targets(self, task: Task, within: Collection[str] = ()) -> Task:
        """Return a task that is about to be created, without the conditions that are met already.

        Raises NotFound if a task that it depends on does not exist, unless it is ``within`` the same submission, and
        Refused if one has too many dependents.
        """
        conditions = [each for each in flow_of(task).depends_on if each not in within]
        targets = await self._load_targets(conditions)
        if missing := [each for each in conditions if targets[target_of(each)] is None]:
            raise NotFound(
                f"there is no task {target_of(missing[0])} in this queue, and a task cannot depend on it: submit that "
                "one first, or submit both as a flow; if it was purged, submit it again, or leave it out"
            )
        for target in targets.values():  # Refused now, not after the task is written.
            if target is None or target.ended or task.id in flow_of(target).dependents:
                continue
            if len(flow_of(target).dependents) >= DEPENDENTS_MAX:
                raise Refused(
                    f"task {target.id} has {DEPENDENTS_MAX:,} dependents, which is the most; let some of them depend "
                    "on a task in between"
                )
        met = [each for each in conditions if assess(task, each, targets[target_of(each)]) is Verdict.MET]
        return _with_flow(task, met)

    async def revive(self, task: Task) -> None:
        """Let the tasks that were cancelled because this one did not complete wait for it again, and so on."""
        replayed = deque([task])
        while replayed:
            parent = replayed.popleft()
            for dependent_id in flow_of(parent).dependents:
                snapshot = await self._tasks.load(dependent_id)
                if snapshot is None or flow_of(snapshot.task).broken_by != parent.id:
                    continue
                moved = await self._tasks.apply(snapshot, commands.Revive(self._ambient.token()))
                if isinstance(moved, Snapshot):
                    replayed.append((await self.settle(moved)).task)

    async def settle(self, snapshot: Snapshot, but: Collection[str] = ()) -> Snapshot:
        """Make sure that a waiting task will be told of all that it waits for, or need not be.

        Tasks in ``but`` know it already. Raises Refused if a task that it depends on has too many dependents.
        """
        if snapshot.task.waiting and wants_place(flow_of(snapshot.task)):
            snapshot = await self._groups.join(snapshot)
            if not snapshot.task.waiting:
                self.on_ready()
        blocked = [snapshot]
        while (ahead := await self._ended_ahead(blocked[-1].task)) is not None:
            blocked.append(ahead)
        while len(blocked) > 1:
            await self._settle(blocked.pop(), but)
        return await self._settle(snapshot, but)

    async def _ended_ahead(self, task: Task) -> Snapshot | None:
        """Return the task before this one in the line of its group, if it has ended but its turn has not come yet."""
        waits_for = flow_of(task).waits_for
        if len(waits_for) != 1 or "#" not in waits_for[0]:
            return None
        ahead = await self._tasks.load(target_of(waits_for[0]))
        if ahead is None or not ahead.task.ended or not is_in_line(flow_of(ahead.task)):
            return None
        return ahead

    async def _settle(self, snapshot: Snapshot, but: Collection[str]) -> Snapshot:
        if not snapshot.task.waiting and not is_in_line(flow_of(snapshot.task)):
            return snapshot
        waits_for = flow_of(snapshot.task).waits_for
        conditions = [each for each in waits_for if each != GROUP and target_of(each) not in but]
        targets: dict[str, Task] = {}
        verdicts: dict[str, Verdict] = {}
        for batch in _batches(conditions):
            answers = await gather_cancellable(self._register(snapshot.task, each) for each in batch)
            for condition, (verdict, target) in zip(batch, answers, strict=True):
                verdicts[condition] = verdict
                if target is not None:
                    targets[target.id] = target
                else:
                    log.warning("task %s waits for task %s, which does not exist", snapshot.task.id, condition)
        settled = await self._conclude(snapshot, verdicts, targets)
        if (
            settled.task.ended and settled is not snapshot
        ):  # Cancelled for a dependency, or in line and now past it.
            await self.release(settled.task)
        return settled

    async def _register(self, waiting: Task, condition: str) -> tuple[Verdict, Task | None]:
        """Register a task with one that it waits for, unless that one has ended. Return what is so now."""
        target = await self._tasks.load(target_of(condition))
        verdict = assess(waiting, condition, None if target is None else target.task)
        if target is None or verdict is not Verdict.UNREGISTERED:
            return verdict, None if target is None else target.task
        moved = await self._tasks.apply(target, commands.AddDependent(self._ambient.token(), waiting.id))
        if isinstance(moved, Snapshot):
            return assess(waiting, condition, moved.task), moved.task
        if moved.reason is Reason.TOO_MANY:
            raise Refused(f"{moved.detail}; let some of them depend on a task in between")
        target = await self._tasks.load(target_of(condition))  # It has ended meanwhile.
        return assess(waiting, condition, None if target is None else target.task), target and target.task

    async def _load_targets(self, conditions: Sequence[str]) -> dict[str, Task | None]:
        ids = list(dict.fromkeys(target_of(each) for each in conditions))
        targets: dict[str, Task | None] = {}
        for batch in _batches(ids):
            snapshots = await gather_cancellable(self._tasks.load(each) for each in batch)
            targets.update({k: s and s.task for k, s in zip(batch, snapshots, strict=True)})
        return targets


def _with_flow(task: Task, met: Iterable[str]) -> Task:
    return replace(task, flow=without(flow_of(task), met))


def _batches(items: Sequence[str]) -> Iterable[Sequence[str]]:
    return (items[start : start + READS_AT_ONCE] for start in range(0, len(items), READS_AT_ONCE))
