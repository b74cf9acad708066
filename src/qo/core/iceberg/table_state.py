"""What a table of Iceberg shows: its snapshots, and the manifests that these name. The next state follows from it.

A snapshot is a version of the dataset: its id and its sequence number are qo's revision. What never becomes current,
such as a generation that is being built, is never in the log of the branch ``main``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from qo.core.iceberg.manifest_groups import Position
from qo.core.iceberg.table_schema import Field
from qo.core.struct_preload import preload

SNAPSHOTS_MAX = 100
DOCUMENTS_MAX = 100  # Earlier ones that are remembered.
UNNAMED_MAX = 1_000
MAIN, NEXT = "main", "next"


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """A manifest, as lists of manifests show it, and which pieces are in it."""

    name: str  # Within the directory of the metadata.
    length: int
    spec_id: int
    snapshot_id: int  # That it was written for; also its sequence number.
    min_sequence_number: int
    added_files: int
    added_rows: int
    existing_files: int
    existing_rows: int
    size: int  # Of its data files, in bytes.
    has_null_key: bool
    key_lower: bytes | None
    key_upper: bytes | None
    first: Position
    part: int | None = None  # Of a piece that has several manifests.
    pieces: tuple[int, ...] = ()  # Revisions; kept for manifests from which the next snapshot is made.

    @property
    def entries(self) -> int:
        return self.added_files + self.existing_files

    @property
    def rows(self) -> int:
        return self.added_rows + self.existing_rows


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    id: int  # The revision.
    parent: int | None
    generation_id: str
    timestamp_ms: int
    schema_id: int
    operation: str
    summary: dict[str, str]
    list_name: str  # Of the file that lists its manifests.
    manifests: tuple[str, ...]


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    timestamp_ms: int
    snapshot_id: int


class Document(msgspec.Struct, frozen=True, array_like=True):
    """A metadata document that was written earlier."""

    timestamp_ms: int
    version: int


class Unnamed(msgspec.Struct, frozen=True, array_like=True):
    """A file that no snapshot names since then."""

    timestamp_ms: int
    name: str


class TableState(msgspec.Struct, frozen=True):
    schemas: tuple[list[Field], ...] = ()  # Their ids are their places.
    key: str | None = None  # The name of the column with the partition key; None: there are no partitions.
    manifests: dict[str, Manifest] = {}  # By name.
    snapshots: tuple[Snapshot, ...] = ()  # In the order in which they were added.
    log: tuple[LogEntry, ...] = ()  # Of the branch "main".
    main: int | None = None
    next: int | None = None
    documents: tuple[Document, ...] = ()
    unnamed: tuple[Unnamed, ...] = ()
    last_sequence_number: int = 0
    updated_ms: int = 0

    def find_snapshot(self, id_: int | None) -> Snapshot | None:
        return next((each for each in self.snapshots if each.id == id_), None)

    def last_snapshot(self, generation_id: str) -> Snapshot | None:
        """Return the latest snapshot of a generation."""
        return max(
            (each for each in self.snapshots if each.generation_id == generation_id),
            key=lambda each: each.id,
            default=None,
        )

    def groups(self, snapshot: Snapshot | None) -> list[Manifest] | None:
        """Return the manifests of a snapshot with their pieces, in order; None if the pieces are not known any more."""
        if snapshot is None:
            return []
        manifests = [self.manifests[name] for name in snapshot.manifests]
        return (
            sorted(manifests, key=lambda each: (each.first, each.part or 0))
            if all(each.pieces for each in manifests)
            else None
        )

    @property
    def names(self) -> set[str]:
        """The files that the listed snapshots name."""
        return {each.list_name for each in self.snapshots} | self.manifests.keys()


preload(TableState)


def summarize(
    before: Sequence[Manifest], after: Sequence[Manifest], added: Sequence[Manifest]
) -> tuple[str, dict[str, str]]:
    """Return the operation of a snapshot, and its summary. ``added``: the manifests written for it."""
    files, rows, size = (_sum(after, each) for each in ("entries", "rows", "size"))
    new_files, new_rows = _sum(added, "added_files"), _sum(added, "added_rows")
    removed_files = _sum(before, "entries") + new_files - files
    removed_rows = _sum(before, "rows") + new_rows - rows
    operation = "append" if not removed_files else "overwrite" if new_files else "delete"
    counts = {
        "added-data-files": new_files,
        "added-records": new_rows,
        "deleted-data-files": removed_files,
        "deleted-records": removed_rows,
    }
    totals = {
        "total-data-files": files,
        "total-records": rows,
        "total-files-size": size,
        "total-delete-files": 0,
        "total-position-deletes": 0,
        "total-equality-deletes": 0,
    }
    return operation, {name: str(n) for name, n in counts.items() if n} | {
        name: str(n) for name, n in totals.items()
    }


def _sum(manifests: Iterable[Manifest], name: str) -> int:
    return sum(getattr(each, name) for each in manifests)


def add_schema(state: TableState, fields: list[Field]) -> tuple[TableState, int]:
    """Return the state with a schema, and the id of that."""
    if fields in state.schemas:
        return state, state.schemas.index(fields)
    return msgspec.structs.replace(state, schemas=(*state.schemas, fields)), len(state.schemas)


def add_snapshot(state: TableState, snapshot: Snapshot, manifests: Sequence[Manifest]) -> TableState:
    """Return the state with a snapshot. ``manifests``: those that were written for it."""
    return msgspec.structs.replace(
        state,
        snapshots=(*state.snapshots, snapshot),
        manifests=state.manifests | {each.name: each for each in manifests},
        last_sequence_number=max(state.last_sequence_number, snapshot.id),
    )


def set_branches(state: TableState, *, main: int | None, next_: int | None, now_ms: int) -> TableState:
    """Return the state with these branches, and one entry in the log if ``main`` has moved."""
    now_ms = max(now_ms, state.updated_ms)
    log = state.log
    if main is None:
        log = ()
    elif main != state.main:
        snapshot = state.find_snapshot(main)
        assert snapshot is not None, "a branch points to a snapshot that is listed"
        before = state.find_snapshot(state.main)
        is_commit = before is None or (before.generation_id == snapshot.generation_id and before.id < snapshot.id)
        # The moment of a commit is that of its snapshot; a cutover or a rollback happens now.
        at = snapshot.timestamp_ms if is_commit else now_ms
        log = (*log, LogEntry(max(at, log[-1].timestamp_ms if log else 0), main))
    return msgspec.structs.replace(state, main=main, next=next_, log=log, updated_ms=now_ms)


def expire(state: TableState, before_ms: int | None) -> TableState:
    """Return the state without snapshots that are too many, or that were replaced before a moment.

    A branch keeps its snapshot. The log keeps what comes after the last snapshot that is gone from it.
    """
    staying = _recent(state)
    if before_ms is not None:
        replaced_at = _replaced_at(state)
        staying = {each for each in staying if replaced_at.get(each, before_ms) >= before_ms}
    staying |= {each for each in (state.main, state.next) if each is not None}
    snapshots = tuple(
        msgspec.structs.replace(each, parent=each.parent if each.parent in staying else None)
        for each in state.snapshots
        if each.id in staying
    )
    dropped = [at for at, each in enumerate(state.log) if each.snapshot_id not in staying]
    in_use = {name for each in snapshots for name in each.manifests}
    expired = msgspec.structs.replace(
        state,
        snapshots=snapshots,
        manifests={name: each for name, each in state.manifests.items() if name in in_use},
        log=state.log[dropped[-1] + 1 if dropped else 0 :],
    )
    return _forget_pieces(_remember_unnamed(state, expired))


def _recent(state: TableState) -> set[int]:
    held = {each for each in (state.main, state.next) if each is not None}
    others = [each.id for each in state.snapshots if each.id not in held]
    return {*others[max(0, len(others) - SNAPSHOTS_MAX + len(held)) :], *held}


def _replaced_at(state: TableState) -> dict[int, int]:
    """Return when each snapshot was replaced: by the next one of its generation, or when ``main`` left it."""
    replaced: dict[int, int] = {}
    by_generation: dict[str, list[Snapshot]] = {}
    for each in state.snapshots:
        by_generation.setdefault(each.generation_id, []).append(each)
    departures = {one.snapshot_id: other.timestamp_ms for one, other in pairwise(state.log)}
    for some in by_generation.values():
        some.sort(key=lambda each: each.id)
        for one, other in pairwise(some):
            replaced[one.id] = max(other.timestamp_ms, departures.get(one.id, 0))
        last = some[-1]
        replaced[last.id] = max(last.timestamp_ms, departures.get(last.id, 0))
    return replaced


def _remember_unnamed(before: TableState, after: TableState) -> TableState:
    dropped = sorted(before.names - after.names)
    unnamed = (*before.unnamed, *(Unnamed(before.updated_ms, name) for name in dropped))
    return msgspec.structs.replace(after, unnamed=unnamed[-UNNAMED_MAX:])


def _forget_pieces(state: TableState) -> TableState:
    """Keep the pieces of those manifests from which the next snapshot of a generation may be made."""
    current = {
        snapshot.generation_id
        for id_ in (state.main, state.next)
        if (snapshot := state.find_snapshot(id_)) is not None
    }
    heads = [state.last_snapshot(each) for each in current]
    needed = {name for each in heads if each is not None for name in each.manifests}
    manifests = {
        name: each if name in needed or not each.pieces else msgspec.structs.replace(each, pieces=())
        for name, each in state.manifests.items()
    }
    return msgspec.structs.replace(state, manifests=manifests)


def add_document(state: TableState, version: int) -> TableState:
    """Return the state that knows of the document that it was written to."""
    documents = (*state.documents, Document(state.updated_ms, version))
    return msgspec.structs.replace(state, documents=documents[-DOCUMENTS_MAX:])


def needed_files(state: TableState, kept_since_ms: int) -> tuple[set[str], int]:
    """Return the names of the files that must be kept, and the version of the earliest document that must.

    ``kept_since_ms``: what was named after that is kept, too, for those who read an earlier document.
    """
    names = state.names | {each.name for each in state.unnamed if each.timestamp_ms >= kept_since_ms}
    documents = state.documents
    for one, following in pairwise(documents):
        if following.timestamp_ms >= kept_since_ms:
            return names, one.version
    return names, documents[-1].version if documents else 0


def listed(state: TableState) -> list[tuple[str, int]]:
    """Return generation and revision of each snapshot."""
    return [(each.generation_id, each.id) for each in state.snapshots]


def branch_refs(state: TableState) -> dict[str, Any]:
    branches: Mapping[str, int | None] = {MAIN: state.main, NEXT: state.next}
    return {name: {"snapshot-id": id_, "type": "branch"} for name, id_ in branches.items() if id_ is not None}


def begin_anew(state: TableState, key: str | None) -> TableState:
    """Return a state without snapshots, for a table whose files are partitioned otherwise from now on."""
    empty = TableState(
        key=key,
        documents=state.documents,
        last_sequence_number=state.last_sequence_number,
        updated_ms=state.updated_ms,
    )
    return _remember_unnamed(state, msgspec.structs.replace(empty, unnamed=state.unnamed))
