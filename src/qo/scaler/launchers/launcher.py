"""The port of launchers: how workers of one runtime are started, listed, drained and killed.

A launcher is the truth about which workers there are; a scaler that is restarted asks it. Each worker fills a place,
numbered from 1: a place is filled once, even if two scalers want to fill it at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qo.core.pipeline.scaling import WorkerState
from qo.errors import QoError


class LaunchError(QoError):
    """A launcher could not do what it was asked for. What is there is kept, and it is tried again at the next turn."""


@dataclass(frozen=True, slots=True)
class LaunchedWorker:
    """A worker, as its launcher lists it."""

    name: str  # Of its place: RUNTIME-PLACE.
    place: int
    state: WorkerState
    uid: str  # Of this worker alone: another one that fills the same place has another.
    is_ready_known: bool = False  # The launcher itself tells whether it has started.
    detail: str = ""  # How a dead one has ended, as far as that is known.


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What all workers of a runtime have in common."""

    runtime: str
    slots: int
    drain_s: float
    image: str | None = None
    memory: str | None = None
    cpu: float | None = None

    def place_name(self, place: int) -> str:
        return f"{self.runtime}-{place}"

    def place_of(self, name: str) -> int | None:
        """Return the place that a name stands for; None: it is of no place of this runtime."""
        number = name.removeprefix(f"{self.runtime}-")
        is_place = name != number and number.isascii() and number.isdigit() and not number.startswith("0")
        return int(number) if is_place else None


class Launcher(Protocol):
    """All calls raise LaunchError, and may be repeated."""

    async def list(self) -> list[LaunchedWorker]:
        """List the workers: those that live, and those that died since their place was last filled. Workers that have
        ended after a drain are gone."""
        ...

    async def start(self, place: int) -> bool:
        """Start a worker. Return False if the place is taken. What a dead worker has left there is removed."""
        ...

    async def drain(self, worker: LaunchedWorker) -> None:
        """Ask a worker to finish what it runs and to end."""
        ...

    async def kill(self, worker: LaunchedWorker) -> None:
        """End a worker at once."""
        ...

    async def close(self) -> None: ...
