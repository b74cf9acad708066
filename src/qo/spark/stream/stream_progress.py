"""How a stream finds where it was: by Spark's checkpoint, or by a position that it commits with its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

POSITION = "position"  # Among the statistics of a commit.


@dataclass(frozen=True, slots=True)
class Checkpoint:
    uri: str  # As Spark names it.
    last: int  # The last committed batch; -1: none.


class StreamProgress(Protocol):
    def take_over(self) -> Checkpoint:
        """Make this attempt's checkpoint, as of the last committed batch."""
        ...

    def position(self, batch: int) -> Any:
        """Return what is committed with a batch to go on after it; None if the checkpoint has it."""
        ...

    def delete_earlier(self) -> None:
        """Delete what nobody needs after this attempt has committed."""
        ...
