"""The session that an operator gets when it asks PySpark for the active one: that of its attempt.

PySpark itself knows one for the whole process, the worker's first, which has none of the attempt's views and settings.
And it asks the JVM whether there is one, which it does for every method of a column: to say where it was called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_here = threading.local()
_asked: list[Callable[[], SparkSession | None]] = []  # PySpark's own way, for threads that are not an attempt's.


@contextmanager
def active(session: SparkSession) -> Generator[None]:
    """On this thread, until it ends."""
    if not _asked:
        _asked.append(SparkSession.getActiveSession)
        SparkSession.getActiveSession = classmethod(_active)  # type: ignore[method-assign,assignment]
    before = _of_thread()
    _here.session = session
    try:
        yield
    finally:
        _here.session = before


def _active(_: type[SparkSession]) -> SparkSession | None:
    return _of_thread() or _asked[0]()


def _of_thread() -> SparkSession | None:
    return getattr(_here, "session", None)
