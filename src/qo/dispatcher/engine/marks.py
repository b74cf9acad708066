"""How far the inputs of jobs have been compared: one mark for each, and which of them are behind."""

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

FULL_PASS_S = 86_400.0  # How often everything is compared once more.

_kept, _generations, _cursors = schema.operator_state, schema.generations, schema.cursors

# Built once: to build a statement takes longer than to carry it out.
_MARKS = Prepared(
    sa.select(_kept.c.edition_id, _kept.c.key, _kept.c.value).where(
        _kept.c.edition_id.in_(sa.bindparam("editions", expanding=True)),
        _kept.c.key.in_(sa.bindparam("keys", expanding=True)),
    )
)
_LAST_REVISION = (
    sa.select(sa.func.max(schema.partitions.c.revision))
    .where(schema.partitions.c.generation_id == _generations.c.id)
    .correlate(_generations)
    .scalar_subquery()
)
# Asked for each by itself: that takes one look into an index, however many partitions there are.
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
    """One that starts its job, and the generation that it reads now."""

    job: LiveJob
    planned: PlannedInput
    generation_id: str

    @property
    def position(self) -> int:
        return self.planned.position

    @property
    def place(self) -> tuple[str, str]:
        """Where its mark is kept."""
        return self.job.edition_id, f"reconcile:{self.position}"


@dataclass(frozen=True, slots=True)
class Mark:
    generation_id: str  # Another one than the input's: a mark of what it read before.
    revision: int  # Up to this one all is well.
    first: int  # Where a pass begins.
    begun: datetime

    def due(self, now: datetime) -> bool:
        """Whether it is time for another pass."""
        return self.revision > self.first and now - self.begun >= timedelta(seconds=FULL_PASS_S)

    def restarted(self, now: datetime) -> Mark:
        return replace(self, revision=self.first, begun=now)


def mark(tx: Tx, each: Input) -> Mark | None:
    """None: of this generation nothing has been compared, or another one was since."""
    return _marks(tx, [each]).get(each.place)


def save(tx: Tx, each: Input, reached: Mark) -> None:
    edition, key = each.place
    value = {
        "generation": reached.generation_id,
        "revision": reached.revision,
        "first": reached.first,
        "begun": reached.begun.isoformat(),
    }
    tx.upsert(_kept, {"edition_id": edition, "key": key, "value": value, "updated_at": tx.now})


def behind(tx: Tx, inputs: Sequence[Input]) -> list[Input]:
    """Those whose generations hold something that has not been compared, or not for long."""
    marks = _marks(tx, inputs)
    heads = _heads(tx, {each.generation_id for each in inputs})
    return [
        each
        for each in inputs
        if (head := heads.get(each.generation_id)) is not None
        and ((known := marks.get(each.place)) is None or known.revision < head or known.due(tx.now))
    ]


def unread(tx: Tx, inputs: Sequence[Input]) -> list[Input]:
    """Those whose generations have come further than their jobs have read them."""
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
    """By place; without those of other generations than the inputs read now."""
    of = {each.place: each.generation_id for each in inputs}
    keys = sorted({key for _, key in of})
    found: dict[tuple[str, str], Mark] = {}
    for some in batches(sorted({edition for edition, _ in of})):
        for edition, key, value in tx.rows(_MARKS, {"editions": some, "keys": keys}):
            if of.get((edition, key)) == value["generation"]:
                found[edition, key] = _mark(value)
    return found


def _mark(value: Mapping[str, Any]) -> Mark:
    begun = datetime.fromisoformat(value["begun"])
    return Mark(value["generation"], value["revision"], value["first"], begun)


def _heads(tx: Tx, generations: Collection[str]) -> dict[str, int]:
    """The last revision of each that has any."""
    found: dict[str, int] = {}
    for some in batches(sorted(generations)):
        rows = tx.rows(_HEADS, {"generations": some})
        found |= {id_: revision for id_, revision in rows if revision is not None}
    return found
