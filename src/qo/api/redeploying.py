"""For who deploys on a terminal: whether a version that was rolled back is wanted again is asked before it is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from qo.api.public_client import UserClient

Confirm = Callable[[str], Awaitable[bool]]  # Puts a question to a person.


async def confirm_again(client: UserClient, dag: str, body: Mapping[str, Any], confirm: Confirm) -> bool:
    """Whether to deploy a file although its version was rolled back; False where it was not. ``body``: what is sent."""
    found = await client.post(f"/v1/dags/{dag}/versions", body, dry_run=True)
    return bool(found["rolled_back"]) and await confirm(f"{describe_rollback(found)}: activate it again?")


def describe_rollback(found: Mapping[str, Any]) -> str:
    """From the answer to a dry run."""
    at, by = found["rolled_back_at"], found["rolled_back_by"]
    when = f" on {datetime.fromisoformat(at):%Y-%m-%d %H:%M} UTC" if at is not None else ""
    return f"version {found['version']} was rolled back{when}" + (f" by {by}" if by is not None else "")
