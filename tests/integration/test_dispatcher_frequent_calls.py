"""The calls that every task makes are answered alike in every form of JSON: well-formed or not, allowed or not."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest

from qo.dispatcher.http.callers import CAPABILITY
from qo.dispatcher.state.database import State
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipeline_tasks import feed, route_all, tasks_of, woken
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.stores.queues import until

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
CLAIM, BEAT, COMPLETE = "/internal/task-claim", "/v1/task/heartbeat", "/v1/task/complete"
PLAIN, WITH_CHARSET = "application/json", "application/json; charset=utf-8"
FRESH = {"capability_token", "lease_expires_at"}  # Other ones in every answer.


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(state, tmp_path, body_max_bytes=20_000) as found:
        yield found


async def posted(
    dispatcher: Served, path: str, body: Any, kind: str, token: str | None = None, who: str | None = "worker"
) -> tuple[int, Any]:
    headers = {"content-type": kind} | ({CAPABILITY: token} if token is not None else {})
    sent = {"json": body} if not isinstance(body, bytes) else {"content": body}
    told = await dispatcher.post(path, who, internal=True, headers=headers, **sent)
    said = told.json()
    return told.status_code, {name: value for name, value in said.items() if name not in FRESH} | {
        "token": said.get("capability_token")
    }


async def both(dispatcher: Served, path: str, body: Any, **how: Any) -> tuple[int, Any]:
    """The answer, which is the same both ways."""
    plain = await posted(dispatcher, path, body, PLAIN, **how)
    with_charset = await posted(dispatcher, path, body, WITH_CHARSET, **how)
    assert [plain[0], {**plain[1], "token": None}] == [with_charset[0], {**with_charset[1], "token": None}]
    return plain


def waiting(state: State) -> str:
    """A task that may be claimed."""
    shop = deployed(state, SHOP)
    feed(state, live(shop, "shop.orders"), "a")
    route_all(state)
    (task,) = tasks_of(state, live(shop, "shop.clean"))
    with state.write() as tx:
        woken(tx, task["id"])
    return task["id"]


async def test_a_task_runs_from_its_claim_to_its_end_as_it_does_the_long_way(
    dispatcher: Served, state: State
) -> None:
    task = waiting(state)
    asked = {"task_id": task, "worker_id": "w", "lease_id": "mine"}
    status, held = await both(dispatcher, CLAIM, asked)
    assert (status, held["status"]) == (200, "claimed")
    fence = {"task_id": task, "attempt": held["attempt"], "lease_id": "mine"}
    assert (await both(dispatcher, BEAT, fence, token=held["token"]))[0] == 200
    (made,) = held["work"]["outputs"]
    output = {"output": 0, "location": made["prefix"], "files": ["a.parquet"], "rows": 1, "bytes": 1}
    ended = fence | {"outcome": "success", "outputs": [output]}
    first = await posted(dispatcher, COMPLETE, ended, PLAIN, token=held["token"])
    assert (first[0], first[1]["status"], first[1]["repeated"]) == (200, "completed", False)
    assert (await both(dispatcher, COMPLETE, ended, token=held["token"]))[1]["repeated"] is True
    assert (await both(dispatcher, BEAT, fence, token=held["token"]))[0] == 409
    answers = dispatcher.context.traffic.answers
    assert [answers[each, 200] for each in ("claim_task", "heartbeat", "complete")] == [2, 2, 3]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"task_id": "t"}, 422),
        ({"task_id": "t", "worker_id": "w", "more": 1}, 422),
        ({"task_id": "\0", "worker_id": "w"}, 422),
        ([], 422),
        (b"{", 400),
        (b"", 422),
        (b"[" * 10_000, 400),
        ({"task_id": "nobody", "worker_id": "w"}, 200),
    ],
)
async def test_what_is_wrong_with_a_body_is_said_in_the_same_words(
    dispatcher: Served, body: Any, status: int
) -> None:
    assert (await both(dispatcher, CLAIM, body))[0] == status


@pytest.mark.parametrize(("who", "token"), [(None, None), ("reader", None), (None, "nonsense")])
async def test_who_may_not_is_turned_away_in_the_same_words(
    dispatcher: Served, who: str | None, token: str | None
) -> None:
    for path in (CLAIM, BEAT, COMPLETE):
        assert (await both(dispatcher, path, {}, who=who, token=token))[0] in (401, 403)


async def test_a_body_that_is_too_large_and_was_not_announced_is_refused(dispatcher: Served) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 1000

    for kind in (PLAIN, WITH_CHARSET):
        told = await dispatcher.post(
            CLAIM, "worker", internal=True, content=pieces(), headers={"content-type": kind}
        )
        assert (told.status_code, told.json()["code"]) == (413, "too_large")


async def test_a_stranger_verifies_a_capability_with_the_keys_that_are_served(
    dispatcher: Served, state: State
) -> None:
    dispatcher.context.keyring.rotate(datetime.now(UTC))
    answer = await dispatcher.get("/internal/jwks/task", internal=True)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "public, max-age=60"
    served_keys = answer.json()["keys"]
    assert served_keys == dispatcher.context.keyring.jwks()["keys"]
    assert len(served_keys) == 2
    for key in served_keys:
        assert set(key) == {"kty", "crv", "x", "y", "use", "alg", "kid"}, "no more than the public half"
        assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("EC", "P-256", "ES256", "sig")
    asked = {"task_id": waiting(state), "worker_id": "w", "lease_id": "mine"}
    _, held = await posted(dispatcher, CLAIM, asked, PLAIN)
    public = jwt.PyJWKSet.from_dict(answer.json())[jwt.get_unverified_header(held["token"])["kid"]]
    claims = jwt.decode(held["token"], public, algorithms=["ES256"], audience="qo.task", issuer="qo")
    assert (claims["task_id"], claims["org_id"]) == (asked["task_id"], "default")


async def test_the_threads_of_frequent_calls_end_with_the_listener(state: State, tmp_path: Path) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("qo-frequent")}

    before = threads()
    async with served(state, tmp_path) as dispatcher:
        await posted(dispatcher, CLAIM, {"task_id": "nobody", "worker_id": "w"}, PLAIN)
        assert threads() - before

    async def have_ended() -> bool:
        return not threads() - before

    await until(have_ended)
