"""Dedupe keys: what a task is about, as text. An edition has one task for each key.

A key is its kind and what it is about, joined by colons. The text is stored and decides the task's id, so it
never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from qo.core.pipeline.composition import PartNow, Place
from qo.core.pipeline.dag import Join
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.topology import LiveJob

SOURCE = "source"  # Of the one long-lived task of an always-on job.


class KeyKind(StrEnum):
    PARTITION = "partition"
    CURSOR = "cursor"
    CHANGE = "change"
    INVALIDATION = "invalidation"
    REFRESH = "refresh"  # A commit is made again because an input changed.
    BESIDE = "beside"  # A task's outputs are made again because a side input changed.
    BACKFILL = "backfill"
    REMOVAL = "removed"
    EMISSION = "manual"

    @property
    def prefix(self) -> str:
        """How all keys of this kind begin."""
        return f"{self}:"


_KINDS = frozenset(KeyKind)


@dataclass(frozen=True, slots=True)
class DedupeKey:
    kind: KeyKind
    subject: str  # Up to the next colon: an id, or a caller's key.

    @classmethod
    def parse(cls, text: str) -> DedupeKey | None:
        """Return kind and subject of a stored key; None for the key of a source."""
        kind, _, rest = text.partition(":")
        return cls(KeyKind(kind), rest.partition(":")[0]) if kind in _KINDS else None


def for_partition(
    job: LiveJob, dataset_id: str, generation_id: str, partition_key: str, current: Mapping[str, str]
) -> str:
    """Return the key of the work on a partition. A job that joins its inputs has one, whichever input completes it.

    ``current``: the current generations, as the topology has them. A new generation of an input is joined anew.
    """
    if job.job.join is Join.ALL:
        read = [each.generation_id or current.get(each.dataset_id, "") for each in job.inputs if each.trigger]
        return joined_prefix(read) + partition_key
    return partition_prefix(dataset_id, generation_id) + partition_key


def partition_prefix(dataset_id: str, generation_id: str) -> str:
    """Return how the keys of all partitions of a generation begin, for a job that does not join."""
    return f"{KeyKind.PARTITION.prefix}{dataset_id}:{generation_id}:"


def joined_prefix(generations: Iterable[str]) -> str:
    """Return how the keys of all partitions that are joined from these generations, in the inputs' order, begin."""
    return f"{KeyKind.PARTITION.prefix}{derive_id('joined', *generations)[:8]}:"


def for_cursor(dataset_id: str, generation_id: str, cursor: int) -> str:
    return f"{KeyKind.CURSOR.prefix}{dataset_id}:{generation_id}:{cursor}"


def for_change(generation_id: str, head: int, output_head: int) -> str:
    """Return the key for reading what has changed.

    ``head``: the last revision of what is read. ``output_head``: that of what was made from it, which differs once the
    job has read something else in between.
    """
    return f"{KeyKind.CHANGE.prefix}{generation_id}:{head}:{output_head}"


def for_invalidation(invalidation_id: str) -> str:
    return f"{KeyKind.INVALIDATION.prefix}{invalidation_id}"


def for_refresh(replaced: int, generation_id: str, revision: int) -> str:
    """Return the key for making the commit ``replaced`` again from that revision of an input's generation."""
    return f"{KeyKind.REFRESH.prefix}{replaced}:{generation_id}:{revision}"


def for_parts(partition_key: str, parts: Mapping[Place, PartNow]) -> str:
    """Return the key for making a partition again of these others, as they are now."""
    state = (f"{place}:{part.revision}" for place, part in sorted(parts.items()))
    return f"{KeyKind.REFRESH.prefix}{derive_id('parts', *state)}:{partition_key}"


def for_side_input(task_id: str, generation_id: str, revision: int) -> str:
    """Return the key for making a task's outputs again with that revision of a side input's generation."""
    return f"{KeyKind.BESIDE.prefix}{task_id}:{generation_id}:{revision}"


def for_backfill(backfill_id: str, partition_key: str) -> str:
    return backfill_prefix(backfill_id) + partition_key


def backfill_prefix(backfill_id: str) -> str:
    """Return how the keys of all tasks of a backfill begin."""
    return f"{KeyKind.BACKFILL.prefix}{backfill_id}:"


def for_removal(removal_id: str) -> str:
    return f"{KeyKind.REMOVAL.prefix}{removal_id}"


def for_emission(key: str) -> str:
    """Return the key of what a source announced under a caller's idempotency key."""
    return f"{KeyKind.EMISSION.prefix}{key}"
