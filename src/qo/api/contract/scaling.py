"""What a scaler reports of the workers that it starts and ends, and what the dispatcher tells it of their load."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from qo.api.contract.body import Answer, Body

RUNTIMES_MAX = 100  # Of one scaler.
DECISIONS_MAX = 100  # Of one report.
_NAME = Field(min_length=1, max_length=200)
_COUNT = Field(ge=0, le=1_000_000)


class FleetReport(Body):
    """The workers of one runtime, as its launcher lists them, and the bounds that the scaler keeps."""

    runtime: str = _NAME
    launcher: str = Field(max_length=20)
    min: int = _COUNT
    max: int = _COUNT
    slots: int = _COUNT
    starting: int = _COUNT
    ready: int = _COUNT
    draining: int = _COUNT
    dead: int = _COUNT
    problem: str | None = Field(default=None, max_length=1000)  # Why the launcher cannot list them.

    display_fields: ClassVar[frozenset[str]] = frozenset({"problem"})


class ScalerTurn(Body):
    """A scaler asks for its runtimes, or keeps them."""

    scaler: str = _NAME
    lease_s: float = Field(gt=0, le=3600)
    fleets: list[FleetReport] = Field(max_length=RUNTIMES_MAX)


class RuntimeLoad(Answer):
    """The work of a runtime that workers can do now."""

    runtime: str
    waiting: int  # Woken and not claimed; counting stops at 10,000 for each queue.
    running: int
    oldest_s: float
    task_s: float | None = None  # How long its tasks among the newest ran, on average.
    in_flight_max: int | None = None
    held: int = 0  # Jobs whose tasks are held back.
    busy: dict[str, int] = {}  # Tasks that run, by worker.


class GrantedTurn(Answer):
    """``held``: the runtimes that the scaler decides for until ``lease_s`` from when it asked."""

    held: list[str]
    holders: dict[str, str]  # By runtime, whichever scaler has it now.
    loads: list[RuntimeLoad]


class DecisionReport(Body):
    runtime: str = _NAME
    action: str = Field(pattern="^(start|drain|kill|keep)$")
    workers: int = _COUNT  # How many are started, drained or killed.
    code: str = Field(max_length=40)
    reason: str = Field(max_length=1000)

    display_fields: ClassVar[frozenset[str]] = frozenset({"reason"})


class DecisionReports(Body):
    scaler: str = _NAME
    decisions: list[DecisionReport] = Field(max_length=DECISIONS_MAX)


class DecisionsKept(Answer):
    recorded_count: int


class DecisionLine(Answer):
    at: datetime
    scaler: str
    action: str
    workers: int
    code: str
    reason: str


class ScaledRuntime(Answer):
    runtime: str
    launcher: str
    min: int
    max: int
    slots: int
    starting: int
    ready: int
    draining: int
    dead: int
    problem: str | None = None
    scaler: str
    reported_at: datetime
    silent: bool = False  # Its scaler has not reported for as long as it said that it would.
    load: RuntimeLoad
    decisions: list[DecisionLine]  # The newest first.


class ScalingAnswer(Answer):
    now: datetime
    runtimes: list[ScaledRuntime]
