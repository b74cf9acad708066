"""What is known of the columns of a dataset: the statistics of its files, merged. Read-only.

The files are those of the newest commits that are not replaced. An answer looks at a bounded number of commits,
whatever the size of the dataset, and says whether that was all.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from qo.api.contract.statistics import ColumnStatistics, ColumnStatisticsAnswer
from qo.core.pipeline.column_summary import ColumnSummary, KnownColumn, MeasuredPiece, summarize
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views import dataset_schema, file_statistics

PIECES_MAX = 5_000
LOOKED_AT_MAX = 10_000  # Commits, replaced ones included: of a table that is replaced again and again, most are.

_commits, _generations = schema.commits, schema.generations
# Without reading what the list says: there are many.
_HAS_FILES = (sa.func.coalesce(sa.func.length(_commits.c.files), 0) > len("[]")).label("has_files")


def show(
    tx: Tx, text: str, *, partition_key: str | None = None, generation_id: str | None = None
) -> ColumnStatisticsAnswer:
    """Show the columns of a generation, or of a partition of it; by default, of the current one. Raises NotFound."""
    ref = datasets.resolve(tx, text)
    generation = datasets.choose_generation(tx, ref, generation_id)
    if partition_key is not None:
        datasets.require_partition(tx, ref, generation, partition_key)
    columns = dataset_schema.current_columns(tx, generation)
    rows, is_all = _newest_pieces(tx, generation, partition_key)
    files = file_statistics.load_files(tx, [(row["revision"], row["stats_size"]) for row in rows])
    described = [KnownColumn(each.name, each.type, each.revision) for each in columns or ()]
    pieces = [MeasuredPiece(revision, measured) for revision, measured in files.items()]
    summaries = summarize(described, pieces)
    # A commit without files has nothing that could be measured.
    is_measured = all(row["revision"] in files or not row["has_files"] for row in rows)
    return ColumnStatisticsAnswer(
        dataset=ref.label,
        dataset_id=ref.id,
        generation_id=generation,
        revision=tx.value(sa.select(_generations.c.revision).where(_generations.c.id == generation)),
        columns=None if columns is None else [_column(each, summaries.get(each.name)) for each in described],
        pieces=len(rows),
        measured=len(pieces),
        rows=sum(file.rows for piece in pieces for file in piece.files),
        complete=is_all and is_measured,
    )


def _newest_pieces(tx: Tx, generation: str, partition_key: str | None) -> tuple[Sequence[sa.RowMapping], bool]:
    """Return the newest commits that are not replaced, and whether there are no others."""
    newest = sa.select(_commits.c.revision, _commits.c.replaced_by).where(_commits.c.generation_id == generation)
    if partition_key is not None:
        newest = newest.where(_commits.c.partition_key == partition_key)
    looked_at = newest.order_by(_commits.c.revision.desc()).limit(LOOKED_AT_MAX).subquery()
    total, oldest = tx.execute(sa.select(sa.func.count(), sa.func.min(looked_at.c.revision))).one()
    standing = (
        sa.select(_commits.c.revision, _HAS_FILES, file_statistics.SIZE)
        .where(_commits.c.generation_id == generation, _commits.c.replaced_by.is_(None))
        .where(_commits.c.revision >= (oldest or 0))
        .order_by(_commits.c.revision.desc())
        .limit(PIECES_MAX + 1)
    )
    if partition_key is not None:
        standing = standing.where(_commits.c.partition_key == partition_key)
    rows = tx.all(standing)
    return rows[:PIECES_MAX], total < LOOKED_AT_MAX and len(rows) <= PIECES_MAX


def _column(column: KnownColumn, summary: ColumnSummary | None) -> ColumnStatistics:
    if summary is None or not summary.rows:
        return ColumnStatistics(name=column.name, type=column.type)
    least, greatest = summary.least, summary.greatest
    return ColumnStatistics(
        name=column.name,
        type=column.type,
        rows=summary.rows,
        nulls=summary.nulls,
        null_share=None if summary.nulls is None else summary.nulls / summary.rows,
        distinct=summary.distinct,
        least=None if least is None else least.text,
        greatest=None if greatest is None else greatest.text,
        least_shortened=least is not None and least.shortened,
        greatest_shortened=greatest is not None and greatest.shortened,
        bytes=summary.bytes,
    )
