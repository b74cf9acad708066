"""Confirmation of a deploy that would activate a version which was rolled back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from qo.api.public_client import UserClient

Confirm = Callable[[str], Awaitable[bool]]  # Asks a person a question.


async def confirm_again(client: UserClient, dag: str, body: Mapping[str, Any], confirm: Confirm) -> bool:
    """Ask whether to deploy a file whose version was rolled back; False if it was not. ``body``: of the request."""
    dry_run = await client.post(f"/v1/dags/{dag}/versions", body, dry_run=True)
    return bool(dry_run["rolled_back"]) and await confirm(f"{describe_rollback(dry_run)}: activate it again?")


def describe_rollback(dry_run: Mapping[str, Any]) -> str:
    """Say who rolled the version back, and when, from the answer to a dry run."""
    at, by = dry_run["rolled_back_at"], dry_run["rolled_back_by"]
    when = f" on {datetime.fromisoformat(at):%Y-%m-%d %H:%M} UTC" if at is not None else ""
    return f"version {dry_run['version']} was rolled back{when}" + (f" by {by}" if by is not None else "")
