"""The roles that use a bucket, the least rights that each needs, and the IAM policies made of them.

Every grant is here because a request needs it; docs/guides/security.md says which. Whatever no grant allows is denied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from qo.core import keys, run_log
from qo.core.pipeline.policy import Prefix, allow, document
from qo.errors import UsageError

QUEUES = "queues/"  # Below a store: the queues of runtimes.
_ALL_QUEUES = f"{QUEUES}*/"
_OTHER_HINTS = (f"{keys.LEASES}*", f"{keys.WAITING}*", f"{keys.INBOX}*")
_HINTS = (f"{keys.READY}*", *_OTHER_HINTS)
# One pattern for two prefixes: policies repeat the bucket for each, and have a size limit.
_RE = "re*"  # ready/ and registers/.
_W = "w*"  # waiting/ and workers/.
_REGISTERS = f"{keys.REGISTERS}*"  # Of groups, unique tasks and limits.
_HELD = (f"{keys.TASKS}*", f"{keys.DATA}*")
_CONTROL = "control/*"  # The board and the orders.
# The objects that people view.
_VIEWABLE = (
    "queue*",  # queue.json, and the queues below.
    *_HELD,
    _RE,
    _W,
    f"{keys.INBOX}*",
    f"{keys.LEASES}*",
    f"{keys.SCHEDULES}*",
    f"{keys.SHARD_LEASES}*",
    _CONTROL,
)

READ, WRITE, DELETE, LIST = "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"
READ_VERSION, LIST_VERSIONS = "s3:GetObjectVersion", "s3:ListBucketVersions"
_OF_BUCKETS = (LIST, LIST_VERSIONS)

# On AWS, true for writes that only create. Other servers do not know this condition, and would refuse every write.
_CREATES = {"Null": {"s3:if-none-match": "false"}}


class Role(StrEnum):
    PRODUCER = "producer"
    WORKER = "worker"
    MONITOR = "monitor"
    DISPATCHER = "dispatcher"
    TASK = "task"  # Assumed by the dispatcher, for credentials of attempts.
    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Grant:
    name: str  # As the statement is called in the policy, and in the guide.
    actions: tuple[str, ...]
    keys: tuple[str, ...]  # Patterns below the queue.


def _in_queues(*names: str) -> tuple[str, ...]:
    """In the queues below."""
    return tuple(f"{_ALL_QUEUES}{name}" for name in names)


def _everywhere(names: Sequence[str]) -> tuple[str, ...]:
    """In the queue itself, and in those below."""
    return (*names, *_in_queues(*names))


_SWEEP = (
    Grant("ReadQueue", (READ,), (keys.QUEUE, keys.DESIRED)),
    Grant(
        "MoveTasks",
        (READ, WRITE),
        (f"{keys.TASKS}*", _RE, *_OTHER_HINTS, keys.SWEEP, keys.BOARD, keys.SHARD_PLAN),
    ),
    # Removed by version, a hint leaves no delete marker. The markers of others are listed and removed now and then.
    Grant("DropHints", (DELETE, "s3:DeleteObjectVersion"), _HINTS),
    Grant("ForgetWorkers", (READ, DELETE), (f"{keys.WORKERS}*",)),
    Grant(
        "ListQueue",
        (LIST, LIST_VERSIONS),
        (
            f"{keys.TASKS}*",
            _RE,
            _W,
            f"{keys.LEASES}*",
            f"{keys.INBOX}*",
            keys.QUEUE,
            keys.SWEEP,
            keys.SHARD_PLAN,
            _CONTROL,
        ),
    ),
)
_SUBMIT = (
    Grant("ReadQueue", (READ,), (keys.QUEUE, *_HELD, _REGISTERS, keys.BOARD)),
    Grant("CreateTasks", (WRITE,), (f"{keys.TASKS}*",)),
    Grant(
        "WriteBeside", (WRITE,), (f"{keys.READY}*", f"{keys.WAITING}*", f"{keys.DATA}*", _REGISTERS, keys.BOARD)
    ),
    Grant("TellMissing", (LIST,), (keys.QUEUE, *_HELD, _REGISTERS, keys.BOARD)),
)
GRANTS: Mapping[Role, tuple[Grant, ...]] = {
    Role.PRODUCER: _SUBMIT,
    Role.MONITOR: _SWEEP,
    Role.WORKER: (
        *_SWEEP,
        Grant("HoldData", (READ, WRITE), (f"{keys.DATA}*",)),
        Grant("ReportSelf", (WRITE,), (f"{keys.WORKERS}*",)),
        Grant("TellMissing", (LIST,), (f"{keys.DATA}*",)),
    ),
    Role.DISPATCHER: (
        Grant("ReadQueues", (READ,), (keys.QUEUE, *_in_queues(keys.QUEUE, f"{keys.TASKS}*", keys.BOARD))),
        Grant("OpenQueues", (WRITE,), _in_queues(keys.QUEUE)),
        Grant("WakeWorkers", (WRITE,), _in_queues(f"{keys.TASKS}*", f"{keys.READY}*", keys.BOARD)),
        Grant("TellMissing", (LIST,), _in_queues(keys.QUEUE, f"{keys.TASKS}*", keys.BOARD)),
    ),
    Role.TASK: (),  # The data alone.
    Role.VIEWER: (
        Grant("ListQueue", (LIST, LIST_VERSIONS), _VIEWABLE),
        Grant("ReadQueue", (READ, READ_VERSION), _VIEWABLE),
    ),
    Role.OPERATOR: (
        Grant("ListQueue", (LIST, LIST_VERSIONS), _VIEWABLE),
        Grant("ReadQueue", (READ, READ_VERSION), _VIEWABLE),
        # What replay, archive and cancel write: a task, the wish that tells workers of it, a notice. It removes none.
        Grant("MoveTasks", (WRITE,), _everywhere((f"{keys.TASKS}*", _CONTROL, _REGISTERS))),
        Grant("MoveHints", (WRITE, DELETE), _everywhere(_HINTS)),
    ),
}
# What the page writes for an operator: it changes no registers, and leaves the entry of a task that it cancels in an
# inbox to the worker that finds it. Where names are long, the policy has no room for the hints of waiting tasks: the
# sweeper writes those.
PAGE_TASKS = Grant("MoveTasks", (WRITE,), _everywhere((f"{keys.TASKS}*", _CONTROL)))
PAGE_HINTS = Grant(
    "MoveHints", (WRITE, DELETE), _everywhere((f"{keys.READY}*", f"{keys.LEASES}*", f"{keys.WAITING}*"))
)
PAGE_HINTS_SHORT = Grant("MoveHints", (WRITE, DELETE), _everywhere((f"{keys.READY}*", f"{keys.LEASES}*")))
# What a producer needs to put tasks into the inboxes of workers.
_DIRECT = Grant("RouteTasks", (WRITE,), (f"{keys.INBOX}*",))
# What a producer needs to wake workers, or to choose one; all others that do so read the roster anyway.
_PUSH = Grant("FindWorkers", (READ, LIST), (f"{keys.WORKERS}*",))
# What the purger needs, in a monitor or in a worker. Nobody else removes tasks, and no operator does.
_PURGE = (
    Grant("PurgeTasks", (DELETE, "s3:DeleteObjectVersion"), _HELD),
    Grant("SeeVersions", (LIST, LIST_VERSIONS), _HELD),
    Grant("RememberPurge", (READ, WRITE, LIST), (keys.PURGE,)),
)
_DIRECTING = (Role.PRODUCER, Role.DISPATCHER)
_PURGING = (Role.MONITOR, Role.WORKER)
# What a worker of a runtime needs beside the queue of that runtime.
_JOIN = Grant("JoinQueue", (READ, WRITE, LIST), (keys.QUEUE,))


@dataclass(frozen=True, slots=True)
class Bucket:
    """The location of a queue. ``prefix`` is empty, or ends with a slash."""

    name: str
    prefix: str = ""
    partition: str = "aws"

    def below(self, runtime: str) -> Bucket:
        return Bucket(self.name, f"{self.prefix}{QUEUES}{runtime}/", self.partition)


def partition_of(region: str) -> str:
    """Return the AWS partition of a region; those of China and of the US government are separate."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def statements(place: Bucket, grants: Sequence[Grant], *, create_only: bool = False) -> list[dict[str, Any]]:
    """Return the statements for these grants. ``create_only``: tasks may be created but not replaced; only on AWS."""
    result: list[dict[str, Any]] = []
    for grant in grants:
        listing = [each for each in grant.actions if each in _OF_BUCKETS]
        touching = [each for each in grant.actions if each not in _OF_BUCKETS]
        patterns = [f"{place.prefix}{each}" for each in grant.keys]
        if touching:
            statement = allow(touching, [f"{_arn(place)}/{each}" for each in patterns], sid=grant.name)
            result.append(
                statement | ({"Condition": _CREATES} if create_only and grant.name == "CreateTasks" else {})
            )
        if listing:
            sid = f"{grant.name}Names" if touching else grant.name
            result.append(
                allow(listing, [_arn(place)], sid=sid) | {"Condition": {"StringLike": {"s3:prefix": patterns}}}
            )
    return result


