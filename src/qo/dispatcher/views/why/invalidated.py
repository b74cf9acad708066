"""What happened to committed data afterwards, for ``qo why``: changed inputs, invalidations, and tasks that remake
it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.dataset import StaleInput
from qo.api.contract.why import Step
from qo.core.pipeline.dag import Refresh, Strategy
from qo.core.pipeline.states import InvalidationReason
from qo.core.pipeline.topology import LiveJob, VersionStatus
from qo.core.task import Status
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.tasks.dedupe_keys import KeyKind
from qo.dispatcher.views import staleness
from qo.dispatcher.views.staleness import Change
from qo.dispatcher.views.why.provenance import CANDIDATES, Chain, Row, most_telling

_OPEN = (Status.PENDING, Status.RUNNING)
_tasks = schema.tasks
# Tasks that remake output without a new event.
_REMAKES = sa.or_(
    _tasks.c.invalidation_id.is_not(None),
    *(_tasks.c.dedupe_key.startswith(kind.prefix) for kind in (KeyKind.REFRESH, KeyKind.BACKFILL)),
)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What happened to a commit after it was made."""

    because: str = ""  # A clause that continues "committed as revision 4"; empty if nothing happened.
    do: str | None = None
    steps: tuple[Step, ...] = ()
    stale: tuple[StaleInput, ...] = ()


def find_aftermath(chain: Chain, commit: Row) -> Aftermath:
    """Return what has happened to a commit since it was made."""
    task = chain.task(commit["task_id"])
    job = chain.live.jobs.get(task["edition_id"]) if task is not None else None
    if task is None or job is None:
        changes, stale = list[Change](), tuple[StaleInput, ...]()
    else:
        changes, stale = _changed_inputs(chain, job, commit)
    text = f", and stale: {'; '.join(each.text for each in stale)}" if stale else ""
    by_partition = commit["partition_key"] is not None
    declared = _declared_invalidations(chain, commit) if by_partition else []
    again = _remaking_task(chain, task, commit) if by_partition and task is not None else None
    if again is None:
        do = _advise_refresh(job, task, changes) if job is not None and task is not None else None
        return Aftermath(text, do, tuple(declared), stale)
    steps = (*declared, *chain.invalidation_steps(again), chain.task_step(again))
    if again["status"] in _OPEN:
        return Aftermath(f"{text}, and is being remade", chain.task_state(again).do, steps, stale)
    text = f"{text}, and should have been remade, but was not"
    return Aftermath(text, chain.task_state(again).do, steps, stale)


def _changed_inputs(chain: Chain, job: LiveJob, commit: Row) -> tuple[list[Change], tuple[StaleInput, ...]]:
    """Return the inputs that make a commit stale, and a description of each."""
    generation, key = commit["generation_id"], commit["partition_key"]
    if key is not None:
        changes = staleness.stale_partitions(chain.tx, chain.live, job, generation, [key]).get(key, [])
    else:
        changes = staleness.stale_segment(chain.tx, chain.live, job, commit["revision"])
    if not changes:
        return [], ()
    labels = datasets.labels_of(chain.tx, [each.dataset_id for each in job.inputs])
    return changes, tuple(staleness.explain(chain.tx, {"": changes}, labels)[""])


def _advise_refresh(job: LiveJob, task: Row, changes: Sequence[Change]) -> str | None:
    """Return the command that remakes it; None if it is not stale, or is remade automatically."""
    manual = [each for each in changes if not _is_refreshed_automatically(job, each)]
    if not manual or job.status is not VersionStatus.ACTIVE:
        return None
    beside = [each.name for each in manual if not job.inputs[each.position].trigger]
    if job.job.execution_strategy is Strategy.PER_PARTITION and task["partition_key"] is not None:
        key = shlex.quote(task["partition_key"])
        always = f", or write 'refresh: on_change' at its input {beside[0]}" if beside else ""
        return f"qo backfill {job.name} --from {key} --to {key}{always}"
    return None


def _is_refreshed_automatically(job: LiveJob, change: Change) -> bool:
    """Tell whether a change of the input makes the job remake its output automatically."""
    if job.job.execution_strategy is Strategy.PER_CHANGE:
        return True
    if job.inputs[change.position].trigger:
        # If a triggering input was read as a whole, only its new partitions start tasks.
        return change.other_generation or change.cursor_range or change.partition_key is not None
    return job.job.inputs[change.position].refresh is Refresh.ON_CHANGE


def _declared_invalidations(chain: Chain, commit: Row) -> list[Step]:
    """Return the last invalidation that somebody has declared since the commit."""
    table = schema.invalidations
    query = sa.select(table).where(
        table.c.generation_id == commit["generation_id"],
        table.c.partition_key == commit["partition_key"],
        table.c.created_at >= commit["committed_at"],
        table.c.reason != InvalidationReason.REPLACED,
    )
    row = chain.tx.one(query.order_by(table.c.created_at.desc()).limit(1))
    return [] if row is None else [chain.invalidation_step(row)]


def _remaking_task(chain: Chain, made_by: Row, commit: Row) -> Row | None:
    """Return the task that should replace the commit and has not done so."""
    query = sa.select(_tasks).where(
        _tasks.c.edition_id == made_by["edition_id"],
        _tasks.c.partition_key == commit["partition_key"],
        _REMAKES,
        _tasks.c.status != Status.COMPLETED,
        _tasks.c.created_at >= commit["committed_at"],
    )
    return most_telling(chain.tx.all(query.limit(CANDIDATES)))
