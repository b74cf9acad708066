"""A worker as seen from outside. The status server's threads read it, so nothing here waits, and only the count of
requests is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qo.store.metered import Metered
from qo.worker.config import WorkerConfig
from qo.worker.loop.admission import Admission
from qo.worker.loop.attempts import Attempts
from qo.worker.loop.control import Control
from qo.worker.loop.hold import Holds, Phase
from qo.worker.loop.keeper import Keeper
from qo.worker.loop.loop_lag import LoopLag
from qo.worker.loop.state import Lifecycle
from qo.worker.observe.stats import Stats, StatsSnapshot, snapshot
from qo.worker.ports import ShardScope

if TYPE_CHECKING:
    from qo.worker.observe.status import Health


class Gauge:
    def __init__(
        self,
        config: WorkerConfig,
        stats: Stats,
        *,
        holds: Holds,
        attempts: Attempts,
        admission: Admission,
        control: Control,
        keeper: Keeper,
        loop_lag: LoopLag,
        lifecycle: Lifecycle,
        scope: ShardScope,
        time: Callable[[], float],
        meters: Callable[[], list[Metered]],
    ) -> None:
        self._config = config
        self._stats = stats
        self._holds = holds
        self._attempts = attempts
        self._admission = admission
        self._control = control
        self._keeper = keeper
        self._loop_lag = loop_lag
        self._lifecycle = lifecycle
        self._scope = scope
        self._time = time
        self._meters = meters
        self._started_at = time()

    def snapshot(self) -> StatsSnapshot:
        self.count_requests()
        at, holds = self._time(), list(self._holds)
        return snapshot(
            self._stats,
            worker_id=self._config.worker_id,
            state=self._lifecycle.state,
            uptime_s=at - self._started_at,
            slots=self._config.concurrency,
            busy=sum(hold.phase is Phase.RUNNING for hold in holds),
            waiting=sum(hold.phase is Phase.WAITING for hold in holds),
            settling=sum(hold.phase is Phase.SETTLING for hold in holds),
            stuck=self._attempts.stuck_slots,
            oldest_held_s=max((at - hold.claimed_at for hold in holds), default=None),
            kinds=self._admission.held_by_kind(),
            paused_types=sorted(self._control.paused_types),
            shards=list(self._scope.owned),
        )

    def health(self) -> Health:
        from qo.worker.observe.status import Health

        at = self._time()
        return Health(
            state=self._lifecycle.state,
            loop_beat_s=at - self._loop_lag.last_beat,
            keeper_beat_s=0.0 if self._keeper.last_beat is None else at - self._keeper.last_beat,
            all_stuck=self._attempts.stuck_slots >= self._config.concurrency,
        )

    def count_requests(self) -> None:
        usage = [meter.snapshot() for meter in self._meters()]
        # Several threads count, and a counter must never seem to run backwards.
        self._stats.requests = max(self._stats.requests, sum(meter.requests for meter in usage))
        self._stats.dollars = max(self._stats.dollars, sum(meter.dollars() for meter in usage))
