"""Webhooks: who signs, and what the message says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from qo.core.pipeline.naming import partition_key
from qo.dispatcher.secrets.file_secrets import FileSecrets
from qo.dispatcher.secrets.webhook_secrets import read_secrets
from qo.dispatcher.sources.webhooks import parse, sign, verify
from qo.errors import Unauthenticated, UsageError

pytestmark = pytest.mark.fast

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = int(NOW.timestamp())
SECRET, OTHER = b"correct horse", b"battery staple"
BODY = b'{"events":[]}'


def signed(body: bytes = BODY, stamp: int = STAMP, *secrets: bytes) -> dict[str, str]:
    parts = [f"v1={sign(secret, f'{stamp}.'.encode() + body)}" for secret in secrets or (SECRET,)]
    return {"x-qo-signature": ",".join([f"t={stamp}", *parts])}


def test_a_signature_over_time_and_body_is_good() -> None:
    verify(signed(), BODY, [SECRET], NOW)


def test_any_of_several_secrets_is_good_while_they_change() -> None:
    verify(signed(BODY, STAMP, OTHER), BODY, [SECRET, OTHER], NOW)
    verify(signed(BODY, STAMP, b"unknown to us", SECRET), BODY, [SECRET], NOW)


@pytest.mark.parametrize("seconds", [-301, 301])
def test_an_old_or_early_signature_is_refused(seconds: int) -> None:
    with pytest.raises(Unauthenticated, match="300 seconds"):
        verify(signed(BODY, STAMP + seconds), BODY, [SECRET], NOW)
    verify(signed(BODY, STAMP + seconds // 301 * 300), BODY, [SECRET], NOW)


def test_a_signature_as_github_makes_it_is_good() -> None:
    verify({"x-hub-signature-256": f"sha256={sign(SECRET, BODY)}"}, BODY, [SECRET], NOW)
    with pytest.raises(Unauthenticated):
        verify({"x-hub-signature-256": f"sha256={sign(OTHER, BODY)}"}, BODY, [SECRET], NOW)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed(b"another body"),
        signed(BODY, STAMP, OTHER),
        {"x-qo-signature": ""},
        {"x-qo-signature": f"t={STAMP}"},
        {"x-qo-signature": "v1=00"},
        {"x-qo-signature": f"t={STAMP},v1="},
        {"x-qo-signature": f"t={STAMP},v1=ä"},
        {"x-qo-signature": "t=99999999999999999999999,v1=00"},
        {"x-qo-signature": "t=٣,v1=00"},
        {"x-hub-signature-256": "sha256="},
        {"x-hub-signature-256": "md5=00"},
    ],
)
def test_anything_else_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        verify(headers, BODY, [SECRET], NOW)


def test_without_secrets_nothing_is_good() -> None:
    with pytest.raises(Unauthenticated, match="no secret"):
        verify(signed(BODY, STAMP, b""), BODY, [], NOW)


def test_secrets_are_the_lines_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "webhook-shop").write_bytes(b"correct horse\n\nshort\n  battery staple \r\n")
    (tmp_path / "webhook-shop").chmod(0o600)
    assert read_secrets(FileSecrets(tmp_path), "shop") == [SECRET, OTHER]
    assert read_secrets(FileSecrets(tmp_path), "other") == []
    for name in ("../shop", "", "a/b", ".hidden"):
        with pytest.raises(UsageError):
            read_secrets(FileSecrets(tmp_path), name)


def event(body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    (only,) = parse(headers or {}, raw).events
    return only


def cloud(**fields: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order"} | fields


def test_our_own_form_is_taken_as_it_is() -> None:
    message = parse({}, b'{"idempotency_key":"k","events":[{"cursor":5}]}')
    assert (message.key, message.events) == ("k", [{"cursor": 5}])


def test_a_cloudevents_subject_becomes_the_partition_key() -> None:
    made = event(cloud(subject="orders/17", data={"total": 3}))
    assert made["partition_key"] == partition_key("orders/17")
    assert made["attributes"]["data"] == {"total": 3}
    assert made["attributes"]["cloudevent"]["id"] == "7"


def test_data_that_is_an_event_is_the_event() -> None:
    made = event(cloud(subject="x", data={"cursor": 5, "note": "hi", "attributes": {"a": 1}}))
    assert made["cursor"] == 5
    assert "partition_key" not in made
    assert {"note": "hi", "a": 1}.items() <= made["attributes"].items()


def test_binary_mode_has_its_context_in_headers() -> None:
    headers = {f"ce-{name}": value for name, value in cloud(subject="s").items()}
    made = event(b'{"partition_key":"p","start":0,"end":9}', headers)
    assert (made["partition_key"], made["start"], made["end"]) == ("p", 0, 9)
    assert parse(headers, b"").events[0]["partition_key"] == "s"
    assert parse(headers, b"").key == parse({}, json.dumps(cloud(subject="s")).encode()).key


def test_the_key_follows_from_source_and_id_alone() -> None:
    def key(**fields: Any) -> str:
        return parse({}, json.dumps(cloud(subject="s", **fields)).encode()).key

    assert key() == key(type="other", data=5)
    assert len({key(), key(id="8"), key(source="/b"), key(source="/shop:7", id="x"), key(id="x" * 500)}) == 5
    assert len(key(id="x" * 500)) <= 200


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b""),
        ({}, b"{"),
        ({}, b"[" * 100_000),
        ({}, b"\xff\xfe"),
        ({}, b"[]"),
        ({}, b"7"),
        ({}, b'{"events":[]}'),
        ({}, b'{"idempotency_key":"k","events":[],"more":1}'),
        ({"content-type": "application/cloudevents-batch+json"}, b"[]"),
        ({"content-type": "application/cloudevents+json"}, b"{}"),
        ({}, json.dumps(cloud()).encode()),
        ({}, json.dumps(cloud(specversion="0.3", subject="s")).encode()),
        ({}, json.dumps(cloud(id="", subject="s")).encode()),
        ({}, json.dumps(cloud(id=7, subject="s")).encode()),
        ({}, json.dumps(cloud(subject="s", data_base64="AA==")).encode()),
        ({}, json.dumps(cloud(data={"cursor": 1, "attributes": []})).encode() + b"x"),
        ({}, json.dumps(cloud(data={"cursor": 1, "attributes": [1]})).encode()),
        ({"ce-specversion": "1.0"}, b"{}"),
    ],
)
def test_what_cannot_be_read_is_named(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(UsageError):
        parse(headers, body)
