"""Whether one more task may be taken, asked before it is claimed: what would have to wait stays for other workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from qo.worker.handler import Handler, Kind


class Gate(Protocol):
    """A limit within the service stack."""

    def room(self) -> int:
        """How many more could start now."""
        ...


class Admission:
    def __init__(self, limits: Mapping[Kind, int]) -> None:
        self._limits = limits
        self._gates: dict[str, Sequence[Gate]] = {}
        self._unstarted: Counter[str] = Counter()  # By task type: admitted, but not yet through the gates.
        self._held: Counter[Kind] = Counter()  # From admitted until the work has really ended.

    def guard(self, handler: Handler, gates: Sequence[Gate]) -> None:
        self._gates[handler.task_type] = gates

    def room(self, handler: Handler) -> bool:
        limit = self._limits.get(handler.kind)
        if limit is not None and self._held[handler.kind] >= limit:
            return False
        gates = self._gates.get(handler.task_type)
        return not gates or min(gate.room() for gate in gates) > self._unstarted[handler.task_type]

    def enter(self, handler: Handler) -> None:
        """Taken; to be followed by ``started`` and ``ended``, or by ``ended`` alone."""
        self._held[handler.kind] += 1
        self._unstarted[handler.task_type] += 1

    def started(self, handler: Handler) -> None:
        self._unstarted[handler.task_type] -= 1

    def ended(self, handler: Handler, *, started: bool = True) -> None:
        self._held[handler.kind] -= 1
        if not started:
            self._unstarted[handler.task_type] -= 1

    def held(self) -> dict[str, int]:
        return {str(kind): count for kind, count in self._held.items() if count}
