"""What is there of the partitions that one is made of, and what it lacks."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from qo.core.pipeline.composition import PartNow, Place
from qo.core.pipeline.part_maps import Missing, PartMap, find_missing, reads
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import removing
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared

_partitions = schema.partitions
_KEYS = sa.bindparam("keys", expanding=True, type_=sa.String)
# Built once: building a statement takes longer than executing it.
_PARTS = Prepared(
    sa.select(_partitions.c.partition_key, _partitions.c.revision, _partitions.c.committed_at).where(
        _partitions.c.dataset_id == sa.bindparam("dataset"),
        _partitions.c.generation_id == sa.bindparam("generation"),
        _partitions.c.partition_key.in_(_KEYS),
        _partitions.c.revision > 0,
    )
)


def generation_of(live: Topology, job: LiveJob, position: int) -> str | None:
    each = job.inputs[position]
    return each.generation_id or live.current.get(each.dataset_id)


def load(
    tx: Tx, live: Topology, job: LiveJob, keys: Collection[str]
) -> tuple[dict[str, dict[Place, PartNow]], dict[str, Missing]]:
    """Return what each partition reads and is there, and what it lacks."""
    maps: dict[int, PartMap] = {each.position: job.maps[each.position] for each in job.composed}
    now: dict[int, dict[str, PartNow]] = {}
    for position, map_ in maps.items():
        keys_read = {part.key for key in keys for part in reads(map_, key).parts}
        now[position] = _parts_now(tx, live, job, position, keys_read)
    parts: dict[str, dict[Place, PartNow]] = {}
    missing: dict[str, Missing] = {}
    for key in keys:
        parts[key] = {
            (position, generation_of(live, job, position) or "", part.key): there
            for position, map_ in maps.items()
            for part in reads(map_, key).parts
            if (there := now[position].get(part.key)) is not None
        }
        missing[key] = find_missing(maps, key, {position: now[position].keys() for position in maps})
    return parts, missing


def _parts_now(tx: Tx, live: Topology, job: LiveJob, position: int, keys: Collection[str]) -> dict[str, PartNow]:
    generation = generation_of(live, job, position)
    if generation is None:
        return {}
    there: dict[str, PartNow] = {}
    for some in batches(sorted(keys)):
        values = {"dataset": job.inputs[position].dataset_id, "generation": generation, "keys": some}
        there |= {key: PartNow(revision, at.timestamp()) for key, revision, at in tx.rows(_PARTS, values)}
    # What a person removed is not waited for.
    removed = removing.last_removals(tx, generation, keys - there.keys()) if keys - there.keys() else {}
    return there | {key: PartNow(revision, 0.0, is_removed=True) for key, revision in removed.items()}


def find_lacks(tx: Tx, live: Topology, job: LiveJob, key: str) -> Missing:
    """Return what a partition of a composite lacks now."""
    return load(tx, live, job, [key])[1][key]


def is_bereft(tx: Tx, live: Topology, job: LiveJob, key: str) -> bool:
    """Whether nothing is left of what a partition of a composite was made of."""
    parts = load(tx, live, job, [key])[0][key]
    return all(part.is_removed for part in parts.values())
