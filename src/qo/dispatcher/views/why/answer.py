"""Why something is there, or what keeps it away.

``why(tx, "orders_clean@2024-01-02")`` follows what happened from the source downwards (``dispatcher.chain``). Where
nothing has happened yet it goes upstream, input by input, until it meets the first thing that blocks: a paused job,
a failed task, a join that misses its other side, or a source that has not said anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from qo.api.contract.why import Step, Verdict, WhyAnswer
from qo.core.pipeline import routing
from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.event import NUMBER_MAX
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.core.pipeline.topology import LiveJob, Reader, Topology, VersionStatus
from qo.core.words import plural
from qo.dispatcher.events import tallies
from qo.dispatcher.state import datasets, schema, topology
from qo.dispatcher.state.columns import inline
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.datasets import DatasetRef
from qo.dispatcher.tasks import failures
from qo.dispatcher.views.why import invalidated
from qo.dispatcher.views.why.findings import Finding, refused, silent, takable, unattended
from qo.dispatcher.views.why.trace import DEPTH_MAX, Chain, Row, scope
from qo.errors import NotFound, UsageError

VISITS_MAX = 200  # Datasets that are looked at upstream of one question.
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_CURSOR = re.compile(r"cursor:(\d{1,19})\Z")
# Of several inputs, the one that explains most.
_RANK = (Verdict.BLOCKED, Verdict.UNDER_WAY, Verdict.THERE, Verdict.UNKNOWN)


_NOTHING_OUTSTANDING = "nothing that was announced is outstanding"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is looked for in a generation: a partition, a cursor, or, with neither, how it is at large."""

    dataset_id: str
    generation_id: str
    partition_key: str | None = None
    cursor: int | None = None

    @property
    def at_large(self) -> bool:
        return self.partition_key is None and self.cursor is None


def why(tx: Tx, target: str) -> WhyAnswer:
    """Answer for ``DATASET``, ``DATASET@PARTITION``, ``DATASET@cursor:N``, or the id of an event or a task.

    Of a job that makes no datasets, only has effects, ``dag.job`` stands for what it has done.

    Raises NotFound for a dataset, event or task that does not exist, UsageError for a cursor that cannot be.
    """
    if _ID.match(target):
        return _by_id(tx, target)
    name, _, wanted = target.partition("@")
    try:
        ref = datasets.resolve(tx, name)
    except NotFound:
        job = _without_outputs(topology.load(tx), name)
        if job is None:
            raise
        return _of_effects(tx, target, job, wanted)
    generation = datasets.generation_of(tx, ref.id)
    if generation is None:
        gone = Finding(
            Verdict.BLOCKED, f"no version of {ref.dag} is live", f"deploy {ref.dag}: qo dag deploy FILE"
        )
        return _answer(target, ref, _Asked(ref.id, ""), gone)
    asked = _asked(tx, ref, generation, wanted)
    return _answer(target, ref, asked, _Walk(Chain(tx, topology.load(tx))).explain(asked))


def _without_outputs(live: Topology, name: str) -> LiveJob | None:
    """The live job of that name, if it makes no datasets; of two editions, that of the active version."""
    found = [each for each in live.jobs.values() if each.name == name and not each.outputs]
    return min(found, key=lambda each: each.status is not VersionStatus.ACTIVE, default=None)


def _of_effects(tx: Tx, target: str, job: LiveJob, wanted: str) -> WhyAnswer:
    ref = DatasetRef("", job.dag, job.job.name, 0)
    asked = _asked(tx, ref, "", wanted)
    finding = _Walk(Chain(tx, topology.load(tx))).effects(job, asked)
    return _answer(target, ref, asked, finding, done="is done", missing="is not done")


def _asked(tx: Tx, ref: DatasetRef, generation: str, wanted: str) -> _Asked:
    if not wanted:
        return _Asked(ref.id, generation)
    if (cursor := _CURSOR.match(wanted)) is not None:
        if int(cursor[1]) > NUMBER_MAX:
            raise UsageError(f"a cursor is at most {NUMBER_MAX}: there is no {wanted}")
        return _Asked(ref.id, generation, cursor=int(cursor[1]))
    if wanted.startswith("cursor:"):
        raise UsageError(f"{wanted[:80]!r} is no cursor: write {ref.label}@cursor:N with a whole number")
    if wanted.isdecimal() and len(wanted) <= 18:
        # A number is a cursor where the dataset has cursors, and else the key of a partition.
        table = schema.generations
        known = tx.value(sa.select(table.c.cursor).where(table.c.id == generation))
        if known is not None:
            return _Asked(ref.id, generation, cursor=int(wanted))
    return _Asked(ref.id, generation, partition_key=wanted)


