# ruff: noqa: F811
"""Tokens of workers that are bound to runtimes and queues: one that is stolen claims and sees nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from qo.api.contract.task import Claimed, NotClaimed
from qo.api.contract.token import CreateToken, Role
from qo.api.internal_client import DispatcherClient
from qo.config.runtimes import RuntimeSettings
from qo.core.pipeline.topology import Topology
from qo.dispatcher.auth.principals import Binding, create_token, revoke_token
from qo.dispatcher.state.database import State
from qo.dispatcher.state.topology import use_registry
from qo.errors import Forbidden, Unauthenticated
from qo.pipeline.registry import configured_registry
from support.cli.command import Qo
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipeline_tasks import partition_task, woken
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
PLACES = {"quick": ("python", "python"), "slow": ("python", "heavy"), "wide": ("spark", "spark")}
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
        from qo.dispatcher.versions.deploy import deploy

        deploy(tx, SHOP, "as Python", "tests", REGISTRY)
    async with served(state, tmp_path) as running:
        yield running


def token_of(state: State, runtimes: list[str] | None, queues: list[str] | None) -> str:
    with state.write() as tx:
        return create_token(
            tx, CreateToken(name="fleet", role=Role.WORKER, runtimes=runtimes, queues=queues)
        ).token


def released_task(state: State, topology: Topology, name: str, key: str) -> str:
    task_id = partition_task(state, live(topology, f"shop.{name}"), key)
    with state.write() as tx:
        woken(tx, task_id)
    return task_id


async def test_a_bound_token_claims_and_sees_tasks_of_its_runtimes_and_queues_only(
    dispatcher: Served, state: State
) -> None:
    topology = loaded(state)
    for at, ((runtimes, queues), name) in enumerate(product(BINDINGS, PLACES)):
        runtime, queue = PLACES[name]
        is_allowed = (runtimes is None or runtime in runtimes) and (queues is None or queue in queues)
        task_id = released_task(state, topology, name, f"p{at}")
        client = DispatcherClient(dispatcher.addresses.internal, token_of(state, runtimes, queues))
        async with client:
            if is_allowed:
                assert (await client.fetch(task_id)).task_id == task_id
                assert isinstance(await client.claim(task_id, "w"), Claimed)
            else:
                with pytest.raises(Forbidden, match=f"of runtime {runtime}, queue {queue}"):
                    await client.fetch(task_id)
                with pytest.raises(Forbidden, match="fleet is for tasks of"):
                    await client.claim(task_id, "w")
                async with dispatcher.worker() as other:  # Nothing has happened to it.
                    assert (await other.fetch(task_id)).status == "pending"


async def test_claims_that_are_sent_together_are_bound_too(dispatcher: Served, state: State) -> None:
    topology = loaded(state)
    own, foreign = (released_task(state, topology, name, "p1") for name in ("wide", "quick"))
    headers = {"Authorization": f"Bearer {token_of(state, ['spark'], None)}"}
    claims = [{"task_id": each, "worker_id": "w", "lease_id": f"l-{each[:8]}"} for each in (own, foreign)]
    answer = await dispatcher.post(
        "/internal/task-exchange", internal=True, headers=headers, json={"claims": claims}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    async with dispatcher.worker() as other:
        assert (await other.fetch(foreign)).status == "pending"


async def test_a_bound_token_says_nothing_of_tasks_that_do_not_exist(dispatcher: Served, state: State) -> None:
    async with DispatcherClient(dispatcher.addresses.internal, token_of(state, ["spark"], None)) as client:
        answer = await client.claim("no-such-task", "w")
        assert isinstance(answer, NotClaimed)
        assert answer.reason == "not_found"


async def test_a_bound_token_does_not_act_for_sources(dispatcher: Served, state: State) -> None:
    async with DispatcherClient(dispatcher.addresses.internal, token_of(state, ["spark"], None)) as client:
        await client.check_token()  # A worker may start with it.
        with pytest.raises(Forbidden, match="bound to nothing"):
            await client.sources()
        with pytest.raises(Forbidden):
            await client.remember("edition", {})


async def test_a_bound_token_that_was_stolen_is_revoked_like_any_other(dispatcher: Served, state: State) -> None:
    with state.write() as tx:
        made = create_token(tx, CreateToken(name="fleet", role=Role.WORKER, queues=["heavy"]))
    async with DispatcherClient(dispatcher.addresses.internal, made.token) as client:
        await client.check_token()
        with state.write() as tx:
            revoke_token(tx, made.id)
        with pytest.raises(Unauthenticated):
            await client.check_token()


def test_only_workers_are_bound() -> None:
    with pytest.raises(ValidationError, match="only a token of the role worker"):
        CreateToken(name="ada", role=Role.WRITER, runtimes=["spark"])
    with pytest.raises(ValidationError):
        CreateToken(name="fleet", role=Role.WORKER, runtimes=[])
    assert str(Binding(frozenset({"spark"}), frozenset({"heavy"}))) == "runtime spark and queue heavy"


def test_the_command_binds_tokens_and_lists_what_they_are_bound_to(tmp_path: Path) -> None:
    qo = Qo(tmp_path, {})
    qo.here("db", "upgrade")
    made = qo.here("token", "create", "etl", "--role", "worker", "--runtime", "spark", "--queue", "heavy")
    assert made.out.startswith("qow_"), made
    assert "runtime spark; queue heavy" in qo.here("token", "list").out
    refused = qo.here("token", "create", "ada", "--role", "writer", "--runtime", "spark")
    assert "--role worker" in refused.err
