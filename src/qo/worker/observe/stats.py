"""What a worker counts, and snapshots of it.

``claimed == acked + retried + dead + released + lost + held`` after every step: each claim has one outcome.

The event loop counts; other threads read without a lock. A reader may come in the middle of a step: if it needs the sum
to be right, it checks ``is_balanced`` and reads again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from qo.worker.loop.outcome import Acked, Dead, Lost, Outcome, Released, Retried
from qo.worker.loop.state import State
from qo.worker.observe.depth_board import DepthBoard

# Upper bounds in seconds; the last bucket, for longer times, has none.
BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
)

TYPES_MAX = 200  # Counted by name; a handler for unknown types could meet any number of them.
OTHER = "other"  # All further types together.
TYPE_CHARS_MAX = 200
ENDS = ("acked", "retried", "dead", "released", "lost")


@dataclass(slots=True)
class Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0
    count: int = 0
    last_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration. A negative one counts as 0: a wait may be measured by two clocks that differ a little."""
        seconds = max(0.0, seconds)
        self.longest_s = max(self.longest_s, seconds)
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds
        self.count += 1
        self.last_s = seconds

    def quantile(self, q: float) -> float | None:
        """Return an upper bound of the quantile, in the same bucket; None before the first value."""
        counts = list(self.counts)  # A copy: another thread may count meanwhile.
        rank, total = q * sum(counts), 0
        for bound, count in zip((*BUCKETS_S, float("inf")), counts, strict=True):
            total += count
            if count and total >= rank:
                return min(bound, self.longest_s)
        return None

    @property
    def mean_s(self) -> float | None:
        return self.total_s / self.count if self.count else None


@dataclass(slots=True)
class SlotStats:
    """The counters of one slot. A stuck slot shows here first."""

    processed: int = 0
    succeeded: int = 0
    failed: int = 0
    last_latency_s: float | None = None
    task_id: str | None = None  # The task that it runs now.


@dataclass(slots=True)
class Stats:
    """The counters: changed by the event loop, except ``renewals`` and ``renew_failures``."""

    claimed: int = 0
    acked: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    held: int = 0

    started: int = 0
    timeouts: int = 0
    cancelled: int = 0  # Stopped on request; these are among the dead.
    shed: int = 0  # Given back because a layer had no room; these are among the released.
    terminal_failures: int = 0  # Tasks that failed without a further attempt.
    unsuccessful: int = 0  # Wake-ups of pipeline tasks whose run has failed; these are among the acked.
    renewals: int = 0
    renew_failures: int = 0
    settle_retries: int = 0
    enqueued: int = 0
    looks: int = 0
    empty_looks: int = 0
    pushed: int = 0  # Tasks that wake-ups have named.
    claims_missed: int = 0  # Candidates that another worker took, or that could not be claimed.
    unhandled_types: int = 0  # Types of waiting tasks that this worker has no handler for.
    orphan_types: int = 0  # Those of them that no running worker has a handler for.
    loop_lag_s: float = 0.0
    queue_depth: int | None = None  # Ready tasks seen by the last look; None before the first.
    requests: int = 0  # Sent to the store by this process; ``dollars`` is what S3 would charge for them.
    dollars: float = 0.0
    last_error: str | None = None
    last_latency_s: float | None = None

    queue_wait: Histogram = field(default_factory=Histogram)  # From due to started.
    latency: dict[str, Histogram] = field(default_factory=dict[str, Histogram])  # Of handlers, by task type.
    slots: dict[int, SlotStats] = field(default_factory=dict[int, SlotStats])
    depths: DepthBoard = field(default_factory=DepthBoard)  # Of the whole queue, if its monitor is on duty.
    on_change: Callable[[], None] = lambda: None  # Called after every step that moves a claim; for tests.

    @property
    def completed(self) -> int:
        return completed_of(plain_counts(self))

    @property
    def failed(self) -> int:
        """Attempts that failed, retried or not, without those stopped on request."""
        return failed_of(plain_counts(self))

    def count_claim(self) -> None:
        self.claimed += 1
        self.held += 1
        self.on_change()

    def count_outcome(self, outcome: Outcome) -> None:
        self.held -= 1
        match outcome:
            case Acked():
                self.acked += 1
                self.unsuccessful += outcome.failed
            case Retried(error):
                self.retried += 1
                self.timeouts += outcome.timed_out
                self.last_error = error
            case Dead(error):
                self.dead += 1
                self.timeouts += outcome.timed_out
                self.last_error = error
            case Released():
                self.released += 1
                self.shed += outcome.shed
            case Lost():
                self.lost += 1
        self.on_change()

    def count_run(self, task_type: str, slot: int, seconds: float, outcome: Outcome) -> None:
        self._latency_of(task_type).add(seconds)
        self.last_latency_s = seconds
        if (one := self.slots.get(slot)) is None:
            one = self.slots.setdefault(slot, SlotStats())
        one.processed += 1
        one.succeeded += isinstance(outcome, Acked) and not outcome.failed
        one.failed += _is_failure(outcome)
        one.last_latency_s = seconds

    def _latency_of(self, task_type: str) -> Histogram:
        if (histogram := self.latency.get(task_type)) is not None:
            return histogram
        name = printable_type(task_type)
        if name not in self.latency and len(self.latency) >= TYPES_MAX:
            name = OTHER
        return self.latency.setdefault(name, Histogram())

    @property
    def is_balanced(self) -> bool:
        return is_balanced(plain_counts(self))


