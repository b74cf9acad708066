"""Sources, between the dispatcher and the callers that emit for them: people, the scheduler, watchers, webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from qo.api.contract.body import Answer, Body
from qo.api.contract.task import EventBody

KEY_MAX = 200
EVENTS_MAX = 1000
ERROR_MAX = 1000


class Coalesced(Body):
    """What a source folded into one announcement while it was held back."""

    count: int = Field(ge=2)  # So many announcements became this one.
    since: datetime | None = None  # When the first of them was due.


class EmitRequest(Body):
    """Emit events for a source. Repeating a key with the same events changes nothing and gets the same answer."""

    idempotency_key: str = Field(min_length=1, max_length=KEY_MAX)
    events: list[EventBody] = Field(min_length=1, max_length=EVENTS_MAX)
    edition_id: str | None = Field(default=None, max_length=36)  # Only for this edition; unset: for all live ones.
    coalesced: Coalesced | None = None  # Recorded with the emission, and no part of what the key stands for.


class EmitAnswer(Answer):
    task_ids: list[str]  # One for each live edition of the source: the record of this emission.
    event_ids: list[str]
    accepted: int
    repeated: bool = False  # The key was used before: this is the answer of that request.
    paused: bool = False  # The events are kept, but nothing runs for them until the source is resumed.


class LiveSource(Answer):
    """A source of a live version, and its state."""

    edition_id: str
    logical_id: str
    dag: str
    job: str
    version: int
    active: bool  # False: its version is still being rebuilt.
    kind: str
    config: dict[str, Any] = {}  # The options of its ``source``: schedule, timezone, path, pattern, poll_seconds.
    paused: str | None = None  # The reason, if it is paused.
    held: str | None = None  # The reason, if what it feeds is overfull and it should wait.
    backpressure_mode: str = "hold"
    state: str = "running"
    restarts: int = 0
    start_after: datetime | None = None
    heard_at: datetime | None = None
    last_error: str | None = None
    task_id: str | None = None
    memory: Any = None  # State that the source's caller stores between emissions.


class SourcesAnswer(Answer):
    now: datetime  # By the database's clock, which schedulers use instead of their own.
    sources: list[LiveSource]
    next: str | None = None  # Pass it as ``after`` for the following page.


class MemoryRequest(Body):
    memory: Any = None
    # Why the source cannot emit; its memory then stays unchanged.
    error: str | None = Field(default=None, max_length=ERROR_MAX)
