"""Invocations of functions for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import Work
from qo.function import execution
from qo.function.execution import Conditions
from qo.function.function_messages import Stop, Verdict, parse_request
from qo.function.sandbox import Access, PlainProcess, Sandbox
from support.dispatcher.states import Clock, clock, state  # noqa: F401
from support.dispatcher.zips import MAIN, bundle, sha256

TOKEN = "header.claims.signature-of-this-test"


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private directories are made, so that a test sees whether they are gone."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def invocation_of(body: bytes, **changed: Any) -> Invocation:
    work = Work(
        task_id="t1", attempt=1, dag="shop", job="clean", version=1, runtime="lambda", operator="udf",
        update_strategy="replace", timeout_seconds=20,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "task_id": "t1",
        "attempt": 1,
        "lease_id": "lease-1",
        "lease_expires_at": datetime(2030, 1, 1, tzinfo=UTC),
        "heartbeat_s": 20.0,
        "capability_token": TOKEN,
        "dispatcher_url": "http://127.0.0.1:1",
        "bundle_sha256": sha256(body),
        "entrypoint": MAIN,
        "work": work,
    }
    return Invocation(**fields | changed)


def run(
    code: str,
    *,
    offered: dict[str, str] | None = None,
    watch: Callable[[], Stop | None] = lambda: None,
    timeout_s: float | None = None,
    sandbox: Sandbox | None = None,
    access: Access | None = None,
    memory_bytes: int = 0,
    **changed: Any,
) -> Verdict:
    body = bundle({MAIN: code, "lib.py": "WORD = 'vendored'"}, **changed)
    conditions = Conditions(sandbox or PlainProcess(), access or Access(), offered or {}, memory_bytes, timeout_s)
    return run_invocation(invocation_of(body), body, conditions, watch)


def run_invocation(
    invocation: Invocation, body: bytes, conditions: Conditions, watch: Callable[[], Stop | None] = lambda: None
) -> Verdict:
    document = invocation.model_dump_json().encode()
    return execution.run(parse_request(document), document, body, conditions, watch)
