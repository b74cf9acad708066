"""Which records of pipelines are history that nothing depends on any more.

A record is purged only if no later decision could be another one without it. So a task stays as long as current
data come from it, as long as it could be created again, and as long as it is the last that did its work. An event
stays as long as it is the last word about its partition, or has started a task that stays. What a person loses is
the account of work that was replaced long ago.

A generation that was given up is used by no version again (``collected_at``): then the tasks that made it can all go.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class KeepReason(StrEnum):
    """Why a record is kept, for people."""

    OPEN = "it has not ended, or somebody waits for it"
    YOUNG = "it is not old enough"
    DATA = "what it made is current"
    ACCOUNT = "it belongs to the account of something that is kept"
    EFFECTS = "its job has no outputs, and its effects must not be repeated"
    RECURRING = "it would be created again"
    LAST = "it is the last about its partition or cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Up to when records may be purged; None: they are kept for ever."""

    history: datetime | None = None
    versions: datetime | None = None  # Versions that ended before it are given up.


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTask:
    ended_at: datetime | None  # None: it has not ended.
    is_late: bool = False  # Its last attempt timed out and may still finish.
    is_withheld: bool = False  # It was cancelled with its version, or for another edition, and may be revived.
    is_given_up: bool = False  # Its data were given up.
    has_outputs: bool = True  # Its job has.
    announces: bool = False  # An event of it is kept.
    holds_data: bool = False  # A commit of it is current; of data that were given up: others share its files.
    can_recur: bool = False  # Something that is not over could create it once more.
    needs_successor: bool = True  # Others look up what was read or failed last; an emission reads nothing.
    is_succeeded: bool = False  # A later task has completed the same work.


def reason_to_keep_task(task: PastTask, before: datetime | None) -> KeepReason | None:
    """Return why a task is kept; None if it may be purged. ``before``: None keeps all whose data were not given up."""
    if task.ended_at is None or task.is_late:
        return KeepReason.OPEN
    if task.holds_data:
        return KeepReason.DATA
    if task.announces:
        return KeepReason.ACCOUNT
    if task.is_given_up:
        return None
    if not task.has_outputs:
        return KeepReason.EFFECTS
    if task.can_recur or task.is_withheld:
        return KeepReason.RECURRING
    if before is None or task.ended_at >= before:
        return KeepReason.YOUNG
    return KeepReason.LAST if task.needs_successor and not task.is_succeeded else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    received_at: datetime
    is_open: bool  # Not routed, or one of its readers still waits for others.
    is_last: bool  # Of its partition, or of its generation's cursors; or the last of them with attributes.
    starts_kept_task: bool
    is_given_up: bool = False  # Its generation was given up.


def reason_to_keep_event(event: PastEvent, before: datetime | None) -> KeepReason | None:
    """Return why an event and its deliveries are kept; None if they may be purged."""
    if event.is_open:
        return KeepReason.OPEN
    if event.starts_kept_task:
        return KeepReason.ACCOUNT
    if event.is_given_up:
        return None
    if before is None or event.received_at >= before:
        return KeepReason.YOUNG
    return KeepReason.LAST if event.is_last else None
