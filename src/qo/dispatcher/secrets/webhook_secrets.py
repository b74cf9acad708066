"""The secrets of webhooks. One or two of a name are valid at a time, so that a sender can change without a pause:

set        one, in place of all
rotate     a second one: the sender may sign with either
retire     the older one goes
remove     all go: every message is refused
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import datetime

from qo.dispatcher.secrets.secret_store import WEBHOOKS, SecretStore
from qo.errors import Contended, NotFound, QoError, Refused, Unavailable, UsageError
from qo.store.secret_files import generate_secret

log = logging.getLogger(__name__)

PREFIX = "whsec_"
SECRET_LEN_MIN, SECRET_LEN_MAX = 8, 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


@dataclass(frozen=True, slots=True)
class WebhookListing:
    """The secrets of one name, as people see them."""

    name: str
    valid: int | None  # How many are accepted; None: they cannot be read.
    created_at: datetime | None
    changed_at: datetime | None
    sealed_with: str | None


def read_secrets(secrets: SecretStore, name: str) -> list[bytes]:
    """Return the secrets of a name; none if there is no such name.

    Raises Unavailable for one that cannot be used, such as a file that other users can read. The log says why; the
    sender could not fix it.
    """
    _check_name(name)
    try:
        return _split(secrets.read(f"{WEBHOOKS}{name}") or b"")
    except (QoError, OSError) as error:
        log.error("the secrets of webhook %s cannot be used: %s", name, error)
        raise Unavailable("the secret of this webhook cannot be used: see the log of the dispatcher") from None


def set_secret(secrets: SecretStore, name: str, value: bytes | None = None) -> bytes:
    """Make this the only secret of the name; None: generate one. Return it. Raises UsageError, Contended."""
    return _write(secrets, name, value, keep=0)


def rotate_secret(secrets: SecretStore, name: str, value: bytes | None = None) -> bytes:
    """Add a secret beside the one that is there; None: generate one. Return it.

    Raises NotFound if there is none, Refused if two are valid already.
    """
    current = _require(secrets, name)
    if len(current) > 1:
        raise Refused(
            f"{len(current)} secrets of webhook {name} are valid already: when its sender uses the newest, "
            f"qo source secret retire {name}"
        )
    return _write(secrets, name, value, keep=1)


def retire_secrets(secrets: SecretStore, name: str) -> int:
    """Remove all secrets of the name but the newest; return how many. Raises NotFound."""
    content = secrets.read(f"{WEBHOOKS}{name}")
    current = _require(secrets, name)
    if len(current) < 2 or content is None:
        return 0
    if not secrets.replace(f"{WEBHOOKS}{name}", content, current[-1] + b"\n"):
        raise _contended(name)
    return len(current) - 1


def remove_secrets(secrets: SecretStore, name: str) -> None:
    """Remove the name and all its secrets. Raises NotFound."""
    _check_name(name)
    if secrets.read(f"{WEBHOOKS}{name}") is None:
        raise _missing(name)
    secrets.delete(f"{WEBHOOKS}{name}")


def list_webhooks(secrets: SecretStore) -> list[WebhookListing]:
    return [
        WebhookListing(
            each.name.removeprefix(WEBHOOKS),
            _count(secrets, each.name),
            each.created_at,
            each.changed_at,
            each.sealed_with,
        )
        for each in secrets.list_secrets(WEBHOOKS)
    ]


def _write(secrets: SecretStore, name: str, value: bytes | None, *, keep: int) -> bytes:
    """Write a new secret after the last ones that are kept."""
    _check_name(name)
    secret = generate_secret(PREFIX).encode() if value is None else _check_value(value)
    content = secrets.read(f"{WEBHOOKS}{name}")
    if content is None:
        is_stored = secrets.create(f"{WEBHOOKS}{name}", secret + b"\n")
    else:
        current = _split(content)
        lines = [*(current[-keep:] if keep else []), secret]
        is_stored = secrets.replace(f"{WEBHOOKS}{name}", content, b"".join(each + b"\n" for each in lines))
    if not is_stored:
        raise _contended(name)
    return secret


def _require(secrets: SecretStore, name: str) -> list[bytes]:
    _check_name(name)
    content = secrets.read(f"{WEBHOOKS}{name}")
    if content is None:
        raise _missing(name)
    return _split(content)


def _count(secrets: SecretStore, name: str) -> int | None:
    try:
        return len(_split(secrets.read(name) or b""))
    except (QoError, OSError):
        return None


def _split(content: bytes) -> list[bytes]:
    # A truncated line must not become a secret that is easy to guess.
    return [line.strip() for line in content.splitlines() if len(line.strip()) >= SECRET_LEN_MIN]


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise UsageError(f"{name!r} cannot name a secret: use letters, digits and . _ -")


def _check_value(value: bytes) -> bytes:
    """The text itself is not repeated: it is a secret."""
    secret = value.strip()
    if len(secret.splitlines()) != 1 or not SECRET_LEN_MIN <= len(secret) <= SECRET_LEN_MAX:
        raise UsageError(
            f"a secret of a webhook is one line of {SECRET_LEN_MIN} to {SECRET_LEN_MAX} characters, not {len(secret)} "
            f"in {len(secret.splitlines())} lines"
        )
    return secret


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no secret of a webhook {name!r}: make one with qo source secret set {name}")


def _contended(name: str) -> Contended:
    return Contended(f"somebody else has changed the secrets of webhook {name} just now: look, and try again")
