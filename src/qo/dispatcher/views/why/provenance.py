"""The trace of ``qo why``: event, delivery, task, commit, and so on upstream to the source.

Every step is found by an index, and their number is bounded, however much data there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa

from qo.api.contract.why import Step, StepKind, Verdict
from qo.core.pipeline import routing
from qo.core.pipeline.topology import Reader, Topology
from qo.core.words import plural
from qo.dispatcher.commits import quality, removing
from qo.dispatcher.state import datasets, schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import failures
from qo.dispatcher.tasks.dedupe_keys import DedupeKey, KeyKind
from qo.dispatcher.tasks.rows import rescheduled
from qo.dispatcher.versions import rebuilding
from qo.dispatcher.views import unserved_queues
from qo.pipeline.registry import Launcher

DEPTH_MAX = 32  # Of jobs one after the other.
ERROR_CHARS = 300  # Of an error message: the rest is in `qo run show`.
NOBODY_S = 60.0  # A dispatcher looks several times a second; one that starts anew is back by then.
CANDIDATES = 20  # Tasks of one partition that are looked at.

# Of several tasks for one partition, the first of these explains best why it is missing.
_MOST_TELLING_FIRST = ("failed", "cancelled", "expired", "pending", "running", "completed")

Row = sa.RowMapping


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a task in words, and what follows from it."""

    text: str
    verdict: Verdict
    do: str | None = None


