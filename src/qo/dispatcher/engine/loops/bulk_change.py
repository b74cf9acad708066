"""The bulk change loop goes on with cancelling or reviving all tasks of an edition, a chunk in each transaction."""

from __future__ import annotations

from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import bulk_changes


def tick(state: State, limit: int = bulk_changes.CHUNK) -> int:
    """Take one step for each edition. Return how many tasks were looked at; 0: there is nothing left to change."""
    with state.read() as tx:
        editions = bulk_changes.editions(tx)
    did = 0
    for edition in editions:
        with state.write() as tx:
            did += bulk_changes.step(tx, edition, limit)
    return did
