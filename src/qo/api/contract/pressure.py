"""What is held back, by what, and what must happen before it goes on."""

from __future__ import annotations

from datetime import datetime

from qo.api.contract.body import Answer


class PressureTarget(Answer):
    """A queue, or a job with thresholds of its own, as last measured."""

    kind: str  # queue or job
    name: str
    depth: int  # What waits.
    oldest_s: float
    depth_max: int | None = None  # Above this, or above the age, it counts as overfull; null: no threshold.
    age_max_s: float | None = None
    tripped_at: datetime | None = None  # Set while it is overfull.
    reason: str | None = None
    clears: str | None = None  # What must happen before it is overfull no longer.
    works: list[str] = []  # Jobs whose tasks wait in it; while it is overfull, with what keeps them.
    measured_at: datetime


class HeldJob(Answer):
    """A job or source that waits."""

    edition_id: str
    dag: str
    job: str
    version: int
    active: bool
    kind: str | None = None  # Of a source.
    mode: str  # What it declares, or what its kind does.
    since: datetime | None = None
    reason: str
    next: str  # What must happen for it to go on.
    waiting: int = 0  # Tasks, planned times or files that wait with it; counting stops at 1,000.


class HeldAnswer(Answer):
    now: datetime
    targets: list[PressureTarget]
    held: list[HeldJob]
    more: bool = False  # There are more than are listed.
