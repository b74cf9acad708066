"""The configuration of a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from qo.core.board import WatchTimes
from qo.core.discovery import IndexMode, UnknownTypes
from qo.core.dispatch import Dispatch
from qo.core.limit_shares import Limit
from qo.core.ownership import LeasingConfig
from qo.core.poll import Pace
from qo.core.rhythm import SHARE_TTL_S
from qo.errors import UsageError
from qo.worker.api.handler import Kind
from qo.worker.layers import ServiceOptions

if TYPE_CHECKING:
    from qo.http_server.pages import Post

RENEWALS_PER_LEASE = 3
MARGIN_SHARE = 1 / 12  # The part of a lease that is left when the handler is stopped.
LEASE_PER_DOUBT = 10 / 3  # Enough to repeat a failed renewal in time.


class LeaseTimes(NamedTuple):
    lease_s: float
    renew_s: float
    margin_s: float  # A lease with less than this left counts as lost.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    worker_id: str

    shards: tuple[str, ...] = ()  # Empty: all.
    index_mode: IndexMode = IndexMode.HYBRID
    ready_page_size: int = 100
    log_scan_page_size: int = 50
    pace: Pace = field(default_factory=Pace)
    dequeue_backoff_s: float = 0.05  # After a look whose tasks were claimed by other workers.
    stop_when_empty: bool = False
    unknown_types: UnknownTypes = UnknownTypes.LEAVE

    concurrency: int = 16  # Slots, each with its inbox.
    inbox_capacity: int = 1
    threads: int | None = None  # Plain functions at a time; None: as many as there are slots.
    processes: int | None = None  # Handlers in child processes at a time; None: one for each core.
    process_tasks_max: int = 1_000  # A child process is replaced after so many; 0: never.
    process_memory_max_mb: int = 0  # A child process is replaced when it uses more than this; 0: never.
    spark_slots: int = 4
    service: ServiceOptions = field(default_factory=ServiceOptions)
    producer_buffer: int = 128  # Submissions by handlers at a time.
    result_buffer: int = 128  # Reports to the store at a time; while there are more, nothing is claimed.

    shared_limits: Mapping[str, Limit] = field(default_factory=dict[str, Limit])  # By type, over all workers.

    lease_s: float = 60.0
    clock_doubt_s: float = 0.0  # By how much two workers' estimates of the store's time may differ.
    heartbeat_s: float = 60.0
    control_s: float = 5.0

    shutdown_grace_s: float = 30.0  # For running tasks to finish.
    cancel_grace_s: float = 10.0  # For cancelled tasks to stop.

    dispatch: Dispatch = Dispatch.SHARED
    has_monitor: bool = False  # Whether a monitor runs beside it, which checks while this worker is the lookout.
    watch: WatchTimes = field(default_factory=WatchTimes)
    http: str = "off"
    push_tokens: tuple[str, ...] = field(default=(), repr=False)  # With one, it takes wake-ups at ``http``.
    push_address: str | None = None  # Where producers reach it; None: at ``http``.
    push_place: int = 0  # Of its queue among those of the process.
    wake_paths: dict[str, Post] | None = field(default=None, repr=False)  # Those of all queues of the process.
    shard_leasing: LeasingConfig | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, not {self.concurrency}")
        for name in ("producer_buffer", "result_buffer"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.lease_s < LEASE_PER_DOUBT * self.clock_doubt_s:
            raise UsageError(
                f"a lease of {self.lease_s:g} s is too short where the clocks of two workers may differ by "
                f"{self.clock_doubt_s:g} s, as in a bucket: set QO_LEASE_S to {LEASE_PER_DOUBT * self.clock_doubt_s:g} "
                "or more"
            )

    @property
    def leases_shards(self) -> bool:
        """Whether it leases shards. To find the queue empty, it must look everywhere."""
        return self.shard_leasing is not None and not self.stop_when_empty

    @property
    def owns_inbox(self) -> bool:
        """Whether tasks may be routed to it. One that scans all tasks, or stops when there are none, has no inbox."""
        return (
            self.dispatch is Dispatch.DIRECT
            and not self.stop_when_empty
            and self.shard_leasing is None
            and self.index_mode is not IndexMode.LOG_SCAN
        )

    @property
    def board_s(self) -> float:
        """How long the board may stay unread, about: it names orders, and by reading it shard leases are renewed."""
        return min(self.control_s, self.shard_leasing.renew_s) if self.shard_leasing else self.control_s

    @property
    def renew_s(self) -> float:
        return self.lease_s / RENEWALS_PER_LEASE

    @property
    def share_ttl_s(self) -> float:
        """For how long a share of a limit lasts: no longer than the tasks of a dead worker wait."""
        return min(SHARE_TTL_S, self.lease_s)

    @property
    def lease_times(self) -> LeaseTimes:
        return LeaseTimes(self.lease_s, self.renew_s, self.lease_margin_s)

    @property
    def lease_margin_s(self) -> float:
        """How much of a lease is left when its handler is stopped, or no longer started: another worker may believe
        that the lease has run out so much earlier."""
        return max(self.lease_s * MARGIN_SHARE, self.clock_doubt_s)

    @property
    def limits(self) -> Mapping[Kind, int]:
        """How many tasks of a kind of handler may be held at a time; no entry: no limit."""
        limits = {Kind.PROCESS: self.processes or os.cpu_count() or 1, Kind.SPARK: self.spark_slots}
        return {**limits, Kind.THREAD: self.threads} if self.threads is not None else limits
