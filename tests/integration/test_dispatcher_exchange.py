"""A worker's claims and completions that wait at the same time go together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from qo.api.contract.task import Claimed, CompleteRequest, NotClaimed, Outcome
from qo.api.internal_client import DispatcherClient
from qo.dispatcher.state.database import State
from qo.errors import LeaseLost, Unauthenticated, UsageError
from support.dispatcher.listeners import WORKER, Served, served
from support.dispatcher.pipeline_tasks import feed, fence, output, route_all, tasks_of, woken
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
TASKS = 12
TOGETHER, CLAIM, COMPLETE = "/internal/task-exchange", "/internal/task-claim", "/v1/task/complete"


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(state, tmp_path) as found:
        yield found


@pytest.fixture
def tasks(state: State) -> list[str]:
    """Tasks that may be claimed."""
    shop = deployed(state, SHOP)
    for number in range(TASKS):
        feed(state, live(shop, "shop.orders"), f"p{number}")
    route_all(state)
    ids = [task["id"] for task in tasks_of(state, live(shop, "shop.clean"))]
    with state.write() as tx:
        for each in ids:
            woken(tx, each)
    return ids


class Recording(httpx.AsyncHTTPTransport):
    """Counts requests by path. ``old``: it answers as a dispatcher does that has no exchange."""

    def __init__(self, *, old: bool = False) -> None:
        super().__init__()
        self.requests = Counter[str]()
        self._old = old

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests[request.url.path] += 1
        if self._old and request.url.path == TOGETHER:
            return httpx.Response(404, json={"error": "there is no such path", "code": "not_found", "detail": []})
        return await super().handle_async_request(request)


def success(held: Claimed, **fields: object) -> CompleteRequest:
    values = {"outputs": [output(held)], **fields}
    return CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, **values)


async def claim_all(client: DispatcherClient, tasks: list[str]) -> list[Claimed]:
    held = await asyncio.gather(*(client.claim(each, "w") for each in tasks))
    assert all(isinstance(each, Claimed) for each in held)
    assert [each.work.task_id for each in held if isinstance(each, Claimed)] == tasks
    return [each for each in held if isinstance(each, Claimed)]


@pytest.mark.parametrize("old", [False, True])
async def test_calls_that_wait_go_together_and_one_by_one_to_an_older_dispatcher(
    dispatcher: Served, state: State, tasks: list[str], old: bool
) -> None:
    transport = Recording(old=old)
    async with DispatcherClient(dispatcher.addresses.internal, WORKER, transport=transport) as client:
        held = await claim_all(client, tasks)
        answers = await asyncio.gather(*(client.complete(each.capability_token, success(each)) for each in held))
    assert {each.status for each in answers} == {"completed"}
    assert {row["status"] for row in tasks_of(state, live(deployed(state, SHOP), "shop.clean"))} == {"completed"}
    alone = transport.requests[CLAIM] + transport.requests[COMPLETE]
    assert alone == 2 * TASKS if old else alone + transport.requests[TOGETHER] <= 8


async def test_a_call_that_is_refused_takes_no_other_with_it(dispatcher: Served, tasks: list[str]) -> None:
    async with dispatcher.worker() as client:
        held = await claim_all(client, tasks)
        good, failed, elsewhere, forged, *others = held
        endings = [
            client.complete(good.capability_token, success(good)),
            client.complete(failed.capability_token, CompleteRequest(**fence(failed), outcome=Outcome.FATAL)),
            client.complete(
                elsewhere.capability_token,
                success(elsewhere, outputs=[output(elsewhere, location="file:/somewhere/else")]),
            ),
            client.complete("forged", success(forged)),
            *(client.complete(each.capability_token, success(each)) for each in others),
            client.claim("no-such-task", "w"),
            client.claim(good.work.task_id, "another"),
        ]
        answers = await asyncio.gather(*endings, return_exceptions=True)
        with pytest.raises(LeaseLost):
            await client.complete(failed.capability_token, success(failed))
    ended, missing, taken = answers[:-2], answers[-2], answers[-1]
    assert isinstance(ended[2], UsageError)
    assert isinstance(ended[3], Unauthenticated)
    assert not [each for at, each in enumerate(ended) if at not in (2, 3) and isinstance(each, BaseException)]
    assert isinstance(missing, NotClaimed)
    assert missing.reason == "not_found"
    assert isinstance(taken, NotClaimed)


async def test_an_exchange_answers_in_order_and_again(dispatcher: Served, tasks: list[str]) -> None:
    first, second, third = tasks[:3]
    claims = [{"task_id": each, "worker_id": "w", "lease_id": f"l{at}"} for at, each in enumerate(tasks[:2])]
    answer = (await dispatcher.post(TOGETHER, "worker", internal=True, json={"claims": claims})).json()
    assert [each["work"]["task_id"] for each in answer["claims"]] == [first, second]
    completions = [
        {
            "capability_token": held["capability_token"],
            "completion": {
                "task_id": held["work"]["task_id"],
                "attempt": 1,
                "lease_id": held["lease_id"],
                "outcome": "success",
                "outputs": [{"output": 0, "location": held["work"]["outputs"][0]["prefix"], "files": ["a"]}],
            },
        }
        for held in answer["claims"]
    ]
    body = {
        "completions": [*completions, completions[0]],
        "claims": [{"task_id": third, "worker_id": "w", "lease_id": "l3"}],
    }
    told = (await dispatcher.post(TOGETHER, "worker", internal=True, json=body)).json()
    assert [each["status"] for each in told["completions"]] == [200, 200, 200]
    assert [each["answer"]["repeated"] for each in told["completions"]] == [False, False, True]
    assert told["claims"][0]["status"] == "claimed"
    again = (await dispatcher.post(TOGETHER, "worker", internal=True, json=body)).json()
    assert [each["answer"]["repeated"] for each in again["completions"]] == [True, True, True]
    assert again["claims"][0]["lease_id"] == "l3"
    refused = await dispatcher.post(TOGETHER, "admin", internal=True, json=body)
    assert refused.status_code in (401, 403)


async def test_a_claim_whose_caller_is_gone_is_not_sent(dispatcher: Served, tasks: list[str]) -> None:
    async with dispatcher.worker() as client:
        calls = [asyncio.create_task(client.claim(each, "w")) for each in tasks]
        await asyncio.sleep(0)
        calls[-1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        last = await client.claim(tasks[-1], "w")
    assert isinstance(last, Claimed)


async def test_slots_that_go_on_at_once_are_all_served(dispatcher: Served, state: State, tasks: list[str]) -> None:
    async with dispatcher.worker() as client, asyncio.timeout(60):

        async def work(own: list[str]) -> None:
            for task in own:
                held = await client.claim(task, "w")
                assert isinstance(held, Claimed)
                await client.complete(held.capability_token, success(held))

        await asyncio.gather(*(work(tasks[slot::3]) for slot in range(3)))
    assert {row["status"] for row in tasks_of(state, live(deployed(state, SHOP), "shop.clean"))} == {"completed"}
