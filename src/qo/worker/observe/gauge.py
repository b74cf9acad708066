"""How a worker looks from outside: read by the status server's threads, so nothing here waits or changes anything but
counts of requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qo.store.metered import Metered
from qo.worker.config import WorkerConfig
from qo.worker.loop.admission import Admission
from qo.worker.loop.attempts import Runner
from qo.worker.loop.control import Control
from qo.worker.loop.hold import Holds, Phase
from qo.worker.loop.keeper import Keeper
from qo.worker.loop.loop_lag import Pulse
from qo.worker.loop.state import State
from qo.worker.observe.stats import Stats, StatsSnapshot, snapshot

if TYPE_CHECKING:
    from qo.worker.observe.status import Health


class Gauge:
    def __init__(
        self,
        config: WorkerConfig,
        stats: Stats,
        *,
        held: Holds,
        runner: Runner,
        admission: Admission,
        control: Control,
        keeper: Keeper,
        pulse: Pulse,
        time: Callable[[], float],
        state: Callable[[], State],
        shards: Callable[[], tuple[str, ...]],
        meters: Callable[[], list[Metered]],
    ) -> None:
        self._config = config
        self._stats = stats
        self._held = held
        self._runner = runner
        self._admission = admission
        self._control = control
        self._keeper = keeper
        self._pulse = pulse
        self._time = time
        self._state = state
        self._shards = shards
        self._meters = meters
        self._begun = time()

    def snapshot(self) -> StatsSnapshot:
        self.count_requests()
        at, held = self._time(), list(self._held)
        return snapshot(
            self._stats,
            worker_id=self._config.worker_id,
            state=self._state(),
            uptime_s=at - self._begun,
            slots=self._config.concurrency,
            busy=sum(hold.phase is Phase.RUNNING for hold in held),
            waiting=sum(hold.phase is Phase.WAITING for hold in held),
            settling=sum(hold.phase is Phase.SETTLING for hold in held),
            stuck=self._runner.stuck,
            oldest_held_s=max((at - hold.claimed_at for hold in held), default=None),
            kinds=self._admission.held(),
            paused_types=sorted(self._control.paused_types),
            shards=list(self._shards()),
        )

    def health(self) -> Health:
        from qo.worker.observe.status import Health

        at, state = self._time(), self._state()
        return Health(
            state=state,
            loop_beat_s=at - self._pulse.beat,
            keeper_beat_s=0.0 if self._keeper.beat is None else at - self._keeper.beat,
            all_stuck=self._runner.stuck >= self._config.concurrency,
        )

    def count_requests(self) -> None:
        usage = [meter.snapshot() for meter in self._meters()]
        # Several threads count, and a counter must never seem to run backwards.
        self._stats.requests = max(self._stats.requests, sum(each.requests for each in usage))
        self._stats.dollars = max(self._stats.dollars, sum(each.dollars() for each in usage))
