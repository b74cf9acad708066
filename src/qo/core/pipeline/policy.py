"""Session policies: the prefixes of a bucket that a task may read and write, and nothing else.

A session policy can only take away from what its role may do. Whatever it does not allow is denied, so the rules
are written as the few things allowed; the one Deny ends them when the task's token ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from qo.errors import UsageError

POLICY_MAX = 2048  # Characters of a session policy, says STS.

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")  # As in the settings; some servers allow more than AWS.
# Characters allowed in a prefix. Left out on purpose: * and ? (wildcards), $ (policy variables), % (encodings of all
# of these), backslashes, control characters, and whatever else an evaluator might read in its own way.
_SEGMENT = re.compile(r"[A-Za-z0-9!_.'()=,:@+~ -]+\Z")
_PARTITION = re.compile(r"aws[a-z-]*\Z")


@dataclass(frozen=True, slots=True, order=True)
class Prefix:
    """A directory of a bucket. ``key`` ends with a slash, so that ``foo`` never reaches ``foo-bar``."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def covers(self, other: Prefix) -> bool:
        return self.bucket == other.bucket and other.key.startswith(self.key)


def bucket_of(text: str) -> tuple[str, str]:
    """Return the bucket and the key of ``s3://bucket/key``. Raises UsageError if it names no bucket."""
    if not text.startswith("s3://"):
        raise UsageError(f"{text!r} is no prefix of a bucket: write s3://BUCKET/PREFIX/")
    bucket, _, key = text.removeprefix("s3://").partition("/")
    if not _BUCKET.match(bucket) or ".." in bucket:
        raise UsageError(f"{text!r} names no bucket: write s3://BUCKET/PREFIX/")
    return bucket, key


def normalise(text: str) -> Prefix:
    """Return the directory that ``s3://bucket/prefix`` names. Raises UsageError for anything else."""
    bucket, key = bucket_of(text)
    key = key.removesuffix("/")
    if not key:
        raise UsageError(f"{text!r} is a whole bucket: name a prefix in it")
    for segment in key.split("/"):
        if not segment or segment in (".", "..") or not _SEGMENT.match(segment):
            raise UsageError(
                f"{text!r} is no plain prefix: between slashes it has letters, digits and !_.'()=,:@+~-, "
                "no wildcards, no empty part, no . and no .."
            )
    return Prefix(bucket, f"{key}/")


def session_policy(
    read: Iterable[Prefix],
    write: Iterable[Prefix],
    *,
    listed: Iterable[Prefix] | None = None,
    until: datetime | None = None,
    partition: str = "aws",
) -> dict[str, Any]:
    """Return a policy for GetObject below ``read``, PutObject below ``write`` and listing of both, until ``until``.

    ``listed``: what may be listed, if it is less. Raises UsageError when there is nothing to grant, or more than a
    session policy can hold.
    """
    if not _PARTITION.match(partition):
        raise UsageError(f"{partition!r} is no partition of AWS")
    readable, writable = outermost(read), outermost(write)
    if not readable and not writable:
        raise UsageError("there is no prefix of a bucket to grant")
    arn = f"arn:{partition}:s3:::"
    statements: list[dict[str, Any]] = []
    if readable:
        statements.append(allow("s3:GetObject", [f"{arn}{each.bucket}/{each.key}*" for each in readable]))
    if writable:
        actions = ["s3:PutObject", "s3:AbortMultipartUpload"]
        statements.append(allow(actions, [f"{arn}{each.bucket}/{each.key}*" for each in writable]))
    listable = outermost((*readable, *writable) if listed is None else listed)
    for bucket in sorted({each.bucket for each in listable}):
        # One statement for each bucket: a prefix of one must not open another.
        prefixes = [f"{each.key}*" for each in listable if each.bucket == bucket]
        within = {"Condition": {"StringLike": {"s3:prefix": prefixes}}}
        statements.append(allow("s3:ListBucket", [f"{arn}{bucket}"]) | within)
    if until is not None:
        statements.append(_deny_after(until))
    policy = document(statements)
    if (size := len(encode_policy(policy))) > POLICY_MAX:
        raise UsageError(
            f"the policy for {len({*readable, *writable})} prefixes has {size} characters, and STS takes {POLICY_MAX}: "
            "let the job read fewer datasets, or give the data a shorter prefix"
        )
    return policy


def encode_policy(policy: dict[str, Any]) -> str:
    """Return the policy in the form that is sent."""
    return json.dumps(policy, separators=(",", ":"))


def document(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def allow(action: str | list[str], resources: list[str], *, sid: str | None = None) -> dict[str, Any]:
    """Return one statement. ``sid``: a name for people who read the policy."""
    name = {} if sid is None else {"Sid": sid}
    return {**name, "Effect": "Allow", "Action": action, "Resource": resources}


def _deny_after(until: datetime) -> dict[str, Any]:
    # STS grants no less than 15 minutes; a token may have less left.
    time = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"DateGreaterThan": {"aws:CurrentTime": time}}
    return {"Effect": "Deny", "Action": "*", "Resource": "*", "Condition": condition}


def outermost(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """Return the prefixes without repetitions, and without those that lie within another."""
    outermost: list[Prefix] = []
    for each in sorted(set(prefixes)):
        if not any(outer.covers(each) for outer in outermost):
            outermost.append(each)
    return outermost