def _by_id(tx: Tx, target: str) -> WhyAnswer:
    chain = Chain(tx, topology.load(tx))
    event = tx.one(sa.select(schema.events).where(schema.events.c.id == target))
    task = chain.task(target)
    if event is not None:
        delivered = schema.deliveries
        rows = tx.all(sa.select(delivered).where(delivered.c.event_seq == event["seq"]).limit(VISITS_MAX))
        steps = [*chain.up_to_event(event), *map(chain.delivery_step, rows)]
        worst = (
            Verdict.UNDER_WAY
            if EventState.PENDING in {event["state"], *(row["outcome"] for row in rows)}
            else Verdict.THERE
        )
        finding = Finding(worst, steps[-1].text, steps=tuple(steps))
        asked = _Asked(event["dataset_id"], event["generation_id"], event["partition_key"], event["cursor"])
    elif task is not None:
        standing = chain.standing(task)
        steps = chain.up_to_task(task)
        finding = Finding(standing.verdict, steps[-1].text, standing.do, tuple(steps))
        asked = _Asked(
            task["dataset_id"] or "", task["generation_id"] or "", task["partition_key"], task["cursor"]
        )
    else:
        raise NotFound(f"there is no event and no task {target}")
    ref = datasets.by_id(tx, [asked.dataset_id]).get(asked.dataset_id)
    return _answer(target, ref or DatasetRef(asked.dataset_id, "", target, 0, target), asked, finding)


def _answer(
    target: str,
    ref: DatasetRef,
    asked: _Asked,
    finding: Finding,
    done: str = "is there",
    missing: str = "is not there",
) -> WhyAnswer:
    there = finding.verdict is Verdict.THERE
    state = {
        Verdict.THERE: done,
        Verdict.UNDER_WAY: "is under way",
        Verdict.BLOCKED: missing,
        Verdict.UNKNOWN: missing,
    }[finding.verdict]
    lines = [f"{target} {state}: {finding.because}", *(f"  {step.text}" for step in finding.steps)]
    if finding.do is not None:
        lines.append(f"to do: {finding.do}")
    return WhyAnswer(
        target=target,
        dataset=ref.label,
        dataset_id=ref.id,
        generation_id=asked.generation_id or None,
        partition_key=asked.partition_key,
        cursor=asked.cursor,
        verdict=finding.verdict,
        steps=list(finding.steps),
        blocked_by=None if there else finding.because,
        do=finding.do,
        stale=bool(finding.stale),
        stale_inputs=list(finding.stale),
        lines=lines,
    )


