"""Print tasks: as a record, as rows, and as the documents of --json."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from qo.cli.invocation import Session
from qo.core.durations import format_duration, format_instant, parse_duration_s
from qo.core.sealed import describe_sealed
from qo.core.task import Status, Task
from qo.core.waits import flow_of
from qo.errors import TaskFailed
from qo.queue.queue import Queue

VALUE_CHARS_MAX = 2000
NO_HANDLER = ", no handler"


async def wait_until_ended(queue: Queue, task_id: str, timeout_s: float | None) -> Task:
    """Wait until the task has ended, and return it with its payloads. Raises TaskFailed if that takes too long."""
    try:
        return await queue.payloads.fetch_values(await queue.wait(task_id, timeout_s))
    except TimeoutError:
        task = await queue.get(task_id)
        raise TaskFailed(
            f"task {task_id} is still {task.status} after {format_duration(timeout_s or 0)}"
        ) from None


def parse_wait_s(text: str | None, flag: str) -> float | None:
    return None if text is None else parse_duration_s(text, flag)


def show_ended(session: Session, task: Task) -> int:
    """Print a task that has ended and return the exit code: 0 only if it completed."""
    show(session, task)
    return 0 if was_completed(task) else TaskFailed.exit_code


def was_completed(task: Task) -> bool:
    return (task.archived_from if task.status is Status.ARCHIVED else task.status) is Status.COMPLETED


def show(session: Session, task: Task) -> None:
    if session.json:
        session.output.document(task)
    else:
        session.output.record(record(task))


def record(task: Task) -> dict[str, str]:
    """Return the lines that describe a task to people, by name; empty ones are not printed."""
    pending, running = task.status is Status.PENDING, task.status is Status.RUNNING
    return {
        "id": task.id,
        "type": task.task_type,
        "status": str(task.status),
        "shard": task.shard,
        "priority": str(task.priority or ""),
        "attempt": str(task.attempt or ""),
        "retries": f"{task.retry_count} of {task.max_retries}" if task.retry_count else "",
        "created": format_instant(task.created_at),
        "updated": format_instant(task.updated_at),
        "due": format_instant(task.available_at) if pending else "",
        "expires": format_instant(task.expires_at) if pending else "",
        "ended": format_instant(task.completed_at),
        "worker": task.worker_id or "",
        "lease until": format_instant(task.lease_expires_at) if running else "",
        "group": flow_of(task).group or "",
        "depends on": ", ".join(flow_of(task).depends_on),
        "waits for": ", ".join(flow_of(task).waits_for) if pending else "",
        "dependents": ", ".join(flow_of(task).dependents),
        "key": task.idempotency_key or "",
        "schedule": task.schedule or "",
        "on failure": task.on_failure or "",
        "cancel": _describe_cancellation(task),
        "progress": _value(task.progress),
        "input": _value(task.input),
        "output": _value(task.output),
        "error": _text(task.last_error),
        "traceback": _text(task.traceback).rstrip(),
    }


def _describe_cancellation(task: Task) -> str:
    if not task.cancel_requested:
        return ""
    details = [f"by {task.cancelled_by}" if task.cancelled_by else "", task.cancel_reason or ""]
    return "requested" + "".join(f", {part}" for part in details if part)


def _text(text: str | None) -> str:
    return describe_sealed(text) or text or ""


def _value(value: Any) -> str:
    if value is None:
        return ""
    if (marker := describe_sealed(value)) is not None:
        return marker
    text = msgspec.json.encode(value).decode()
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}… ({len(text):,} characters; --json shows all)"


def show_list(session: Session, tasks: Sequence[Task], orphans: Collection[str] = ()) -> None:
    """Print tasks as rows. ``orphans`` are types that no running worker has a handler for."""
    headers = ("id", "status", "type", "attempt", "updated", "worker")
    rows = [
        (
            task.id,
            _describe_status(task, orphans),
            task.task_type,
            str(task.attempt),
            format_instant(task.updated_at),
            task.worker_id or "",
        )
        for task in tasks
    ]
    session.output.table(headers, rows)


def _describe_status(task: Task, orphans: Collection[str]) -> str:
    if task.waiting:
        return "pending (waits)"
    return f"{task.status}{NO_HANDLER}" if _is_orphan(task, orphans) else str(task.status)


def _is_orphan(task: Task, orphans: Collection[str]) -> bool:
    return task.status is Status.PENDING and task.task_type in orphans


def show_history(session: Session, states: Sequence[Task]) -> None:
    headers = ("when", "status", "attempt", "worker", "note")
    rows = [
        (
            format_instant(state.updated_at),
            str(state.status),
            str(state.attempt),
            state.worker_id or "",
            _text(state.last_error) or _describe_cancellation(state),
        )
        for state in states
    ]
    session.output.table(headers, rows)