class Chain:
    """Looks things up within one transaction, and remembers what datasets are called."""

    def __init__(self, tx: Tx, live: Topology) -> None:
        self.tx = tx
        self.live = live
        self._names: dict[str, str] = {}

    def name(self, dataset_id: str) -> str:
        if dataset_id not in self._names:
            ref = datasets.by_id(self.tx, [dataset_id]).get(dataset_id)
            self._names[dataset_id] = ref.label if ref is not None else dataset_id
        return self._names[dataset_id]

    def latest_event(self, dataset: str, generation: str, partition: str | None) -> Row | None:
        """Return the last event of a partition; with None, the last cursor event."""
        table = schema.events
        same = table.c.partition_key.is_(None) if partition is None else table.c.partition_key == partition
        query = sa.select(table).where(table.c.dataset_id == dataset, table.c.generation_id == generation, same)
        return self.tx.one(query.order_by(table.c.seq.desc()).limit(1))

    def last_event(self, dataset: str, generation: str) -> Row | None:
        """Return the last event of a generation."""
        table = schema.events
        query = sa.select(table).where(table.c.dataset_id == dataset, table.c.generation_id == generation)
        return self.tx.one(query.order_by(table.c.seq.desc()).limit(1))

    def partition(self, dataset: str, generation: str, partition: str) -> Row | None:
        table = schema.partitions
        return self.tx.one(
            sa.select(table).where(
                table.c.dataset_id == dataset,
                table.c.generation_id == generation,
                table.c.partition_key == partition,
            )
        )

    def removal(self, generation: str, partition: str) -> Row | None:
        """Return the commit that removed a partition last."""
        revision = removing.last_removals(self.tx, generation, [partition]).get(partition)
        table = schema.commits
        return None if revision is None else self.tx.one(sa.select(table).where(table.c.revision == revision))

    def segment(self, generation: str, cursor: int) -> Row | None:
        """Return the first committed segment that reaches the cursor."""
        table = schema.commits
        query = sa.select(table).where(
            table.c.generation_id == generation, sa.text("cursor IS NOT NULL"), table.c.cursor >= cursor
        )
        return self.tx.one(query.order_by(table.c.cursor).limit(1))

    def task(self, task_id: str | None) -> Row | None:
        table = schema.tasks
        return None if task_id is None else self.tx.one(sa.select(table).where(table.c.id == task_id))

    def task_of(self, edition: str, partition: str) -> Row | None:
        """Return the task of a partition that explains most."""
        table = schema.tasks
        query = sa.select(table).where(table.c.edition_id == edition, table.c.partition_key == partition)
        return most_telling(self.tx.all(query.limit(CANDIDATES)))

    def delivery(self, seq: int, edition: str) -> Row | None:
        table = schema.deliveries
        return self.tx.one(sa.select(table).where(table.c.event_seq == seq, table.c.edition_id == edition))

    def up_to_task(self, task: Row) -> list[Step]:
        """Return the steps from the source down to this task."""
        steps: list[Step] = []
        visited: set[str] = set()
        current: Row | None = task
        while current is not None and current["id"] not in visited and len(visited) < DEPTH_MAX:
            visited.add(current["id"])
            steps.append(self.task_step(current))
            steps += self.invalidation_steps(current)
            event = self._cause(current)
            if event is None:
                break
            delivery = self.delivery(event["seq"], current["edition_id"])
            # The delivery of a task that an invalidation started belongs to an earlier task.
            if delivery is not None and delivery["task_id"] in (None, current["id"]):
                steps.append(self.delivery_step(delivery))
            steps += reversed([*self._joined(current, event), *self._announced(event)])
            current = self.task(event["producer_task_id"])
        return steps[::-1]

    def invalidation_steps(self, task: Row) -> list[Step]:
        """Return the invalidation that a task reads again for."""
        table = schema.invalidations
        row = self.tx.one(sa.select(table).where(table.c.id == task["invalidation_id"]))
        return [] if row is None else [self.invalidation_step(row)]

    def invalidation_step(self, row: Row) -> Step:
        name = self.name(row["dataset_id"])
        what = scope(name, row["partition_key"], None)
        who = row["created_by"] or (f"task {row['source_task_id']}" if row["source_task_id"] else "nobody named")
        return Step(
            kind=StepKind.EVENT,
            text=f"{what} was invalidated at {moment(row['created_at'])} by {who}: {row['reason']}",
            dataset=name,
            partition_key=row["partition_key"],
            task_id=row["source_task_id"],
            at=row["created_at"],
        )

    def _joined(self, task: Row, event: Row) -> list[Step]:
        """Return the announcements of the other sides of a join."""
        job, key = self.live.jobs.get(task["edition_id"]), task["partition_key"]
        if job is None or key is None or not routing.joins(job):
            return []
        steps: list[Step] = []
        for each in job.inputs:
            generation = routing.generation_read(Reader(job, each), self.live)
            if generation is None or generation == event["generation_id"]:
                continue
            other = self.latest_event(each.dataset_id, generation, key)
            steps += self._announced(other) if other is not None else []
        return steps

    def up_to_event(self, event: Row) -> list[Step]:
        producer = self.task(event["producer_task_id"])
        return [*(self.up_to_task(producer) if producer is not None else []), *self._announced(event)]

    def _announced(self, event: Row) -> list[Step]:
        dataset, key = event["dataset_id"], event["partition_key"]
        commit = self.partition(dataset, event["generation_id"], key) if key is not None else None
        return [*([self.commit_step(commit)] if commit is not None else []), self.event_step(event)]

    def _cause(self, task: Row) -> Row | None:
        """Return the event that started a task; for a task of the reconciler, the last event of the same data."""
        table = schema.events
        if task["event_seq"] is not None:
            return self.tx.one(sa.select(table).where(table.c.seq == task["event_seq"]))
        if task["dataset_id"] is None or task["generation_id"] is None:
            return None
        return self.latest_event(task["dataset_id"], task["generation_id"], task["partition_key"])

    def event_step(self, event: Row) -> Step:
        who = f"by task {event['producer_task_id']}" if event["producer_task_id"] else "from outside"
        reason = f": {event['reason']}" if event["reason"] else ""
        what = scope(self.name(event["dataset_id"]), event["partition_key"], event["cursor"])
        when = moment(event["received_at"])
        return Step(
            kind=StepKind.EVENT,
            text=f"event {event['seq']} announced {what} at {when} {who}, {event['state']}{reason}",
            dataset=self.name(event["dataset_id"]),
            partition_key=event["partition_key"],
            cursor=event["cursor"],
            event_seq=event["seq"],
            event_id=event["id"],
            task_id=event["producer_task_id"],
            at=event["received_at"],
        )

    def delivery_step(self, delivery: Row) -> Step:
        job = self.live.jobs.get(delivery["edition_id"])
        name = job.name if job is not None else f"edition {delivery['edition_id']}"
        reason = f": {delivery['reason']}" if delivery["reason"] else ""
        by = f" by task {delivery['task_id']}" if delivery["task_id"] else ""
        return Step(
            kind=StepKind.DELIVERY,
            text=f"at {name} it is {delivery['outcome']}{by}{reason}",
            job=job.name if job is not None else None,
            event_seq=delivery["event_seq"],
            task_id=delivery["task_id"],
        )

    def task_step(self, task: Row) -> Step:
        name = f"{task['dag']}.{task['job']}"
        return Step(
            kind=StepKind.TASK,
            text=f"task {task['id']} of {name}{_requester_text(task)} {self.task_state(task).text}",
            job=name,
            partition_key=task["partition_key"],
            cursor=task["cursor"],
            task_id=task["id"],
            at=task["updated_at"],
        )

    def commit_step(self, commit: Any) -> Step:
        name = self.name(commit["dataset_id"])
        cursor = commit.get("cursor")
        what = scope(name, commit["partition_key"], cursor)
        rows = f", {plural(commit['rows'], 'row')}" if commit["rows"] is not None else ""
        files = f"{plural(len(commit['files'] or ()), 'file')}{rows}"
        return Step(
            kind=StepKind.COMMIT,
            text=f"{what} was committed at {moment(commit['committed_at'])} as revision {commit['revision']}: {files}",
            dataset=name,
            partition_key=commit["partition_key"],
            cursor=cursor,
            task_id=commit["task_id"],
            revision=commit["revision"],
            at=commit["committed_at"],
        )

    def removal_step(self, removal: Row) -> Step:
        task = self.task(removal["task_id"])
        details: dict[str, Any] = (task["output"] if task is not None else None) or {}
        name = self.name(removal["dataset_id"])
        why = f": {details['reason']}" if details.get("reason") else ""
        what = scope(name, removal["partition_key"], None)
        when, who = moment(removal["committed_at"]), details.get("by") or "nobody named"
        return Step(
            kind=StepKind.COMMIT,
            text=f"{what} was removed at {when} by {who}{why}",
            dataset=name,
            partition_key=removal["partition_key"],
            task_id=removal["task_id"],
            revision=removal["revision"],
            at=removal["committed_at"],
        )

    def failed_check_steps(self, task_id: str) -> list[Step]:
        """Return the checks that failed in a task."""
        checks = quality.failed_checks(self.tx, task_id)
        return [Step(kind=StepKind.CHECK, text=f"not as expected: {each}", task_id=task_id) for each in checks]

    def rejected_since(self, commit: Row) -> list[Step]:
        """Return the output that should have replaced a committed partition and was rejected."""
        last = quality.last_rejection(self.tx, commit["dataset_id"], commit["partition_key"])
        if (
            last is None
            or last["generation_id"] != commit["generation_id"]
            or last["at"] <= commit["committed_at"]
        ):
            return []
        what = scope(self.name(last["dataset_id"]), last["partition_key"], last["cursor"])
        text = f"a later {what}, of {moment(last['at'])}, was rejected and lies at {last['location']}: "
        step = Step(kind=StepKind.CHECK, text=text + brief(last["reason"]), task_id=last["task_id"], at=last["at"])
        return [step, *self.failed_check_steps(last["task_id"])]

    def task_state(self, task: Row) -> TaskState:
        """Return the state of a task: what it waits for, who runs it, or how it ended."""
        replay = f"qo run replay {task['id']}"
        error = brief(task["last_error"])
        match task["status"]:
            case "pending":
                return self._waiting(task, error)
            case "running":
                until = moment(task["lease_expires_at"])
                text = f"is running on {task['worker_id']}, attempt {task['attempt']}, lease until {until}"
                return TaskState(text + _waiting_text(task["progress"]), Verdict.UNDER_WAY)
            case "completed":
                return TaskState(f"completed at {moment(task['completed_at'])}", Verdict.THERE)
            case "failed":
                text = f"failed after {plural(task['attempt'], 'attempt')}: {error}"
                superseded = failures.superseded(self.tx, self.live, [task]).get(task["id"])
                if superseded is not None:
                    return TaskState(f"{text}; superseded: {superseded.text}", Verdict.BLOCKED)
                return TaskState(text, Verdict.BLOCKED, f"fix the cause, then {replay}")
            case "cancelled":
                by = f" by {task['cancelled_by']}" if task["cancelled_by"] else ""
                reason = f": {task['cancel_reason']}" if task["cancel_reason"] else ""
                is_live = task["edition_id"] in self.live.jobs  # No other task can be replayed.
                return TaskState(f"was cancelled{by}{reason}", Verdict.BLOCKED, replay if is_live else None)
            case other:
                return TaskState(f"is {other}", Verdict.BLOCKED, replay)

    def _waiting(self, task: Row, error: str) -> TaskState:
        again = rescheduled(self.tx, task)
        prefix = "" if again is None else f"was {again.text}; "
        if task["released_at"] is not None:
            text = f"{prefix}was woken at {moment(task['released_at'])} and not claimed since"
            return TaskState(text, Verdict.UNDER_WAY, self._advise_on_queue(task["queue"]))
        if again is not None and task["available_at"] > self.tx.now:
            return TaskState(f"{prefix}is tried again at {moment(task['available_at'])}", Verdict.UNDER_WAY)
        if task["available_at"] > self.tx.now:
            after = f" after attempt {task['attempt']}: {error}" if task["attempt"] else ""
            return TaskState(f"is due at {moment(task['available_at'])}{after}", Verdict.UNDER_WAY)
        if task["edition_id"] not in self.live.jobs:
            return TaskState("waits: no live version has this edition of the job", Verdict.BLOCKED)
        paused = self._paused(task)
        if paused is not None:
            return paused
        missing = self.live.jobs[task["edition_id"]].missing
        if missing is not None:
            return TaskState(f"waits: {missing}", Verdict.BLOCKED)
        held = rebuilding.why_held(self.tx, self.live, task["edition_id"])
        if held is not None:
            return TaskState(f"waits: {held}", Verdict.BLOCKED)
        holds = schema.holds
        hold = self.tx.value(sa.select(holds.c.reason).where(holds.c.edition_id == task["edition_id"]))
        if hold is not None:
            return TaskState(f"waits: {hold}", Verdict.BLOCKED)
        return TaskState(
            f"{prefix}waits to be released", Verdict.UNDER_WAY, self.advise_on_dispatcher(task["available_at"])
        )

    def advise_on_dispatcher(self, waiting: datetime) -> str | None:
        """Return what to check if something has waited for a dispatcher for too long; None otherwise."""
        waited_s = (self.tx.now - waiting).total_seconds()
        if waited_s < NOBODY_S:
            return None
        return f"see whether a dispatcher runs: none has taken it up for {waited_s:.0f} s"

    def _advise_on_queue(self, queue: str) -> str:
        """Return what to check while nobody claims from a queue."""
        runtime = topology.registry_of(self.tx).of_queue(queue)
        if runtime is None:
            return f"no runtime has the queue {queue} any more: the dispatcher releases the task again by itself"
        if runtime.launcher is not Launcher.QUEUE:
            return "see the log of the dispatcher, which starts it itself"
        unserved = unserved_queues.find_unserved(self.tx, topology.registry_of(self.tx), [queue]).get(queue)
        if unserved is not None:
            return unserved
        of_queue = "" if queue == runtime.queues[0] else f"/{queue}"
        return f"see whether a worker runs: qo worker list --runtime {runtime.name}{of_queue}"

    def _paused(self, task: Row) -> TaskState | None:
        table, name = schema.pauses, f"{task['dag']}.{task['job']}"
        rows = self.tx.all(sa.select(table).where(table.c.scope.in_((name, task["dag"]))).order_by(table.c.scope))
        if not rows:
            return None
        pause = rows[-1]
        return TaskState(
            f"waits: paused by {pause['by']}" + (f": {pause['reason']}" if pause["reason"] else ""),
            Verdict.BLOCKED,
            f"qo dag resume {pause['scope']}",
        )


