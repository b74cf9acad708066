"""``qo why``: why data exists, or what prevents it.

``why(tx, "orders_clean@2024-01-02")`` traces what happened from the source down (``why.provenance``). If nothing has
happened yet, it goes upstream to the first cause (``why.search``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import sqlalchemy as sa

from qo.api.contract.dataset import FreshnessState
from qo.api.contract.sink import SinkState
from qo.api.contract.why import Verdict, WhyAnswer
from qo.core.pipeline.event import NUMBER_MAX
from qo.core.pipeline.states import EventState
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import datasets, schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.datasets import DatasetRef
from qo.dispatcher.views import freshness_states, sinks
from qo.dispatcher.views.why.findings import Finding, find_effect_job
from qo.dispatcher.views.why.provenance import Chain
from qo.dispatcher.views.why.search import VISITS_MAX, Question, Search
from qo.errors import NotFound, UsageError

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_CURSOR = re.compile(r"cursor:(\d{1,19})\Z")


def why(tx: Tx, target: str) -> WhyAnswer:
    """Answer for ``DATASET``, ``DATASET@PARTITION``, ``DATASET@cursor:N``, or the id of an event or a task.

    For a job without outputs, ``dag.job`` asks about its effects.

    Raises NotFound for a dataset, event or task that does not exist, UsageError for an invalid cursor.
    """
    if _ID.match(target):
        return _by_id(tx, target)
    name, _, part = target.partition("@")
    try:
        ref = datasets.resolve(tx, name)
    except NotFound:
        job = find_effect_job(topology.load(tx), name)
        if job is None:
            raise
        return _explain_effects(tx, target, job, part)
    generation = datasets.generation_of(tx, ref.id)
    if generation is None:
        finding = Finding(
            Verdict.BLOCKED, f"no version of {ref.dag} is live", f"deploy {ref.dag}: qo dag deploy FILE"
        )
        return _answer(target, ref, Question(ref.id, ""), finding)
    question = _parse_question(tx, ref, generation, part)
    answer = _answer(target, ref, question, Search(Chain(tx, topology.load(tx))).explain(question))
    if question.about_all:
        answer = _with_freshness(answer, freshness_states.find_freshness(tx, topology.load(tx), ref.id))
    return _with_sinks(answer, sinks.find_states(tx, ref.id))


def _explain_effects(tx: Tx, target: str, job: LiveJob, part: str) -> WhyAnswer:
    ref = DatasetRef("", job.dag, job.job.name, 0)
    question = _parse_question(tx, ref, "", part)
    finding = Search(Chain(tx, topology.load(tx))).effects(job, question)
    return _answer(target, ref, question, finding, present="is done", missing="is not done")


def _parse_question(tx: Tx, ref: DatasetRef, generation: str, part: str) -> Question:
    if not part:
        return Question(ref.id, generation)
    if (cursor := _CURSOR.match(part)) is not None:
        if int(cursor[1]) > NUMBER_MAX:
            raise UsageError(f"a cursor is at most {NUMBER_MAX}: there is no {part}")
        return Question(ref.id, generation, cursor=int(cursor[1]))
    if part.startswith("cursor:"):
        raise UsageError(f"{part[:80]!r} is no cursor: write {ref.label}@cursor:N with a whole number")
    if part.isdecimal() and len(part) <= 18:
        # A number is a cursor if the dataset has cursors, otherwise the key of a partition.
        table = schema.generations
        cursor_now = tx.value(sa.select(table.c.cursor).where(table.c.id == generation))
        if cursor_now is not None:
            return Question(ref.id, generation, cursor=int(part))
    return Question(ref.id, generation, partition_key=part)


def _by_id(tx: Tx, target: str) -> WhyAnswer:
    chain = Chain(tx, topology.load(tx))
    event = tx.one(sa.select(schema.events).where(schema.events.c.id == target))
    task = chain.task(target)
    if event is not None:
        deliveries = schema.deliveries
        rows = tx.all(sa.select(deliveries).where(deliveries.c.event_seq == event["seq"]).limit(VISITS_MAX))
        steps = [*chain.up_to_event(event), *map(chain.delivery_step, rows)]
        worst = (
            Verdict.UNDER_WAY
            if EventState.PENDING in {event["state"], *(row["outcome"] for row in rows)}
            else Verdict.THERE
        )
        finding = Finding(worst, steps[-1].text, steps=tuple(steps))
        question = Question(event["dataset_id"], event["generation_id"], event["partition_key"], event["cursor"])
    elif task is not None:
        task_state = chain.task_state(task)
        steps = chain.up_to_task(task)
        finding = Finding(task_state.verdict, steps[-1].text, task_state.do, tuple(steps))
        question = Question(
            task["dataset_id"] or "", task["generation_id"] or "", task["partition_key"], task["cursor"]
        )
    else:
        raise NotFound(f"there is no event and no task {target}")
    ref = datasets.by_id(tx, [question.dataset_id]).get(question.dataset_id)
    return _answer(target, ref or DatasetRef(question.dataset_id, "", target, 0, target), question, finding)


def _answer(
    target: str,
    ref: DatasetRef,
    question: Question,
    finding: Finding,
    present: str = "is there",
    missing: str = "is not there",
) -> WhyAnswer:
    is_there = finding.verdict is Verdict.THERE
    state = {
        Verdict.THERE: present,
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
        generation_id=question.generation_id or None,
        partition_key=question.partition_key,
        cursor=question.cursor,
        verdict=finding.verdict,
        steps=list(finding.steps),
        blocked_by=None if is_there else finding.because,
        do=finding.do,
        stale=bool(finding.stale),
        stale_inputs=list(finding.stale),
        lines=lines,
    )


def _with_freshness(answer: WhyAnswer, states: Sequence[FreshnessState]) -> WhyAnswer:
    """Add how fresh the dataset is by the clock: it may be late although everything has been processed."""
    lines = [*answer.lines, *freshness_states.describe(states)]
    return answer.model_copy(update={"freshness": list(states), "lines": lines})


def _with_sinks(answer: WhyAnswer, states: Sequence[SinkState]) -> WhyAnswer:
    """Add how far the tables are that follow the dataset: data that is committed may not be there yet."""
    lines = [*answer.lines, *(f"sink: {each.text}" for each in states)]
    return answer.model_copy(update={"sinks": list(states), "lines": lines})
