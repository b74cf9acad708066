"""Events as other systems write them, ``dataset_uuid`` and ``dataset_version``, are accepted wherever events are."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import CompleteRequest, EventBody, EventsRequest
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import completion, running
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import Forbidden, Refused, UsageError
from support.dispatcher.listeners import served
from support.dispatcher.pipeline_tasks import ROOT, claimed, feed, fence, output, route_all, tasks_of, woken
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.dispatcher.pipelines import job as reactive

HOOK = {"webhook_path": "/hooks/orders", "secret": "shop"}
SHOP = dag("shop", source("orders"), source("in", "webhook", of=HOOK), reactive("clean", reads="orders"))
SECRET = b"of the sender alone"
RANGE = {"partition_key": "1000000-1010000", "start": 1_000_000, "end": 1_010_000}


def named(job: LiveJob, **event: Any) -> dict[str, Any]:
    """The event as the requirement writes it."""
    return {"dataset_uuid": job.outputs[0].dataset_id, "dataset_version": job.outputs[0].generation_id, **event}


def recorded(state: State, job: LiveJob) -> list[dict[str, Any]]:
    """The events of a job's output, with their fields that are set."""
    made, table = job.outputs[0], schema.events
    query = sa.select(table).where(table.c.dataset_id == made.dataset_id).order_by(table.c.seq)
    fields = ("cursor", "partition_key", "start", "end")
    with state.read() as tx:
        rows = tx.all(query)
    assert {row["generation_id"] for row in rows} <= {made.generation_id}
    return [{name: row[name] for name in fields if row[name] is not None} for row in rows]


@pytest.mark.parametrize("internal", [False, True])
async def test_a_source_names_its_dataset_over_http(state: State, tmp_path: Path, internal: bool) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    path = ("/internal" if internal else "/v1") + "/sources/shop/orders/events"
    async with served(state, tmp_path) as dispatcher:
        for key, event in (("a", {"cursor": 12345}), ("b", RANGE)):
            body = {"idempotency_key": key, "events": [named(orders, **event)]}
            who = "worker" if internal else "writer"
            answer = await dispatcher.post(path, who, internal=internal, json=body)
            assert answer.status_code == 200, answer.text
    assert recorded(state, orders) == [{"cursor": 12345}, RANGE]


async def test_a_webhook_and_a_cloudevent_name_their_dataset(state: State, tmp_path: Path) -> None:
    hook = live(deployed(state, SHOP), "shop.in")
    plain = {"idempotency_key": "k", "events": [named(hook, cursor=1)]}
    cloud = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": named(hook, cursor=2)}
    binary = {"Ce-Specversion": "1.0", "Ce-Id": "2", "Ce-Source": "/s", "Ce-Type": "t"}
    messages: list[tuple[Mapping[str, Any], dict[str, str]]] = [
        (plain, {}), (cloud, {}), (named(hook, cursor=3), binary)
    ]  # fmt: skip
    async with served(state, tmp_path) as dispatcher:
        dispatcher.context.keyring.secrets.create("webhook-shop", SECRET)
        for message, headers in messages:
            body = json.dumps(message).encode()
            signature = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
            headers = {**headers, "X-Hub-Signature-256": f"sha256={signature}"}
            answer = await dispatcher.post("/v1/webhooks/hooks/orders", content=body, headers=headers)
            assert answer.status_code == 200, answer.text
    assert recorded(state, hook) == [{"cursor": 1}, {"cursor": 2}, {"cursor": 3}]


def test_a_task_names_its_dataset_while_it_runs_and_at_its_end(state: State) -> None:
    shop = deployed(state, SHOP)
    clean = live(shop, "shop.clean")
    feed(state, live(shop, "shop.orders"), "2024-01-01")
    route_all(state)
    (task,) = tasks_of(state, clean)
    with state.write() as tx:
        woken(tx, task["id"])
    held = claimed(state, task["id"])
    while_running = EventsRequest.model_validate({**fence(held), "events": [named(clean, **RANGE)]})
    at_the_end = CompleteRequest.model_validate(
        {**fence(held), "outcome": "success", "outputs": [output(held)], "events": [named(clean, cursor=7)]}
    )
    with state.write() as tx:
        running.emit(tx, while_running)
    with state.write() as tx:
        completion.complete(tx, at_the_end, ROOT)
    assert [each for each in recorded(state, clean) if each != {"partition_key": "2024-01-01"}] == [
        RANGE,
        {"cursor": 7},
    ]


def emit(state: State, event: dict[str, Any], key: str = "k") -> None:
    with state.write() as tx:
        bodies = [EventBody.model_validate(event)]
        emission.emit(tx, "shop", "orders", key=key, events=bodies, by="anna")


def test_a_name_of_any_live_generation_means_the_output_of_all_editions(state: State) -> None:
    before = live(deployed(state, SHOP), "shop.orders")
    staged(state, edited(SHOP, "orders", config={"changed": 1}))
    editions = [each for each in loaded(state).jobs.values() if each.name == "shop.orders"]
    emit(state, named(before, cursor=5))
    with state.read() as tx:
        generations = tx.execute(sa.select(schema.events.c.generation_id)).scalars().all()
    assert sorted(generations) == sorted({each.outputs[0].generation_id for each in editions})


def test_another_dataset_a_generation_that_is_not_live_and_a_contradiction_are_refused(state: State) -> None:
    shop = deployed(state, SHOP)
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    with pytest.raises(Forbidden, match="its own outputs only"):
        emit(state, named(clean, cursor=1))
    with pytest.raises(Refused, match=f"is not live, only {orders.outputs[0].generation_id}"):
        emit(state, {**named(orders, cursor=1), "dataset_version": "gone"})
    with pytest.raises(UsageError, match="leave one out"):
        emit(state, {**named(orders, cursor=1), "output": 1})
    assert recorded(state, orders) == []
