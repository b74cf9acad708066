"""A bundle, run on this machine by whoever writes it, with an invocation that no dispatcher has made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qo.core.pipeline.states import Outcome
from qo.errors import UsageError
from qo.function import execution
from qo.function.archive import inspect
from qo.function.execution import Conditions
from qo.function.function_messages import Verdict, parse_request
from qo.function.sandbox import Access, Sandbox

TASK = "00000000-0000-0000-0000-000000000000"


def rehearse(
    body: bytes,
    work: Mapping[str, Any],
    *,
    sandbox: Sandbox,
    output: Path | None = None,
    offered: Mapping[str, str] | None = None,
    network: bool = False,
    timeout_s: float = 60.0,
) -> Verdict:
    """Run a bundle once. ``work``: fields of the work that differ from the made-up ones.

    Raises UsageError for a bundle that no dispatcher would accept.
    """
    sha256 = hashlib.sha256(body).hexdigest()
    manifest = inspect(body, sha256)
    if manifest.entrypoint is None:
        raise UsageError("this is the code of a pipeline, not a function: it has no entrypoint")
    outputs = [] if output is None else [_describe_output(output.resolve())]
    made_up: dict[str, Any] = {
        "task_id": TASK, "attempt": 1, "dag": "rehearsal", "job": manifest.name or "function", "version": 1,
        "runtime": "lambda", "operator": "udf", "config": {}, "inputs": [], "outputs": outputs,
        "update_strategy": "replace", "partition_key": None, "attributes": {}, "timeout_seconds": timeout_s,
    }  # fmt: skip
    invocation: dict[str, Any] = {
        "task_id": TASK,
        "attempt": 1,
        "lease_id": TASK,
        "heartbeat_s": 20.0,
        "capability_token": "no-token-in-a-rehearsal",
        "dispatcher_url": "http://127.0.0.1:0",
        "bundle_sha256": sha256,
        "entrypoint": manifest.entrypoint,
        "work": made_up | dict(work),
    }
    document = json.dumps(invocation).encode()
    access = Access(write=() if output is None else (output.resolve(),), network=network)
    conditions = Conditions(sandbox, access, offered or {}, timeout_s=timeout_s)
    try:
        return execution.run(parse_request(document), document, body, conditions, lambda: None)
    except OSError as error:
        return Verdict(Outcome.RETRYABLE, error=f"the function could not be run: {error}")


def _describe_output(directory: Path) -> dict[str, Any]:
    return {"index": 0, "dataset_id": TASK, "generation_id": TASK, "prefix": f"file:{directory}/"}
