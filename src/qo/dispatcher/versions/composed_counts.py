"""How many partitions a job will make of others, and how much they read. Read-only.

Few are worked out one by one from the keys that are there; of many, sizes and kinds give an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.part_maps import PartMap, concerned, find_missing, may_be_incomplete
from qo.core.pipeline.plan import PlannedJob
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.versions import partition_counts
from qo.errors import UsageError

EXACT_MAX = 2_000  # Partitions of an input that are looked at one by one.

_partitions = schema.partitions


@dataclass(frozen=True, slots=True)
class Composed:
    partitions: int
    rows: int
    bytes: int
    estimated: bool
    page: Sequence[Mapping[str, Any]]  # Of the partitions, in order of key.
    next: str | None  # Where the page ended, if there are more.


def composed_maps(job: PlannedJob) -> dict[int, PartMap]:
    """Return the maps of the inputs whose partitions those of the job are made of; none: it makes them otherwise."""
    return {
        each.position: job.maps[each.position] for each in job.inputs if each.trigger and each.position in job.maps
    }


def count_composed(
    tx: Tx, job: PlannedJob, generations: Mapping[int, Sequence[str]], after: str | None, limit: int
) -> Composed:
    """Count what a composite would make of what is committed. ``generations``: by position of the input."""
    maps = composed_maps(job)
    parts = {position: _parts(tx, generations.get(position, ())) for position in maps}
    if any(len(of_input) > EXACT_MAX for of_input in parts.values()):
        return _estimate(tx, maps, generations)
    sizes: dict[str, list[int]] = {}
    for position, of_input in parts.items():
        for part, (rows, size) in of_input.items():
            with suppress(UsageError):  # It was committed before its keys were declared.
                for key in concerned(maps[position], part):
                    of_key = sizes.setdefault(key, [0, 0])
                    of_key[0] += rows
                    of_key[1] += size
    present = {position: set(of_input) for position, of_input in parts.items()}
    due_keys = [key for key in sorted(sizes) if _is_made(job, maps, key, present)]
    page = [key for key in due_keys if after is None or key > after]
    return Composed(
        len(due_keys),
        sum(sizes[key][0] for key in due_keys),
        sum(sizes[key][1] for key in due_keys),
        estimated=False,
        page=[{"partition_key": key, "rows": sizes[key][0], "bytes": sizes[key][1]} for key in page[:limit]],
        next=page[limit - 1] if len(page) > limit else None,
    )


def _is_made(job: PlannedJob, maps: Mapping[int, PartMap], key: str, present: Mapping[int, set[str]]) -> bool:
    missing = find_missing(maps, key, present)
    return missing.is_begun and (missing.count == 0 or may_be_incomplete(job.job))


def _parts(tx: Tx, generations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return rows and bytes of each partition, up to one more than are looked at."""
    query = sa.select(_partitions.c.partition_key, _partitions.c.rows, _partitions.c.bytes)
    query = query.where(_partitions.c.generation_id.in_(list(generations))).order_by(_partitions.c.revision)
    return {key: (rows or 0, size or 0) for key, rows, size in tx.execute(query.limit(EXACT_MAX + 1))}


def _estimate(tx: Tx, maps: Mapping[int, PartMap], generations: Mapping[int, Sequence[str]]) -> Composed:
    partitions = rows = size = 0
    for position, map_ in maps.items():
        ids = generations.get(position, ())
        counted = partition_counts.count_partitions(tx, ids, joined=False)
        partitions = max(partitions, math.ceil(counted.partitions * map_.ratio))
        rows, size = rows + counted.rows * map_.window, size + counted.bytes * map_.window
    return Composed(partitions, rows, size, estimated=True, page=(), next=None)
