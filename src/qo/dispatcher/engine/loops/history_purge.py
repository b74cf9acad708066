"""The history loop purges tasks, events and versions that nothing depends on, as ``keep_history_days`` and
``keep_versions_days`` say: a chunk a second, so that its work is spread over the day."""

from __future__ import annotations

from datetime import timedelta

from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.engine.purging import purge_round
from qo.dispatcher.engine.purging.purge_round import Keep
from qo.dispatcher.state.database import State


def tick(state: State, keep: Keep, per_tick: int) -> int:
    """Take a step. Returns 0 whatever it did: the loop rests before the next, which keeps it within its budget."""
    purge_round.step(state, keep, per_tick)
    return 0


def keep_of(settings: DispatcherSettings) -> Keep:
    return Keep(history=_days(settings.keep_history_days), versions=_days(settings.keep_versions_days))


def _days(days: int) -> timedelta | None:
    return timedelta(days=days) if days else None
