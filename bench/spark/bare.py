"""The sides without an orchestrator: a script with one Spark session and a pool of threads, asked by ``talking``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from bench.spark import flights, sessions, work
from bench.spark.talking import serve

T = TypeVar("T")


class Script:
    """Threads of one process, each with a view of its own on the one session."""

    def open(self, conf: dict[str, str], environment: dict[str, str], threads: int) -> None:
        self._spark = sessions.opened(conf, environment)
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(threads)
        self._demo: flights.Demo | None = None

    def small(self, sources: Sequence[str], target: str) -> dict[str, Any]:
        """The trivial work, a task for each file."""
        return self._timed(
            lambda source: work.done(self._session, source, f"{target}/{Path(source).stem}"), sources
        )

    def demo(self, definition: dict[str, Any], landing: str, target: str) -> None:
        """Get ready for the work of the demo: its reference tables are made."""
        self._demo = flights.Demo(flights.Definition(**definition), landing, target)
        self._demo.reference(self._session)

    def days(self, days: Sequence[str], months: Sequence[str]) -> dict[str, Any]:
        """Each day through all its steps, then each month through its own."""
        demo = self._demo
        assert demo is not None
        first = self._timed(lambda day: demo.day(self._session, day), days)
        then = self._timed(lambda month: demo.month(self._session, month), months)
        return {"seconds": first["seconds"] + then["seconds"], "days_s": first["seconds"]}

    @property
    def _session(self) -> SparkSession:
        # Temporary views have names, and several threads use the same ones.
        if not hasattr(self._local, "spark"):
            self._local.spark = self._spark.newSession()
        return self._local.spark

    def _timed(self, do: Callable[[T], object], each: Iterable[T]) -> dict[str, Any]:
        began = time.perf_counter()
        list(self._pool.map(do, each))
        return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    script = Script()
    serve(open=script.open, small=script.small, demo=script.demo, days=script.days)
