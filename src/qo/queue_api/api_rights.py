"""The rights of callers, one table: the routes enforce it, and the OpenAPI file shows it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Role(StrEnum):
    """What the holder of a token may do."""

    VIEWER = "viewer"  # Look at everything.
    PRODUCER = "producer"  # Submit tasks, and look at those whose ids it knows.
    OPERATOR = "operator"  # Everything.


_ANYBODY = frozenset(Role)
_VIEWER = frozenset({Role.VIEWER, Role.OPERATOR})
_PRODUCER = frozenset({Role.PRODUCER, Role.OPERATOR})
_OPERATOR = frozenset({Role.OPERATOR})

RIGHTS: Mapping[str, frozenset[Role]] = {
    "submit_task": _PRODUCER,
    "submit_tasks": _PRODUCER,
    "show_task": _ANYBODY,
    "wait_for_task": _ANYBODY,
    "watch_task": _ANYBODY,
    "metrics": _VIEWER,
    "list_tasks": _VIEWER,
    "show_history": _VIEWER,
    "cancel_task": _OPERATOR,
    "replay_task": _OPERATOR,
    "archive_task": _OPERATOR,
    "unarchive_task": _OPERATOR,
}


def names_of(roles: frozenset[Role]) -> str:
    return ", ".join(role for role in Role if role in roles)
