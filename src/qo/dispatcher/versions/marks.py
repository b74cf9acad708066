"""Marks of the reconciler: how far each input of each job has been compared, and which inputs are behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.plan import PlannedInput
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared

FULL_PASS_S = 86_400.0  # How often everything is compared again.
_PREFIX = "reconcile:"

_state, _generations, _cursors = schema.operator_state, schema.generations, schema.cursors

# Built once: building a statement takes longer than executing it.
_MARKS = Prepared(
    sa.select(_state.c.edition_id, _state.c.key, _state.c.value).where(
        _state.c.edition_id.in_(sa.bindparam("editions", expanding=True)),
        _state.c.key.in_(sa.bindparam("keys", expanding=True)),
    )
)
_LAST_REVISION = (
    sa.select(sa.func.max(schema.partitions.c.revision))
    .where(schema.partitions.c.generation_id == _generations.c.id)
    .correlate(_generations)
    .scalar_subquery()
)
# One subquery per generation: that is one index look-up each, however many partitions there are.
_HEADS = Prepared(
    sa.select(_generations.c.id, _LAST_REVISION).where(
        _generations.c.id.in_(sa.bindparam("generations", expanding=True))
    )
)
_FURTHEST = Prepared(
    sa.select(_generations.c.id, _generations.c.cursor).where(
        _generations.c.id.in_(sa.bindparam("generations", expanding=True))
    )
)
_READ_CURSORS = Prepared(
    sa.select(_cursors.c.edition_id, _cursors.c.generation_id, _cursors.c.value).where(
        _cursors.c.edition_id.in_(sa.bindparam("editions", expanding=True))
    )
)


@dataclass(frozen=True, slots=True)
class Input:
    """A triggering input of a job, and the generation that it reads now."""

    job: LiveJob
    planned: PlannedInput
    generation_id: str

    @property
    def position(self) -> int:
        return self.planned.position

    @property
    def place(self) -> tuple[str, str]:
        """The edition and key that its mark is stored under."""
        return self.job.edition_id, f"{_PREFIX}{self.position}"


@dataclass(frozen=True, slots=True)
class Mark:
    generation_id: str  # A mark of another generation than the input's is outdated.
    revision: int  # Everything up to this revision has been compared.
    first: int  # Where a pass starts.
    started_at: datetime  # When the current pass started.
    settled: int = 0  # The furthest that any pass over this generation has come.
    passed: int = 0  # How many partitions that was, about.

    def advance(self, revision: int, partitions: int) -> Mark:
        """Return the mark after so many more partitions, up to this revision."""
        if revision <= self.settled:
            return replace(self, revision=revision)
        return replace(self, revision=revision, settled=revision, passed=self.passed + partitions)

    def is_due(self, now: datetime) -> bool:
        """Tell whether it is time for another pass."""
        return self.revision > self.first and now - self.started_at >= timedelta(seconds=FULL_PASS_S)

    def restart(self, now: datetime) -> Mark:
        return replace(self, revision=self.first, started_at=now)


def load(tx: Tx, each: Input) -> Mark | None:
    """Return the mark of an input; None if nothing of its current generation has been compared."""
    return _marks(tx, [each]).get(each.place)


def save(tx: Tx, each: Input, reached: Mark) -> None:
    edition, key = each.place
    value = {
        "generation": reached.generation_id,
        "revision": reached.revision,
        "first": reached.first,
        "begun": reached.started_at.isoformat(),
        "settled": reached.settled,
        "passed": reached.passed,
    }
    tx.upsert(_state, {"edition_id": edition, "key": key, "value": value, "updated_at": tx.now})


def settled(tx: Tx, editions: Collection[str]) -> dict[tuple[str, int, str], Mark]:
    """Return how far inputs have been compared, by edition, position and generation."""
    table = schema.operator_state
    by_input: dict[tuple[str, int, str], Mark] = {}
    for some in batches(sorted(editions)):
        query = sa.select(table.c.edition_id, table.c.key, table.c.value)
        own = sa.and_(table.c.edition_id.in_(some), table.c.key.startswith(_PREFIX, autoescape=True))
        for edition, key, value in tx.execute(query.where(own)):
            mark = _mark(value)
            by_input[edition, int(key.removeprefix(_PREFIX)), mark.generation_id] = mark
    return by_input


def behind(tx: Tx, inputs: Sequence[Input]) -> list[Input]:
    """Return the inputs with partitions that have not been compared, or that are due for another pass."""
    marks = _marks(tx, inputs)
    heads = _heads(tx, {each.generation_id for each in inputs})
    return [
        each
        for each in inputs
        if (head := heads.get(each.generation_id)) is not None
        and ((mark := marks.get(each.place)) is None or mark.revision < head or mark.is_due(tx.now))
    ]


def unread(tx: Tx, inputs: Sequence[Input]) -> list[Input]:
    """Return the inputs whose cursor is beyond what their jobs have read."""
    furthest: dict[str, int] = {}
    for some in batches(sorted({each.generation_id for each in inputs})):
        rows = tx.rows(_FURTHEST, {"generations": some})
        furthest |= {id_: cursor for id_, cursor in rows if cursor is not None}
    read: dict[tuple[str, str], int] = {}
    for some in batches(sorted({each.job.edition_id for each in inputs})):
        for edition, generation, value in tx.rows(_READ_CURSORS, {"editions": some}):
            read[edition, generation] = value
    return [
        each
        for each in inputs
        if (upto := furthest.get(each.generation_id)) is not None
        and read.get((each.job.edition_id, each.generation_id), -1) < upto
    ]


def _marks(tx: Tx, inputs: Sequence[Input]) -> Mapping[tuple[str, str], Mark]:
    """Return marks by place, without those of other generations than the inputs read now."""
    generations = {each.place: each.generation_id for each in inputs}
    keys = sorted({key for _, key in generations})
    marks: dict[tuple[str, str], Mark] = {}
    for some in batches(sorted({edition for edition, _ in generations})):
        for edition, key, value in tx.rows(_MARKS, {"editions": some, "keys": keys}):
            if generations.get((edition, key)) == value["generation"]:
                marks[edition, key] = _mark(value)
    return marks


def _mark(value: Mapping[str, Any]) -> Mark:
    started_at = datetime.fromisoformat(value["begun"])
    revision = value["revision"]
    reached = max(revision, value.get("settled", 0))  # Marks of earlier releases have none.
    return Mark(value["generation"], revision, value["first"], started_at, reached, value.get("passed", 0))


def _heads(tx: Tx, generations: Collection[str]) -> dict[str, int]:
    """Return the last revision of each generation that has partitions."""
    heads: dict[str, int] = {}
    for some in batches(sorted(generations)):
        rows = tx.rows(_HEADS, {"generations": some})
        heads |= {id_: revision for id_, revision in rows if revision is not None}
    return heads
