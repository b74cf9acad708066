"""Webhooks: messages from outside that are authenticated by a signature instead of a token.

    X-Qo-Signature: t=1700000000,v1=HEX     HMAC-SHA256 of "1700000000." and the body; valid for five minutes
    X-Hub-Signature-256: sha256=HEX         HMAC-SHA256 of the body, as GitHub signs; only the key prevents replay

The DAG names the secret; its values are where dispatchers keep secrets (``qo.dispatcher.secrets``). Each of them is
accepted, so a secret can be rotated without a pause: add the new one, change the sender, remove the old one. The body
is ``{"idempotency_key": …, "events": […]}`` or a CloudEvent (see ``core.pipeline.cloudevent``). In binary mode the
``ce-`` headers are not signed, so send those messages only over TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from pydantic import ValidationError

from qo.api.contract.source import EmitAnswer, EmitRequest
from qo.core.pipeline import cloudevent
from qo.core.pipeline.cloudevent import Message
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.secrets.secret_store import SecretStore
from qo.dispatcher.secrets.webhook_secrets import read_secrets
from qo.dispatcher.sources import emission
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound, Refused, Unauthenticated, UsageError

REPLAY_S = 300
SIGNATURE, GITHUB_SIGNATURE = "x-qo-signature", "x-hub-signature-256"
_HEX = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)


def receive(tx: Tx, path: str, headers: Mapping[str, str], body: bytes, secrets: SecretStore) -> EmitAnswer:
    """Emit the events of a message sent to a webhook's path. A refused message leaves no trace.

    Raises NotFound if no live source listens there; Unauthenticated for a signature that is missing, wrong or too
    old; UsageError for a body that cannot be read; IdempotencyConflict for a key that came with other events before.
    """
    source, request = examine(tx, path, headers, body, secrets)
    return emission.emit(
        tx,
        source.dag,
        source.job.name,
        key=request.idempotency_key,
        events=request.events,
        by=f"webhook:{source.name}",
        kind=SourceKind.WEBHOOK,
    )


def examine(
    tx: Tx, path: str, headers: Mapping[str, str], body: bytes, secrets: SecretStore
) -> tuple[LiveJob, EmitRequest]:
    """Authenticate a message; return its source and its content. Raises as ``receive``.

    It writes nothing, so a read transaction is enough, and a refused message keeps no writer waiting.
    """
    editions = listening(tx, path)
    lower_headers = {name.lower(): value for name, value in headers.items()}
    verify(lower_headers, body, _secrets_of(editions, secrets), tx.now)
    return editions[0], _request(parse(lower_headers, body))


def admit(tx: Tx, path: str, headers: Mapping[str, str], secrets: SecretStore) -> None:
    """Refuse a message before its body is read, if ``examine`` would refuse any body. Raises as ``examine``."""
    editions = listening(tx, path)
    lower_headers = {name.lower(): value for name, value in headers.items()}
    _read_signature(lower_headers, _secrets_of(editions, secrets), tx.now)


def _secrets_of(editions: Sequence[LiveJob], secrets: SecretStore) -> list[bytes]:
    names = {each.job.source.secret for each in editions if each.job.source is not None}
    return [secret for name in sorted(filter(None, names)) for secret in read_secrets(secrets, name)]


def listening(tx: Tx, path: str) -> list[LiveJob]:
    """Return the live editions of the source that listens at a path. Raises NotFound, or Refused if two sources do."""
    own_path = path.strip("/")
    editions = [
        each
        for each in topology.load(tx).jobs.values()
        if each.job.source is not None
        and each.job.source.kind is SourceKind.WEBHOOK
        and (each.job.source.webhook_path or "").strip("/") == own_path
    ]
    if not own_path or not editions:
        raise NotFound(f"no webhook listens at {path!r}: deploy a source with that webhook_path")
    if len({each.logical_id for each in editions}) > 1:
        names = ", ".join(sorted({each.name for each in editions}))
        raise Refused(f"several webhooks listen at {path!r} ({names}): give each a webhook_path of its own")
    return editions


def verify(headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now: datetime) -> None:
    """Raises Unauthenticated unless one of the secrets signed this body. Header names are in lower case."""
    prefix, signatures = _read_signature(headers, secrets, now)
    signed = prefix + body
    # Compare every pair, so that the time it takes reveals nothing.
    matched = [
        hmac.compare_digest(sign(secret, signed).encode(), each.lower().encode())
        for secret in secrets
        for each in signatures
    ]
    if not any(matched):
        raise Unauthenticated("the signature does not match this body and a secret of this webhook")


def _read_signature(
    headers: Mapping[str, str], secrets: Sequence[bytes], now: datetime
) -> tuple[bytes, list[str]]:
    """Return the signed prefix of the body, and the signatures. Raises Unauthenticated if no body could match them."""
    if not secrets:
        raise Unauthenticated("this webhook has no secret: make one with qo source secret set NAME")
    if SIGNATURE in headers:
        stamp, signatures = _parse_signature(headers[SIGNATURE])
        if abs(now.timestamp() - stamp) > REPLAY_S:
            raise Unauthenticated(f"the signature's time is more than {REPLAY_S} seconds from ours: sign again")
        prefix = f"{stamp}.".encode()
    elif GITHUB_SIGNATURE in headers:
        prefix, signatures = b"", [headers[GITHUB_SIGNATURE].strip().removeprefix("sha256=")]
    else:
        raise Unauthenticated("the message is not signed: send X-Qo-Signature or X-Hub-Signature-256")
    if not any(_HEX.match(each.lower()) for each in signatures):
        raise Unauthenticated("the signature does not match this body and a secret of this webhook")
    return prefix, signatures


def sign(secret: bytes, signed: bytes) -> str:
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def _parse_signature(header: str) -> tuple[int, list[str]]:
    pairs = [part.strip().partition("=") for part in header.split(",")]
    stamps = [value for name, _, value in pairs if name == "t"]
    signatures = [value for name, _, value in pairs if name == "v1"]
    if len(stamps) != 1 or not re.fullmatch(r"[0-9]{1,15}", stamps[0]) or not 1 <= len(signatures) <= 10:
        raise Unauthenticated("X-Qo-Signature must read t=SECONDS,v1=HEX")
    return int(stamps[0]), signatures


def parse(headers: Mapping[str, str], body: bytes) -> Message:
    """Parse a message. Raises UsageError if it cannot be read."""
    if cloudevent.is_binary(headers):
        return cloudevent.from_binary(headers, body)
    document = cloudevent.read_json(body)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("application/cloudevents"):
        return cloudevent.from_structured(document)
    if not isinstance(document, dict):
        raise UsageError("the body must be an object: {idempotency_key, events}, or a CloudEvent")
    fields = cast("dict[str, Any]", document)
    if "specversion" in fields:
        return cloudevent.from_structured(fields)
    if fields.keys() != {"idempotency_key", "events"}:
        raise UsageError("the body needs idempotency_key and events, and nothing else; or send a CloudEvent")
    return Message(fields["idempotency_key"], fields["events"])


def _request(message: Message) -> EmitRequest:
    try:
        return EmitRequest.model_validate({"idempotency_key": message.key, "events": message.events}, strict=True)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        raise UsageError(f"the message's fields are wrong: {problems}") from None
