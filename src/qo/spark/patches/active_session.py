"""``SparkSession.getActiveSession()`` in an operator returns the session of its attempt.

PySpark's own returns the worker's first session, which has none of the attempt's views and settings. It also asks the
JVM whether there is an active session, and PySpark calls it for every method of a column, to record where that was
called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_thread = threading.local()
_originals: list[Callable[[], SparkSession | None]] = []  # PySpark's own, for threads that run no attempt.


def install_active_session() -> None:
    """Make ``getActiveSession`` look at ``session_of_thread`` first. Calling it twice changes nothing."""
    if not _originals:
        _originals.append(SparkSession.getActiveSession)
        SparkSession.getActiveSession = classmethod(_active_session)  # type: ignore[method-assign,assignment]


@contextmanager
def session_of_thread(session: SparkSession) -> Generator[None]:
    """Within the block, this is the active session of the calling thread, if the patch is installed."""
    before = _session_of_thread()
    _thread.session = session
    try:
        yield
    finally:
        _thread.session = before


def _active_session(_: type[SparkSession]) -> SparkSession | None:
    return _session_of_thread() or _originals[0]()


def _session_of_thread() -> SparkSession | None:
    return getattr(_thread, "session", None)
