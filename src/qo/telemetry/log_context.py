"""The worker and the task that a log line is about, added to every line that is logged on their behalf.

The fields follow the context: of an asyncio task, and of a thread that was started with a copy of it. So libraries that
a handler calls need not know about them.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

_worker_id: ContextVar[str | None] = ContextVar("qo_worker_id", default=None)
_task_id: ContextVar[str | None] = ContextVar("qo_task_id", default=None)

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def set_worker(worker_id: str) -> None:
    """From here on, lines that this context logs are about a worker."""
    _worker_id.set(worker_id)


def set_task(task_id: str) -> None:
    """From here on, lines that this context logs are about a task."""
    _task_id.set(task_id)


def clear_task() -> None:
    """From here on, lines that this context logs are about no task."""
    _task_id.set(None)


class LogContext(logging.Filter):
    """Gives every record the fields ``worker_id`` and ``task_id``, None where there is none. Add it to handlers."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in (("worker_id", _worker_id.get()), ("task_id", _task_id.get())):
            if getattr(record, name, None) is None:  # A line may name its own.
                setattr(record, name, value)
        return True


def install_handler(level: str) -> None:
    """Log to standard error, as ``logging.basicConfig`` does: nothing happens if the root logger has a handler."""
    handler = logging.StreamHandler()
    handler.addFilter(LogContext())
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler], level=level)


class LogFormatter(logging.Formatter):
    """Puts worker and task in front of the message, unless the message names them itself."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of the standard library.
        ids = (getattr(record, name, None) for name in ("worker_id", "task_id"))
        missing = [each for each in ids if each and each not in record.message]
        if missing:
            record.message = f"[{' '.join(missing)}] {record.message}"
        return super().formatMessage(record)