def _requester_text(task: Row) -> str:
    """Return the backfill that a task belongs to, in words; empty if there is none."""
    key = DedupeKey.parse(task["dedupe_key"])
    return f", for backfill {key.subject}," if key is not None and key.kind is KeyKind.BACKFILL else ""


def _waiting_text(progress: Any) -> str:
    """Return what a running task waits for according to its progress, such as a Spark cluster."""
    waiting = cast("dict[str, Any]", progress).get("waiting") if isinstance(progress, dict) else None
    return f"; {brief(waiting)}" if isinstance(waiting, str) else ""


def most_telling(tasks: Iterable[Row]) -> Row | None:
    return min(tasks, key=lambda row: (_MOST_TELLING_FIRST.index(row["status"]), row["id"]), default=None)


def scope(dataset: str, partition: str | None, cursor: int | None) -> str:
    """Return the name of a dataset, partition or cursor as ``qo why`` accepts it."""
    if partition is not None:
        return f"{dataset}@{partition}"
    return dataset if cursor is None else f"{dataset}@{cursor}"


def moment(at: datetime | None) -> str:
    return "an unknown time" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def brief(error: str | None) -> str:
    first = (error or "no error was given").strip().splitlines()[0]
    return first if len(first) <= ERROR_CHARS else first[:ERROR_CHARS] + "…"
