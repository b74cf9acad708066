"""Late replies: an attempt that was given up, and then finished after all.

A lease that runs out makes the task wait for its next attempt. Until that begins nothing else was started in its
place, so what the old attempt made is as good as what the next one would make, and saves it.
"""

from __future__ import annotations

from msgspec.structs import replace

from qo.core.task import Status, Task


def reopen(task: Task, late_lease_id: str | None, lease_id: str, attempt: int) -> Task | None:
    """The task as it was while the late attempt held it, to be completed; None: that attempt has no say any more."""
    if late_lease_id is None or late_lease_id != lease_id or task.attempt != attempt:
        return None
    if task.status not in (Status.PENDING, Status.FAILED):
        return None
    return replace(
        task, status=Status.RUNNING, lease_id=lease_id, lease_expires_at=task.updated_at, completed_at=None
    )
