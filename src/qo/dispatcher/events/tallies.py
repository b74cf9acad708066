"""Counts of events by state and of deliveries by outcome, updated in the transactions that change them.

For edition ``''`` events are counted by state; for any other, its deliveries by outcome. Every event is in exactly
one state and every delivery has exactly one outcome, so the counts of a dataset always add up to how many there are:
``accounting`` in the tests proves it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared

EVENTS = ""  # In place of an edition: counts of the events themselves.

Counted = tuple[str, str, str]  # Dataset, edition or EVENTS, state or outcome.


def _added(statement: postgresql.Insert | sqlite.Insert) -> Prepared:
    added = statement.on_conflict_do_update(
        index_elements=["dataset_id", "edition_id", "outcome", "share"],
        set_={"n": schema.tallies.c.n + statement.excluded.n},
    )
    return Prepared(added)


_ADD = {
    "postgresql": _added(postgresql.insert(schema.tallies)),
    "sqlite": _added(sqlite.insert(schema.tallies)),
}


# Building a statement takes longer than executing it, so these are built once.
_SUM = sa.cast(sa.func.sum(schema.tallies.c.n), sa.BigInteger)
_WAITING = Prepared(
    sa.select(schema.tallies.c.edition_id)
    .where(schema.tallies.c.outcome == DeliveryOutcome.PENDING, schema.tallies.c.edition_id != EVENTS)
    .group_by(schema.tallies.c.dataset_id, schema.tallies.c.edition_id)
    .having(_SUM > 0)
)


_COUNTS = Prepared(
    sa.select(schema.tallies.c.edition_id, schema.tallies.c.outcome, _SUM)
    .where(schema.tallies.c.dataset_id == sa.bindparam("dataset", type_=sa.String))
    .group_by(schema.tallies.c.edition_id, schema.tallies.c.outcome)
    .having(_SUM != 0)
)


_UNROUTED = Prepared(
    sa.select(schema.tallies.c.dataset_id)
    .where(
        schema.tallies.c.dataset_id.in_(sa.bindparam("datasets", expanding=True)),
        schema.tallies.c.edition_id == EVENTS,
        schema.tallies.c.outcome == EventState.PENDING,
    )
    .group_by(schema.tallies.c.dataset_id)
    .having(_SUM > 0)
)


def add(tx: Tx, changes: Mapping[Counted, int]) -> None:
    """Add to counts. Call it last in a transaction: some writers share the rows."""
    # In order: two transactions that change the same counts must not deadlock.
    share = tx.share
    rows = [
        {"dataset_id": dataset, "edition_id": edition, "outcome": outcome, "share": share, "n": n}
        for (dataset, edition, outcome), n in sorted(changes.items())
        if n != 0
    ]
    tx.do(_ADD["postgresql" if tx.on_postgres else "sqlite"], *rows)


def counts(tx: Tx, dataset_id: str) -> dict[str, dict[str, int]]:
    """Return counts by state for EVENTS and by outcome for each edition that reads the dataset, without zeros."""
    by_edition: dict[str, dict[str, int]] = {}
    for edition, outcome, n in tx.rows(_COUNTS, {"dataset": dataset_id}):
        by_edition.setdefault(edition, {})[outcome] = n
    return by_edition


def datasets_with_pending_events(tx: Tx, datasets: Collection[str]) -> set[str]:
    """Return which of the datasets have events that are not routed yet."""
    pending: set[str] = set()
    for some in batches(sorted(datasets)):
        pending |= {dataset for (dataset,) in tx.rows(_UNROUTED, {"datasets": some})}
    return pending


def editions_that_wait(tx: Tx) -> set[str]:
    """Return the editions with pending deliveries. The table is small: it grows with jobs, not with events."""
    return {edition for (edition,) in tx.rows(_WAITING)}
