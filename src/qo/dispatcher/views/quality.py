"""Lists of data checks and rejected outputs. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from qo.api.contract.quality import CheckAnswer, ChecksPage, RejectionAnswer, RejectionsPage
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import Tx
from qo.errors import UsageError

_checks, _rejections = schema.checks, schema.rejections

# A literal, not a parameter: only then can the planner use the partial index.
_FAILED = sa.literal_column("NOT checks.passed", sa.Boolean)


def list_checks(
    tx: Tx,
    dataset: str | None = None,
    *,
    failed: bool = False,
    task_id: str | None = None,
    before: str | None = None,
    limit: int = 100,
) -> ChecksPage:
    """List checks, newest first. Raises NotFound for an unknown dataset, UsageError for an invalid ``before``."""
    query = sa.select(_checks).where(_FAILED) if failed else sa.select(_checks)
    if task_id is not None:
        query = query.where(_checks.c.task_id == task_id)
    rows, following = _page(tx, _checks, "position", query, dataset, before, limit)
    names = _names(tx, rows)
    return ChecksPage(checks=[CheckAnswer.model_validate({**row, **names(row)}) for row in rows], next=following)


def list_rejections(
    tx: Tx, dataset: str | None = None, *, before: str | None = None, limit: int = 100
) -> RejectionsPage:
    """List rejected outputs, as ``list_checks`` does."""
    rows, following = _page(tx, _rejections, "output", sa.select(_rejections), dataset, before, limit)
    names = _names(tx, rows)
    rejections = [RejectionAnswer.model_validate({**row, **names(row)}) for row in rows]
    return RejectionsPage(rejections=rejections, next=following)


def _page(
    tx: Tx,
    table: sa.Table,
    last: str,
    query: sa.Select[*tuple[Any, ...]],
    dataset: str | None,
    before: str | None,
    limit: int,
) -> tuple[Sequence[sa.RowMapping], str | None]:
    if not 1 <= limit <= datasets.PAGE_MAX:
        raise UsageError(f"limit must be between 1 and {datasets.PAGE_MAX}, not {limit}")
    place = (table.c.at, table.c.task_id, table.c.attempt, table.c[last])
    if dataset is not None:
        query = query.where(table.c.dataset_id == datasets.resolve(tx, dataset).id)
    if before is not None:
        at = _parse_place(before)
        # Also by time alone, so that the index is used.
        query = query.where(table.c.at <= at[0], sa.tuple_(*place) < sa.tuple_(*at, types=[c.type for c in place]))
    rows = tx.all(query.order_by(*(each.desc() for each in place)).limit(limit + 1))
    if len(rows) <= limit:
        return rows, None
    end = rows[limit - 1]
    return rows[:limit], f"{end['at'].isoformat()}~{end['task_id']}~{end['attempt']}~{end[last]}"


def _parse_place(before: str) -> tuple[datetime, str, int, int]:
    try:
        at, task_id, attempt, last = before.split("~")
        if datetime.fromisoformat(at).utcoffset() is None or max(int(attempt), int(last)) >= 2**31:
            raise ValueError
        return datetime.fromisoformat(at), task_id, int(attempt), int(last)
    except ValueError:
        raise UsageError(f"{before[:80]!r} is not a page position: pass the next of the page before") from None


def _names(tx: Tx, rows: Sequence[sa.RowMapping]) -> Any:
    refs = datasets.by_id(tx, {row["dataset_id"] for row in rows}) if rows else {}

    def names(row: sa.RowMapping) -> dict[str, str]:
        ref = refs.get(row["dataset_id"])
        return {"dataset": ref.label if ref is not None else row["dataset_id"]}

    return names
