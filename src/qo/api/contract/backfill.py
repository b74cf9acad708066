"""Backfills: partitions that are made once more, a few at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from qo.api.contract.body import Answer, Body

AT_ONCE_MAX = 10_000


class BackfillRequest(Body):
    """Of a job, everything that it has made of the partitions of its input from one key to another, both included."""

    dag: str = Field(min_length=1, max_length=200)
    job: str = Field(min_length=1, max_length=200)
    from_key: str | None = Field(default=None, min_length=1, max_length=200)  # Unset: from the first one on.
    to_key: str | None = Field(default=None, min_length=1, max_length=200)  # Unset: up to the last.
    at_once: int = Field(default=4, ge=1, le=AT_ONCE_MAX)  # So many tasks of it are open at a time.
    key: str | None = Field(default=None, min_length=1, max_length=200)  # The same key again is the same backfill.


class BackfillAnswer(Answer):
    id: str
    dag: str
    job: str
    from_key: str | None = None
    to_key: str | None = None
    at_once: int
    state: Literal["running", "paused", "done", "cancelled"]
    live: bool  # False: no live version has the job as it was. It waits, in case one does again.
    after_key: str | None = None  # How far tasks have been made.
    made: int  # So many tasks.
    left: int  # So many partitions have none yet, as far as is known now; counted up to a bound.
    tasks: dict[str, int] = {}  # Those made, by status.
    missing: list[str] = []  # Within the bounds, and not committed in the input; the first ones.
    created_at: datetime
    created_by: str
    ended_at: datetime | None = None


class BackfillsPage(Answer):
    backfills: list[BackfillAnswer]  # Newest first.
    next: str | None = None  # Pass it as ``after`` for the following page.
