"""Whether one task has read later parts than another, for tasks that read several partitions of one input.

``commits`` compares others in one statement, by the keys that both have read. Here a part that only one has read counts
as well: it came later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from qo.core.pipeline.topology import Topology
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches

_pins = schema.task_inputs
_Pins = Mapping[int, Sequence[sa.RowMapping]]  # By position.


def find_later(tx: Tx, live: Topology, pairs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those pairs of tasks of which the second has read later than the first."""
    by_task: dict[str, dict[int, list[sa.RowMapping]]] = {}
    for some in batches(sorted({task for pair in pairs for task in pair})):
        for pin in tx.all(sa.select(_pins).where(_pins.c.task_id.in_(some))):
            by_task.setdefault(pin["task_id"], {}).setdefault(pin["position"], []).append(pin)
    return {
        (mine, theirs) for mine, theirs in pairs if _is_later(live, by_task.get(mine, {}), by_task.get(theirs, {}))
    }


def _is_later(live: Topology, mine: _Pins, theirs: _Pins) -> bool:
    common = mine.keys() & theirs.keys()
    if any(_is_superseding(live, mine[at], theirs[at]) for at in common):
        return False
    return any(_is_superseding(live, theirs[at], mine[at]) or _has_newer(mine[at], theirs[at]) for at in common)


def _is_superseding(live: Topology, ones: Sequence[sa.RowMapping], others: Sequence[sa.RowMapping]) -> bool:
    """Whether the first have read the current generation of a dataset, and the others another."""
    one, other = ones[0], others[0]
    differ = one["generation_id"] != other["generation_id"]
    return differ and live.current.get(one["dataset_id"]) == one["generation_id"]


def _has_newer(mine: Sequence[sa.RowMapping], theirs: Sequence[sa.RowMapping]) -> bool:
    if mine[0]["generation_id"] != theirs[0]["generation_id"]:
        return False
    read = {pin["partition_key"]: pin["revision"] or 0 for pin in mine}
    # One of them may have read the input as a whole, or nothing of it.
    whole, most = read.get("", 0), max(read.values())
    return any(
        (pin["revision"] or 0) > (most if pin["partition_key"] == "" else read.get(pin["partition_key"], whole))
        for pin in theirs
    )
