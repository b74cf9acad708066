"""The engine that runs Spark jobs: a context in the worker, or clients of a server. Operators see no difference."""

from __future__ import annotations

import logging
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from qo.config.spark import SparkSettings
from qo.errors import Unavailable
from qo.spark.engine.cluster_watch import Observation
from qo.spark.engine.endpoint import Reach

_SPACE = uuid.UUID("8a4d1c7e-94a5-5d6f-9a55-1c4a9ad1f2c7")  # The name space of session ids.


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one task, which identifies its session and Spark jobs."""

    task_id: str
    number: int

    @property
    def tag(self) -> str:
        return f"qo-{self.task_id}-{self.number}"

    @property
    def session_id(self) -> str:
        """Follows from the attempt, so that a later one can shut it out."""
        return str(uuid.uuid5(_SPACE, self.tag))

    @property
    def earlier(self) -> list[Attempt]:
        return [Attempt(self.task_id, number) for number in range(1, self.number)]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an attempt's Spark jobs. Stages appear one by one, so there is no overall percentage."""

    stages_done: int = 0
    stages: int = 0
    tasks_done: int = 0
    tasks: int = 0
    active: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a session."""

    why: str | None  # None: not known.
    by_cluster: bool = False  # The cluster ended the session, or is gone: no attempt is the cause.


class ClusterAway(Unavailable):
    """There can be no session now: the cluster or server does not answer."""


class Engine(Protocol):
    def start(self) -> None:
        """Get ready for sessions; blocking. Does nothing if started. Raises ClusterAway."""
        ...

    def session(self, attempt: Attempt, *, lasting: bool = False) -> AbstractContextManager[SparkSession]:
        """Open a session for the calling thread, whose Spark jobs belong to the attempt. Starts the engine if needed.

        ``lasting``: the session of a stream, which does not keep cached frames of other attempts alive.
        """
        ...

    def stop(self, attempt: Attempt) -> None:
        """End the Spark jobs of exactly this attempt, from any thread. Calling it twice changes nothing."""
        ...

    def progress(self, attempt: Attempt) -> Progress | None: ...

    def alive(self) -> bool:
        """Whether the engine runs. If not, its sessions are lost, and ``start`` starts another."""
        ...

    def loss(self, attempt: Attempt) -> Loss | None:
        """Return how the attempt lost its session, even if the engine has another by now; None if it has not."""
        ...

    @property
    def has_cluster(self) -> bool:
        """Whether it depends on a cluster or server that can be lost while this process runs."""
        ...

    @property
    def cluster_name(self) -> str:
        """The name of the cluster for people, without secrets."""
        ...

    @property
    def scales_to_zero(self) -> bool:
        """Whether an idle application gives all of its executors back."""
        ...

    def observe(self) -> Observation | None:
        """Return the state of the session and its cluster; blocking. None: there is no session yet."""
        ...

    def reach(self) -> Reach:
        """Return whether the cluster or server answers; blocking, and cheap."""
        ...

    def abandon(self) -> None:
        """Give up the session within seconds, whatever state it is in; blocking. ``start`` starts another."""
        ...

    def ui(self) -> str | None:
        """Return the address of Spark's own interface, once started; None: it is not served, or not known."""
        ...

    def close(self) -> None: ...


# These log every error that PySpark raises, with pages of Java. Our caller reports it once, and shorter.
_NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def open_engine(settings: SparkSettings) -> Engine:
    """Return the engine that the settings name. It is not started yet."""
    for name in _NOISY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.WARNING)  # It logs every connection that it closes.
    if settings.remote is not None:
        from qo.spark.engine.connect import ConnectEngine

        return ConnectEngine(settings)
    from qo.spark.engine.classic import ClassicEngine

    return ClassicEngine(settings)
