"""What a sink shows, as its loader reports it."""

from __future__ import annotations

from dataclasses import dataclass

from qo.errors import QoError


class Busy(QoError):
    """Another loader is at work on the same sink: leave it to that one."""


@dataclass(frozen=True, slots=True)
class SinkContent:
    generation_id: str | None  # None: nothing yet.
    revision: int
