"""Admission: whether there is room for one more task. Checked before the claim, so that other workers can have tasks
that would have to wait here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from qo.core.task import Task
from qo.worker.api.handler import Handler, Kind
from qo.worker.loop.shared_limits import KeyedLimit, SharedLimit


class Gate(Protocol):
    """A limit within the service stack."""

    def room(self) -> int:
        """Return how many more could start now."""
        ...


class Admission:
    def __init__(self, limits: Mapping[Kind, int]) -> None:
        self._limits = limits
        self._gates: dict[str, Sequence[Gate]] = {}
        self._shared: dict[str, SharedLimit] = {}  # By task type: the limit that holds over all workers.
        self._keyed: dict[str, KeyedLimit] = {}  # By task type: the one for each key.
        self._unstarted: Counter[Gate] = Counter()  # Admitted, but not yet through the gate.
        # From admission until the handler has really ended. A thread that was given up has returned its permits before.
        self._of_kind: Counter[Kind] = Counter()
        self._of_type: Counter[str] = Counter()
        self._in_batches: Counter[Kind] = Counter()  # These share a thread: limits of kinds do not count them.

    def add_gates(self, handler: Handler, gates: Sequence[Gate]) -> None:
        """Check these limits before a task of this handler is taken."""
        self._gates[handler.task_type] = gates

    def share_limit(self, task_type: str, limit: SharedLimit | KeyedLimit) -> None:
        """Check this limit, too: it holds over all workers."""
        if isinstance(limit, KeyedLimit):
            self._keyed[task_type] = limit
        else:
            self._shared[task_type] = limit

    def limit_key(self, task: Task) -> str | None:
        """Return the key of a task whose type has a limit for each key; None: it has not."""
        keyed = self._keyed.get(task.task_type)
        return None if keyed is None else keyed.key_of(task)

    def _shared_limit(self, handler: Handler) -> SharedLimit | None:
        """Return the limit over all workers; of a type with one for each key, none until the key is known."""
        if (keyed := self._keyed.get(handler.task_type)) is None:
            return self._shared.get(handler.task_type)
        return None if handler.limit_key is None else keyed.share_of(handler.limit_key)

    def room(self, handler: Handler) -> float:
        """Return how many more tasks of a handler may be taken now."""
        rooms = [gate.room() - self._unstarted[gate] for gate in self._gates.get(handler.task_type, ())]
        if handler.batch is None and (limit := self._limits.get(handler.kind)) is not None:
            rooms.append(limit - self._of_kind[handler.kind] + self._in_batches[handler.kind])
        if handler.held_max is not None:
            rooms.append(handler.held_max - self._of_type[handler.task_type])
        # Last: only a task that has room in this worker is a reason to ask for more of the limit.
        if (shared := self._shared_limit(handler)) is not None and min(rooms, default=1) > 0:
            rooms.append(shared.room())
        return min(rooms, default=float("inf"))

    def count_admitted(self, handler: Handler) -> None:
        """Count a task as taken. ``count_started`` and ``count_ended`` must follow, or ``count_ended`` alone."""
        self._of_kind[handler.kind] += 1
        self._in_batches[handler.kind] += handler.batch is not None
        self._of_type[handler.task_type] += 1
        if (shared := self._shared_limit(handler)) is not None:
            shared.count_admitted()
        for gate in self._gates.get(handler.task_type, ()):
            self._unstarted[gate] += 1

    def count_started(self, handler: Handler) -> None:
        for gate in self._gates.get(handler.task_type, ()):
            self._unstarted[gate] -= 1

    def count_ended(self, handler: Handler, *, started: bool) -> None:
        self._of_kind[handler.kind] -= 1
        self._in_batches[handler.kind] -= handler.batch is not None
        self._of_type[handler.task_type] -= 1
        if (shared := self._shared_limit(handler)) is not None:
            shared.count_ended(started=started)
        if not started:
            self.count_started(handler)

    def held_by_kind(self) -> dict[str, int]:
        """Return how many tasks are held, by kind of handler."""
        return {str(kind): count for kind, count in self._of_kind.copy().items() if count}