def role_policy(
    role: Role,
    place: Bucket,
    *,
    runtime: str | None = None,
    queue: str | None = None,
    data: Prefix | None = None,
    create_only: bool = False,
    push: bool = False,
    direct: bool = False,
    purge: bool = False,
    scoped: bool = False,
    roles: Sequence[str] = (),
    functions: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the whole policy of a role.

    ``push``, ``direct``: it also wakes workers, or puts tasks into their inboxes. ``purge``: it also removes tasks, as
    retention says. ``scoped``: attempts have credentials of their own, so the worker reaches no datasets.
    ``runtime``: for a queue of runtimes of that kind; ``queue``: its name, if it is another. ``data``: where datasets
    are. ``roles``, ``functions``: ARNs that a dispatcher assumes and calls. Raises UsageError for options that
    the role does not have.
    """
    _check_options(role, runtime, create_only=create_only, push=push, direct=direct, purge=purge, scoped=scoped)
    at = place if runtime is None else place.below(queue or runtime)
    grants = statements(at, GRANTS[role], create_only=create_only)
    grants += statements(at, _further_grants(role, push=push, direct=direct, purge=purge))
    if role is Role.WORKER and runtime is not None:
        grants += statements(at, [_JOIN])
        grants += statements(place, [Grant("ReadProof", (READ,), (keys.QUEUE,))])
    if data is not None:
        grants += statements(Bucket(data.bucket, data.key, place.partition), _of_data(role, runtime, scoped))
    if role is Role.DISPATCHER:
        grants += [allow(["sts:AssumeRole"], list(roles), sid="MintCredentials")] if roles else []
        grants += [allow(["lambda:InvokeFunction"], list(functions), sid="RunBundles")] if functions else []
    return document(grants)


def _check_options(
    role: Role, runtime: str | None, *, create_only: bool, push: bool, direct: bool, purge: bool, scoped: bool
) -> None:
    if role is Role.TASK and runtime is not None:
        raise UsageError("one role serves the attempts of all runtimes: leave out --runtime")
    if scoped and (role is not Role.WORKER or runtime is None):
        raise UsageError("--scoped is for workers of pipelines: qo policy worker --runtime NAME --scoped")
    if role is Role.DISPATCHER and runtime is not None:
        raise UsageError("a dispatcher serves the queues of all runtimes: leave out --runtime")
    if create_only and role is not Role.PRODUCER:
        raise UsageError(f"a {role} changes tasks that are there: --create-only is for producers")
    if push and role is not Role.PRODUCER:
        raise UsageError(f"a {role} needs no further rights to wake workers: --push is for producers")
    if direct and role not in _DIRECTING:
        raise UsageError(
            f"a {role} needs no further rights for direct dispatch: --direct is for producers and dispatchers"
        )
    if purge and role not in _PURGING:
        raise UsageError(f"a {role} never removes tasks: --purge is for the roles {' and '.join(_PURGING)}")


def _further_grants(role: Role, *, push: bool, direct: bool, purge: bool) -> list[Grant]:
    """Return the grants for what only some queues use."""
    grants = [_PUSH] if push or direct else []
    grants += [_DIRECT] if direct else []
    if role is Role.DISPATCHER:
        grants = [Grant(each.name, each.actions, _in_queues(*each.keys)) for each in grants]
    return [*grants, *(_PURGE if purge else ())]


def _of_data(role: Role, runtime: str | None, scoped: bool) -> list[Grant]:
    if role is Role.TASK:
        # As much as any attempt may have; each gets a part of it, and none removes anything.
        return [Grant("HoldDatasets", (READ, WRITE, "s3:AbortMultipartUpload", LIST), ("*",))]
    if role is Role.DISPATCHER:
        # The code of versions is among the bundles; workers read all data.
        patterns = ("_manifests/*", "bundles/*")
        return [
            Grant("KeepManifests", (READ, WRITE, LIST), patterns),
            Grant("ReadLogs", (READ, LIST), (f"{run_log.DIRECTORY}/*",)),
            Grant("KeepTables", (READ, WRITE, LIST), ("*/metadata/*",)),
            Grant("MeasureFiles", (LIST,), ("*",)),
        ]
    if role is Role.WORKER and runtime is not None and scoped:
        return [
            Grant("ReadCode", (READ, LIST), ("bundles/*",)),
            Grant("WriteLogs", (WRITE,), (f"{run_log.DIRECTORY}/*", "_lineage/*")),
        ]
    if role is Role.WORKER and runtime is not None:
        # Spark's writers clear what a broken attempt has left; nothing else removes data.
        more = (DELETE,) if runtime == "spark" else ()
        return [Grant("HoldDatasets", (READ, WRITE, "s3:AbortMultipartUpload", *more, LIST), ("*",))]
    return []


def _arn(place: Bucket) -> str:
    return f"arn:{place.partition}:s3:::{place.name}"
