"""What became of committed data afterwards, for ``qo why``: it was called into question, or is being made again."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.task import Status
from qo.dispatcher.chain import CANDIDATES, Chain, Row, most_telling
from qo.dispatcher.contract.why import Step
from qo.dispatcher.state import schema

_OPEN = (Status.PENDING, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Since:
    """What happened to a partition after its commit."""

    because: str = ""  # A clause that goes on from "committed as revision 4"; empty if nothing is to be said.
    do: str | None = None
    steps: tuple[Step, ...] = ()


def since(chain: Chain, commit: Row) -> Since:
    """Of one that nothing has happened to, nothing."""
    doubts = _doubts(chain, commit)
    task = _again(chain, commit)
    if task is None:
        return Since(steps=tuple(doubts))
    steps = (*doubts, *chain.invalidation_steps(task), chain.task_step(task))
    if task["status"] in _OPEN:
        return Since(", and is being made again", chain.standing(task).do, steps)
    return Since(", and was to be made again, which has not come about", chain.standing(task).do, steps)


def _doubts(chain: Chain, commit: Row) -> list[Step]:
    """The last invalidation that somebody declared of it since."""
    table = schema.invalidations
    query = sa.select(table).where(
        table.c.generation_id == commit["generation_id"],
        table.c.partition_key == commit["partition_key"],
        table.c.created_at >= commit["committed_at"],
        table.c.reason != "replaced",
    )
    row = chain.tx.one(query.order_by(table.c.created_at.desc()).limit(1))
    return [] if row is None else [chain.invalidation_step(row)]


def _again(chain: Chain, commit: Row) -> Row | None:
    """The task that is to take the place of what is committed, and has not."""
    maker = chain.task(commit["task_id"])
    if maker is None:
        return None
    table = schema.tasks
    query = sa.select(table).where(
        table.c.edition_id == maker["edition_id"],
        table.c.partition_key == commit["partition_key"],
        table.c.invalidation_id.is_not(None),
        table.c.status != Status.COMPLETED,
        table.c.created_at >= commit["committed_at"],
    )
    return most_telling(chain.tx.all(query.limit(CANDIDATES)))
