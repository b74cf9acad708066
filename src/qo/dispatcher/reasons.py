"""Why tasks are cancelled. The dispatcher finds its own cancellations again by their text, so people may not use it."""

from __future__ import annotations

from qo.dispatcher import backlog, effects, yielding
from qo.errors import UsageError

_OWN = (effects.REASON, effects.WAITS, yielding.CALLED_OFF)


def require_persons(reason: str | None) -> None:
    """Raises UsageError for a text that the dispatcher would take for its own, and undo or decide anew."""
    if reason is not None and (reason in _OWN or backlog.was_given_up(reason)):
        raise UsageError(f"the dispatcher itself cancels with the reason {reason[:200]!r}: word yours differently")
