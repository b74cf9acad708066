"""What became of committed data afterwards, for ``qo why``: its inputs have changed, it was called into question, or it
is being made again."""

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
from qo.dispatcher.views.why.trace import CANDIDATES, Chain, Row, most_telling

_OPEN = (Status.PENDING, Status.RUNNING)
_tasks = schema.tasks
# Tasks that no new event asked for: they make again what was made before.
_MAKES_AGAIN = sa.or_(
    _tasks.c.invalidation_id.is_not(None),
    *(_tasks.c.dedupe_key.startswith(kind.prefix) for kind in (KeyKind.REFRESH, KeyKind.BACKFILL)),
)


@dataclass(frozen=True, slots=True)
class Since:
    """What happened to a commit after it was made."""

    because: str = ""  # A clause that goes on from "committed as revision 4"; empty if nothing is to be said.
    do: str | None = None
    steps: tuple[Step, ...] = ()
    stale: tuple[StaleInput, ...] = ()


def since(chain: Chain, commit: Row) -> Since:
    """Of one that nothing has happened to, nothing."""
    task = chain.task(commit["task_id"])
    job = chain.live.jobs.get(task["edition_id"]) if task is not None else None
    if task is None or job is None:
        changes, stale = list[Change](), tuple[StaleInput, ...]()
    else:
        changes, stale = _changed_inputs(chain, job, commit)
    said = f", and stale: {'; '.join(each.text for each in stale)}" if stale else ""
    by_partition = commit["partition_key"] is not None
    doubts = _doubts(chain, commit) if by_partition else []
    again = _again(chain, task, commit) if by_partition and task is not None else None
    if again is None:
        do = _refreshed_by(job, task, changes) if job is not None and task is not None else None
        return Since(said, do, tuple(doubts), stale)
    steps = (*doubts, *chain.invalidation_steps(again), chain.task_step(again))
    if again["status"] in _OPEN:
        return Since(f"{said}, and is being made again", chain.standing(again).do, steps, stale)
    text = f"{said}, and was to be made again, which has not come about"
    return Since(text, chain.standing(again).do, steps, stale)


def _changed_inputs(chain: Chain, job: LiveJob, commit: Row) -> tuple[list[Change], tuple[StaleInput, ...]]:
    """The inputs that make a commit stale, and the same in words."""
    generation, key = commit["generation_id"], commit["partition_key"]
    if key is not None:
        changes = staleness.stale_partitions(chain.tx, chain.live, job, generation, [key]).get(key, [])
    else:
        changes = staleness.stale_segment(chain.tx, chain.live, job, commit["revision"])
    if not changes:
        return [], ()
    labels = datasets.labels_of(chain.tx, [each.dataset_id for each in job.inputs])
    return changes, tuple(staleness.explain(chain.tx, {"": changes}, labels)[""])


def _refreshed_by(job: LiveJob, task: Row, changes: Sequence[Change]) -> str | None:
    """What has it made again; None: it is not stale, or that happens without anybody's doing."""
    manual = [each for each in changes if not _is_followed(job, each)]
    if not manual or job.status is not VersionStatus.ACTIVE:
        return None
    beside = [each.name for each in manual if not job.inputs[each.position].trigger]
    if job.job.execution_strategy is Strategy.PER_PARTITION and task["partition_key"] is not None:
        key = shlex.quote(task["partition_key"])
        always = f", or write 'refresh: on_change' at its input {beside[0]}" if beside else ""
        return f"qo backfill {job.name} --from {key} --to {key}{always}"
    return None


def _is_followed(job: LiveJob, change: Change) -> bool:
    """Whether a change of the input has the job make again what it made from it."""
    if job.inputs[change.position].trigger:
        # Of an input that triggers but was read as a whole, only new partitions are worked on.
        return change.other_generation or change.cursor_range or change.partition_key is not None
    return job.job.inputs[change.position].refresh is Refresh.ON_CHANGE


def _doubts(chain: Chain, commit: Row) -> list[Step]:
    """The last invalidation that somebody declared of it since."""
    table = schema.invalidations
    query = sa.select(table).where(
        table.c.generation_id == commit["generation_id"],
        table.c.partition_key == commit["partition_key"],
        table.c.created_at >= commit["committed_at"],
        table.c.reason != InvalidationReason.REPLACED,
    )
    row = chain.tx.one(query.order_by(table.c.created_at.desc()).limit(1))
    return [] if row is None else [chain.invalidation_step(row)]


def _again(chain: Chain, made_by: Row, commit: Row) -> Row | None:
    """The task that is to take the place of what is committed, and has not."""
    query = sa.select(_tasks).where(
        _tasks.c.edition_id == made_by["edition_id"],
        _tasks.c.partition_key == commit["partition_key"],
        _MAKES_AGAIN,
        _tasks.c.status != Status.COMPLETED,
        _tasks.c.created_at >= commit["committed_at"],
    )
    return most_telling(chain.tx.all(query.limit(CANDIDATES)))
