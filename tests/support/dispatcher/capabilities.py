"""Capability tokens for tests, and the ring of keys that signs them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth.capability import Grant, Scope
from qo.dispatcher.auth.signing_keys import KeyRing
from support.dispatcher.states import Clock, clock, state  # noqa: F401

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


TASK, LEASE = "0b5f8f1e-0000-5000-8000-000000000001", "5ec3e7ea-0000-4000-8000-000000000001"


SCOPE = Scope(
    (Grant("d1", "g1", {"scheme": "s3", "bucket": "data", "prefix": "d1/g1/"}),),
    ("s3://data/d1/g1/",),
    ("s3://data/d2/g2/out/",),
)


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing.open(tmp_path / "keys")


def issue(ring: KeyRing, *, now: datetime = NOW, timeout_s: float | None = 60.0, **changed: Any) -> str:
    wanted: dict[str, Any] = {
        "task_id": TASK,
        "attempt": 2,
        "lease_id": LEASE,
        "token_id": "jti-1",
        "scope": SCOPE,
    }
    return capabilities.issue(ring, timeout_s=timeout_s, now=now, **wanted | changed)
