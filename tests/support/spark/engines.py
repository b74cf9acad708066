"""An engine without Spark, whose cluster does as a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyspark.sql import SparkSession

from qo.spark.engine.cluster_watch import Observation
from qo.spark.engine.endpoint import Reach
from qo.spark.engine.engine import Attempt, ClusterAway, Loss, Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeEngine:
    """A session is an event that is set when the attempt's Spark jobs are cancelled."""

    clock: Callable[[], float] = time.monotonic
    seen: Observation = field(default_factory=lambda: Observation(0.0, Reach.OPEN, 1))
    has_cluster: bool = True
    scales_to_zero: bool = False
    cluster_name: str = "spark://test:7077"
    started: int = 0
    abandoned: int = 0
    stopped: dict[str, threading.Event] = field(default_factory=dict[str, threading.Event])

    def start(self) -> None:
        if self.seen.endpoint is not Reach.OPEN:
            raise ClusterAway(f"the Spark master at {self.cluster_name} does not answer")
        self.started += 1

    @contextmanager
    def session(self, attempt: Attempt, *, lasting: bool = False) -> Generator[SparkSession]:
        self.start()
        self.stopped[attempt.tag] = threading.Event()
        yield cast(SparkSession, cast(Any, self.stopped[attempt.tag]))

    def stop(self, attempt: Attempt) -> None:
        if attempt.tag in self.stopped:
            self.stopped[attempt.tag].set()

    def progress(self, attempt: Attempt) -> Progress | None: ...

    def alive(self) -> bool:
        return True

    def loss(self, attempt: Attempt) -> Loss | None: ...

    def observe(self) -> Observation | None:
        return replace(self.seen, at=self.clock())

    def reach(self) -> Reach:
        return self.seen.endpoint

    def abandon(self) -> None:
        self.abandoned += 1

    def ui(self) -> str | None: ...

    def close(self) -> None: ...


BEGUN: list[str] = []  # By operators that are at work.


def waits_for_spark(spark: Any, run: Any) -> None:
    """An operator whose Spark jobs end only when they are cancelled."""
    BEGUN.append(run.work.task_id)
    assert spark.wait(60)
    raise RuntimeError("its jobs were cancelled")


def ignores_spark(spark: Any, run: Any) -> None:
    """One that hears of nothing."""
    BEGUN.append(run.work.task_id)
    assert not run.cancel.wait(60)
