"""The search of ``qo why``: what happened to a piece of data or, if nothing has, what prevents it.

It goes upstream, input by input, to the first cause: a paused job, a failed task, a join that lacks its other side, or
a source that has not emitted anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from qo.api.contract.why import Step, Verdict
from qo.core.pipeline import routing
from qo.core.pipeline.dag import WITHOUT_KEYS
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.core.pipeline.topology import LiveJob, Reader
from qo.core.words import plural
from qo.dispatcher.events import tallies
from qo.dispatcher.state import schema
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.tasks import failures
from qo.dispatcher.views.why import invalidated
from qo.dispatcher.views.why.findings import (
    Finding,
    advise_on_strategy,
    advise_on_unrouted,
    explain_silent_source,
    find_unusable_events,
)
from qo.dispatcher.views.why.incomplete import explain_incomplete
from qo.dispatcher.views.why.provenance import DEPTH_MAX, Chain, Row, scope

VISITS_MAX = 200  # Datasets that are looked at upstream of one question.
# Of several inputs, the one that explains most.
_RANK = (Verdict.BLOCKED, Verdict.UNDER_WAY, Verdict.THERE, Verdict.UNKNOWN)
_ALL_PROCESSED = "everything that was announced has been processed"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a generation: a partition, a cursor or, with neither, the whole of it."""

    dataset_id: str
    generation_id: str
    partition_key: str | None = None
    cursor: int | None = None

    @property
    def about_all(self) -> bool:
        return self.partition_key is None and self.cursor is None


