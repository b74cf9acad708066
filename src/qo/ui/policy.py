"""What credentials of a page may touch in a bucket: what the roles of viewers and operators may, cut to fit.

A session policy takes away from what its role may do; whatever it does not allow is denied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qo.core.pipeline.policy import POLICY_MAX, document, encode_policy
from qo.core.roles import GRANTS, Bucket, Grant, Role, statements
from qo.errors import UsageError


def page_policy(bucket: str, prefix: str, *, operator: bool, partition: str = "aws") -> str:
    """For a viewer: list, read, and read old versions. For an operator: also what the actions write.

    ``prefix`` is empty or ends with a slash. Raises UsageError where bucket and prefix have names so long that no
    policy holds them.
    """
    place = Bucket(bucket, prefix, partition)
    grants = GRANTS[Role.OPERATOR if operator else Role.VIEWER]
    for narrow in (True, False):
        if len(text := encode_policy(_policy(place, grants, narrow=narrow))) <= POLICY_MAX:
            return text
        if not prefix:
            break
    raise UsageError(
        f"the names of bucket {bucket!r} and prefix {prefix!r} are too long for a session policy, which STS limits to "
        f"{POLICY_MAX} characters: take --read-only, which says less, or a shorter prefix"
    )


def _policy(place: Bucket, grants: tuple[Grant, ...], *, narrow: bool) -> dict[str, Any]:
    """``narrow``: of the prefix, only what a queue has there may be read; else all of it."""
    view_grants = GRANTS[Role.VIEWER]
    widened = [each if narrow or each not in view_grants else replace(each, keys=("*",)) for each in grants]
    parts = statements(place, widened)
    for each in parts:
        del each["Sid"]  # There is little room.
    return document(parts)
