"""Webhooks: messages from outside that prove themselves by a signature, not by a token.

    X-Qo-Signature: t=1700000000,v1=HEX     HMAC-SHA256 of "1700000000." and the body; good for five minutes
    X-Hub-Signature-256: sha256=HEX         HMAC-SHA256 of the body, as GitHub signs; only its key guards from replay

The secret's logical name is in the DAG; the secrets themselves are lines of the file ``webhook-NAME`` in the secrets
directory. Any of them will do, so that one can be changed without a pause: add the new one, change the sender, remove
the old one. The body is ``{"idempotency_key": …, "events": […]}`` or a CloudEvent, see ``core.flow.cloudevent``; of
one in binary mode the ``ce-`` headers are not signed, so send those only through TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from qo.api.contract.source import EmitAnswer, EmitRequest
from qo.core.pipeline import cloudevent
from qo.core.pipeline.cloudevent import Message
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.sources import emission
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.errors import ConfigError, NotFound, Refused, Unauthenticated, Unavailable, UsageError
from qo.store.secret_files import read_secret

log = logging.getLogger(__name__)

REPLAY_S = 300
SIGNATURE, GITHUB_SIGNATURE = "x-qo-signature", "x-hub-signature-256"
_SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_SECRET_LEN_MIN = 8
_HEX = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)


def receive(tx: Tx, path: str, headers: Mapping[str, str], body: bytes, secrets_dir: Path) -> EmitAnswer:
    """Take a message sent to a webhook's path. Nothing is kept of one that is refused.

    Raises NotFound if no live source listens there; Unauthenticated for a signature that is missing, wrong or too
    old; UsageError for a body that cannot be read; IdempotencyConflict for a key that meant something else before.
    """
    source, request = examine(tx, path, headers, body, secrets_dir)
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
    tx: Tx, path: str, headers: Mapping[str, str], body: bytes, secrets_dir: Path
) -> tuple[LiveJob, EmitRequest]:
    """Whom a message is for and what it says, if it proves itself. Writes nothing, so that a transaction that reads
    will do: who is refused should keep no writer waiting. Raises as ``receive``."""
    editions = listening(tx, path)
    named = {name.lower(): value for name, value in headers.items()}
    verify(named, body, _secrets_of(editions, secrets_dir), tx.now)
    return editions[0], _request(parse(named, body))


def admit(tx: Tx, path: str, headers: Mapping[str, str], secrets_dir: Path) -> None:
    """Refuse, before its body is read, a message that ``examine`` would refuse whatever its body is. Raises as that."""
    editions = listening(tx, path)
    named = {name.lower(): value for name, value in headers.items()}
    _read_signature(named, _secrets_of(editions, secrets_dir), tx.now)


def _secrets_of(editions: Sequence[LiveJob], secrets_dir: Path) -> list[bytes]:
    names = {each.job.source.secret for each in editions if each.job.source is not None}
    return [secret for name in sorted(filter(None, names)) for secret in read_secrets(secrets_dir, name)]


def listening(tx: Tx, path: str) -> list[LiveJob]:
    """The live editions of the one source that listens at a path. Raises NotFound, or Refused if there are two."""
    wanted = path.strip("/")
    found = [
        each
        for each in topology.load(tx).jobs.values()
        if each.job.source is not None
        and each.job.source.kind is SourceKind.WEBHOOK
        and (each.job.source.webhook_path or "").strip("/") == wanted
    ]
    if not wanted or not found:
        raise NotFound(f"no webhook listens at {path!r}: deploy a source with that webhook_path")
    if len({each.logical_id for each in found}) > 1:
        names = ", ".join(sorted({each.name for each in found}))
        raise Refused(f"several webhooks listen at {path!r} ({names}): give each a webhook_path of its own")
    return found


def read_secrets(directory: Path, name: str) -> list[bytes]:
    """The secrets of that logical name, one per line; none if there is no such file.

    Raises Unavailable for a file that cannot be used, as one that others can read: the log says why, the sender cannot
    mend it.
    """
    if not _SECRET_NAME.match(name):
        raise UsageError(f"{name!r} cannot name a secret: use letters, digits and . _ -")
    try:
        lines = read_secret(directory / f"webhook-{name}").splitlines()
    except FileNotFoundError:
        return []
    except (ConfigError, OSError) as error:
        log.error("the secrets of webhook %s cannot be used: %s", name, error)
        raise Unavailable("the secret of this webhook cannot be used: see the log of the dispatcher") from None
    # A line that was cut short must not become a secret that anybody can guess.
    return [line.strip() for line in lines if len(line.strip()) >= _SECRET_LEN_MIN]


def verify(headers: Mapping[str, str], body: bytes, secrets: Sequence[bytes], now: datetime) -> None:
    """Raises Unauthenticated unless one of the secrets signed this body. Header names are in lower case."""
    prefix, given = _read_signature(headers, secrets, now)
    signed = prefix + body
    # Every pair is compared, so that how long it takes tells nothing.
    matched = [
        hmac.compare_digest(sign(secret, signed).encode(), each.lower().encode())
        for secret in secrets
        for each in given
    ]
    if not any(matched):
        raise Unauthenticated("the signature is not one of this body by a secret of this webhook")


def _read_signature(
    headers: Mapping[str, str], secrets: Sequence[bytes], now: datetime
) -> tuple[bytes, list[str]]:
    """What is signed before the body, and the signatures that are given. Raises Unauthenticated for one that no body
    could make right."""
    if not secrets:
        raise Unauthenticated("this webhook has no secret: put one into webhook-NAME in the secrets directory")
    if SIGNATURE in headers:
        stamp, given = _parts(headers[SIGNATURE])
        if abs(now.timestamp() - stamp) > REPLAY_S:
            raise Unauthenticated(f"the signature's time is more than {REPLAY_S} seconds from ours: sign again")
        prefix = f"{stamp}.".encode()
    elif GITHUB_SIGNATURE in headers:
        prefix, given = b"", [headers[GITHUB_SIGNATURE].strip().removeprefix("sha256=")]
    else:
        raise Unauthenticated("the message is not signed: send X-Qo-Signature or X-Hub-Signature-256")
    if not any(_HEX.match(each.lower()) for each in given):
        raise Unauthenticated("the signature is not one of this body by a secret of this webhook")
    return prefix, given


def sign(secret: bytes, signed: bytes) -> str:
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def _parts(header: str) -> tuple[int, list[str]]:
    pairs = [part.strip().partition("=") for part in header.split(",")]
    stamps = [value for name, _, value in pairs if name == "t"]
    given = [value for name, _, value in pairs if name == "v1"]
    if len(stamps) != 1 or not re.fullmatch(r"[0-9]{1,15}", stamps[0]) or not 1 <= len(given) <= 10:
        raise Unauthenticated("X-Qo-Signature must read t=SECONDS,v1=HEX")
    return int(stamps[0]), given


def parse(headers: Mapping[str, str], body: bytes) -> Message:
    """What the message says. Raises UsageError if it cannot be read."""
    if cloudevent.is_binary(headers):
        return cloudevent.from_binary(headers, body)
    said = cloudevent.read_json(body)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("application/cloudevents"):
        return cloudevent.from_structured(said)
    if not isinstance(said, dict):
        raise UsageError("the body must be an object: {idempotency_key, events}, or a CloudEvent")
    fields = cast("dict[str, Any]", said)
    if "specversion" in fields:
        return cloudevent.from_structured(fields)
    if fields.keys() != {"idempotency_key", "events"}:
        raise UsageError("the body needs idempotency_key and events, and nothing else; or send a CloudEvent")
    return Message(fields["idempotency_key"], fields["events"])


def _request(message: Message) -> EmitRequest:
    try:
        return EmitRequest.model_validate({"idempotency_key": message.key, "events": message.events}, strict=True)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        raise UsageError(f"the message's fields are wrong: {said}") from None
