"""The next task of a queue, for a worker that is awake: it need not wait for a wake-up.

Any task whose wake-up is released may be claimed so. Limits, pauses and backpressure have acted before, as for a claim
of a task by its id. Workers that ask at the same time get different tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from qo.api.contract.task import Claimed, ClaimRequest, NextRequest
from qo.core.pipeline.claim_order import WaitingTask, order_claims
from qo.core.pipeline.topology import Topology
from qo.dispatcher.attempts import claiming
from qo.dispatcher.state import scans, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import tasks

ROUNDS_MAX = 3  # A task that is not claimable after all, of a version that has ended say, costs a further round.
WINDOW = 32  # How many of the oldest, and of the newest, are compared by depth.

_WAITING = sa.select(tasks.c.id, tasks.c.edition_id, tasks.c.released_at).where(
    tasks.c.queue == sa.bindparam("queue"), scans.released()
)
_MOST = sa.bindparam("most", type_=sa.Integer)
_FIRST = Prepared(_WAITING.order_by(tasks.c.released_at).limit(_MOST).with_for_update(skip_locked=True))
_OLDEST = Prepared(_WAITING.order_by(tasks.c.released_at).limit(_MOST))
_NEWEST = Prepared(_WAITING.order_by(tasks.c.released_at.desc()).limit(_MOST))
_LOCK = Prepared(
    sa.select(tasks.c.id)
    .where(tasks.c.id.in_(sa.bindparam("ids", expanding=True)), scans.released())
    .with_for_update(skip_locked=True)
)
_HELD = Prepared(
    sa.select(tasks.c.id, tasks.c.lease_id).where(
        scans.running(), tasks.c.lease_id.in_(sa.bindparam("leases", expanding=True))
    )
)


def claim_next(tx: Tx, requests: Sequence[NextRequest], data_root: str) -> list[Claimed | None]:
    """Begin an attempt for each request; None where the queue has no more. The caller adds the tokens.

    A request that says it is repeated gets the task that it got before.
    """
    live = topology.load(tx)
    claimed: dict[str, Claimed] = {}  # By lease.
    tried: set[str] = set()
    claims = _repeat_claims(tx, requests)
    for _ in range(ROUNDS_MAX):
        unanswered = [each for each in requests if each.lease_id not in claimed]
        claims += _choose(tx, live, [each for each in unanswered if not _is_among(each, claims)], tried)
        if not claims:
            break
        tried |= {each.task_id for each in claims}
        for answer in claiming.claim_all(tx, claims, data_root):
            if isinstance(answer, Claimed):
                claimed[answer.lease_id] = answer
        claims = []
    return [claimed.get(each.lease_id) for each in requests]


def _repeat_claims(tx: Tx, requests: Sequence[NextRequest]) -> list[ClaimRequest]:
    """Return the claims of tasks that were claimed by these requests before. Reads all running tasks."""
    repeated = {each.lease_id: each for each in requests if each.repeated}
    if not repeated:
        return []
    return [_claim(repeated[lease_id], id_) for id_, lease_id in tx.rows(_HELD, {"leases": sorted(repeated)})]


def _choose(tx: Tx, live: Topology, requests: Sequence[NextRequest], tried: Collection[str]) -> list[ClaimRequest]:
    by_queue: dict[str, list[NextRequest]] = {}
    for each in requests:
        by_queue.setdefault(each.queue, []).append(each)
    claims: list[ClaimRequest] = []
    for queue, asking in by_queue.items():
        ids = _lock_next(tx, live, queue, len(asking), tried)
        claims += [_claim(each, id_) for each, id_ in zip(asking, ids, strict=False)]
    return claims


def _lock_next(tx: Tx, live: Topology, queue: str, count: int, tried: Collection[str]) -> list[str]:
    """Return up to ``count`` tasks of the queue that nobody else is claiming, in the order of claims."""
    depths = {live.depth.get(edition, 0) for edition, job in live.jobs.items() if job.queue == queue}
    if len(depths) <= 1 and not tried:
        return [row[0] for row in tx.rows(_FIRST, {"queue": queue, "most": count})]
    # The tasks of deeper jobs are mostly the newest: their inputs have just been made.
    window = {"queue": queue, "most": WINDOW + count}
    compared_tasks = {row[0]: WaitingTask(*row) for rows in (_OLDEST, _NEWEST) for row in tx.rows(rows, window)}
    ids = [each.id for each in order_claims(compared_tasks.values(), live.depth) if each.id not in tried]
    for low in range(0, len(ids), count):
        some = ids[low : low + count]
        free = {row[0] for row in tx.rows(_LOCK, {"ids": some})} if tx.on_postgres else set(some)
        if free:
            return [each for each in some if each in free]
    return []


def _claim(request: NextRequest, task_id: str) -> ClaimRequest:
    return ClaimRequest(task_id=task_id, worker_id=request.worker_id, lease_id=request.lease_id)


def _is_among(request: NextRequest, claims: Sequence[ClaimRequest]) -> bool:
    return any(each.lease_id == request.lease_id for each in claims)
