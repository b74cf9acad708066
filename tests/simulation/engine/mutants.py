"""Bugs to plant in production code, each of which some part of the simulation must find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

import msgspec
import pytest

from qo.ambient import Ambient
from qo.api.contract.task import Claimed
from qo.core import keys, lifecycle, ownership, sweep
from qo.core.lifecycle import Held
from qo.core.task import Status, Task
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import rows
from qo.dispatcher.versions import side_inputs
from qo.queue import follow_up, monitor, shard_tenure, task_removal, tasks
from qo.queue import queue as queue_module
from qo.queue.inbox_recovery import InboxRecovery
from qo.queue.options import NewTask, Options, build
from qo.queue.schedule_runner import Scheduler
from qo.store.memory import MemoryStore
from qo.store.port import Deletion, Entry, ObjectStore
from qo.worker.api.producer import ProducerHandle
from qo.worker.loop import shared_limits
from qo.worker.loop.shared_limits import SharedLimit
from simulation.engine.machines import PROCESS

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    part: str  # Which finds it.
    plant: Callable[[Patch], None]
    first: int = 0  # The first seed that finds it, where that is far from 0. ``make prove`` begins at 0.

    @contextmanager
    def planted(self) -> Generator[None]:
        with Patch.context() as patch:
            self.plant(patch)
            yield


def _no_fence(patch: Patch) -> None:
    """Whoever reports on a running task is believed to hold it."""

    def decide(task: Task, command: lifecycle.Command, *, now: datetime) -> Any:
        if isinstance(command, Held) and task.lease_id is not None:
            command = msgspec.structs.replace(command, lease_id=task.lease_id)
        return lifecycle.decide(task, command, now=now)

    patch.setattr(tasks, "decide", decide)


def _no_condition(patch: Patch) -> None:
    """What was read may have changed meanwhile; it is overwritten all the same."""
    put = MemoryStore.put

    async def anyhow(self: MemoryStore, key: str, body: bytes, **conditions: Any) -> Any:
        return await put(self, key, body)

    patch.setattr(MemoryStore, "put", anyhow)


def _local(now: datetime) -> datetime:
    """As the machine of the running process has it: some minutes off, each differently."""
    return now + timedelta(seconds=crc32(PROCESS.get().encode()) % 600 - 300)


def _local_clock(patch: Patch) -> None:
    def decide(task: Task, command: lifecycle.Command, *, now: datetime) -> Any:
        return lifecycle.decide(task, command, now=_local(now))

    patch.setattr(tasks, "decide", decide)
    patch.setattr(monitor, "is_lapsed", lambda task, now: sweep.is_lapsed(task, _local(now)))


def _ack_before_children(patch: Patch) -> None:
    """A child is promised, and written when there is time."""
    later: set[Any] = set()

    async def enqueue(
        self: ProducerHandle, task_type: str, input: Any = None, options: Options | None = None
    ) -> Task:
        queue, new = self._queue, NewTask(task_type, input, options or Options())
        writing = asyncio.ensure_future(queue.submit(task_type, input, options))
        later.add(writing)
        writing.add_done_callback(lambda done: later.discard(done) or done.cancelled() or done.exception())
        now = await queue.store.now()
        return build(new, now=now, prefix_len=queue.prefix_len, ambient=Ambient.seeded(0))

    patch.setattr(ProducerHandle, "enqueue", enqueue)


def _cursor_before_commit(patch: Patch) -> None:
    """What an attempt is about to read counts as read."""
    claim = claiming.claim

    def claim_and_advance(tx: Tx, *arguments: Any, **options: Any) -> Any:
        answer = claim(tx, *arguments, **options)
        if isinstance(answer, Claimed):
            row = rows.load_all(tx, [answer.work.task_id])[answer.work.task_id]
            completion._advance(tx, row, completion._ranges(tx, row))
        return answer

    patch.setattr(claiming, "claim", claim_and_advance)


def _record_before_submit(patch: Patch) -> None:
    """A run of a schedule is recorded, and then submitted."""
    fire = Scheduler._fire

    async def record_and_fire(self: Scheduler, seen: Any, instants: list[datetime], now: datetime) -> Any:
        if instants:
            await self._record(seen, instants[-1], None, now)
        return await fire(self, seen, instants, now)

    patch.setattr(Scheduler, "_fire", record_and_fire)


def _lease_outlived(patch: Patch) -> None:
    """A worker that cannot read the board goes by its plan for a minute longer than the others wait."""
    patch.setattr(ownership, "MARGIN_S", -60.0)


def _owned_at_once(patch: Patch) -> None:
    """What is granted anew is owned without waiting for the one that had it before."""
    adopt = shard_tenure.adopt

    def adopt_at_once(tenure: Any, plan: Any, worker_id: str, *, at: float) -> Any:
        return adopt(tenure, plan, worker_id, at=at - plan.wait_s)

    patch.setattr(shard_tenure, "adopt", adopt_at_once)


def _keyless_follower(patch: Patch) -> None:
    """What follows a failure has an id by chance, so that whoever submits it again submits another."""
    options = follow_up.Options
    patch.setattr(follow_up, "Options", lambda **given: options(**{**given, "key": None, "key_scope": None}))


def _follower_recorded_first(patch: Patch) -> None:
    """That a failure is followed is recorded, and then the task is submitted."""
    follow = follow_up.follow_up

    async def record_and_follow(queue: Any, snapshot: Any) -> Any:
        command = lifecycle.FollowUp(queue.ambient.token(), snapshot.task.attempt)
        await queue.tasks.apply(snapshot, command)
        return await follow(queue, snapshot)

    for module in (monitor, queue_module):
        patch.setattr(module, "follow_up", record_and_follow)


def _rebuild_at_once(patch: Patch) -> None:
    """A version that is built beside the active one waits for nothing that it reads beside."""
    patch.setattr(side_inputs, "is_held", lambda tx, live, rebuild: False)


def _purge_blindly(patch: Patch) -> None:
    """Tasks are deleted by their keys, not by the versions that were seen."""
    by_version = task_removal._delete

    async def delete(store: ObjectStore, deletions: Sequence[Deletion]) -> int:
        return await by_version(store, [Deletion(each.key) for each in deletions])

    patch.setattr(task_removal, "_delete", delete)


def _inboxes_stay(patch: Patch) -> None:
    """Nobody looks into the inboxes of the dead."""

    async def offer_nothing(self: InboxRecovery, ready: int = 0) -> int:
        return 0

    patch.setattr(InboxRecovery, "offer_overdue", offer_nothing)


def _offer_takes_back(patch: Patch) -> None:
    """Whatever has an entry in an inbox is offered to all, although its worker may have claimed it by now."""
    decide, offer = tasks.decide, InboxRecovery._offer

    def decide_anyhow(task: Task, command: lifecycle.Command, *, now: datetime) -> Any:
        if isinstance(command, lifecycle.Offer) and task.status is Status.RUNNING:
            open_again = {"status": Status.PENDING, "inbox": None, "lease_id": None, "lease_expires_at": None}
            return msgspec.structs.replace(task, **open_again, token=command.token, updated_at=now)
        return decide(task, command, now=now)

    async def offer_anyhow(self: InboxRecovery, entry: Entry) -> bool:
        found = keys.parse_inbox(entry.key)
        snapshot = None if found is None else await self._queue.tasks.load(found.task_id)
        if snapshot is None or snapshot.task.ended:
            return await offer(self, entry)
        return isinstance(
            await self._queue.tasks.apply(snapshot, lifecycle.Offer(self._queue.ambient.token())), tasks.Snapshot
        )

    patch.setattr(tasks, "decide", decide_anyhow)
    patch.setattr(InboxRecovery, "_offer", offer_anyhow)


def _share_outlived(patch: Patch) -> None:
    """A worker that gets no answer uses its share of a limit for longer than the others wait."""
    patch.setattr(shared_limits, "MARGIN_S", -10.0)  # Less than the part of it, so it counts.


def _share_used_while_asking(patch: Patch) -> None:
    """While a worker asks for another share, it goes on to use all of the old one."""
    wish = SharedLimit.wish

    def wish_and_keep(self: SharedLimit, worker_id: str) -> Any:
        permits = self._permits
        wanted = wish(self, worker_id)
        self._permits = permits
        return wanted

    patch.setattr(SharedLimit, "wish", wish_and_keep)


def _shares_overwritten(patch: Patch) -> None:
    """The shares of a limit are written whoever has changed them meanwhile."""
    put = MemoryStore.put

    async def put_anyhow(self: MemoryStore, key: str, body: bytes, **conditions: Any) -> Any:
        return await put(self, key, body, **({} if key.startswith(keys.LIMITS) else conditions))

    patch.setattr(MemoryStore, "put", put_anyhow)


MUTANTS: dict[str, Mutant] = {
    "no-fence": Mutant("worker", _no_fence, first=60),
    "no-conditional-write": Mutant("queue", _no_condition),
    "local-clock": Mutant("queue", _local_clock),
    "ack-before-children": Mutant("worker", _ack_before_children, first=13),
    "cursor-before-commit": Mutant("dispatcher", _cursor_before_commit, first=2),
    "rebuild-at-once": Mutant("dispatcher", _rebuild_at_once),
    "record-before-submit": Mutant("queue", _record_before_submit),
    "keyless-follower": Mutant("queue", _keyless_follower),
    "follower-recorded-first": Mutant("queue", _follower_recorded_first, first=4),
    "lease-outlived": Mutant("shards", _lease_outlived),
    "owned-at-once": Mutant("shards", _owned_at_once),
    "purge-blindly": Mutant("purges", _purge_blindly),
    "inboxes-stay": Mutant("queue", _inboxes_stay, first=3),
    "offer-takes-back": Mutant("queue", _offer_takes_back, first=3),
    "share-outlived": Mutant("limits", _share_outlived, first=4),
    "share-used-while-asking": Mutant("limits", _share_used_while_asking, first=4),
    "shares-overwritten": Mutant("limits", _shares_overwritten),
}
