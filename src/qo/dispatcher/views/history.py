"""How a dataset came to be what it is: its commits, and what changed from one version to another. Reads only.

A version of a dataset is a generation at a revision. Commits are never forgotten, only replaced, so what stood at a
revision is what was committed by then and not replaced by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from qo.api.contract.dataset import ChangeAnswer, ChangesPage, CommitAnswer, CommitsPage
from qo.dispatcher.commits import removing
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import Tx, batches
from qo.errors import UsageError

_commits = schema.commits


def _replaced() -> sa.Select[*tuple[Any, ...]]:
    """Who stood at ``low`` before the ``revisions``: from each the way back, through those that came later."""
    low = sa.bindparam("low", type_=sa.BigInteger)
    columns = (_commits.c.revision, _commits.c.rows, _commits.c.bytes)
    revisions = sa.bindparam("revisions", expanding=True, type_=sa.BigInteger)
    way = sa.select(_commits.c.revision.label("stands"), *columns).where(_commits.c.revision.in_(revisions))
    back = way.cte("back", recursive=True)
    one_more = sa.select(back.c.stands, *columns).join(back, _commits.c.replaced_by == back.c.revision)
    # A removal is marked as replaced by itself.
    back = back.union_all(one_more.where(back.c.revision > low, _commits.c.revision != back.c.revision))
    return sa.select(back).where(back.c.revision <= low)


_REPLACED = _replaced()


def list_commits(
    tx: Tx,
    text: str,
    *,
    partition_key: str | None = None,
    generation_id: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> CommitsPage:
    """Newest first, in the current generation unless another is named. Raises NotFound."""
    ref = datasets.resolve(tx, text)
    generation = datasets.choose_generation(tx, ref, generation_id)
    query = sa.select(_commits).where(_commits.c.generation_id == generation)
    if partition_key is not None:
        datasets.require_partition(tx, ref, generation, partition_key)
        query = query.where(_commits.c.partition_key == partition_key)
    if before is not None:
        query = query.where(_commits.c.revision < before)
    rows = tx.all(query.order_by(_commits.c.revision.desc()).limit(limit + 1))
    replaced = _when(tx, [row["replaced_by"] for row in rows if row["replaced_by"] is not None])
    found = [
        CommitAnswer.model_validate(
            {
                **row,
                "files": len(row["files"] or ()),
                "replaced_by": None if _is_removal(row) else row["replaced_by"],
                "replaced_at": None if _is_removal(row) else replaced.get(row["replaced_by"]),
                "removed": _is_removal(row),
            }
        )
        for row in rows[:limit]
    ]
    return CommitsPage(commits=found, next=found[-1].revision if len(rows) > limit else None)


def list_changes(
    tx: Tx,
    text: str,
    low: int,
    high: int,
    *,
    generation_id: str | None = None,
    after: int | None = None,
    limit: int = 100,
) -> ChangesPage:
    """What was committed after one revision, up to another, and still stood then, and what was removed. Raises
    NotFound, also for a revision that is yet to come, and UsageError for revisions in the wrong order."""
    if low > high:
        raise UsageError(f"revision {low} comes after {high}: give the earlier one first")
    ref = datasets.resolve(tx, text)
    generation = datasets.choose_generation(tx, ref, generation_id)
    datasets.require_version(tx, ref, generation, high)
    query = (
        sa.select(_commits)
        .where(
            _commits.c.generation_id == generation,
            _commits.c.revision > max(low, after or 0),
            _commits.c.revision <= high,
            sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > high, removing.IS_REMOVAL),
        )
        .order_by(_commits.c.revision)
        .limit(limit + 1)
    )
    rows = tx.all(query)
    shown = rows[:limit]
    stood = _stood(tx, generation, low, shown) - {row["partition_key"] for row in shown if _is_removal(row)}
    gone = _gone(tx, low, shown)
    # What came after the first revision and was removed before the second is no change.
    changes = [
        _change(row, stood, gone.get(row["revision"], []))
        for row in shown
        if not _is_removal(row) or row["revision"] in gone
    ]
    return ChangesPage(
        dataset_id=ref.id,
        generation_id=generation,
        from_revision=low,
        to_revision=high,
        changes=changes,
        next=shown[-1]["revision"] if len(rows) > limit else None,
    )


def _is_removal(row: sa.RowMapping) -> bool:
    return row["replaced_by"] == row["revision"]


def _change(row: sa.RowMapping, stood: set[str], gone: Sequence[sa.RowMapping]) -> ChangeAnswer:
    if _is_removal(row):
        change = "removed"
    elif gone:
        change = "replaced"
    else:
        change = "appended" if row["partition_key"] in stood else "added"
    given: dict[str, Any] = {name: row[name] for name in ("partition_key", "cursor", "revision", "task_id")}
    for name in ("rows", "bytes"):
        given[name] = (row[name] or 0) - sum(each[name] or 0 for each in gone)
    return ChangeAnswer.model_validate({"change": change, **given})


def _stood(tx: Tx, generation: str, low: int, rows: Sequence[sa.RowMapping]) -> set[str]:
    """Those of their partitions that were there before."""
    found: set[str] = set()
    for some in batches(sorted({row["partition_key"] for row in rows if row["partition_key"] is not None})):
        query = sa.select(_commits.c.partition_key).where(
            _commits.c.generation_id == generation,
            _commits.c.partition_key.in_(some),
            _commits.c.revision <= low,
            sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > low),
        )
        found.update(tx.execute(query.distinct()).scalars())
    return found


def _gone(tx: Tx, low: int, rows: Sequence[sa.RowMapping]) -> dict[int, list[sa.RowMapping]]:
    """What stood before each of them and does no more, also through others that came and went in between."""
    found: dict[int, list[sa.RowMapping]] = {}
    for some in batches(row["revision"] for row in rows):
        for each in tx.execute(_REPLACED, {"revisions": some, "low": low}).mappings():
            found.setdefault(each["stands"], []).append(each)
    return found


def _when(tx: Tx, revisions: Sequence[int]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for some in batches(sorted(set(revisions))):
        query = sa.select(_commits.c.revision, _commits.c.committed_at).where(_commits.c.revision.in_(some))
        found |= {row.revision: row.committed_at for row in tx.execute(query)}
    return found
