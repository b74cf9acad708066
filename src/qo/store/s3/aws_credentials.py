"""Credentials from the standard AWS chain, refreshed before they expire.

Environment variables are read here: they come first in that chain, and need no import of botocore. Profiles, config
files, SSO, containers and instance roles are left to botocore.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from qo.errors import AccessDenied

HOW_TO_GIVE_THEM = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with AWS_PROFILE, "
    "or run where a role is attached."
)
FALLBACK_REGION = "us-east-1"


class Credentials(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None = None


class CredentialSource(Protocol):
    async def current(self) -> Credentials: ...


class FixedCredentials:
    """Credentials that do not change."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def current(self) -> Credentials:
        return self._credentials


class BotocoreCredentials(Protocol):
    def get_frozen_credentials(self) -> Sequence[str | None]: ...


class BotocoreRefreshable(BotocoreCredentials, Protocol):
    def refresh_needed(self) -> bool: ...


class BotocoreSession(Protocol):
    """The part of botocore's session that is used here; botocore has no types."""

    def get_credentials(self) -> BotocoreCredentials | None: ...

    def get_config_variable(self, logical_name: str) -> str | None: ...


class RefreshedCredentials:
    """Credentials of a role or a login, which botocore renews in time. Renewing blocks, so it runs on a thread."""

    def __init__(self, held: BotocoreRefreshable) -> None:
        self._held = held
        self._renewing = asyncio.Lock()

    async def current(self) -> Credentials:
        if self._held.refresh_needed():
            async with self._renewing:  # One renewal serves all waiting callers.
                if self._held.refresh_needed():
                    await asyncio.to_thread(_freeze, self._held)
        return _freeze(self._held)


async def find_credentials(credentials: Credentials | None = None) -> CredentialSource:
    """Return the given credentials, or the first of the standard chain. Raises AccessDenied if there are none."""
    if credentials is not None:
        return FixedCredentials(credentials)
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return FixedCredentials(Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN") or None))
    held = await asyncio.to_thread(_load_credentials)
    if hasattr(held, "refresh_needed"):
        return RefreshedCredentials(cast("BotocoreRefreshable", held))
    return FixedCredentials(_freeze(held))


def find_region(region: str | None) -> str:
    """Return the given region, or the one in the environment or the AWS config files."""
    chosen_region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if chosen_region:
        return chosen_region
    config = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    if not config.exists():
        return FALLBACK_REGION
    try:
        return _session().get_config_variable("region") or FALLBACK_REGION
    except Exception:  # A broken profile; the search for credentials reports it, if they depend on it.
        return FALLBACK_REGION


def _session() -> BotocoreSession:
    # Imported only when needed: it takes longer than everything else.
    from botocore.session import Session  # pyright: ignore[reportMissingTypeStubs]

    return cast("BotocoreSession", Session())


def _load_credentials() -> BotocoreCredentials:
    try:
        held = _session().get_credentials()
    except Exception as error:  # Each provider of the chain fails in its own way.
        raise AccessDenied(f"The S3 credentials cannot be read: {error}. {HOW_TO_GIVE_THEM}") from error
    if held is None:
        raise AccessDenied(f"There are no S3 credentials. {HOW_TO_GIVE_THEM}")
    return held


def _freeze(held: BotocoreCredentials) -> Credentials:
    try:
        access_key, secret_key, token = held.get_frozen_credentials()[:3]
    except Exception as error:
        raise AccessDenied(f"The S3 credentials cannot be renewed: {error}. {HOW_TO_GIVE_THEM}") from error
    if access_key is None or secret_key is None:
        raise AccessDenied(f"The S3 credentials are incomplete. {HOW_TO_GIVE_THEM}")
    return Credentials(access_key, secret_key, token)