@dataclass(slots=True)
class _Walk:
    chain: Chain
    seen: set[_Asked] = field(default_factory=set[_Asked])

    def explain(self, asked: _Asked, depth: int = 0) -> Finding:
        self.seen.add(asked)
        if asked.partition_key is not None:
            there = self._partition_there(asked, asked.partition_key)
        else:
            there = self._cursor_there(asked, asked.cursor) if asked.cursor is not None else None
        return there or self._absent(asked, depth)

    def _partition_there(self, asked: _Asked, key: str) -> Finding | None:
        commit = self.chain.partition(asked.dataset_id, asked.generation_id, key)
        if commit is not None:
            return self._committed(commit)
        event = self.chain.latest_event(asked.dataset_id, asked.generation_id, key)
        removal = self.chain.removal(asked.generation_id, key)
        if removal is not None and (event is None or event["received_at"] <= removal["committed_at"]):
            return self._removed(removal)
        return self._announced(event) if event is not None else None

    def _removed(self, removal: Row) -> Finding:
        task, step = self.chain.task(removal["task_id"]), self.chain.removal_step(removal)
        before = self.chain.invalidation_steps(task) if task is not None else []
        name = self.chain.name(removal["dataset_id"])
        do = f"see what it was: qo dataset history {name} -p {removal['partition_key']}"
        return Finding(Verdict.BLOCKED, step.text.partition(" was ")[2], do, (*before, step))

    def _cursor_there(self, asked: _Asked, cursor: int) -> Finding | None:
        commit = self.chain.segment(asked.generation_id, cursor)
        if commit is not None:
            return self._committed(commit)
        event = self.chain.latest_event(asked.dataset_id, asked.generation_id, None)
        return self._announced(event) if event is not None and (event["cursor"] or 0) >= cursor else None

    def _committed(self, commit: Row) -> Finding:
        task, step = self.chain.task(commit["task_id"]), self.chain.commit_step(commit)
        before = self.chain.up_to_task(task) if task is not None else []
        text = f"committed as revision {commit['revision']}"
        later = invalidated.since(self.chain, commit)
        rejected = self.chain.rejected_since(commit) if commit["partition_key"] is not None else []
        steps = (*before, step, *rejected, *later.steps)
        return Finding(Verdict.THERE, text + later.because, later.do, steps, later.stale)

    def _announced(self, event: Row) -> Finding:
        task = self.chain.task(event["producer_task_id"])
        job = self.chain.live.jobs.get(task["edition_id"]) if task is not None else None
        # Said on the way, by a task that has not come to its end. What a source says holds at once.
        if task is not None and task["status"] != "completed" and (job is None or job.job.source is None):
            return self._by_task(task, scope(self.chain.name(event["dataset_id"]), event["partition_key"], None))
        return Finding(Verdict.THERE, "announced by its producer", steps=tuple(self.chain.up_to_event(event)))

    def _absent(self, asked: _Asked, depth: int) -> Finding:
        job = self._producer(asked.generation_id)
        what = scope(self.chain.name(asked.dataset_id), asked.partition_key, asked.cursor)
        if job is None:
            return Finding(Verdict.BLOCKED, f"no live version makes this generation of {what}")
        task = self._own_task(job, asked)
        if task is not None and (asked.partition_key is not None or task["status"] != "completed"):
            return self._by_task(task, what)
        if job.job.source is not None:
            event = self.chain.last_event(asked.dataset_id, asked.generation_id) if asked.at_large else None
            return self._announced(event) if event is not None else silent(self.chain, job, what)
        found = self._by_inputs(job, asked, depth)
        if found.verdict is not Verdict.THERE:
            return found
        if asked.at_large:
            return self._at_large(job, asked, found)
        text = f"all that was announced upstream has been worked on, and {job.name} made no {what} of it"
        return replace(found, verdict=Verdict.UNKNOWN, because=text)

    def _at_large(self, job: LiveJob, asked: _Asked, found: Finding) -> Finding:
        """Nothing is under way: of a dataset that something is committed of, that is as it should be."""
        unread, table = refused(self.chain, job), schema.generations
        row = self.chain.tx.one(sa.select(table).where(table.c.id == asked.generation_id))
        if row is not None and (row["partitions"] or row["cursor"] is not None):
            return replace(found, because=_NOTHING_OUTSTANDING + (f"; {unread.because}" if unread else ""))
        text = f"nothing was committed of it, and {_NOTHING_OUTSTANDING}"
        return unread or replace(found, verdict=Verdict.UNKNOWN, because=text)

    def effects(self, job: LiveJob, asked: _Asked) -> Finding:
        """Of a job without datasets: how the task stands that was made for it, or why there is none."""
        key = asked.partition_key
        task = self._own_task(job, asked) if key is None else self.chain.task_of(job.edition_id, key)
        if task is not None:
            standing, steps = self.chain.standing(task), tuple(self.chain.up_to_task(task))
            return Finding(standing.verdict, steps[-1].text, standing.do, steps)
        found = self._by_inputs(job, asked, 0)
        if found.verdict is not Verdict.THERE:
            return found
        if asked.at_large:
            return refused(self.chain, job) or replace(found, because=_NOTHING_OUTSTANDING)
        text = f"all that was announced upstream has been worked on, and {job.name} had no task for it"
        return replace(found, verdict=Verdict.UNKNOWN, because=text)

    def _producer(self, generation: str) -> LiveJob | None:
        table = schema.generations
        edition = self.chain.tx.value(sa.select(table.c.edition_id).where(table.c.id == generation))
        return self.chain.live.jobs.get(edition or "")

    def _own_task(self, job: LiveJob, asked: _Asked) -> Row | None:
        """The task that should make it, or for a dataset at large one that has failed or not come to its end."""
        if asked.partition_key is not None and job.job.execution_strategy is not Strategy.PER_UPDATE:
            return self.chain.task_of(job.edition_id, asked.partition_key)
        failed = failures.first_open(self.chain.tx, self.chain.live, job.edition_id)
        if failed is not None:
            return self.chain.task(failed)
        table = schema.tasks
        for status in ("pending", "running"):
            query = sa.select(table).where(table.c.edition_id == job.edition_id, table.c.status == status)
            found = self.chain.tx.one(query.order_by(table.c.created_at).limit(1))
            if found is not None and not (job.job.source is not None and status == "running"):
                return found
        return None

    def _by_task(self, task: Row, what: str) -> Finding:
        standing = self.chain.standing(task)
        steps = tuple(self.chain.up_to_task(task))
        if standing.verdict is Verdict.THERE:
            text = f"task {task['id']} of {task['dag']}.{task['job']} completed and committed nothing as {what}"
            return Finding(Verdict.BLOCKED, text, f"see what it made: qo run show {task['id']}", steps)
        wrong = self.chain.found_wrong(task["id"])
        return Finding(standing.verdict, steps[-1].text, standing.do, (*steps, *wrong))

    # Upstream

    def _by_inputs(self, job: LiveJob, asked: _Asked, depth: int) -> Finding:
        if asked.partition_key is None or job.job.execution_strategy is Strategy.PER_UPDATE:
            waiting = self._waits(job)
            if waiting is not None:
                return waiting
            asked = replace(asked, partition_key=None, cursor=None)  # Its inputs have keys of their own.
        findings = [
            found
            for each in job.inputs
            if each.trigger and (found := self._by_input(Reader(job, each), asked, depth)) is not None
        ]
        unknown = Finding(Verdict.UNKNOWN, "nothing upstream has announced it")
        return min(findings, key=lambda found: _RANK.index(found.verdict), default=unknown)

    def _by_input(self, reader: Reader, asked: _Asked, depth: int) -> Finding | None:
        generation = routing.generation_read(reader, self.chain.live)
        name = self.chain.name(reader.input.dataset_id)
        if generation is None:
            return Finding(Verdict.BLOCKED, f"{reader.job.name} reads {name}, of which nothing is current")
        above = _Asked(reader.input.dataset_id, generation, asked.partition_key)
        if asked.partition_key is not None:
            event = self.chain.latest_event(above.dataset_id, generation, asked.partition_key)
            if event is not None:
                return self._by_event(reader.job, event, depth)
            if self.chain.partition(above.dataset_id, generation, asked.partition_key) is not None:
                return self._overlooked(reader.job, generation, asked.partition_key, (), depth)
        else:
            unrouted = (
                tallies.counts(self.chain.tx, above.dataset_id).get(tallies.EVENTS, {}).get(EventState.PENDING, 0)
            )
            if unrouted:
                do = unattended(self.chain)
                waiting = plural(unrouted, f"event of {name} waits", f"events of {name} wait")
                return Finding(Verdict.UNDER_WAY, f"{waiting} to be routed", do)
        if above in self.seen or depth >= DEPTH_MAX or len(self.seen) >= VISITS_MAX:
            return None
        return self.explain(above, depth + 1)

    def _by_event(self, job: LiveJob, event: Row, depth: int) -> Finding:
        steps = tuple(self.chain.up_to_event(event))
        if event["state"] == EventState.PENDING:
            do = self.chain.nobody_since(event["received_at"])
            return Finding(Verdict.UNDER_WAY, f"event {event['seq']} waits to be routed", do, steps)
        delivery = self.chain.delivery(event["seq"], job.edition_id)
        if delivery is None:
            return self._overlooked(job, event["generation_id"], event["partition_key"], steps, depth)
        steps = (*steps, self.chain.delivery_step(delivery))
        if delivery["outcome"] == DeliveryOutcome.PENDING:
            missing = self._other_side(job, event["generation_id"], event["partition_key"], steps, depth)
            return missing or Finding(Verdict.UNDER_WAY, f"{job.name} {delivery['reason']}", steps=steps)
        unread = delivery["outcome"] == DeliveryOutcome.FILTERED
        do = takable(job, self.chain.name(event["dataset_id"])) if unread else None
        return Finding(Verdict.BLOCKED, steps[-1].text, do, steps)

    def _other_side(
        self, job: LiveJob, generation: str, key: str, steps: tuple[Step, ...], depth: int
    ) -> Finding | None:
        """Why the first of the other sides of a join is not there; None if they all are, or it is no join."""
        for each in job.inputs if routing.joins(job) else ():
            other = routing.generation_read(Reader(job, each), self.chain.live)
            if not each.trigger or other == generation:
                continue
            waits = f"{job.name} waits for partition {key} on input {each.name}"
            if other is None:
                text = f"{waits}: nothing is current of {self.chain.name(each.dataset_id)}"
                return Finding(Verdict.BLOCKED, text, steps=steps)
            above = _Asked(each.dataset_id, other, key)
            if above in self.seen or self.chain.latest_event(each.dataset_id, other, key) is not None:
                continue
            found = self.explain(above, depth + 1) if depth < DEPTH_MAX else None
            if found is not None and found.verdict is not Verdict.THERE:
                return Finding(found.verdict, f"{waits}: {found.because}", found.do, (*steps, *found.steps))
        return None

    def _overlooked(self, job: LiveJob, generation: str, key: str, steps: tuple[Step, ...], depth: int) -> Finding:
        """What it reads was there before it was, or its event was lost."""
        missing = self._other_side(job, generation, key, steps, depth)
        if missing is not None:
            return missing
        text = f"its input is there, and {job.name} has no task for it yet: the reconciler will make one"
        return Finding(Verdict.UNDER_WAY, text, steps=steps)

    def _waits(self, job: LiveJob) -> Finding | None:
        table = schema.deliveries
        query = sa.select(table).where(
            table.c.outcome == inline(DeliveryOutcome.PENDING), table.c.edition_id == job.edition_id
        )
        row = self.chain.tx.one(query.order_by(table.c.partition_key).limit(1))
        if row is None:
            return None
        step = self.chain.delivery_step(row)
        return Finding(Verdict.UNDER_WAY, f"{job.name} {row['reason']}", steps=(step,))
