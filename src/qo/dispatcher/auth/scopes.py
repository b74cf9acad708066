"""The scope of an attempt, derived from its work.

An attempt reads the generations of its inputs, and writes below the prefixes of its outputs, which it may read back. It
writes its log, and reads no log.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from qo.api.contract.task import Work
from qo.config.location import path_text
from qo.core.pipeline.policy import normalise
from qo.dispatcher.attempts import running
from qo.dispatcher.auth.capability import Capability, Grant, Scope, issue, with_scope
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.state.database import Tx
from qo.errors import LeaseLost


def scope_of(work: Work, data_root: str) -> Scope:
    """Return the datasets of the work and, if they are in a bucket, their prefixes."""
    read = {(each.dataset_id, each.generation_id) for each in work.inputs}
    outputs = {(each.dataset_id, each.generation_id) for each in work.outputs}
    grants = tuple(Grant(*ids, _storage(_directory(data_root, *ids))) for ids in sorted(read | outputs))
    write = _prefixes(each.prefix for each in work.outputs)
    inputs = _prefixes(_directory(data_root, *ids) for ids in read)
    log = _prefixes([work.log] if work.log is not None else [])
    return Scope(grants, tuple(sorted({*inputs, *write})), tuple(sorted({*write, *log})))


def token_for(ring: KeyRing, work: Work, lease_id: str, data_root: str, *, token_id: str, now: datetime) -> str:
    """Issue a new capability of the attempt that does this work."""
    return issue(
        ring,
        task_id=work.task_id,
        attempt=work.attempt,
        lease_id=lease_id,
        timeout_s=work.timeout_seconds,
        token_id=token_id,
        now=now,
        scope=scope_of(work, data_root),
    )


def resolve(tx: Tx, capability: Capability, data_root: str) -> Capability:
    """Return the capability with its scope, looked up if it was too long for the token. Raises LeaseLost."""
    if capability.capability_id is None:
        return capability
    task = running.fetch(tx, capability.task_id, data_root)
    if task.work is None or task.attempt != capability.attempt:
        raise LeaseLost("the attempt is over: its token is no longer valid")
    return with_scope(capability, scope_of(task.work, data_root))


def _directory(data_root: str, dataset_id: str, generation_id: str) -> str:
    return f"{data_root.rstrip('/')}/{dataset_id}/{generation_id}/"


def _prefixes(locations: Iterable[str]) -> tuple[str, ...]:
    """Return those that are in a bucket, in canonical form."""
    return tuple(sorted({str(normalise(each)) for each in locations if each.startswith("s3://")}))


def _storage(location: str) -> dict[str, Any]:
    if location.startswith("s3://"):
        prefix = normalise(location)
        return {"scheme": "s3", "bucket": prefix.bucket, "prefix": prefix.key}
    return {"scheme": "file", "prefix": path_text(location)}
