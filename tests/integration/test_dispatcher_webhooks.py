"""Webhooks end to end: a signed message is an emission of its source; any other leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.source import EmitAnswer
from qo.dispatcher.secrets.file_secrets import FileSecrets
from qo.dispatcher.sources import webhooks
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import IdempotencyConflict, NotFound, QoError, Refused, Unauthenticated, UsageError
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.states import Clock

SECRET = b"correct horse"
HOOK = {"webhook_path": "/hooks/orders", "secret": "orders"}
CLOUD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "a/b"}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "webhook-orders").write_bytes(b"an older one\n" + SECRET + b"\n")
    (tmp_path / "webhook-orders").chmod(0o600)
    return tmp_path


def send(
    state: State,
    secrets: Path,
    body: Any,
    path: str = "hooks/orders",
    secret: bytes = SECRET,
    headers: dict[str, str] | None = None,
) -> EmitAnswer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with state.write() as tx:
        stamp = int(tx.now.timestamp())
        signature = f"t={stamp},v1={webhooks.sign(secret, f'{stamp}.'.encode() + raw)}"
        return webhooks.receive(
            tx, path, {"X-Qo-Signature": signature, **(headers or {})}, raw, FileSecrets(secrets)
        )


def events(state: State) -> int:
    with state.read() as tx:
        return len(tx.all(sa.select(schema.events)))


def test_a_signed_message_is_emitted_once_however_often_it_comes(state: State, secrets: Path) -> None:
    deployed(state, dag("shop", source("in", "webhook", of=HOOK)))
    body = {"idempotency_key": "k", "events": [{"partition_key": "a", "attributes": {"n": 1}}]}
    first = send(state, secrets, body)
    assert send(state, secrets, body) == first.model_copy(update={"repeated": True})
    assert events(state) == 1
    with pytest.raises(IdempotencyConflict):
        send(state, secrets, {"idempotency_key": "k", "events": [{"cursor": 1}]})


def test_a_cloudevent_is_known_by_its_id_and_source(state: State, secrets: Path) -> None:
    deployed(state, dag("shop", source("in", "webhook", of=HOOK)))
    assert not send(state, secrets, CLOUD, headers={"Content-Type": "application/cloudevents+json"}).repeated
    assert send(state, secrets, CLOUD).repeated
    assert not send(state, secrets, CLOUD | {"id": "2"}).repeated
    binary = {f"Ce-{name.title()}": value for name, value in (CLOUD | {"id": "3"}).items()}
    assert not send(state, secrets, b"{}", headers=binary).repeated


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", UsageError),
        ({"idempotency_key": "", "events": [{"cursor": 1}]}, UsageError),
        ({"idempotency_key": "k", "events": []}, UsageError),
        ({"idempotency_key": "k", "events": [{"cursor": "1"}]}, UsageError),
        ({"idempotency_key": "k", "events": [{"cursor": -1}]}, UsageError),
        ({"idempotency_key": "k", "events": [{"partition_key": "a/b"}]}, UsageError),
        ({"idempotency_key": "k", "events": [{"nonsense": 1}]}, UsageError),
        ({"idempotency_key": 5, "events": 5}, UsageError),
    ],
)
def test_a_message_that_is_wrong_leaves_nothing(
    state: State, secrets: Path, body: Any, error: type[QoError]
) -> None:
    deployed(state, dag("shop", source("in", "webhook", of=HOOK)))
    with pytest.raises(error):
        send(state, secrets, body)
    assert events(state) == 0


def test_a_message_that_nobody_signed_leaves_nothing(state: State, secrets: Path, state_clock: Clock) -> None:
    deployed(state, dag("shop", source("in", "webhook", of=HOOK)))
    body = {"idempotency_key": "k", "events": [{"cursor": 1}]}
    with pytest.raises(Unauthenticated):
        send(state, secrets, body, secret=b"a wrong one")
    with pytest.raises(Unauthenticated), state.write() as tx:
        webhooks.receive(tx, "hooks/orders", {}, json.dumps(body).encode(), FileSecrets(secrets))
    (secrets / "webhook-orders").unlink()
    with pytest.raises(Unauthenticated):
        send(state, secrets, body)
    assert events(state) == 0


def test_a_path_belongs_to_one_live_webhook(state: State, secrets: Path) -> None:
    deployed(state, dag("shop", source("in", "webhook", of=HOOK), source("by_hand")))
    body = {"idempotency_key": "k", "events": [{"cursor": 1}]}
    for path in ("hooks/other", "", "/"):
        with pytest.raises(NotFound):
            send(state, secrets, body, path)
    deployed(state, dag("market", source("in", "webhook", of=HOOK)))
    with pytest.raises(Refused, match="webhook_path of its own"):
        send(state, secrets, body)
