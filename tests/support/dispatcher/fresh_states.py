"""State databases for properties: an empty one for every example, once on SQLite (fast) and once on PostgreSQL.

    def test_a_law(fresh_states: FreshStates) -> None:
        @fresh_states.settings(max_examples=25)
        @given(numbers)
        def check(number: int) -> None:
            with fresh_states.opened() as state:
                ...

        check()

The property is a function within the test because the number of its examples depends on the database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from qo.dispatcher.state.database import State
from support.dispatcher.states import Clock, opened

# An example takes several times as long on PostgreSQL as on SQLite; make prove tries ten times as many, on both.
POSTGRES_SHARE = 1.0 if os.environ.get("PROVE") else 0.3
MORE = 10 if os.environ.get("PROVE") else 1


class FreshStates:
    def __init__(self, borrow_url: Callable[[], AbstractContextManager[str]], share: float = 1.0) -> None:
        """``share``: of the examples that a property asks for."""
        self._borrow_url, self._share = borrow_url, share

    def settings(self, max_examples: int = 25) -> hypothesis_settings:
        """``max_examples``: on SQLite, in ``make test``."""
        return hypothesis_settings(
            max_examples=max(1, round(self._share * max_examples * MORE)),
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )

    @contextmanager
    def opened(self, clock: Clock | None = None) -> Iterator[State]:
        """An empty database with its tables."""
        with self._borrow_url() as url, opened(url, clock or Clock()) as state:
            yield state


@contextmanager
def borrow_sqlite_url() -> Iterator[str]:
    with TemporaryDirectory() as directory:
        yield f"sqlite:{directory}/state.db"
