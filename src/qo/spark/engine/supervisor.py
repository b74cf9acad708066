"""Supervises the session of a worker whose Spark runs on a cluster, in one thread.

When the cluster is lost, it gives the attempts back, ends the session, and starts another once the cluster answers
again. ``cluster_watch`` decides from the observations.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qo.spark.engine.cluster_watch import Cause, Healthy, Limits, Lost, Record, Waiting, judge
from qo.spark.engine.endpoint import Reach
from qo.spark.engine.engine import Attempt, ClusterAway, Engine
from qo.spark.engine.error_translation import short_text

log = logging.getLogger(__name__)

LOOK_S = 1.0
IDLE_LOOK_S = 5.0  # While there is no attempt: only to notice that the endpoint is away.
LEAVE_S = 3.0  # For attempts to leave a lost session: their Spark jobs are cancelled before it ends.
PROBE_MIN_S, PROBE_MAX_S = 0.5, 5.0  # Between two probes of a cluster that is away.
PATIENCE_MAX = 64

TEXTS = {
    Cause.DRIVER_DEAD: "the driver of its session has died",
    Cause.DRIVER_STOPPED: "the cluster has ended its application",
    Cause.ENDPOINT_GONE: "nobody listens there any more",
    Cause.ENDPOINT_SILENT: "it does not answer",
    Cause.ENDPOINT_RESTARTED: "it was away, and gives the application no executors since",
    Cause.NO_EXECUTORS: "the application has work and no executors",
}

GiveBack = Callable[[str], None]  # Called with the reason, on any thread.


@dataclass(frozen=True, slots=True)
class _Registered:
    give_back: GiveBack
    since: float


class Supervisor:
    """Call ``start`` once. For an engine without a cluster it does nothing."""

    def __init__(
        self,
        engine: Engine,
        lost_after_s: float,
        *,
        on_start: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_start`` is called after each new session, on the supervisor's thread."""
        self._engine = engine
        self._lost_after_s = lost_after_s
        self._on_start = on_start
        self._clock = clock
        self._attempts: dict[Attempt, _Registered] = {}
        self._record = Record()
        self._away: str | None = None
        self._waiting_since: float | None = None
        self._patience = 1
        self._probe_at, self._probe_s = 0.0, PROBE_MIN_S
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def hold_s(self) -> float:
        """How long an attempt may wait for the cluster before it is given back, perhaps to another worker."""
        return 2 * self._lost_after_s

    @property
    def away(self) -> str | None:
        """Why there can be no session now; None: there is one, or there can be."""
        return self._away

    @property
    def missing(self) -> str | None:
        """Why nothing can run now, for people; None: it can."""
        away, since = self._away, self._waiting_since
        if away is not None or since is None:
            return away
        return (
            f"waits for Spark executors: {self._engine.cluster_name} has given none for {self._clock() - since:.0f} s; "
            "see whether its workers run and have free cores and memory"
        )

    def start(self) -> None:
        if self._engine.has_cluster and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="qo-spark-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def register(self, attempt: Attempt, give_back: GiveBack) -> None:
        """Register an attempt: ``give_back`` is called when the cluster is lost, or does not come."""
        with self._changed:
            self._attempts[attempt] = _Registered(give_back, self._clock())
            self._changed.notify_all()

    def unregister(self, attempt: Attempt) -> None:
        with self._changed:
            self._attempts.pop(attempt, None)
            self._changed.notify_all()

    def mark_away(self, reason: str) -> None:
        """Record that the cluster does not answer, as an attempt to start a session has found out."""
        with self._changed:
            if self._away is None:
                self._away, self._waiting_since = reason, None
                self._probe_at, self._probe_s = self._clock() + PROBE_MIN_S, PROBE_MIN_S
                log.warning("%s: %s", self._engine.cluster_name, reason)
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._closed:
            looked_at = time.monotonic()
            try:
                self.look()
            except Exception:
                log.exception("the Spark cluster could not be observed")
            with self._changed:
                # Attempts come and go many times a second, which may change the length of the pause.
                while not self._closed and (left_s := looked_at + self._pause_s() - time.monotonic()) > 0:
                    self._changed.wait(left_s)

    def _pause_s(self) -> float:
        if self._away is not None:
            return PROBE_MIN_S
        return LOOK_S if self._attempts else IDLE_LOOK_S

    def look(self) -> None:
        """Observe the cluster once, and act on it."""
        if self._away is not None:
            self._try_to_start()
            return
        observation = self._engine.observe()
        if observation is None:
            return
        limits = Limits(self._lost_after_s, self._engine.scales_to_zero, self._patience)
        self._record, verdict = judge(self._record, observation, limits)
        if self._record.had_executors:
            self._patience = 1
        match verdict:
            case Healthy():
                self._waiting_since = None
            case Waiting(since):
                self._waiting_since = since
                if observation.executors is not None:
                    self._give_back_starved(since)
            case Lost(cause):
                self._lose(cause)

    def _give_back_starved(self, since: float) -> None:
        """Give back attempts that waited too long: other workers may have executors. The session keeps its place."""
        reason = self.missing or ""
        for each in self._registered().values():
            if self._clock() - max(since, each.since) >= self.hold_s:
                each.give_back(reason)

    def _lose(self, cause: Cause) -> None:
        reason = f"lost the Spark cluster {self._engine.cluster_name}: {TEXTS[cause]}"
        log.warning("%s; a new session starts when it is back", reason)
        if not self._record.had_executors:
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        with self._changed:
            self._away, self._waiting_since = reason, None
        if cause is not Cause.DRIVER_DEAD:  # Attempts notice that themselves, and one of them may be the cause.
            registered = self._registered()
            for each in registered.values():
                each.give_back(reason)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or not self._is_any_left(registered), LEAVE_S)
        self._engine.abandon()
        self._record = Record()
        self._probe_at, self._probe_s = 0.0, PROBE_MIN_S

    def _try_to_start(self) -> None:
        if self._closed or self._clock() < self._probe_at:
            return
        if self._engine.reach() in (Reach.OPEN, Reach.UNKNOWN):
            began = time.perf_counter()
            try:
                self._engine.start()
            except ClusterAway:
                pass
            except Exception as error:
                self._away = f"Spark does not start on {self._engine.cluster_name}: {short_text(error)}"
                log.warning("%s", self._away)
            else:
                log.info("Spark is ready again after %.1f s", time.perf_counter() - began)
                with self._changed:
                    self._record, self._away = Record(), None
                    self._changed.notify_all()
                self._on_start()
                return
        self._probe_at = self._clock() + self._probe_s
        self._probe_s = min(2 * self._probe_s, PROBE_MAX_S)

    def _is_any_left(self, earlier: Mapping[Attempt, _Registered]) -> bool:
        return any(self._attempts.get(attempt) is each for attempt, each in earlier.items())

    def _registered(self) -> dict[Attempt, _Registered]:
        with self._changed:
            return dict(self._attempts)
