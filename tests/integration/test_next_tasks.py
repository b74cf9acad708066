"""A worker that is awake gets the next task of its queue with the answer to its last completion."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from qo.api.contract.task import Claimed, CompleteRequest, NextRequest, Outcome
from qo.api.internal_client import DispatcherClient
from qo.dispatcher.attempts import next_tasks
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from support.dispatcher.listeners import WORKER, Served, served
from support.dispatcher.pipeline_tasks import ROOT, fence, output, partition_task, tasks_of, woken
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag("shop", source("orders"), job("clean", reads="orders"), job("daily", reads="clean"))
QUEUE, EXCHANGE = "python", "/internal/task-exchange"


class Recording(httpx.AsyncHTTPTransport):
    """Counts requests by path. ``old``: it answers as a dispatcher does that has no next tasks."""

    def __init__(self, *, old: bool = False) -> None:
        super().__init__()
        self.requests = Counter[str]()
        self._old = old

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests[request.url.path] += 1
        if self._old and request.url.path == EXCHANGE:
            return httpx.Response(422, json={"error": "no such field", "code": "invalid", "detail": ["next"]})
        return await super().handle_async_request(request)


def success(held: Claimed) -> CompleteRequest:
    return CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, outputs=[output(held)])


def ready(state: State, count: int, name: str = "clean") -> list[str]:
    """Tasks whose wake-ups are released, the oldest first."""
    shop = deployed(state, SHOP)
    ids = [partition_task(state, live(shop, f"shop.{name}"), f"{name}{number}") for number in range(count)]
    with state.write() as tx:
        for at, each in enumerate(ids):
            woken(tx, each)
            released = {"released_at": tx.now - timedelta(seconds=count - at)}
            tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id == each).values(released))
    return ids


def ask(state: State, count: int, *, lease: str = "l", queue: str = QUEUE, repeated: bool = False) -> list[str]:
    """The ids of the tasks that a worker gets for so many questions."""
    requests = [
        NextRequest(queue=queue, worker_id="w", lease_id=f"{lease}{at}", repeated=repeated) for at in range(count)
    ]
    with state.write() as tx:
        answers = next_tasks.claim_next(tx, requests, ROOT)
    return [each.work.task_id for each in answers if each is not None]


def test_tasks_are_handed_out_in_the_order_of_their_release_until_there_are_none(state: State) -> None:
    ids = ready(state, 5)
    assert ask(state, 2, lease="a") == ids[:2]
    assert ask(state, 9, lease="b") == ids[2:]
    assert ask(state, 1, lease="c") == []


def test_a_task_that_is_not_released_is_not_handed_out(state: State) -> None:
    shop = deployed(state, SHOP)
    partition_task(state, live(shop, "shop.clean"), "held back")
    assert ask(state, 1) == []


def test_a_queue_hands_out_its_own_tasks_only(state: State) -> None:
    ready(state, 1)
    assert ask(state, 1, queue="spark") == []


def test_tasks_further_down_the_pipeline_come_first(state: State) -> None:
    shallow, deep = ready(state, 3), ready(state, 2, "daily")
    assert ask(state, 3) == [*deep, shallow[0]]


def test_a_repeated_question_gets_the_same_tasks(state: State) -> None:
    """The answer was lost, and the worker asks again with the leases that it has drawn."""
    ids = ready(state, 4)
    assert ask(state, 2) == ids[:2]
    assert ask(state, 2, repeated=True) == ids[:2]
    assert ask(state, 3, repeated=True) == ids[:3]
    assert [row["attempt"] for row in tasks_of(state, live(deployed(state, SHOP), "shop.clean"))].count(1) == 3


def test_workers_that_ask_at_the_same_time_get_different_tasks(state: State) -> None:
    ids = ready(state, 12)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda at: ask(state, 3, lease=f"w{at}-"), range(4)))
    assert Counter(each for answer in answers for each in answer) <= Counter(ids)


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(state, tmp_path) as found:
        yield found


async def test_the_next_task_comes_with_the_answer_to_a_completion(dispatcher: Served, state: State) -> None:
    ids, transport = ready(state, 6), Recording()
    async with DispatcherClient(dispatcher.addresses.internal, WORKER, transport=transport) as client:
        held = await client.claim_next(QUEUE, "w")
        seen: list[str] = []
        while held is not None:
            seen.append(held.work.task_id)
            _, held = await asyncio.gather(
                client.complete(held.capability_token, success(held)), client.claim_next(QUEUE, "w")
            )
    assert seen == ids
    assert transport.requests == {EXCHANGE: len(ids) + 1}


async def test_an_older_dispatcher_has_no_next_task_and_takes_completions(
    dispatcher: Served, state: State
) -> None:
    (task,) = ready(state, 1)
    async with DispatcherClient(dispatcher.addresses.internal, WORKER, transport=Recording(old=True)) as client:
        held = await client.claim(task, "w")
        assert isinstance(held, Claimed)
        answer, following = await asyncio.gather(
            client.complete(held.capability_token, success(held)), client.claim_next(QUEUE, "w")
        )
    assert answer.status == "completed"
    assert following is None


class Losing(httpx.AsyncHTTPTransport):
    """Loses the first answer."""

    lost = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if not self.lost:
            self.lost = True
            await response.aread()
            raise httpx.ReadError("the answer was lost")
        return response


async def test_a_lost_answer_loses_no_task(dispatcher: Served, state: State) -> None:
    first, _ = ready(state, 2)
    async with DispatcherClient(dispatcher.addresses.internal, WORKER, transport=Losing()) as client:
        held = await client.claim_next(QUEUE, "w")
    assert held is not None
    assert (held.work.task_id, held.attempt) == (first, 1)
