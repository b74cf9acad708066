"""The columns of generations: what they are, as of a revision, and whether a commit may change them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from qo.api.contract.task import ColumnBody
from qo.core.pipeline.columns import Column, Drift, columns_hash, drift, refusal
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.errors import UsageError

_table = schema.generation_columns

# Building a statement takes longer than executing it, so these are built once.
_OF = Prepared(
    sa.select(_table.c.generation_id, _table.c.revision, _table.c.columns)
    .where(_table.c.generation_id.in_(sa.bindparam("generations", expanding=True)))
    .order_by(_table.c.generation_id, _table.c.revision)
)


@dataclass(frozen=True, slots=True)
class ColumnHistory:
    """The columns of some generations, each time they changed, in order of revision."""

    changes: Mapping[str, Sequence[tuple[int, list[Column]]]]

    def as_of(self, generation_id: str, revision: int | None = None) -> list[Column] | None:
        """Return the columns at a revision, or now; None if they were never reported."""
        versions = [
            columns
            for since, columns in self.changes.get(generation_id, ())
            if revision is None or since <= revision
        ]
        return versions[-1] if versions else None

    def bodies(self, generation_id: str, revision: int | None = None) -> list[ColumnBody] | None:
        columns = self.as_of(generation_id, revision)
        return None if columns is None else bodies(columns)


def load_history(tx: Tx, generations: Collection[str]) -> ColumnHistory:
    """Load the columns of generations by one statement. Each generation changes its columns only a few times."""
    changes: dict[str, list[tuple[int, list[Column]]]] = {}
    for some in batches(sorted(generations)):
        for generation, revision, columns in tx.rows(_OF, {"generations": some}):
            changes.setdefault(generation, []).append((revision, msgspec.convert(columns, list[Column])))
    return ColumnHistory(changes)


def as_of(tx: Tx, generation_id: str, revision: int | None = None) -> list[Column] | None:
    """As ``ColumnHistory.as_of``, for one generation."""
    return load_history(tx, [generation_id]).as_of(generation_id, revision)


def bodies(columns: Sequence[Column]) -> list[ColumnBody]:
    # Without validation: they were checked when they came in.
    return [ColumnBody.model_construct(name=each.name, type=each.type, nullable=each.nullable) for each in columns]


class Shapes:
    """The columns of the generations that a transaction commits to, which are locked."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._now: dict[str, list[Column]] = {}
        self._new: dict[str, list[Column]] = {}

    def accept(
        self,
        generation_id: str,
        bodies: Sequence[ColumnBody] | None,
        policy: Drift,
        columns_seen: int | None = None,
    ) -> str | None:
        """Check the columns of a commit against the policy, and return their hash. Raises UsageError if refused.

        ``columns_seen``: how many columns its attempt knew: others may have added some since.
        """
        if bodies is None:
            return None
        new = [Column(name=each.name, type=each.type, nullable=each.nullable) for each in bodies]
        if generation_id not in self._now:
            self._now[generation_id] = as_of(self._tx, generation_id) or []
        after = drift(self._now[generation_id], new, policy, columns_seen)
        if isinstance(after, list):
            raise UsageError(refusal(self._now[generation_id], new, policy, after))
        if after.added:
            self._now[generation_id] = self._new[generation_id] = list(after.columns)
        return columns_hash(new)

    def grown(self) -> list[str]:
        """Return the generations that get new columns."""
        return sorted(self._new)

    def keep(self, first: Mapping[str, int]) -> None:
        """Store new columns, valid from the first revision of each generation on."""
        rows = [
            {
                "generation_id": generation,
                "revision": first[generation],
                "schema_hash": columns_hash(columns),
                "columns": msgspec.to_builtins(columns),
            }
            for generation, columns in sorted(self._new.items())
            if generation in first
        ]
        if rows:
            self._tx.insert(_table, rows)
