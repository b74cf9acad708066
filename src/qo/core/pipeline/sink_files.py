"""The files of a sink: what the record beside them says, and what a change of the dataset makes of them.

The record (``SinkRecord``) names every file that counts, and the commits whose rows are in it. Before files are changed
it names those as pending, so that the next loader after a crash knows what may be half done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from qo.core.pipeline.file_pattern import file_name, is_partitioned
from qo.core.struct_preload import preload


class SinkFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that counts."""

    partition: str | None = None  # Whose rows it has; None: those of all.
    revisions: tuple[int, ...]  # Of the commits whose rows it has.
    rows: int
    bytes: int
    sha256: str


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a sink, for its loaders and for readers of the files."""

    dataset: str  # Its published name.
    dataset_id: str
    file: str  # The pattern of the names.
    generation_id: str | None = None  # What the files show; None: nothing yet.
    epoch: int = 0
    revision: int = 0  # As of which they show it.
    number: int = 0  # Of the last change that was begun.
    changed_at: str = ""
    loader: str = ""  # Drawn by the loader that wrote this.
    files: dict[str, SinkFile] = {}
    pending: tuple[str, ...] = ()  # Names that a change writes, or may have written before it was cut off.
    replaced: dict[str, float] = {}  # Files that no longer count, and since when; they are deleted later.


preload(SinkRecord)


@dataclass(frozen=True)
class Change:
    """What makes the files of a dataset follow it."""

    number: int
    write: Mapping[str, tuple[str | None, tuple[int, ...]]]  # By name: the partition, and the commits to write.
    keep: Mapping[str, SinkFile]
    drop: tuple[str, ...]  # Files that no longer count.

    @property
    def revisions(self) -> frozenset[int]:
        """The commits whose rows are needed."""
        return frozenset(each for _, revisions in self.write.values() for each in revisions)


def standing_files(record: SinkRecord, pattern: str, generation_id: str) -> Mapping[str, SinkFile]:
    """Return the files that show the generation, under names of this pattern."""
    if record.generation_id != generation_id or record.file != pattern:
        return {}
    return record.files


def follow(standing: Mapping[str, SinkFile], added: Mapping[int, str], dropped: Collection[int]) -> dict[int, str]:
    """Return the commits that are current after a step from what the files show, with the partition of each."""
    partitions = {
        revision: each.partition or ""
        for each in standing.values()
        for revision in each.revisions
        if revision not in dropped
    }
    return partitions | dict(added)


def plan_change(
    record: SinkRecord, pattern: str, standing: Mapping[str, SinkFile], commits: Mapping[int, str]
) -> Change:
    """Return what to write, what stays and what goes, so that the files show exactly these commits."""
    number = record.number + 1
    groups: dict[str | None, list[int]] = {}
    for revision, partition in sorted(commits.items()):
        groups.setdefault(partition if is_partitioned(pattern) else None, []).append(revision)
    # A file that a change has begun to replace may have other rows by now.
    whole = {(each.partition, each.revisions): name for name, each in standing.items()}
    write: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    keep: dict[str, SinkFile] = {}
    for partition, listed in groups.items():
        revisions = tuple(listed)
        name = whole.get((partition, revisions))
        if name is not None and name not in record.pending:
            keep[name] = standing[name]
        else:
            write[file_name(pattern, partition, number)] = (partition, revisions)
    drop = tuple(sorted(name for name in record.files if name not in keep and name not in write))
    return Change(number, write, keep, drop)


def begin(record: SinkRecord, change: Change, loader: str) -> SinkRecord:
    """Return the record while the change is under way. What counts is as before."""
    pending = tuple(sorted({*record.pending, *change.write}))
    return msgspec.structs.replace(record, number=change.number, pending=pending, loader=loader)


def finish(
    under_way: SinkRecord, change: Change, new_files: Mapping[str, SinkFile], *, now: float, **shows: Any
) -> SinkRecord:
    """Return the record after the change. ``shows``: the generation and the revision, for instance."""
    files = dict(change.keep) | dict(new_files)
    obsolete = {*change.drop, *under_way.pending}
    replaced = {name: since for name, since in under_way.replaced.items() if name not in files}
    replaced |= {name: now for name in sorted(obsolete) if name not in files and name not in replaced}
    return msgspec.structs.replace(under_way, files=files, pending=(), replaced=replaced, **shows)


def list_due(record: SinkRecord, keep_s: int, *, now: float) -> list[str]:
    """Return the files that no longer count and have stayed for as long as they were to."""
    return sorted(name for name, since in record.replaced.items() if now - since >= keep_s)


def without(record: SinkRecord, names: Collection[str], loader: str) -> SinkRecord:
    """Return the record after files that no longer count were deleted."""
    replaced = {name: since for name, since in record.replaced.items() if name not in names}
    return msgspec.structs.replace(record, replaced=replaced, loader=loader)