@dataclass(slots=True)
class Search:
    chain: Chain
    visited: set[Question] = field(default_factory=set[Question])

    def explain(self, question: Question, depth: int = 0) -> Finding:
        self.visited.add(question)
        if question.partition_key is not None:
            there = self._partition_there(question, question.partition_key)
        else:
            there = self._cursor_there(question, question.cursor) if question.cursor is not None else None
        return there or self._explain_absence(question, depth)

    def _partition_there(self, question: Question, key: str) -> Finding | None:
        commit = self.chain.partition(question.dataset_id, question.generation_id, key)
        if commit is not None:
            return self._committed(commit)
        event = self.chain.latest_event(question.dataset_id, question.generation_id, key)
        removal = self.chain.removal(question.generation_id, key)
        if removal is not None and (event is None or event["received_at"] <= removal["committed_at"]):
            return self._removed(removal)
        return self._announced(event) if event is not None else None

    def _removed(self, removal: Row) -> Finding:
        task, step = self.chain.task(removal["task_id"]), self.chain.removal_step(removal)
        before = self.chain.invalidation_steps(task) if task is not None else []
        name = self.chain.name(removal["dataset_id"])
        do = f"see what it was: qo dataset history {name} -p {removal['partition_key']}"
        return Finding(Verdict.BLOCKED, step.text.partition(" was ")[2], do, (*before, step))

    def _cursor_there(self, question: Question, cursor: int) -> Finding | None:
        commit = self.chain.segment(question.generation_id, cursor)
        if commit is not None:
            return self._committed(commit)
        event = self.chain.latest_event(question.dataset_id, question.generation_id, None)
        return self._announced(event) if event is not None and (event["cursor"] or 0) >= cursor else None

    def _committed(self, commit: Row) -> Finding:
        task, step = self.chain.task(commit["task_id"]), self.chain.commit_step(commit)
        before = self.chain.up_to_task(task) if task is not None else []
        text = f"committed as revision {commit['revision']}"
        later = invalidated.find_aftermath(self.chain, commit)
        rejected = self.chain.rejected_since(commit) if commit["partition_key"] is not None else []
        steps = (*before, step, *rejected, *later.steps)
        return Finding(Verdict.THERE, text + later.because, later.do, steps, later.stale)

    def _announced(self, event: Row) -> Finding:
        task = self.chain.task(event["producer_task_id"])
        job = self.chain.live.jobs.get(task["edition_id"]) if task is not None else None
        # An event of a task that has not ended does not count yet. Events of sources count at once.
        if task is not None and task["status"] != "completed" and (job is None or job.job.source is None):
            return self._explain_by_task(
                task, scope(self.chain.name(event["dataset_id"]), event["partition_key"], None)
            )
        return Finding(Verdict.THERE, "announced by its producer", steps=tuple(self.chain.up_to_event(event)))

    def _explain_absence(self, question: Question, depth: int) -> Finding:
        job = self._producer(question.generation_id)
        what = scope(self.chain.name(question.dataset_id), question.partition_key, question.cursor)
        if job is None:
            return Finding(Verdict.BLOCKED, f"no live version makes this generation of {what}")
        task = self._own_task(job, question)
        if task is not None and (question.partition_key is not None or task["status"] != "completed"):
            return self._explain_by_task(task, what)
        if job.job.source is not None:
            event = (
                self.chain.last_event(question.dataset_id, question.generation_id) if question.about_all else None
            )
            return self._announced(event) if event is not None else explain_silent_source(self.chain, job, what)
        finding = self._explain_by_inputs(job, question, depth)
        if finding.verdict is not Verdict.THERE:
            return finding
        if question.about_all:
            return self._explain_all(job, question, finding)
        text = f"everything announced upstream has been processed, and {job.name} made no {what} from it"
        return replace(finding, verdict=Verdict.UNKNOWN, because=text)

    def _explain_all(self, job: LiveJob, question: Question, finding: Finding) -> Finding:
        """Explain a whole dataset that nothing is in progress for: if something is committed, all is well."""
        unread, table = find_unusable_events(self.chain, job), schema.generations
        row = self.chain.tx.one(sa.select(table).where(table.c.id == question.generation_id))
        if row is not None and (row["partitions"] or row["cursor"] is not None):
            return replace(finding, because=_ALL_PROCESSED + (f"; {unread.because}" if unread else ""))
        text = f"nothing was committed of it, and {_ALL_PROCESSED}"
        return unread or replace(finding, verdict=Verdict.UNKNOWN, because=text)

    def effects(self, job: LiveJob, question: Question) -> Finding:
        """Explain a job without outputs: the state of its task, or why there is none."""
        key = question.partition_key
        task = self._own_task(job, question) if key is None else self.chain.task_of(job.edition_id, key)
        if task is not None:
            task_state, steps = self.chain.task_state(task), tuple(self.chain.up_to_task(task))
            return Finding(task_state.verdict, steps[-1].text, task_state.do, steps)
        finding = self._explain_by_inputs(job, question, 0)
        if finding.verdict is not Verdict.THERE:
            return finding
        if question.about_all:
            return find_unusable_events(self.chain, job) or replace(finding, because=_ALL_PROCESSED)
        text = f"everything announced upstream has been processed, and {job.name} had no task for it"
        return replace(finding, verdict=Verdict.UNKNOWN, because=text)

    def _producer(self, generation: str) -> LiveJob | None:
        table = schema.generations
        edition = self.chain.tx.value(sa.select(table.c.edition_id).where(table.c.id == generation))
        return self.chain.live.jobs.get(edition or "")

    def _own_task(self, job: LiveJob, question: Question) -> Row | None:
        """Return the task that should write it or, for a whole dataset, one that has failed or is open."""
        if question.partition_key is not None and job.job.execution_strategy not in WITHOUT_KEYS:
            return self.chain.task_of(job.edition_id, question.partition_key)
        failed = failures.first_open(self.chain.tx, self.chain.live, job.edition_id)
        if failed is not None:
            return self.chain.task(failed)
        table = schema.tasks
        for status in ("pending", "running"):
            query = sa.select(table).where(table.c.edition_id == job.edition_id, table.c.status == status)
            finding = self.chain.tx.one(query.order_by(table.c.created_at).limit(1))
            if finding is not None and not (job.job.source is not None and status == "running"):
                return finding
        return None

    def _explain_by_task(self, task: Row, what: str) -> Finding:
        task_state = self.chain.task_state(task)
        steps = tuple(self.chain.up_to_task(task))
        if task_state.verdict is Verdict.THERE:
            text = f"task {task['id']} of {task['dag']}.{task['job']} completed and committed nothing as {what}"
            return Finding(Verdict.BLOCKED, text, f"see what it made: qo run show {task['id']}", steps)
        wrong = self.chain.failed_check_steps(task["id"])
        return Finding(task_state.verdict, steps[-1].text, task_state.do, (*steps, *wrong))

    def _explain_by_inputs(self, job: LiveJob, question: Question, depth: int) -> Finding:
        if question.partition_key is None or job.job.execution_strategy in WITHOUT_KEYS:
            waiting = self._waits(job)
            if waiting is not None:
                return waiting
            question = replace(question, partition_key=None, cursor=None)  # Its inputs have keys of their own.
        elif job.is_composite:
            return self._explain_composite(job, question.partition_key, depth)
        findings = [
            finding
            for each in job.inputs
            if each.trigger and (finding := self._explain_by_input(Reader(job, each), question, depth)) is not None
        ]
        unknown = Finding(Verdict.UNKNOWN, "nothing upstream has announced it")
        return min(findings, key=lambda finding: _RANK.index(finding.verdict), default=unknown)

    def _explain_composite(self, job: LiveJob, key: str, depth: int) -> Finding:
        def explain_part(dataset: str, generation: str, part: str) -> Finding:
            question = Question(dataset, generation, part)
            if question in self.visited or depth >= DEPTH_MAX or len(self.visited) >= VISITS_MAX:
                return Finding(Verdict.UNKNOWN, "it was not looked at: there is too much upstream")
            return self.explain(question, depth + 1)

        return explain_incomplete(self.chain, job, key, explain_part)

    def _explain_by_input(self, reader: Reader, question: Question, depth: int) -> Finding | None:
        generation = routing.generation_read(reader, self.chain.live)
        name = self.chain.name(reader.input.dataset_id)
        if generation is None:
            return Finding(Verdict.BLOCKED, f"{reader.job.name} reads {name}, which has no current generation")
        above = Question(reader.input.dataset_id, generation, question.partition_key)
        if question.partition_key is not None:
            event = self.chain.latest_event(above.dataset_id, generation, question.partition_key)
            if event is not None:
                return self._explain_by_event(reader.job, event, depth)
            if self.chain.partition(above.dataset_id, generation, question.partition_key) is not None:
                return self._overlooked(reader.job, generation, question.partition_key, (), depth)
        else:
            unrouted = (
                tallies.counts(self.chain.tx, above.dataset_id).get(tallies.EVENTS, {}).get(EventState.PENDING, 0)
            )
            if unrouted:
                do = advise_on_unrouted(self.chain)
                waiting = plural(unrouted, f"event of {name} waits", f"events of {name} wait")
                return Finding(Verdict.UNDER_WAY, f"{waiting} to be routed", do)
        if above in self.visited or depth >= DEPTH_MAX or len(self.visited) >= VISITS_MAX:
            return None
        return self.explain(above, depth + 1)

    def _explain_by_event(self, job: LiveJob, event: Row, depth: int) -> Finding:
        steps = tuple(self.chain.up_to_event(event))
        if event["state"] == EventState.PENDING:
            do = self.chain.advise_on_dispatcher(event["received_at"])
            return Finding(Verdict.UNDER_WAY, f"event {event['seq']} waits to be routed", do, steps)
        delivery = self.chain.delivery(event["seq"], job.edition_id)
        if delivery is None:
            return self._overlooked(job, event["generation_id"], event["partition_key"], steps, depth)
        steps = (*steps, self.chain.delivery_step(delivery))
        if delivery["outcome"] == DeliveryOutcome.PENDING:
            missing = self._other_side(job, event["generation_id"], event["partition_key"], steps, depth)
            return missing or Finding(Verdict.UNDER_WAY, f"{job.name} {delivery['reason']}", steps=steps)
        unread = delivery["outcome"] == DeliveryOutcome.FILTERED
        do = advise_on_strategy(job, self.chain.name(event["dataset_id"])) if unread else None
        return Finding(Verdict.BLOCKED, steps[-1].text, do, steps)

    def _other_side(
        self, job: LiveJob, generation: str, key: str, steps: tuple[Step, ...], depth: int
    ) -> Finding | None:
        """Explain why another side of a join is missing; None if all are there, or it is no join."""
        for each in job.inputs if routing.joins(job) else ():
            other = routing.generation_read(Reader(job, each), self.chain.live)
            if not each.trigger or other == generation:
                continue
            waits = f"{job.name} waits for partition {key} on input {each.name}"
            if other is None:
                text = f"{waits}: {self.chain.name(each.dataset_id)} has no current generation"
                return Finding(Verdict.BLOCKED, text, steps=steps)
            above = Question(each.dataset_id, other, key)
            if above in self.visited or self.chain.latest_event(each.dataset_id, other, key) is not None:
                continue
            finding = self.explain(above, depth + 1) if depth < DEPTH_MAX else None
            if finding is not None and finding.verdict is not Verdict.THERE:
                return Finding(
                    finding.verdict, f"{waits}: {finding.because}", finding.do, (*steps, *finding.steps)
                )
        return None

    def _overlooked(self, job: LiveJob, generation: str, key: str, steps: tuple[Step, ...], depth: int) -> Finding:
        """Explain input without a task: it is older than the job, or its event was lost."""
        missing = self._other_side(job, generation, key, steps, depth)
        if missing is not None:
            return missing
        text = f"its input is there, and {job.name} has no task for it yet: the reconciler will create one"
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
