"""Both applications of a dispatcher, called in this process with whatever bytes a caller may send, on a state in which
something of everything has happened.

    with surface(state, tmp_path) as found:
        found.ask("GET", "/v1/dags/%00", who="reader").status
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sa
from starlette.applications import Starlette

from qo.api.contract.backfill import BackfillRequest
from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, EventBody, Outcome, OutputBody
from qo.api.contract.token import CreateToken, Role
from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.auth import capability
from qo.dispatcher.auth.principals import create_token
from qo.dispatcher.bundles.bundle_store import bundle_id_for
from qo.dispatcher.engine.loops import reconciler, release, router
from qo.dispatcher.engine.release_limits import limits
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.apps import internal_app, public_app
from qo.dispatcher.sources.emission import emit
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import backfills, pausing
from support.catalog.records import store_record, write_document
from support.dispatcher.listeners import WORKER, context_of
from support.dispatcher.pipelines import dag, deployed, edited, job, live, source, staged
from support.dispatcher.zips import bundle

HOOK = {"webhook_path": "/hooks/orders", "secret": "orders"}
SHOP = dag(
    "shop",
    source("orders"),
    source("hook", "webhook", of=HOOK),
    source("tick", "cron", of={"schedule": "0 * * * *"}),
    source("feed", "always_on"),
    job("clean", reads="orders"),
    job("daily", reads=["clean", {"job": "orders", "trigger": False}], execution_strategy="PerUpdate"),
    job("alert", reads="clean", outputs=0),
    publish={"clean_orders": "clean"},
)
ZIP = bundle({"main.py": "print('{}')"})


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Surface:
    context: Context
    tokens: Mapping[str, str]
    claimed: Claimed  # Of a task that runs.
    names: dict[str, str] = field(default_factory=dict[str, str])  # What paths and queries can name, by parameter.

    def __post_init__(self) -> None:
        self.public, self.internal = public_app(self.context), internal_app(self.context)
        self._runner = asyncio.Runner()

    @property
    def fence(self) -> dict[str, Any]:
        of = self.claimed
        return {"task_id": of.work.task_id, "attempt": of.attempt, "lease_id": of.lease_id}

    def credentials(self, who: str | None) -> dict[str, str]:
        if who is None:
            return {}
        if who == "task":
            return {"X-Qo-Task-Capability": self.claimed.capability_token}
        return {"Authorization": f"Bearer {self.tokens[who]}"}

    def ask(
        self,
        method: str,
        target: str,
        who: str | None = None,
        *,
        internal: bool = False,
        content: bytes = b"",
        send: Any = None,
        kind: str | None = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """``target`` is as on the wire, percent-encoded. ``send`` is sent as JSON."""
        body = content if send is None else json.dumps(send).encode()
        told = {"Host": "qo", **self.credentials(who), **(headers or {})}
        if kind is not None:
            told["Content-Type"] = kind
        app = self.internal if internal else self.public
        return self._runner.run(call_app(app, method, target, told, body))

    def close(self) -> None:
        self._runner.close()


async def call_app(app: Starlette, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
    """One request, with the scope that the server makes of it. What an app raises after its answer is not for
    callers."""
    path, _, query = target.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    messages: list[Any] = []
    whole = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        return next(whole, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        messages.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        if not messages:
            raise
    start = messages[0]
    told = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return Reply(start["status"], told, b"".join(each.get("body", b"") for each in messages[1:]))


@contextmanager
def surface(state: State, directory: Path) -> Iterator[Surface]:
    context = context_of(state, directory)
    secret = directory / "secrets" / "webhook-orders"
    secret.touch(0o600)
    secret.write_text("a secret of the tests\n")
    with state.write() as tx:
        made = {role: create_token(tx, CreateToken(name=f"a-{role}", role=role)) for role in Role}
        spare = create_token(tx, CreateToken(name="to be revoked", role=Role.READER))
    tokens = {str(role): each.token for role, each in made.items()} | {"worker": WORKER}
    found = _lived_in(context, tokens, directory)
    found.names["token_id"] = spare.id
    yield found
    found.close()


def _lived_in(context: Context, tokens: Mapping[str, str], directory: Path) -> Surface:
    """Two versions, a pause, a bundle; and of the tasks of one job one that completed, failed, runs and waits."""
    state, data = context.state, context.settings.dispatcher.data_root
    topology = deployed(state, SHOP)
    staged(state, edited(SHOP, "daily", config={"more": 1}))
    with state.write() as tx:
        said = [EventBody(partition_key=f"2026-01-0{day}", attributes={"day": day}) for day in range(1, 6)]
        emit(tx, "shop", "orders", key="k", events=said, by="tests")
        emit(tx, "shop", "tick", key="t", events=[EventBody(cursor=5)], by="tests")
        pausing.pause(tx, "shop.alert", "for the tests", "tests")
    for _ in range(3):
        router.tick(state)
        reconciler.tick(state)
        release.tick(state, limits(DispatcherSettings()))
    with state.write() as tx:
        table = schema.tasks
        ready = tx.execute(
            sa.select(table.c.id)
            .where(table.c.job == "clean", table.c.released_at.is_not(None))
            .order_by(table.c.id)
        ).scalars()
        done, failed, running, waiting = list(ready)[:4]
        held: dict[str, Claimed] = {}
        for each in (done, failed, running):
            answer = claiming.claim(tx, ClaimRequest(task_id=each, worker_id="w"), data)
            assert isinstance(answer, Claimed)
            held[each] = answer
        first = held[done]
        location = OutputBody(
            output=0, location=first.work.outputs[0].prefix, files=["a.parquet"], rows=1, bytes=1
        )
        completion.complete(tx, _ended(first, Outcome.SUCCESS, outputs=[location]), data)
        completion.complete(tx, _ended(held[failed], Outcome.FATAL, error="no"), data)
        again = backfills.create(tx, BackfillRequest(dag="shop", job="clean"), "tests")
        now, mine = tx.now, held[running]
        partition = first.work.partition_key or ""
    token = capability.issue(
        context.keyring,
        task_id=running,
        attempt=mine.attempt,
        lease_id=mine.lease_id,
        timeout_s=3600,
        token_id="t",
        now=now,
    )
    store_record(state, "shop", "clean_orders", write_document(directory, "clean_orders"))
    clean = live(topology, "shop.clean")
    sha256 = hashlib.sha256(ZIP).hexdigest()
    names = {
        "dag": "shop",
        "job": "orders",
        "name": "clean_orders",
        "namespace": "shop",
        "table": "clean_orders",
        "scope": "shop.clean",
        "number": "1",
        "task_id": waiting,
        "bundle_id": bundle_id_for(sha256),
        "path": "hooks/orders",
        "edition_id": live(topology, "shop.tick").edition_id,
        "generation_id": clean.outputs[0].generation_id,
        "partition_key": partition,
        "target": f"clean_orders@{partition}",
        "text": "clean",
        "position": "0",
        "output": "0",
        "from_revision": "0",
        "to_revision": "1",
        "id": again.id,
        "sha256": sha256,
    }
    return Surface(context, tokens, mine.model_copy(update={"capability_token": token}), names)


def _ended(held: Claimed, outcome: Outcome, **how: Any) -> CompleteRequest:
    fence = {"task_id": held.work.task_id, "attempt": held.attempt, "lease_id": held.lease_id}
    return CompleteRequest(**fence, outcome=outcome, **how)
