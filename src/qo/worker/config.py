"""What a worker is told, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from qo.core.discovery import IndexMode
from qo.core.poll import Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    worker_id: str
    shards: tuple[str, ...] = ()  # Empty: all.
    concurrency: int = 16
    index_mode: IndexMode = IndexMode.HYBRID
    ready_page_size: int = 100
    log_scan_page_size: int = 50
    pace: Pace = field(default_factory=Pace)
    heartbeat_s: float = 15.0
    shutdown_grace_s: float = 30.0
    stop_when_empty: bool = False


@dataclass(slots=True)
class Tally:
    claimed: int = 0
    completed: int = 0
    failed: int = 0  # Attempts that failed, retried or not.
    lost: int = 0
    released: int = 0
    requests: int = 0  # Sent to the store by this process, and what S3 would charge for them.
    dollars: float = 0.0
