# ruff: noqa: F811
"""The next task in the answer to a completion is one that the token of the worker is for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from qo.api.contract.task import Claimed, CompleteRequest, Outcome
from qo.api.contract.token import CreateToken, Role
from qo.api.internal_client import DispatcherClient
from qo.config.runtimes import RuntimeSettings
from qo.core.pipeline.topology import Topology
from qo.dispatcher.auth.principals import create_token
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.state.topology import use_registry
from qo.dispatcher.versions.deploy import deploy
from qo.errors import Forbidden
from qo.pipeline.registry import Registry, configured_registry
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipeline_tasks import fence, output, partition_task, woken
from support.dispatcher.pipelines import dag, job, live, loaded, source
from support.dispatcher.states import clock, state  # noqa: F401

REGISTRY = configured_registry([RuntimeSettings(name="python", queues=("python", "heavy"))])
SHOP = dag(
    "shop",
    source("orders"),
    job("quick", reads="orders"),
    job("slow", reads="orders", queue="heavy"),
    job("wide", reads="orders", runtime="spark", operator="shop.wide:run"),
)
QUEUES = {"python": ("python", "quick"), "heavy": ("python", "slow"), "spark": ("spark", "wide")}
BINDINGS: list[tuple[list[str] | None, list[str] | None]] = [
    (None, None),
    (["python"], None),
    (["spark"], None),
    (None, ["heavy"]),
    (["python"], ["heavy"]),
    (["spark"], ["heavy"]),
    (["python", "spark"], ["python", "spark"]),
]


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:
    use_registry(state, REGISTRY)
    with state.write() as tx:
        deploy(tx, SHOP, "as Python", "tests", REGISTRY)
    async with served(state, tmp_path) as running:
        yield running


def token_of(state: State, runtimes: list[str] | None, queues: list[str] | None) -> str:
    with state.write() as tx:
        request = CreateToken(name="fleet", role=Role.WORKER, runtimes=runtimes, queues=queues)
        return create_token(tx, request).token


def client_with(
    dispatcher: Served, state: State, runtimes: list[str] | None, queues: list[str] | None
) -> DispatcherClient:
    return DispatcherClient(dispatcher.addresses.internal, token_of(state, runtimes, queues))


async def ask_next(dispatcher: Served, token: str, **request: Any) -> httpx.Response:
    """Ask for the next task without the client, which takes a refusal for an empty queue."""
    headers = {"Authorization": f"Bearer {token}"}
    body = {"next": [{"worker_id": "w", **request}]}
    return await dispatcher.post("/internal/task-exchange", internal=True, headers=headers, json=body)


def released_task(state: State, topology: Topology, name: str, key: str) -> str:
    task_id = partition_task(state, live(topology, f"shop.{name}"), key)
    with state.write() as tx:
        woken(tx, task_id)
    return task_id


def released_tasks(state: State, topology: Topology, key: str) -> dict[str, str]:
    """A task in each queue, by queue."""
    return {queue: released_task(state, topology, name, key) for queue, (_, name) in QUEUES.items()}


def attempts_of(state: State, task_id: str) -> int:
    with state.read() as tx:
        return int(tx.value(sa.select(schema.tasks.c.attempt).where(schema.tasks.c.id == task_id)))


def success(held: Claimed) -> CompleteRequest:
    outputs = [output(held, each.index) for each in held.work.outputs]
    return CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, outputs=outputs)


async def test_the_next_task_is_one_that_the_token_is_for(dispatcher: Served, state: State) -> None:
    topology = loaded(state)
    for at, ((runtimes, queues), queue) in enumerate(product(BINDINGS, QUEUES)):
        runtime, name = QUEUES[queue]
        is_allowed = (runtimes is None or runtime in runtimes) and (queues is None or queue in queues)
        task_id = released_task(state, topology, name, f"p{at}")
        async with client_with(dispatcher, state, runtimes, queues) as client:
            answer = await client.claim_next(queue, "w")
            assert (answer is not None) == is_allowed, (runtimes, queues, queue)
            assert attempts_of(state, task_id) == int(is_allowed)
        if not is_allowed:
            async with dispatcher.worker() as other:  # Nothing has happened to it.
                taken = await other.claim_next(queue, "w")
                assert taken is not None
                assert taken.work.task_id == task_id


async def test_a_completion_stands_though_the_next_task_that_it_asked_for_is_refused(
    dispatcher: Served, state: State
) -> None:
    waiting = released_tasks(state, loaded(state), "p1")
    async with client_with(dispatcher, state, ["spark"], None) as client:
        held = await client.claim(waiting["spark"], "w")
        assert isinstance(held, Claimed)
        # The first is under way alone, so the other two go together.
        beside = asyncio.create_task(client.claim("no-such-task", "w"))
        ended = asyncio.create_task(client.complete(held.capability_token, success(held)))
        answer = await client.claim_next("heavy", "w")
        assert answer is None
        assert (await ended).status == "completed"
        await beside
    assert attempts_of(state, waiting["heavy"]) == 0


async def test_the_answer_to_a_refused_request_names_what_the_token_is_for(
    dispatcher: Served, state: State
) -> None:
    waiting = released_tasks(state, loaded(state), "p1")
    refused = await ask_next(dispatcher, token_of(state, None, ["heavy"]), queue="python", lease_id="l1")
    assert refused.status_code == 403
    assert f"is for tasks of queue heavy, and task {waiting['python']} is one of" in refused.json()["error"]


async def test_the_lease_of_another_worker_leads_to_no_foreign_task(dispatcher: Served, state: State) -> None:
    waiting = released_tasks(state, loaded(state), "p1")
    async with dispatcher.worker() as owner:
        held = await owner.claim(waiting["python"], "w", "the lease")
        assert isinstance(held, Claimed)
    stolen = token_of(state, ["spark"], None)
    answer = await ask_next(dispatcher, stolen, queue="spark", lease_id="the lease", repeated=True)
    assert answer.status_code == 403


async def test_a_task_that_was_released_before_its_job_moved_belongs_to_the_queue_it_is_in(
    dispatcher: Served, state: State
) -> None:
    topology = loaded(state)
    by_wake_up, as_next = (released_task(state, topology, "quick", key) for key in ("p1", "p2"))
    use_registry(state, with_first_queue("heavy"))
    assert live(loaded(state), "shop.quick").queue == "heavy"
    async with client_with(dispatcher, state, None, ["heavy"]) as client:
        with pytest.raises(Forbidden):
            await client.claim(by_wake_up, "w")
    async with client_with(dispatcher, state, None, ["python"]) as client:
        assert isinstance(await client.claim(by_wake_up, "w"), Claimed)
        answer = await client.claim_next("python", "w")
        assert answer is not None
        assert answer.work.task_id == as_next


def with_first_queue(name: str) -> Registry:
    """The registry after an edit: jobs that name no queue run from this one."""
    queues = (name, *(each for each in ("python", "heavy") if each != name))
    return configured_registry([RuntimeSettings(name="python", queues=queues)])
