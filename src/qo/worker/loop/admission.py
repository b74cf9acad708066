"""Whether one more task may be taken, asked before it is claimed: what would have to wait stays for other workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from qo.worker.api.handler import Handler, Kind


class Gate(Protocol):
    """A limit within the service stack."""

    def room(self) -> int:
        """How many more could start now."""
        ...


class Admission:
    def __init__(self, limits: Mapping[Kind, int]) -> None:
        self._limits = limits
        self._gates: dict[str, Sequence[Gate]] = {}
        self._unstarted: Counter[Gate] = Counter()  # Admitted, but not yet through the gate.
        # From admitted until the work has really ended. A thread that was left behind has given its permits back.
        self._of_kind: Counter[Kind] = Counter()
        self._of_type: Counter[str] = Counter()

    def guard(self, handler: Handler, gates: Sequence[Gate]) -> None:
        """Ask these before a task of this handler is taken."""
        self._gates[handler.task_type] = gates

    def room(self, handler: Handler) -> float:
        """How many more of its tasks may be taken now."""
        rooms = [gate.room() - self._unstarted[gate] for gate in self._gates.get(handler.task_type, ())]
        if (limit := self._limits.get(handler.kind)) is not None:
            rooms.append(limit - self._of_kind[handler.kind])
        if handler.concurrency is not None:
            rooms.append(handler.concurrency - self._of_type[handler.task_type])
        return min(rooms, default=float("inf"))

    def enter(self, handler: Handler) -> None:
        """Taken; to be followed by ``started`` and ``ended``, or by ``ended`` alone."""
        self._of_kind[handler.kind] += 1
        self._of_type[handler.task_type] += 1
        for gate in self._gates.get(handler.task_type, ()):
            self._unstarted[gate] += 1

    def started(self, handler: Handler) -> None:
        for gate in self._gates.get(handler.task_type, ()):
            self._unstarted[gate] -= 1

    def ended(self, handler: Handler, *, started: bool) -> None:
        self._of_kind[handler.kind] -= 1
        self._of_type[handler.task_type] -= 1
        if not started:
            self.started(handler)

    def held(self) -> dict[str, int]:
        """How many are held, by kind."""
        return {str(kind): count for kind, count in self._of_kind.copy().items() if count}
