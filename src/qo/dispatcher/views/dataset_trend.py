"""How a dataset moved: rows, bytes, nulls and results of expectations, by commit or by partition. Read-only.

A page has a bounded number of points, each found by an index, whatever the size of the dataset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from qo.api.contract.statistics import ExpectationTrend, TrendAnswer, TrendPoint
from qo.core.pipeline.column_summary import count_nulls
from qo.dispatcher.commits import dataset_columns
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.datasets import DatasetRef
from qo.dispatcher.views import file_statistics
from qo.errors import NotFound, UsageError

POINTS_MAX = 200
EXPECTATIONS_MAX = 100
REJECTIONS_LOOKED_AT_MAX = 1_000  # Of other generations, too.

_commits, _partitions, _checks, _rejections = schema.commits, schema.partitions, schema.checks, schema.rejections

Attempt = tuple[str, int]  # Of which task, and which one.
ExpectationName = tuple[str, str, str]  # With its kind and its severity.


class By(StrEnum):
    COMMIT = "commit"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class _Results:
    """How many expectations were passed, warned of or failed, by attempt; and passed or violated, by name."""

    by_attempt: Mapping[Attempt, Mapping[str, int]]
    by_name: Mapping[ExpectationName, Mapping[str, int]]


def show(
    tx: Tx,
    text: str,
    *,
    by: By = By.COMMIT,
    column: str | None = None,
    partition_key: str | None = None,
    generation_id: str | None = None,
    before: str | None = None,
    limit: int = 100,
) -> TrendAnswer:
    """Show the newest commits and rejected outputs of a generation, or its last partitions. Raises NotFound.

    ``column``: nulls of this one only. ``partition_key``: only commits of this partition.
    """
    if not 1 <= limit <= POINTS_MAX:
        raise UsageError(f"limit must be between 1 and {POINTS_MAX}, not {limit}")
    ref = datasets.resolve(tx, text)
    generation = datasets.choose_generation(tx, ref, generation_id)
    if column is not None:
        _require_column(tx, ref, generation, column)
    if by is By.COMMIT:
        if partition_key is not None:
            datasets.require_partition(tx, ref, generation, partition_key)
        points, following = _by_commit(tx, ref, generation, column, partition_key, before, limit)
    elif partition_key is not None:
        raise UsageError("one partition has no points by partition: ask for it by commit")
    else:
        points, following = _by_partition(tx, ref, generation, column, before, limit)
    results = _load_results(tx, ref, [(each.task_id, each.attempt) for each in points])
    points = [
        each.model_copy(update=dict(results.by_attempt.get((each.task_id, each.attempt), {}))) for each in points
    ]
    expectations = [
        ExpectationTrend(name=name, kind=kind, severity=severity, **counts)
        for (name, kind, severity), counts in sorted(results.by_name.items())[:EXPECTATIONS_MAX]
    ]
    return TrendAnswer(
        dataset=ref.label,
        dataset_id=ref.id,
        generation_id=generation,
        by=by.value,
        column=column,
        points=points,
        expectations=expectations,
        next=following,
    )


def _require_column(tx: Tx, ref: DatasetRef, generation: str, column: str) -> None:
    columns = dataset_columns.as_of(tx, generation) or []
    if column.lower() not in {each.name.lower() for each in columns}:
        raise NotFound(f"{ref.label} has no column {column!r}: see qo dataset show {ref.label} --columns")


_SELECTED = (
    _commits.c.revision,
    _commits.c.partition_key,
    _commits.c.cursor,
    _commits.c.committed_at,
    _commits.c.task_id,
    _commits.c.attempt,
    _commits.c.rows,
    _commits.c.bytes,
    _commits.c.replaced_by,
    file_statistics.SIZE,
)


def _by_commit(
    tx: Tx,
    ref: DatasetRef,
    generation: str,
    column: str | None,
    partition_key: str | None,
    before: str | None,
    limit: int,
) -> tuple[list[TrendPoint], str | None]:
    # A removal is marked as replaced by itself, and has neither rows nor files.
    is_removal = sa.and_(_commits.c.replaced_by.is_not(None), _commits.c.replaced_by == _commits.c.revision)
    query = sa.select(*_SELECTED).where(_commits.c.generation_id == generation, sa.not_(is_removal))
    if partition_key is not None:
        query = query.where(_commits.c.partition_key == partition_key)
    revision = None if before is None else _parse_revision(before)
    if revision is not None:
        query = query.where(_commits.c.revision < revision)
    rows = tx.all(query.order_by(_commits.c.revision.desc()).limit(limit + 1))
    page = rows[:limit]
    since = page[-1]["committed_at"] if len(rows) > limit else None
    until = None if revision is None else _time_of(tx, revision)
    points = _points(tx, page, column)
    points += _rejected(tx, ref, generation, partition_key, since, until, limit)
    points.sort(key=lambda each: (each.at, each.revision or 0), reverse=True)
    return points, str(page[-1]["revision"]) if len(rows) > limit else None


def _parse_revision(before: str) -> int:
    if before.isdecimal() and len(before) < 19:
        return int(before)
    raise UsageError(f"{before[:80]!r} is not a page position: pass the next of the page before")


def _time_of(tx: Tx, revision: int) -> datetime | None:
    return tx.value(sa.select(_commits.c.committed_at).where(_commits.c.revision == revision))


def _points(tx: Tx, rows: Sequence[sa.RowMapping], column: str | None) -> list[TrendPoint]:
    files = file_statistics.load_files(tx, [(row["revision"], row["stats_size"]) for row in rows])
    return [
        TrendPoint(
            revision=row["revision"],
            partition_key=row["partition_key"],
            cursor=row["cursor"],
            at=row["committed_at"],
            task_id=row["task_id"],
            attempt=row["attempt"],
            rows=row["rows"],
            bytes=row["bytes"],
            nulls=count_nulls(files[row["revision"]], column) if row["revision"] in files else None,
            replaced=row["replaced_by"] is not None,
        )
        for row in rows
    ]


def _rejected(
    tx: Tx,
    ref: DatasetRef,
    generation: str,
    partition_key: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> list[TrendPoint]:
    """Return the newest outputs that were rejected between two commits."""
    query = sa.select(_rejections).where(_rejections.c.dataset_id == ref.id)
    if partition_key is not None:
        query = query.where(_rejections.c.partition_key == partition_key)
    if since is not None:
        query = query.where(_rejections.c.at >= since)
    if until is not None:
        query = query.where(_rejections.c.at < until)
    rows = tx.all(query.order_by(_rejections.c.at.desc()).limit(REJECTIONS_LOOKED_AT_MAX))
    return [
        TrendPoint(
            partition_key=row["partition_key"],
            cursor=row["cursor"],
            at=row["at"],
            task_id=row["task_id"],
            attempt=row["attempt"],
            rejected=1,
            rejected_rows=row["rows"],
        )
        for row in rows
        if row["generation_id"] == generation
    ][:limit]


def _by_partition(
    tx: Tx, ref: DatasetRef, generation: str, column: str | None, before: str | None, limit: int
) -> tuple[list[TrendPoint], str | None]:
    key = _partitions.c.partition_key
    query = sa.select(key, _partitions.c.revision, _partitions.c.rows, _partitions.c.bytes).where(
        _partitions.c.dataset_id == ref.id, _partitions.c.generation_id == generation
    )
    if before is not None:
        query = query.where(key < before)
    partitions = tx.all(query.order_by(key.desc()).limit(limit + 1))
    page = partitions[:limit]
    commits: dict[int, TrendPoint] = {}
    for some in batches(row["revision"] for row in page):
        rows = tx.all(sa.select(*_SELECTED).where(_commits.c.revision.in_(some)))
        commits |= {each.revision: each for each in _points(tx, rows, column) if each.revision is not None}
    rejected = _rejected_by_key(tx, ref, generation, [row["partition_key"] for row in page])
    points: list[TrendPoint] = []
    for row in page:
        if (point := commits.get(row["revision"])) is None:
            continue
        # Of rows that are appended to a partition, the last commit has only the last ones.
        nulls = point.nulls if point.rows == row["rows"] else None
        count, rows_rejected = rejected.get(row["partition_key"], (0, None))
        changed = {"rows": row["rows"], "bytes": row["bytes"], "nulls": nulls}
        points.append(point.model_copy(update={**changed, "rejected": count, "rejected_rows": rows_rejected}))
    return points, page[-1]["partition_key"] if len(partitions) > limit else None


def _rejected_by_key(
    tx: Tx, ref: DatasetRef, generation: str, keys: Collection[str]
) -> Mapping[str, tuple[int, int | None]]:
    rejected: dict[str, tuple[int, int | None]] = {}
    key = _rejections.c.partition_key
    for some in batches(keys):
        query = (
            sa.select(key, sa.func.count(), sa.cast(sa.func.sum(_rejections.c.rows), sa.BigInteger))
            .where(_rejections.c.dataset_id == ref.id, key.in_(some), _rejections.c.generation_id == generation)
            .group_by(key)
        )
        rejected |= {name: (count, rows) for name, count, rows in tx.execute(query)}
    return rejected


def _load_results(tx: Tx, ref: DatasetRef, attempts: Collection[Attempt]) -> _Results:
    by_attempt: dict[Attempt, Counter[str]] = defaultdict(Counter)
    by_name: dict[ExpectationName, Counter[str]] = defaultdict(Counter)
    listed = set(attempts)
    names = (_checks.c.name, _checks.c.kind, _checks.c.severity, _checks.c.passed)
    for some in batches(sorted({task_id for task_id, _ in listed})):
        query = (
            sa.select(_checks.c.task_id, _checks.c.attempt, *names, sa.func.count().label("n"))
            .where(_checks.c.task_id.in_(some), _checks.c.dataset_id == ref.id)
            .group_by(_checks.c.task_id, _checks.c.attempt, *names)
        )
        for row in tx.all(query):
            attempt = (row["task_id"], row["attempt"])
            if attempt in listed:
                violated = "warned" if row["severity"] == "warn" else "failed"
                by_attempt[attempt]["passed" if row["passed"] else violated] += row["n"]
                name = (row["name"], row["kind"], row["severity"])
                by_name[name]["passed" if row["passed"] else "violated"] += row["n"]
    return _Results(by_attempt, by_name)
