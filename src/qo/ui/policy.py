"""The session policy of a page's credentials: the grants of viewers or operators, shortened to fit STS's limit.

A session policy can only reduce the rights of its role; it denies whatever it does not allow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qo.core.pipeline.policy import POLICY_MAX, document, encode_policy
from qo.core.roles import (
    GRANTS,
    PAGE_HINTS,
    PAGE_HINTS_SHORT,
    PAGE_TASKS,
    Bucket,
    Grant,
    Role,
    statements,
)
from qo.errors import UsageError


def page_policy(bucket: str, prefix: str, *, operator: bool, partition: str = "aws") -> str:
    """Return the policy as JSON. Viewers may list and read, old versions too; operators may also write.

    ``prefix`` is empty or ends with a slash. Raises UsageError if the names of bucket and prefix are too
    long for any policy.
    """
    place = Bucket(bucket, prefix, partition)
    actions, fewer = ((PAGE_TASKS, PAGE_HINTS), (PAGE_TASKS, PAGE_HINTS_SHORT)) if operator else ((), ())
    # Without a prefix, everything below it would be the whole bucket.
    choices = ((True, actions), (False, actions), (False, fewer)) if prefix else ((True, actions), (True, fewer))
    for narrow, grants in choices:
        if len(text := encode_policy(_policy(place, grants, narrow=narrow))) <= POLICY_MAX:
            return text
    raise UsageError(
        f"the names of bucket {bucket!r} and prefix {prefix!r} are too long for a session policy, which STS limits to "
        f"{POLICY_MAX} characters: use --read-only, whose policy is shorter, or a shorter prefix"
    )


def _policy(place: Bucket, actions: tuple[Grant, ...], *, narrow: bool) -> dict[str, Any]:
    """Build the policy. ``narrow``: only the keys of a queue may be read; otherwise everything below the prefix."""
    views = [each if narrow else replace(each, keys=("*",)) for each in GRANTS[Role.VIEWER]]
    parts = statements(place, [*views, *actions])
    for each in parts:
        del each["Sid"]  # Optional, and the length is limited.
    return document(parts)
