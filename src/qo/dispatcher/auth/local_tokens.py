"""Tokens that are not in the state: those of this machine's secrets and settings. What dispatchers accept, and what
workers and schedulers show them. No database is needed for these.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from qo.config.dispatcher import DispatcherSettings
from qo.errors import ConfigError, Forbidden, Unauthenticated
from qo.store.secret_files import load_or_create_token

USER_PREFIX, WORKER_PREFIX = "qo_", "qow_"
PAGE_ROLES = ("writer", "reader")  # What a dashboard may be; never an admin.
WORKER_TOKEN_CHARS_MIN = 16


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """Tokens that are not in the state: the workers' and, for use on one machine, an admin's."""

    workers: tuple[str, ...] = field(repr=False)
    admin: str | None = field(default=None, repr=False)


def local_tokens(settings: DispatcherSettings) -> LocalTokens:
    """Read, or drawn and kept in ``secrets_dir`` when there are none. Raises ConfigError."""
    return LocalTokens(worker_tokens(settings), local_admin_token(settings))


def worker_tokens(settings: DispatcherSettings) -> tuple[str, ...]:
    """Those that are accepted. A worker presents the last one, the newest."""
    if settings.worker_token is None:
        return (load_or_create_token(Path(settings.secrets_dir) / "worker.token", WORKER_PREFIX),)
    given = tuple(each.strip() for each in settings.worker_token.split(",") if each.strip())
    if not given or any(len(each) < WORKER_TOKEN_CHARS_MIN for each in given):
        raise ConfigError(
            f"the worker token is too short to be a secret: take {WORKER_TOKEN_CHARS_MIN} characters or more, "
            "for example of openssl rand -hex 32"
        )
    return given


@dataclass(frozen=True, slots=True)
class Presented:
    """The token that a worker or a scheduler shows, and where it has it from: a setting or a file."""

    token: str = field(repr=False)
    origin: str

    def refused(self, error: Unauthenticated | Forbidden) -> Unauthenticated:
        """The error of a dispatcher that does not know it, for whoever set this process up."""
        return Unauthenticated(f"{error}; the token is that of {self.origin}: {_WHENCE}")


_WHENCE = (
    "set QO_WORKER_TOKEN to the token of that dispatcher's workers, or QO_SECRETS_DIR to its directory of secrets"
)


def presented_token(settings: DispatcherSettings) -> Presented:
    """The newest of the workers' tokens. For a dispatcher on another machine none is drawn: it would not know it. One
    on this machine may find it when it starts. Raises ConfigError."""
    if settings.worker_token is not None:
        return Presented(worker_tokens(settings)[-1], "QO_WORKER_TOKEN")
    path = Path(settings.secrets_dir, "worker.token").absolute()
    if settings.internal_url is not None and not _is_here(settings.internal_url) and not path.exists():
        raise ConfigError(f"there is no token for the dispatcher at {settings.internal_url} in {path}: {_WHENCE}")
    return Presented(worker_tokens(settings)[-1], str(path))


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def local_admin_token(settings: DispatcherSettings) -> str:
    """The token of whoever can read the secrets of this machine, who is an admin anyway."""
    return load_or_create_token(Path(settings.secrets_dir) / "admin.token", USER_PREFIX)


def page_token(admin: str, role: str) -> str:
    """The token of a dashboard on this machine: derived from the admin's, which it does not reveal.

    So there is nothing more to be kept, and replacing ``admin.token`` replaces these too.
    """
    derived = hmac.new(admin.encode(), f"qo dashboard {role}".encode(), hashlib.sha256).digest()
    return USER_PREFIX + base64.urlsafe_b64encode(derived).decode().rstrip("=")
