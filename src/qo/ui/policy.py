"""What credentials of a page may touch in a bucket: the queue, and the queues below it.

A session policy takes away from what its role may do; whatever it does not allow is denied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qo.core import keys
from qo.core.flow.policy import POLICY_MAX, encoded
from qo.errors import UsageError

# What the page looks at. Few words: a policy names the bucket with each, and is soon too long.
_READ = (
    "queue*",  # queue.json, and the queues below.
    f"{keys.TASKS}*",
    f"{keys.READY}*",
    f"{keys.LEASES}*",
    f"{keys.DATA}*",
    f"{keys.WORKERS}*",
    f"{keys.SCHEDULES}*",
    f"{keys.SHARD_LEASES}*",
    "control/*",
)
# What its actions (replay, archive, cancel) write: a task, its hints, and the wish that tells workers of a
# cancellation. Hints are removed, too; a task never is.
_WRITTEN = (f"{keys.TASKS}*", keys.DESIRED)
_HINTS = (f"{keys.READY}*", f"{keys.LEASES}*")


def page_policy(bucket: str, prefix: str, *, operator: bool, partition: str = "aws") -> str:
    """For a viewer: list, read, and read old versions. For an operator: also what the actions write.

    ``prefix`` is empty or ends with a slash. Raises UsageError where bucket and prefix have names so long that no
    policy holds them.
    """
    for narrow in (True, False):
        policy = _policy(bucket, prefix, operator=operator, partition=partition, narrow=narrow)
        if len(text := encoded(policy)) <= POLICY_MAX:
            return text
        if not prefix:
            break
    raise UsageError(
        f"the names of bucket {bucket!r} and prefix {prefix!r} are too long for a session policy, which STS limits to "
        f"{POLICY_MAX} characters: take --read-only, which says less, or a shorter prefix"
    )


def _policy(bucket: str, prefix: str, *, operator: bool, partition: str, narrow: bool) -> dict[str, Any]:
    """``narrow``: of the prefix, only what a queue has there; else all of it."""
    arn = f"arn:{partition}:s3:::{bucket}"
    read = _READ if narrow else ("*",)

    def objects(names: Sequence[str]) -> list[str]:
        return [f"{arn}/{prefix}{name}" for name in names]

    statements: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:ListBucketVersions"],
            "Resource": arn,
            "Condition": {"StringLike": {"s3:prefix": [f"{prefix}{name}" for name in read]}},
        },
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:GetObjectVersion"], "Resource": objects(read)},
    ]
    if operator:
        statements += [
            {"Effect": "Allow", "Action": "s3:PutObject", "Resource": objects(_everywhere(_WRITTEN))},
            {
                "Effect": "Allow",
                "Action": ["s3:PutObject", "s3:DeleteObject"],
                "Resource": objects(_everywhere(_HINTS)),
            },
        ]
    return {"Version": "2012-10-17", "Statement": statements}


def _everywhere(names: Sequence[str]) -> tuple[str, ...]:
    """In the queue itself, and in those below."""
    return (*names, *(f"queues/*/{name}" for name in names))
