"""A runtime under a load curve, in virtual time: tasks arrive, workers come and go as the decisions say."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from qo.core.pipeline.scaling import Decision, Load, Memory, Policy, Worker, WorkerState, decide

STEP_S = 0.5
TURN_S = 5.0
RECENT = 100  # Tasks over which the run time is averaged, as the dispatcher does it.

Curve = Callable[[float], float]  # Tasks a second, by time.


@dataclass
class SimulatedWorker:
    place: int
    started_at: float
    ready_at: float
    draining: bool = False
    ends: list[float] = field(default_factory=list[float])  # When each of its tasks is done.


@dataclass
class Outcome:
    waits_s: list[float] = field(default_factory=list[float])
    worker_s: float = 0.0
    ideal_s: float = 0.0  # If each slot were always in use.
    most: int = 0
    last: int = 0  # Workers at the end.
    left: int = 0  # Tasks that were never run.
    decisions: list[tuple[float, Decision]] = field(default_factory=list[tuple[float, Decision]])

    @property
    def changes(self) -> int:
        """How often the number of workers changed its direction."""
        signs = [1 if each.start else -1 for _, each in self.decisions if each.start or each.drain]
        return sum(a != b for a, b in pairwise(signs))

    def wait_s(self, share: float) -> float:
        """Return the wait that this share of the tasks does not exceed."""
        ordered = sorted(self.waits_s)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


class Simulation:
    def __init__(
        self,
        policy: Policy,
        *,
        task_s: float,
        start_s: float = 3.0,
        seed: int = 1,
        deaths: Sequence[float] = (),
        is_known: bool = False,
    ) -> None:
        """``deaths``: when a worker dies. ``is_known``: tasks of the same kind ran before."""
        self._policy, self._task_s, self._start_s = policy, task_s, start_s
        self._rng = random.Random(seed)
        self._deaths = sorted(deaths)
        self._queue: deque[float] = deque()
        self._workers: list[SimulatedWorker] = []
        self._recent: deque[float] = deque([task_s] if is_known else [], maxlen=RECENT)
        self._memory = Memory(0.0)
        self.outcome = Outcome()

    def run(self, curve: Curve, duration_s: float, after_s: float = 0.0) -> Outcome:
        """``after_s``: time without arrivals at the end."""
        now, arrived, turn_at = 0.0, 0.0, 0.0
        while now < duration_s + after_s:
            arrived += curve(now) * STEP_S if now < duration_s else 0.0
            while arrived >= 1.0:
                self._queue.append(now)
                arrived -= 1.0
            self._let_die(now)
            self._work(now)
            if now >= turn_at:
                self._turn(now)
                turn_at += TURN_S
            self.outcome.worker_s += len(self._workers) * STEP_S
            self.outcome.most = max(self.outcome.most, len(self._workers))
            now += STEP_S
        self.outcome.last, self.outcome.left = len(self._workers), len(self._queue)
        return self.outcome

    def _let_die(self, now: float) -> None:
        while self._deaths and self._deaths[0] <= now:
            self._deaths.pop(0)
            if self._workers:
                dead = self._workers.pop(self._rng.randrange(len(self._workers)))
                self._queue.extendleft(now for _ in dead.ends)  # Its tasks are released again.
                self._memory = self._memory.with_deaths([now - dead.started_at], now)

    def _work(self, now: float) -> None:
        for worker in self._workers:
            worker.ends = [at for at in worker.ends if at > now]
            while self._queue and self._has_room(worker, now):
                run_s = self._task_s * self._rng.uniform(0.5, 1.5)
                self.outcome.waits_s.append(now - self._queue.popleft())
                self.outcome.ideal_s += run_s / self._policy.slots
                self._recent.append(run_s)
                worker.ends.append(now + run_s)
        self._workers = [each for each in self._workers if not (each.draining and not each.ends)]

    def _has_room(self, worker: SimulatedWorker, now: float) -> bool:
        return not worker.draining and worker.ready_at <= now and len(worker.ends) < self._policy.slots

    def _turn(self, now: float) -> None:
        load = Load(
            waiting=len(self._queue),
            running=sum(len(each.ends) for each in self._workers),
            oldest_s=now - self._queue[0] if self._queue else 0.0,
            task_s=sum(self._recent) / len(self._recent) if self._recent else None,
        )
        workers = [
            Worker(str(each.place), each.place, _state_of(each, now), len(each.ends)) for each in self._workers
        ]
        decision = decide(load, workers, self._policy, self._memory, now=now)
        self._memory = decision.memory
        self.outcome.decisions.append((now, decision))
        drained = {each.place for each in decision.drain}
        for each in self._workers:
            each.draining |= each.place in drained
        self._workers += [SimulatedWorker(place, now, now + self._start_s) for place in decision.start]


def _state_of(worker: SimulatedWorker, now: float) -> WorkerState:
    if worker.draining:
        return WorkerState.DRAINING
    return WorkerState.READY if worker.ready_at <= now else WorkerState.STARTING
