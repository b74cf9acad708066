"""Why tasks are cancelled. The dispatcher finds its own cancellations again by their text, so people may not use it."""

from __future__ import annotations

from qo.dispatcher.effects import deferred, external_effects
from qo.dispatcher.tasks import backlog
from qo.errors import UsageError

_OWN = (external_effects.REASON, external_effects.WAITS, deferred.CALLED_OFF)


def require_persons(reason: str | None) -> None:
    """Raises UsageError for a text that the dispatcher would take for its own, and undo or decide anew."""
    if reason is not None and (reason in _OWN or backlog.was_given_up(reason)):
        raise UsageError(f"the dispatcher itself cancels with the reason {reason[:200]!r}: word yours differently")
