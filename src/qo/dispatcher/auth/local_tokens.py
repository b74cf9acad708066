"""Tokens from the secrets and settings of this machine, not from the state: those that dispatchers accept, and those
that workers and schedulers present. They need no database.
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
PAGE_ROLES = ("writer", "reader")  # Of a dashboard; never an admin.
WORKER_TOKEN_CHARS_MIN = 16


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """Tokens that are not in the state: the workers' and, for use on one machine, an admin's."""

    workers: tuple[str, ...] = field(repr=False)
    admin: str | None = field(default=None, repr=False)


def local_tokens(settings: DispatcherSettings) -> LocalTokens:
    """Read the tokens, and create those that are missing in ``secrets_dir``. Raises ConfigError."""
    return LocalTokens(worker_tokens(settings), local_admin_token(settings))


def worker_tokens(settings: DispatcherSettings) -> tuple[str, ...]:
    """Return the workers' tokens that are accepted. A worker presents the last one, the newest."""
    if settings.worker_token is None:
        return (load_or_create_token(Path(settings.secrets_dir) / "worker.token", WORKER_PREFIX),)
    tokens = tuple(each.strip() for each in settings.worker_token.split(",") if each.strip())
    if not tokens or any(len(each) < WORKER_TOKEN_CHARS_MIN for each in tokens):
        raise ConfigError(
            f"the worker token is too short to be a secret: take {WORKER_TOKEN_CHARS_MIN} characters or more, "
            "for example of openssl rand -hex 32"
        )
    return tokens


@dataclass(frozen=True, slots=True)
class PresentedToken:
    """The token that a worker or a scheduler presents, and its origin: a setting or a file."""

    token: str = field(repr=False)
    origin: str

    def explain_refusal(self, error: Unauthenticated | Forbidden) -> Unauthenticated:
        """Return the dispatcher's refusal, with where the token comes from and how to set the right one."""
        return Unauthenticated(f"{error}; the token is that of {self.origin}: {_REMEDY}")


_REMEDY = (
    "set QO_WORKER_TOKEN to the token of that dispatcher's workers, or QO_SECRETS_DIR to its directory of secrets"
)


def presented_token(settings: DispatcherSettings) -> PresentedToken:
    """Return the newest of the workers' tokens. One that is missing is created only for a dispatcher on this machine,
    which reads it when it starts; another would not know it. Raises ConfigError."""
    if settings.worker_token is not None:
        return PresentedToken(worker_tokens(settings)[-1], "QO_WORKER_TOKEN")
    path = Path(settings.secrets_dir, "worker.token").absolute()
    if settings.internal_url is not None and not _is_local(settings.internal_url) and not path.exists():
        raise ConfigError(f"there is no token for the dispatcher at {settings.internal_url} in {path}: {_REMEDY}")
    return PresentedToken(worker_tokens(settings)[-1], str(path))


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def local_admin_token(settings: DispatcherSettings) -> str:
    """Return the admin token for whoever can read the secrets of this machine, who is an admin anyway."""
    return load_or_create_token(Path(settings.secrets_dir) / "admin.token", USER_PREFIX)


def page_token(admin: str, role: str) -> str:
    """Return the token of a dashboard on this machine: derived from the admin's, which it does not reveal.

    So there is nothing more to store, and replacing ``admin.token`` replaces these too.
    """
    derived = hmac.new(admin.encode(), f"qo dashboard {role}".encode(), hashlib.sha256).digest()
    return USER_PREFIX + base64.urlsafe_b64encode(derived).decode().rstrip("=")
