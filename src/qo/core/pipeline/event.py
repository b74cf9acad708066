"""Events: a dataset has something new. An event is a wake-up, not data; it may come twice, late or out of order."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from qo.core.pipeline.plan import derive_id
from qo.core.struct_preload import preload
from qo.errors import UsageError

NUMBER_MAX = 2**63 - 1  # Cursors and ranges are kept in 64-bit columns.
PARTITION_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=:+-]{0,199}\Z")
ATTRIBUTES_BYTES_MAX = 8192


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something new in one generation of a dataset: a ``cursor``, or a ``partition_key`` with an optional range.

    A range ``[start, end)`` is half-open, so ranges that follow each other share a number and no row.
    """

    dataset_id: str
    generation_id: str
    cursor: int | None = None
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    attributes: dict[str, Any] = {}  # Further information from a source, passed to the operator.

    @property
    def scope(self) -> str:
        """The part of the generation that it announces. Two events of one scope announce the same."""
        return f"cursor:{self.cursor}" if self.cursor is not None else f"partition:{self.partition_key}"


preload(Event)


def validate(event: Event) -> Event:
    """Return the event. Raises UsageError that names the field to fix."""
    if (event.cursor is None) == (event.partition_key is None):
        raise UsageError("an event has either a cursor or a partition_key: give exactly one of them")
    if event.cursor is not None:
        if event.start is not None or event.end is not None:
            raise UsageError("start and end belong to partition events: leave them out beside a cursor")
        _check_number("cursor", event.cursor)
    elif not PARTITION_KEY.match(event.partition_key or ""):
        raise UsageError(
            f"{(event.partition_key or '')[:80]!r} is not a partition key: "
            "it has 1 to 200 letters, digits and . _ = : + -"
        )
    if (event.start is None) != (event.end is None):
        raise UsageError("a range needs both ends: give start and end, or neither")
    if event.start is not None and event.end is not None:
        _check_number("start", event.start)
        _check_number("end", event.end)
        if event.end <= event.start:
            raise UsageError(f"the range [{event.start}, {event.end}) is empty: end must be greater than start")
    if len(msgspec.json.encode(event.attributes)) > ATTRIBUTES_BYTES_MAX:
        raise UsageError(f"attributes are larger than {ATTRIBUTES_BYTES_MAX} bytes: put the data in the bucket")
    return event


def _check_number(name: str, value: int) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise UsageError(f"{name} must be between 0 and {NUMBER_MAX}, not {value}")


def event_id(producer: str, event: Event) -> str:
    """Return the id of an event. A producer that repeats an event, because it got no answer, repeats the id.

    ``producer`` names the run: task and attempt, or a source and its idempotency key.
    """
    return derive_id("event", producer, event.dataset_id, event.generation_id, event.scope)
