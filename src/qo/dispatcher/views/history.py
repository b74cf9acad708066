"""The history of a dataset: its commits, and the changes between two versions. Read-only.

A version of a dataset is a generation at a revision. Commits are replaced but never deleted, so the state at a revision
is what was committed and not replaced by then.
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


def _replaced_query() -> sa.Select[*tuple[Any, ...]]:
    """Select the commits current at ``low`` that the ``revisions`` have replaced, directly or through others."""
    low = sa.bindparam("low", type_=sa.BigInteger)
    columns = (_commits.c.revision, _commits.c.rows, _commits.c.bytes)
    revisions = sa.bindparam("revisions", expanding=True, type_=sa.BigInteger)
    way = sa.select(_commits.c.revision.label("stands"), *columns).where(_commits.c.revision.in_(revisions))
    back = way.cte("back", recursive=True)
    one_more = sa.select(back.c.stands, *columns).join(back, _commits.c.replaced_by == back.c.revision)
    # A removal is marked as replaced by itself.
    back = back.union_all(one_more.where(back.c.revision > low, _commits.c.revision != back.c.revision))
    return sa.select(back).where(back.c.revision <= low)


_REPLACED = _replaced_query()


def list_commits(
    tx: Tx,
    text: str,
    *,
    partition_key: str | None = None,
    generation_id: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> CommitsPage:
    """List commits, newest first; by default, of the current generation. Raises NotFound."""
    ref = datasets.resolve(tx, text)
    generation = datasets.choose_generation(tx, ref, generation_id)
    query = schema.select_commits().where(_commits.c.generation_id == generation)
    if partition_key is not None:
        datasets.require_partition(tx, ref, generation, partition_key)
        query = query.where(_commits.c.partition_key == partition_key)
    if before is not None:
        query = query.where(_commits.c.revision < before)
    rows = tx.all(query.order_by(_commits.c.revision.desc()).limit(limit + 1))
    replaced = _commit_times(tx, [row["replaced_by"] for row in rows if row["replaced_by"] is not None])
    commits = [
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
    return CommitsPage(commits=commits, next=commits[-1].revision if len(rows) > limit else None)


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
    """List the commits after one revision that are current at another, and removals in between.

    Raises NotFound, also for a revision that does not exist yet, and UsageError for revisions in the wrong order.
    """
    if low > high:
        raise UsageError(f"revision {low} comes after {high}: give the earlier one first")
    ref = datasets.resolve(tx, text)
    generation = datasets.choose_generation(tx, ref, generation_id)
    datasets.require_version(tx, ref, generation, high)
    query = (
        schema.select_commits()
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
    page = rows[:limit]
    existing = _existing_partitions(tx, generation, low, page) - {
        row["partition_key"] for row in page if _is_removal(row)
    }
    replaced = _replaced_commits(tx, low, page)
    # A partition that was added and removed between the two revisions is no change.
    changes = [
        _change(row, existing, replaced.get(row["revision"], []))
        for row in page
        if not _is_removal(row) or row["revision"] in replaced
    ]
    return ChangesPage(
        dataset_id=ref.id,
        generation_id=generation,
        from_revision=low,
        to_revision=high,
        changes=changes,
        next=page[-1]["revision"] if len(rows) > limit else None,
    )


def _is_removal(row: sa.RowMapping) -> bool:
    return row["replaced_by"] == row["revision"]


def _change(row: sa.RowMapping, existing: set[str], replaced: Sequence[sa.RowMapping]) -> ChangeAnswer:
    if _is_removal(row):
        change = "removed"
    elif replaced:
        change = "replaced"
    else:
        change = "appended" if row["partition_key"] in existing else "added"
    fields: dict[str, Any] = {name: row[name] for name in ("partition_key", "cursor", "revision", "task_id")}
    for name in ("rows", "bytes"):
        fields[name] = (row[name] or 0) - sum(each[name] or 0 for each in replaced)
    return ChangeAnswer.model_validate({"change": change, **fields})


def _existing_partitions(tx: Tx, generation: str, low: int, rows: Sequence[sa.RowMapping]) -> set[str]:
    """Return those of their partitions that existed at ``low``."""
    keys: set[str] = set()
    for some in batches(sorted({row["partition_key"] for row in rows if row["partition_key"] is not None})):
        query = sa.select(_commits.c.partition_key).where(
            _commits.c.generation_id == generation,
            _commits.c.partition_key.in_(some),
            _commits.c.revision <= low,
            sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > low),
        )
        keys.update(tx.execute(query.distinct()).scalars())
    return keys


def _replaced_commits(tx: Tx, low: int, rows: Sequence[sa.RowMapping]) -> dict[int, list[sa.RowMapping]]:
    """Return the commits current at ``low`` that each of these has replaced, directly or through others."""
    replaced: dict[int, list[sa.RowMapping]] = {}
    for some in batches(row["revision"] for row in rows):
        for each in tx.execute(_REPLACED, {"revisions": some, "low": low}).mappings():
            replaced.setdefault(each["stands"], []).append(each)
    return replaced


def _commit_times(tx: Tx, revisions: Sequence[int]) -> dict[int, Any]:
    times: dict[int, Any] = {}
    for some in batches(sorted(set(revisions))):
        query = sa.select(_commits.c.revision, _commits.c.committed_at).where(_commits.c.revision.in_(some))
        times |= {row.revision: row.committed_at for row in tx.execute(query)}
    return times
