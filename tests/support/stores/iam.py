"""A small evaluator of IAM's rules, for what no server here enforces."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def allowed(
    policy: dict[str, Any],
    action: str,
    resource: str,
    *,
    prefix: str | None = None,
    now: datetime = NOW,
    creates: bool = False,
) -> bool:
    """As IAM decides: an explicit Deny wins, then an Allow is needed. ``creates``: the write is If-None-Match."""
    effects = {
        each["Effect"]
        for each in policy["Statement"]
        if _applies(each, action, f"arn:aws:s3:::{resource}", prefix, now, creates)
    }
    return effects == {"Allow"}


def _applies(
    statement: dict[str, Any], action: str, arn: str, prefix: str | None, now: datetime, creates: bool
) -> bool:
    if not any(_like(action, each) for each in _listed(statement["Action"])):
        return False
    if not any(_like(arn, each) for each in _listed(statement["Resource"])):
        return False
    condition = statement.get("Condition", {})
    for operator, keys in condition.items():
        if operator == "StringLike":
            assert set(keys) == {"s3:prefix"}
            if prefix is None or not any(_like(prefix, each) for each in keys["s3:prefix"]):
                return False
        elif operator == "DateGreaterThan":
            if now <= datetime.fromisoformat(keys["aws:CurrentTime"]):
                return False
        elif operator == "Null":
            assert keys == {"s3:if-none-match": "false"}
            if not creates:
                return False
        else:
            raise AssertionError(operator)
    return True


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _like(text: str, pattern: str) -> bool:
    parts = (".*" if each == "*" else "." if each == "?" else re.escape(each) for each in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None
