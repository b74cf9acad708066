"""How many partitions a task each will be made for, and how much they read. Read-only.

Of one generation the sums that commits keep are exact. The keys of several are counted one by one while they are few;
beyond that the sums give an estimate, and a few hundred keys tell how many partitions a side input shares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx

EXACT_MAX = 2_000  # Partitions that are counted one by one.
SAMPLE = 200
PAGES_MAX = 20  # Pages of one generation that are searched for keys which the others have, too.

_partitions, _generations = schema.partitions, schema.generations
_SUMMED = ("rows", "bytes")
_COLUMNS = ("partition_key", "start", "end", "rows", "bytes")


@dataclass(frozen=True, slots=True)
class Counted:
    generations: tuple[str, ...]
    joined: bool
    partitions: int
    rows: int
    bytes: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class SideReads:
    rows: int
    bytes: int
    estimated: bool


def count_partitions(tx: Tx, generations: Sequence[str], *, joined: bool) -> Counted:
    """Count each key once; with ``joined``, only keys that all generations have."""
    sums = _sums(tx, generations)
    total = sum(each["partitions"] for each in sums)
    ids = tuple(generations)
    if len(ids) > 1 and total <= EXACT_MAX:
        keys = _keys(tx, ids, joined=joined)
        count, rows, size = tx.execute(sa.select(sa.func.count(), *_sums_of(keys))).one()
        return Counted(ids, joined, int(count), int(rows), int(size))
    counts = [each["partitions"] for each in sums] if len(sums) == len(ids) else []
    partitions = (min if joined else max)(counts, default=0)
    if not partitions:
        return Counted(ids, joined, 0, 0, 0)
    rows, size = (sum(int(each[name]) for each in sums) for name in _SUMMED)
    return Counted(ids, joined, partitions, rows, size, estimated=len(ids) > 1)


def count_side_reads(tx: Tx, of: Counted, generations: Sequence[str]) -> SideReads:
    """Return what tasks of these partitions read of a side input: the same partition if there is one, else all."""
    all_rows, all_bytes, _ = total_size(tx, generations)
    sums = _sums(tx, generations)
    exact = max(of.partitions, *(each["partitions"] for each in sums), 0) <= EXACT_MAX
    keys = _keys(tx, of.generations, joined=of.joined, limit=None if exact else SAMPLE)
    sampled = of.partitions if exact else min(SAMPLE, of.partitions)
    matched, rows, size = tx.execute(
        sa.select(sa.func.count(), *_sums_of(_partitions))
        .join_from(keys, _partitions, _partitions.c.partition_key == keys.c.partition_key)
        .where(_in_generations(tx, generations))
    ).one()
    scale = of.partitions / sampled if sampled else 0.0
    others = max(0.0, of.partitions - int(matched) * scale)
    return SideReads(
        round(int(rows) * scale + others * all_rows), round(int(size) * scale + others * all_bytes), not exact
    )


def list_partitions(
    tx: Tx, generations: Sequence[str], after: str | None, limit: int, *, joined: bool
) -> tuple[list[dict[str, Any]], str | None]:
    """Return one page in order of key, with the total size of each over all generations; and where it ended, if there
    are more. A page of joined partitions may be short although more follow."""
    page: list[dict[str, Any]] = []
    for _ in range(PAGES_MAX if joined and len(generations) > 1 else 1):
        keys, more = _next_keys(tx, generations[:1] if joined else generations, after, limit + 1)
        page += _pieces(tx, generations, keys, joined=joined)
        if not more or len(page) > limit:
            break
        after = keys[-1]
    else:
        if len(page) <= limit:
            return page, after if generations else None
    return page[:limit], page[limit - 1]["partition_key"] if len(page) > limit else None


def _next_keys(tx: Tx, generations: Sequence[str], after: str | None, limit: int) -> tuple[list[str], bool]:
    """Return the first keys beyond ``after``, each generation asked by itself as its index is ordered, and whether
    there may be more."""
    keys: set[str] = set()
    more = False
    for generation in generations:
        query = sa.select(_partitions.c.partition_key).where(_in_generations(tx, [generation]))
        if after is not None:
            query = query.where(_partitions.c.partition_key > after)
        some = list(tx.execute(query.order_by(_partitions.c.partition_key).limit(limit)).scalars())
        keys.update(some)
        more = more or len(some) == limit
    return sorted(keys)[:limit], more


def _pieces(tx: Tx, generations: Sequence[str], keys: Sequence[str], *, joined: bool) -> list[dict[str, Any]]:
    if not keys:
        return []
    query = sa.select(*(_partitions.c[name] for name in _COLUMNS)).where(
        _in_generations(tx, generations), _partitions.c.partition_key.in_(keys)
    )
    by_key: dict[str, list[sa.RowMapping]] = {}
    for row in tx.all(query):
        by_key.setdefault(row["partition_key"], []).append(row)
    return [
        _summed(key, by_key[key])
        for key in keys
        if key in by_key and (not joined or len(by_key[key]) == len(generations))
    ]


def _summed(key: str, rows: Collection[Mapping[Any, Any] | sa.RowMapping]) -> dict[str, Any]:
    starts = [row["start"] for row in rows if row["start"] is not None]
    ends = [row["end"] for row in rows if row["end"] is not None]
    sizes = {
        name: sum(sizes_) if (sizes_ := [row[name] for row in rows if row[name] is not None]) else None
        for name in _SUMMED
    }
    return {"partition_key": key, "start": min(starts, default=None), "end": max(ends, default=None), **sizes}


def _keys(tx: Tx, generations: Sequence[str], *, joined: bool, limit: int | None = None) -> sa.Subquery:
    """Select each key once, with the total size over all generations; at most ``limit`` of the first generation."""
    if limit is not None:
        own = sa.select(_partitions.c.partition_key).where(_in_generations(tx, generations[:1]))
        return own.order_by(_partitions.c.partition_key).limit(limit).subquery()
    query = (
        sa.select(_partitions.c.partition_key, *(sa.func.sum(_partitions.c[name]).label(name) for name in _SUMMED))
        .where(_in_generations(tx, generations))
        .group_by(_partitions.c.partition_key)
    )
    return (query.having(sa.func.count() == len(generations)) if joined else query).subquery()


def _sums_of(table: sa.FromClause) -> tuple[sa.ColumnElement[int], sa.ColumnElement[int]]:
    return sa.func.coalesce(sa.func.sum(table.c["rows"]), 0), sa.func.coalesce(sa.func.sum(table.c["bytes"]), 0)


def _in_generations(tx: Tx, generations: Sequence[str]) -> sa.ColumnElement[bool]:
    # Also by dataset, which is the first column of the primary key.
    ids = list(generations)
    table = schema.generation_rows
    datasets = set(tx.execute(sa.select(table.c.dataset_id).where(table.c.id.in_(ids))).scalars())
    return sa.and_(_partitions.c.dataset_id.in_(sorted(datasets)), _partitions.c.generation_id.in_(ids))


def _sums(tx: Tx, generations: Sequence[str]) -> Sequence[sa.RowMapping]:
    return tx.all(sa.select(_generations).where(_generations.c.id.in_(list(generations))))


def total_size(tx: Tx, generations: Sequence[str]) -> tuple[int, int, bool]:
    """Return the rows and bytes of all that is committed, and whether anything is."""
    query = sa.select(
        sa.func.coalesce(sa.func.sum(_generations.c.rows), 0),
        sa.func.coalesce(sa.func.sum(_generations.c.bytes), 0),
        sa.func.count(_generations.c.revision),
        sa.func.count(_generations.c.cursor),
    ).where(_generations.c.id.in_(list(generations)))
    rows, size, revisions, cursors = tx.execute(query).one()
    return int(rows), int(size), bool(revisions or cursors)