def _is_failure(outcome: Outcome) -> bool:
    match outcome:
        case Retried():
            return True
        case Acked():
            return outcome.failed
        case Dead():
            return not outcome.cancelled
        case _:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSnapshot:
    """A worker at one moment, as ``/stats`` shows it."""

    worker_id: str
    state: State
    uptime_s: float
    slots: int
    busy: int
    waiting: int  # In inboxes.
    settling: int
    stuck: int  # Slots whose handler was given up, but still runs.
    oldest_held_s: float | None
    kinds: dict[str, int]  # Held tasks, by kind of handler.
    paused_types: list[str]
    shards: list[str]  # Owned or chosen; empty: all.
    counts: dict[str, Any]  # Every plain counter of ``Stats`` by name.
    processed: int
    succeeded: int
    failed: int
    terminal_failures: int
    queue_depth: int | None
    last_latency_s: float | None
    latency_s: dict[str, dict[str, float | None]]  # By task type: count, mean, p50, p95, p99.
    workers: dict[int, SlotStats]


def snapshot(
    stats: Stats,
    *,
    worker_id: str,
    state: State,
    uptime_s: float,
    slots: int,
    busy: int,
    waiting: int,
    settling: int,
    stuck: int,
    oldest_held_s: float | None,
    kinds: Mapping[str, int],
    paused_types: list[str],
    shards: list[str],
) -> StatsSnapshot:
    """Copy the counters, and the given facts, into one immutable value. Any thread may call this."""
    workers = {index: replace(slot) for index, slot in sorted(stats.slots.copy().items())}
    return StatsSnapshot(
        worker_id=worker_id,
        state=state,
        uptime_s=uptime_s,
        slots=slots,
        busy=busy,
        waiting=waiting,
        settling=settling,
        stuck=stuck,
        oldest_held_s=oldest_held_s,
        kinds=dict(kinds),
        paused_types=paused_types,
        shards=shards,
        counts=plain_counts(stats),
        processed=sum(one.processed for one in workers.values()),
        succeeded=sum(one.succeeded for one in workers.values()),
        failed=sum(one.failed for one in workers.values()),
        terminal_failures=stats.terminal_failures,
        queue_depth=stats.queue_depth,
        last_latency_s=stats.last_latency_s,
        latency_s={name: _summary(histogram) for name, histogram in sorted(stats.latency.copy().items())},
        workers=workers,
    )


def _summary(histogram: Histogram) -> dict[str, float | None]:
    return {
        "count": histogram.count,
        "mean": histogram.mean_s,
        "p50": histogram.quantile(0.5),
        "p95": histogram.quantile(0.95),
        "p99": histogram.quantile(0.99),
    }


def plain_counts(stats: Stats) -> dict[str, Any]:
    values = {each.name: getattr(stats, each.name) for each in fields(stats)}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str | None)}


def sum_counts(of_workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of the ``plain_counts`` of several workers."""
    total: Counter[str] = Counter()
    for counts in of_workers:
        total.update({name: value for name, value in counts.items() if isinstance(value, int | float)})
    return dict(total)


def completed_of(counts: Mapping[str, Any]) -> int:
    """Return how many tasks were completed, by these ``plain_counts``."""
    return counts["acked"] - counts["unsuccessful"]


def failed_of(counts: Mapping[str, Any]) -> int:
    """Return how many attempts failed, retried or not, without those stopped on request."""
    return counts["retried"] + counts["dead"] - counts["cancelled"] + counts["unsuccessful"]


def is_balanced(counts: Mapping[str, Any]) -> bool:
    """Whether every claim in these ``plain_counts`` is held or has its one outcome."""
    return counts["claimed"] == counts["held"] + sum(counts[end] for end in ENDS)


def printable_type(task_type: str) -> str:
    """Return a task type that every reader of statistics accepts: UTF-8 without NUL, of bounded length."""
    encodable = task_type[:TYPE_CHARS_MAX].encode("utf-8", "replace").decode()
    return encodable.replace("\0", "\N{REPLACEMENT CHARACTER}")
