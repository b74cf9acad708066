"""Sources, between the dispatcher and who speaks for them: people, the scheduler, watchers, webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from qo.api.contract.body import Answer, Body
from qo.api.contract.task import EventBody

KEY_MAX = 200
EVENTS_MAX = 1000
ERROR_MAX = 1000


class EmitRequest(Body):
    """What a source has to say. The same key again, with the same events, is answered as before and does nothing."""

    idempotency_key: str = Field(min_length=1, max_length=KEY_MAX)
    events: list[EventBody] = Field(min_length=1, max_length=EVENTS_MAX)
    edition_id: str | None = Field(default=None, max_length=36)  # Only for this edition; unset: for all live ones.


class EmitAnswer(Answer):
    task_ids: list[str]  # One for each live edition of the source: the record of this emission.
    event_ids: list[str]
    accepted: int
    repeated: bool = False  # The key was known: this is the answer that was given then.
    paused: bool = False  # The events are kept, but nothing runs for them until the source is resumed.


class LiveSource(Answer):
    """A source of a live version, and how it is."""

    edition_id: str
    logical_id: str
    dag: str
    job: str
    version: int
    active: bool  # False: of a version that is still being rebuilt.
    kind: str
    config: dict[str, Any] = {}  # Of its ``source``: schedule, timezone, path, pattern, poll_seconds.
    paused: str | None = None  # Why, if it is.
    state: str = "running"
    restarts: int = 0
    start_after: datetime | None = None
    heard_at: datetime | None = None
    last_error: str | None = None
    task_id: str | None = None
    memory: Any = None  # What whoever speaks for it wanted to be reminded of.


class SourcesAnswer(Answer):
    now: datetime  # By the database's clock: schedulers go by it, never by their own.
    sources: list[LiveSource]
    next: str | None = None  # Ask again with ``after``: there are more.


class MemoryRequest(Body):
    memory: Any = None
    # What keeps it from speaking; memory then stays.
    error: str | None = Field(default=None, max_length=ERROR_MAX)
