"""A task asks little of the database on its whole way, from its event to the commit, and the next event's routing.

Under load, the dispatcher answers the calls that wait together in one transaction. The ceilings are for groups of 16,
the slots of one worker: they may become lower, and never higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, EventBody, Outcome, OutputBody
from qo.dispatcher.auth.capability import verify
from qo.dispatcher.engine.fast_path import FastPath, WakeUpBuffer
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.http.attempts import complete_together
from qo.dispatcher.http.callers import Caller
from qo.dispatcher.http.routes import Call
from qo.dispatcher.http.workers import claim_together
from qo.dispatcher.outbox import publisher
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.sources import emission
from qo.dispatcher.state.database import State
from support.dispatcher.listeners import context_of
from support.dispatcher.pipeline_tasks import tasks_of
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.statement_counts import Counts, counted

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
TASKS, TOGETHER = 96, 16
STATEMENTS_MAX = 2.3
ROUND_TRIPS_MAX = 2.3


class Queues:
    def __init__(self) -> None:
        self.woken: list[str] = []

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        del queue
        self.woken += [each.task_id for each in wakes]


async def flow(state: State, directory: Path) -> Counts:
    """Everything that happens to the tasks of some partitions."""
    wake_ups, queues = WakeUpBuffer(lambda _: None), Queues()
    fast_path = FastPath(Limits(), wake_ups, lambda _: None)
    context = replace(context_of(state, directory), fast_path=fast_path, prepare=fast_path.prepare)
    live(deployed(state, SHOP), "shop.clean")
    with counted(state) as counts:
        events = [EventBody(partition_key=f"p{number}") for number in range(TASKS)]
        with state.write() as tx:
            fast_path.prepare(tx)
            emission.emit(tx, "shop", "orders", key="all", events=events, by="tests")
            after_commit = fast_path(tx)
        after_commit()
        await publisher.publish(state, queues, wake_ups.take(TASKS))
        for start in range(0, TASKS, TOGETHER):
            wakes = queues.woken[start : start + TOGETHER]
            asked = [ClaimRequest(task_id=each, worker_id="w", lease_id=f"lease-{each[:20]}") for each in wakes]
            held = claim_together(context, [Call(Caller(), each) for each in asked])
            complete_together(context, [ending(context, each) for each in held])
    assert router.tick(state) == release.tick(state, Limits()) == 0, "nothing was left to the loops"
    return counts


def ending(context: Any, held: Any) -> Call:
    assert isinstance(held, Claimed)
    granted = verify(context.keyring, held.capability_token, held.at)
    (output,) = held.work.outputs
    request = CompleteRequest(
        task_id=held.work.task_id,
        attempt=held.attempt,
        lease_id=held.lease_id,
        outcome=Outcome.SUCCESS,
        outputs=[OutputBody(output=0, location=output.prefix, files=["part-0.parquet"], rows=1, bytes=10)],
    )
    return Call(Caller(granted=granted), request)


async def test_a_task_costs_few_statements_and_round_trips(state: State, tmp_path: Path) -> None:
    counts = await flow(state, tmp_path)
    clean = live(deployed(state, SHOP), "shop.clean")
    assert [task["status"] for task in tasks_of(state, clean)] == ["completed"] * TASKS
    each = "\n".join(f"{times:4d} {text[:150]}" for text, times in counts.texts.most_common())
    assert counts.statements / TASKS <= STATEMENTS_MAX, each
    assert counts.round_trips / TASKS <= ROUND_TRIPS_MAX, each
