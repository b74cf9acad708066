"""What runs Spark jobs: a session of the worker's own, or clients of a server. Operators see no difference."""

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
    """One attempt at one task: what its Spark jobs are known by."""

    task_id: str
    number: int

    @property
    def tag(self) -> str:
        return f"qo-{self.task_id}-{self.number}"

    @property
    def session_id(self) -> str:
        """The same for everyone who knows the attempt, so that a later one can shut it out."""
        return str(uuid.uuid5(_SPACE, self.tag))

    @property
    def earlier(self) -> list[Attempt]:
        return [Attempt(self.task_id, number) for number in range(1, self.number)]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the Spark jobs of an attempt are. Stages come to light one by one, so there is no whole percentage."""

    stages_done: int = 0
    stages: int = 0
    tasks_done: int = 0
    tasks: int = 0
    active: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """Of a session."""

    why: str | None  # None: nobody knows.
    by_cluster: bool = False  # The cluster has ended it, or is gone: no attempt is to blame.


class ClusterAway(Unavailable):
    """There can be no session now: what it would run on does not answer."""


class Engine(Protocol):
    def start(self) -> None:
        """Be ready for sessions; blocking. Once started, it does nothing. Raises ClusterAway."""
        ...

    def session(self, attempt: Attempt, *, lasting: bool = False) -> AbstractContextManager[SparkSession]:
        """For the thread that enters it: what it runs there belongs to the attempt. Starts what is not there.
        ``lasting``: until further notice, as streams do; it has no part in what others have cached."""
        ...

    def stop(self, attempt: Attempt) -> None:
        """End the Spark jobs of exactly this attempt, from any thread. Saying so twice changes nothing."""
        ...

    def progress(self, attempt: Attempt) -> Progress | None: ...

    def alive(self) -> bool:
        """False: what ran in it is lost, and ``start`` makes another."""
        ...

    def loss(self, attempt: Attempt) -> Loss | None:
        """Whether the session of this attempt is gone, be there another by now or not."""
        ...

    @property
    def has_cluster(self) -> bool:
        """Whether it depends on something that can be lost while this process goes on."""
        ...

    @property
    def cluster_name(self) -> str:
        """For people; without secrets."""
        ...

    @property
    def scales_to_zero(self) -> bool:
        """Whether an idle application gives all of its executors back."""
        ...

    def observe(self) -> Observation | None:
        """How the cluster is to the session, at the moment; blocking. None: there is no session yet."""
        ...

    def reach(self) -> Reach:
        """Whether a session could be had; blocking, and cheap."""
        ...

    def abandon(self) -> None:
        """Give up the session, within seconds, whatever state it is in; blocking. ``start`` makes another."""
        ...

    def ui(self) -> str | None:
        """Where Spark's own interface is, once started; None: it is not served, or elsewhere."""
        ...

    def close(self) -> None: ...


# PySpark prints what it raises, with pages of Java. Who catches it says it once, and shorter.
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def open_engine(settings: SparkSettings) -> Engine:
    """As the settings say: a session of the worker's own, or clients of a server. Not started yet."""
    for name in _LOUD:
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("py4j").setLevel(logging.WARNING)  # It tells of every connection that it closes.
    if settings.remote is not None:
        from qo.spark.engine.connect import ConnectEngine

        return ConnectEngine(settings)
    from qo.spark.engine.classic import ClassicEngine

    return ClassicEngine(settings)
