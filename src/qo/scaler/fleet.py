"""The workers of one runtime: what its launcher lists, what is decided for them, and what is done."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from qo.core.pipeline.scaling import Decision, Load, Memory, Policy, Worker, WorkerState, decide
from qo.core.pipeline.scaling_reasons import describe
from qo.scaler.launchers.launcher import LaunchedWorker, Launcher, LaunchError, WorkerSpec

log = logging.getLogger(__name__)

T = TypeVar("T")

LIVE = (WorkerState.STARTING, WorkerState.READY)


@dataclass(frozen=True, slots=True)
class Act:
    """What was decided and done at one turn."""

    action: str  # start, drain, kill or keep
    workers: int
    code: str
    reason: str


class Fleet:
    """``start_s``: how long a worker takes to start, where the launcher cannot tell. ``ending_s``: how long one that is
    drained may take beside what it runs."""

    def __init__(
        self,
        spec: WorkerSpec,
        policy: Policy,
        launcher: Launcher,
        *,
        kind: str,
        start_s: float,
        ending_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.spec, self.policy, self.kind = spec, policy, kind
        self.launcher = launcher
        self.problem: str | None = None
        self.workers: list[LaunchedWorker] = []
        self._start_s, self._kill_after_s = start_s, spec.drain_s + ending_s
        self._monotonic = monotonic
        self._memory: Memory | None = None
        self._started: dict[int, float] = {}  # By place, when this scaler filled it last.
        self._drained: dict[str, float] = {}  # By uid, since when it was seen to drain.
        self._mourned: set[str] = set()  # The uids of dead ones that were counted.
        self._last: tuple[str, str] | None = None

    async def look(self) -> None:
        """List the workers. If that fails, ``problem`` says why, and nothing is decided at this turn."""
        try:
            self.workers = [self._with_age(each) for each in await self.launcher.list()]
            self.problem = None
        except LaunchError as error:
            if self.problem is None:
                log.warning("the workers of %s are not known: %s", self.spec.runtime, error)
            self.problem = str(error)

    def count(self, *states: WorkerState) -> int:
        return sum(each.state in states for each in self.workers)

    def forget(self) -> None:
        """Another scaler decides: begin anew if this one does again."""
        self._memory, self._last = None, None

    async def act(self, load: Load, busy: Mapping[str, int], may_act: Callable[[], bool]) -> list[Act]:
        """Decide and do it; return what is worth a report. ``may_act``: whether the right to decide still holds."""
        if self.problem is not None:
            return self._report(Act("keep", 0, "launcher_failed", self.problem))
        now = self._monotonic()
        self._memory = self._count_deaths(self._memory or Memory(now), now)
        overdue = self._find_overdue(now)
        workers = [Worker(each.name, each.place, each.state, _count_busy(each, busy)) for each in self.workers]
        decision = decide(load, workers, self.policy, self._memory, now=now)
        self._memory = decision.memory
        try:
            return [*await self._kill(overdue, may_act), *await self._carry_out(decision, may_act)]
        except LaunchError as error:
            log.warning("the workers of %s: %s", self.spec.runtime, error)
            return self._report(Act("keep", 0, "launcher_failed", str(error)))

    async def drain_all(self) -> None:
        for each in self.workers:
            if each.state in LIVE:
                await self.launcher.drain(each)

    def _with_age(self, worker: LaunchedWorker) -> LaunchedWorker:
        """Count a worker as ready once it has had the time to start, where the launcher cannot tell."""
        if worker.state is not WorkerState.STARTING or worker.is_ready_known:
            return worker
        age_s = self._monotonic() - self._started.get(worker.place, float("-inf"))
        return worker if age_s < self._start_s else replace(worker, state=WorkerState.READY)

    def _count_deaths(self, memory: Memory, now: float) -> Memory:
        dead = [each for each in self.workers if each.state is WorkerState.DEAD]
        fresh = [each for each in dead if each.uid not in self._mourned]
        for each in fresh:
            log.warning("the worker %s has died: %s", each.name, each.detail)
        self._mourned = {each.uid for each in dead}
        return memory.with_deaths((now - self._started.get(each.place, float("-inf")) for each in fresh), now)

    def _find_overdue(self, now: float) -> list[LaunchedWorker]:
        draining = [each for each in self.workers if each.state is WorkerState.DRAINING]
        self._drained = {each.uid: self._drained.get(each.uid, now) for each in draining}
        return [each for each in draining if now - self._drained[each.uid] > self._kill_after_s]

    async def _kill(self, workers: list[LaunchedWorker], may_act: Callable[[], bool]) -> list[Act]:
        killed = await self._each(workers, self.launcher.kill, may_act)
        if not killed:
            return []
        reason = f"drained, and still there after {self._kill_after_s:g} s"
        return [Act("kill", killed, "overdue", reason)]

    async def _carry_out(self, decision: Decision, may_act: Callable[[], bool]) -> list[Act]:
        code, reason = decision.reason.code, describe(decision.reason, self.policy)
        if decision.start:
            started = await self._each(decision.start, self._start, may_act)
            return self._report(Act("start", started, code, reason))
        if decision.drain:
            names = {each.name for each in decision.drain}
            workers = [each for each in self.workers if each.name in names and each.state in LIVE]
            return self._report(
                Act("drain", await self._each(workers, self.launcher.drain, may_act), code, reason)
            )
        return self._report(Act("keep", 0, code, reason))

    async def _start(self, place: int) -> bool:
        self._started[place] = self._monotonic()
        return await self.launcher.start(place)

    async def _each(
        self, items: Sequence[T], do: Callable[[T], Awaitable[bool | None]], may_act: Callable[[], bool]
    ) -> int:
        """Do something with each as long as that is allowed; return with how many it was done."""
        count = 0
        for each in items:
            if not may_act():
                log.warning("the right to decide for %s has run out; the rest is left", self.spec.runtime)
                break
            count += await do(each) is not False
        return count

    def _report(self, act: Act) -> list[Act]:
        """Return what is worth a report: every change, and why nothing is changed, once for each cause."""
        key = (act.action, act.code)
        is_new = act.workers > 0 or key != self._last
        self._last = key
        if act.workers:
            log.info("%s: %s %d: %s", self.spec.runtime, act.action, act.workers, act.reason)
        return [act] if is_new else []


def _count_busy(worker: LaunchedWorker, busy: Mapping[str, int]) -> int:
    """Sum what runs in a worker; its id begins with the name of its place."""
    return sum(count for id_, count in busy.items() if id_.startswith(f"{worker.name}-"))
