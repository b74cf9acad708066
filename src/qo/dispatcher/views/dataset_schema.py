"""The columns of a dataset: what they are, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import sqlalchemy as sa

from qo.api.contract.dataset import ColumnAnswer, SchemaChange, SchemaPage
from qo.core.pipeline.columns import Column
from qo.dispatcher.commits import dataset_columns
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import Tx, batches

_commits = schema.commits


def current_columns(tx: Tx, generation: str) -> list[ColumnAnswer] | None:
    """Return the columns of a generation, each with the commit that had it first; None if they are not known."""
    changes = _changes(tx, generation)
    if not changes:
        return None
    first: dict[str, int] = {}
    for revision, columns in changes:
        for each in columns:
            first.setdefault(each.name.lower(), revision)
    times = _commit_times(tx, first.values())
    return [
        ColumnAnswer(
            name=each.name,
            type=each.type,
            nullable=each.nullable,
            revision=first[each.name.lower()],
            since=times.get(first[each.name.lower()]),
        )
        for each in changes[-1][1]
    ]


def list_changes(tx: Tx, text: str, generation_id: str | None = None) -> SchemaPage:
    """List the commits that changed the columns of a generation; by default, of the current one. Raises NotFound."""
    ref = datasets.resolve(tx, text)
    generation = datasets.choose_generation(tx, ref, generation_id)
    changes = _changes(tx, generation)
    times = _commit_times(tx, [revision for revision, _ in changes])
    answers: list[SchemaChange] = []
    earlier: set[str] = set()
    for revision, columns in changes:
        answers.append(
            SchemaChange(
                revision=revision,
                committed_at=times.get(revision),
                added=[each.name for each in columns if each.name.lower() not in earlier],
                columns=dataset_columns.bodies(columns),
            )
        )
        earlier |= {each.name.lower() for each in columns}
    return SchemaPage(dataset_id=ref.id, generation_id=generation, changes=answers)


def _changes(tx: Tx, generation: str) -> Sequence[tuple[int, list[Column]]]:
    return dataset_columns.load_history(tx, [generation]).changes.get(generation, ())


def _commit_times(tx: Tx, revisions: Iterable[int]) -> dict[int, datetime]:
    times: dict[int, datetime] = {}
    for some in batches(sorted(set(revisions))):
        query = sa.select(_commits.c.revision, _commits.c.committed_at).where(_commits.c.revision.in_(some))
        times |= {row.revision: row.committed_at for row in tx.execute(query)}
    return times
