"""Ranges of numbers: splitting one into chunks, and closing them as a cursor advances.

All ranges are half-open: ``[start, end)`` does not contain ``end``, so neighbours share a number and no row.
"""

from __future__ import annotations

from dataclasses import dataclass

from qo.core.pipeline.event import NUMBER_MAX
from qo.errors import UsageError

RANGES_MAX = 2_000  # Of one task: they are committed in one transaction, which blocks others.


@dataclass(frozen=True, slots=True)
class Range:
    start: int
    end: int

    @property
    def partition_key(self) -> str:
        return f"{self.start}-{self.end}"


def split(start: int, end: int, chunk: int) -> list[Range]:
    """Split a range into chunks from its start; the last one may be shorter.

    Chunks are not aligned to multiples of ``chunk``: they depend on the range alone, every number of it is in exactly
    one of them, and none reaches outside. Raises UsageError for an empty range or too many chunks.
    """
    _check_size("chunk_size", chunk)
    if not 0 <= start < end <= NUMBER_MAX:
        raise UsageError(f"[{start}, {end}) is no range: it needs 0 <= start < end")
    _check_count("chunk_size", (end - start + chunk - 1) // chunk)
    return [Range(low, min(low + chunk, end)) for low in range(start, end, chunk)]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """How far ranges have been closed. ``size`` and ``start`` are the job's; ``end`` moves."""

    size: int
    start: int = 0
    end: int | None = None  # Everything in [start, end) is in a range that was closed. None: nothing is.


def aggregate(state: Aggregate, cursor: int) -> tuple[Aggregate, list[Range]]:
    """Return the state after a cursor, and the ranges that the cursor closes.

    A cursor means that everything up to and including it is there. Ranges lie side by side from ``start`` on and are
    closed once their last number is there, each exactly once. A cursor that comes again, or after a greater one, closes
    nothing: the set of closed ranges depends on the greatest cursor alone.
    """
    _check_size("range_size", state.size)
    end = state.start if state.end is None else state.end
    # Counted from the start, so that the grid does not depend on which cursor came first.
    full = state.start + max(0, cursor + 1 - state.start) // state.size * state.size
    if full <= end:
        return state, []
    if (full - end) // state.size > RANGES_MAX:
        raise UsageError(
            f"cursor {cursor} would close {(full - end) // state.size} ranges at once, {RANGES_MAX} are the limit: "
            "set start in the job's config to where its data begins, or make range_size larger"
        )
    closed = [Range(low, low + state.size) for low in range(end, full, state.size)]
    return Aggregate(state.size, state.start, full), closed


def _check_size(name: str, size: int) -> None:
    if not 1 <= size <= NUMBER_MAX:
        raise UsageError(f"{name} must be a whole number from 1 on, not {size}")


def _check_count(name: str, count: int) -> None:
    if count > RANGES_MAX:
        raise UsageError(
            f"{count} ranges are too many for one task, {RANGES_MAX} are the limit: make {name} larger, "
            "or split in two steps"
        )
