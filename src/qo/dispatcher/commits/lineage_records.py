"""The column lineage of generations: reported with commits, and stored once for all that report the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from qo.api.contract.column_origins import LineageBody
from qo.api.contract.task import OutputBody
from qo.core.pipeline.column_lineage import Lineage, merge
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches

_table = schema.column_lineage


def keep(tx: Tx, bodies: Mapping[str, OutputBody], first: Mapping[str, int]) -> None:
    """Store the lineage that commits report, unless their generation has it. ``bodies``: by generation."""
    rows = [
        {
            "generation_id": generation,
            "lineage_hash": body.lineage.lineage().digest(),
            "revision": first[generation],
            "lineage": body.lineage.model_dump(),
        }
        for generation, body in sorted(bodies.items())
        if body.lineage is not None and generation in first
    ]
    if rows:
        tx.insert_absent(_table, rows, _table.c.generation_id)


def load(tx: Tx, generations: Collection[str]) -> dict[str, Lineage]:
    """Return what is known of generations. Where commits reported several, they count together."""
    stored: dict[str, list[Lineage]] = {}
    for some in batches(sorted(generations)):
        query = sa.select(_table).where(_table.c.generation_id.in_(some)).order_by(_table.c.revision)
        for row in tx.all(query):
            body = LineageBody.model_validate(row["lineage"])
            stored.setdefault(row["generation_id"], []).append(body.lineage())
    return {generation: merge(lineages) for generation, lineages in stored.items()}
