"""Backfills: partitions that are built again, a few at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from qo.api.contract.body import Answer, Body

AT_ONCE_MAX = 10_000


class BackfillRequest(Body):
    """Rebuild what a job made from the partitions of its input between two keys, both included."""

    dag: str = Field(min_length=1, max_length=200)
    job: str = Field(min_length=1, max_length=200)
    from_key: str | None = Field(default=None, min_length=1, max_length=200)  # Unset: from the first key.
    to_key: str | None = Field(default=None, min_length=1, max_length=200)  # Unset: to the last key.
    at_once: int = Field(default=4, ge=1, le=AT_ONCE_MAX)  # How many of its tasks are open at a time.
    key: str | None = Field(default=None, min_length=1, max_length=200)  # The same key again is the same backfill.


class BackfillAnswer(Answer):
    id: str
    dag: str
    job: str
    from_key: str | None = None
    to_key: str | None = None
    at_once: int
    state: Literal["running", "paused", "done", "cancelled"]
    live: bool  # False: no live version has this edition of the job. The backfill waits until one has it again.
    after_key: str | None = None  # The last key for which tasks were created.
    made: int  # Tasks created so far.
    left: int  # Known partitions that have no task yet; counted up to a bound.
    tasks: dict[str, int] = {}  # Tasks created so far, by status.
    missing: list[str] = []  # The first keys between the bounds that the input has not committed.
    created_at: datetime
    created_by: str
    ended_at: datetime | None = None


class BackfillsPage(Answer):
    backfills: list[BackfillAnswer]  # Newest first.
    next: str | None = None  # Pass it as ``after`` for the following page.
