"""Late completions: an attempt whose lease lapsed, and that finished after all.

A task whose lease has lapsed waits for its next attempt. Until that begins, nothing else runs in its place, so the
result of the old attempt is as good as that of the next one, and saves it.
"""

from __future__ import annotations

from msgspec.structs import replace

from qo.core.task import Status, Task


def reopen(task: Task, late_lease_id: str | None, lease_id: str, attempt: int) -> Task | None:
    """Return the task as it was while the late attempt held it, or None if it no longer counts."""
    if late_lease_id is None or late_lease_id != lease_id or task.attempt != attempt:
        return None
    if task.status not in (Status.PENDING, Status.FAILED):
        return None
    return replace(
        task, status=Status.RUNNING, lease_id=lease_id, lease_expires_at=task.updated_at, completed_at=None
    )
