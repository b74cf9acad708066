"""Why a partition that is made of others is not there: which of these are missing, why, and until when it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa

from qo.api.contract.why import Step, StepKind, Verdict
from qo.core.pipeline.dag import Complete
from qo.core.pipeline.part_maps import reads
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.commits import composed_parts
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import batches
from qo.dispatcher.views.why.findings import Finding
from qo.dispatcher.views.why.provenance import Chain, moment, most_telling
from qo.errors import UsageError

EXPLAINED_MAX = 5  # Missing partitions that are explained one by one, those that failed first.
NAMED_MAX = 3  # Of one input and state that are named.

ExplainPart = Callable[[str, str, str], Finding]  # A partition by dataset, generation and key.
_NOT_ANNOUNCED = "not announced"
_STATES = ("failed", "cancelled", "expired", "running", "pending", _NOT_ANNOUNCED)  # The most telling first.


def explain_incomplete(chain: Chain, job: LiveJob, key: str, explain_part: ExplainPart) -> Finding:
    """Explain why a partition of a composite has no task."""
    try:
        missing = composed_parts.find_lacks(chain.tx, chain.live, job, key)
    except UsageError as error:
        return Finding(Verdict.BLOCKED, str(error))
    due = _due_at(chain, job, key)
    if not missing.count:
        return _explain_complete(job, key, missing.is_begun, due)
    texts: list[str] = []
    steps: list[Step] = []
    findings: list[Finding] = []
    for position, keys in missing.keys.items():
        planned = next(each for each in job.inputs if each.position == position)
        generation = composed_parts.generation_of(chain.live, job, position)
        states = _states(chain, generation, keys)
        expected = len(reads(job.maps[position], key).expected)
        name = chain.name(planned.dataset_id)
        texts.append(f"{len(keys)} of {expected} partitions of {name} ({_describe(states)})")
        for part in sorted(keys, key=lambda each: _STATES.index(states[each]))[:EXPLAINED_MAX]:
            if generation is not None and states[part] != _NOT_ANNOUNCED:
                finding = explain_part(planned.dataset_id, generation, part)
                findings.append(finding)
                text = f"{name}@{part} is missing: {finding.because}"
                steps.append(Step(kind=StepKind.MISSING, text=text, dataset=name, partition_key=part))
    because = f"{job.name} waits for {' and '.join(texts)} to make {key}{_until(due)}"
    verdict = min((each.verdict for each in findings), key=_RANK.index, default=Verdict.UNKNOWN)
    if verdict is Verdict.UNKNOWN and due is not None:
        verdict = Verdict.UNDER_WAY
    do = next((each.do for each in findings if each.do is not None), None)
    return Finding(verdict, because, do, tuple(steps))


_RANK = (Verdict.BLOCKED, Verdict.UNDER_WAY, Verdict.UNKNOWN, Verdict.THERE)


def _explain_complete(job: LiveJob, key: str, is_begun: bool, due: datetime | None) -> Finding:
    if not is_begun:
        return Finding(Verdict.UNKNOWN, f"nothing of what {job.name} would make {key} of is there")
    if job.job.complete is Complete.ANNOUNCED:
        return Finding(Verdict.UNDER_WAY, f"{job.name} waits for more of what {key} is made of{_until(due)}")
    text = f"all that {key} is made of is there, and {job.name} has no task for it yet: the reconciler will create one"
    return Finding(Verdict.UNDER_WAY, text)


def _due_at(chain: Chain, job: LiveJob, key: str) -> datetime | None:
    table = schema.incomplete_partitions
    return chain.tx.value(
        sa.select(table.c.due_at).where(table.c.edition_id == job.edition_id, table.c.partition_key == key)
    )


def _until(due: datetime | None) -> str:
    return "" if due is None else f"; it is made of what is there at {moment(due)}"


def _states(chain: Chain, generation: str | None, keys: Sequence[str]) -> dict[str, str]:
    """Return the state of the most telling task that should make each missing partition."""
    states = dict.fromkeys(keys, _NOT_ANNOUNCED)
    generations, tasks = schema.generations, schema.tasks
    maker = chain.tx.value(sa.select(generations.c.edition_id).where(generations.c.id == generation))
    rows: dict[str, list[sa.RowMapping]] = {}
    for some in batches(keys) if maker is not None else ():
        query = sa.select(tasks.c.id, tasks.c.partition_key, tasks.c.status)
        for row in chain.tx.all(query.where(tasks.c.edition_id == maker, tasks.c.partition_key.in_(some))):
            rows.setdefault(row["partition_key"], []).append(row)
    for key, of_key in rows.items():
        row = most_telling(of_key)
        if row is not None and row["status"] in _STATES:
            states[key] = row["status"]
    return states


def _describe(states: Mapping[str, str]) -> str:
    """Return the missing partitions by state, in words: ``2026-03-07 failed; 2026-03-30 and 1 more not announced``."""
    counts = Counter(states.values())
    texts: list[str] = []
    for state in (each for each in _STATES if counts[each]):
        examples = [key for key, of_key in states.items() if of_key == state][:NAMED_MAX]
        more = f" and {counts[state] - len(examples)} more" if counts[state] > len(examples) else ""
        texts.append(f"{', '.join(examples)}{more} {state}")
    return "; ".join(texts)
