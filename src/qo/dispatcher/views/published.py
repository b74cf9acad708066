"""The published tables of a pipeline: how large they are, and some of their pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.task import Piece
from qo.core.pipeline.plan import Plan
from qo.dispatcher.commits import pieces
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx

PIECES_MAX = 400  # Pieces that are searched for a few rows.


@dataclass(frozen=True, slots=True)
class Table:
    """A published dataset in its current state."""

    name: str
    job: str
    rows: int
    pieces: int
    bytes: int
    sample: tuple[Piece, ...]  # Some pieces that have rows.


def tables(tx: Tx, plan: Plan, rows: int) -> list[Table]:
    """Return each published dataset of a plan, with enough pieces for that many rows."""
    writers = {each.dataset_id: (job, each.generation_id) for job in plan.jobs for each in job.outputs}
    published: list[Table] = []
    for name, dataset in plan.published.items():
        job, generation = writers[dataset]
        size = tx.one(sa.select(schema.generations).where(schema.generations.c.id == generation))
        if size is None:
            continue
        page, _ = pieces.standing(tx, generation, None, PIECES_MAX)
        count = size["partitions"] + size["segments"]
        sample = tuple(_take_rows(page, rows))
        published.append(Table(name, job.job.name, size["rows"], count, size["bytes"], sample))
    return published


def _take_rows(page: Sequence[Piece], rows: int) -> Iterator[Piece]:
    """Yield pieces with rows until there are enough rows."""
    row_count = 0
    for piece in page:
        if row_count >= rows:
            return
        if piece.files and piece.rows != 0:
            row_count += piece.rows or rows
            yield piece
