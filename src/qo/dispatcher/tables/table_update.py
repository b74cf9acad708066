"""The next state of a table, and the files that it needs: what is read from the state database, and made from it.

Only the manifests that changed pieces are in are made anew, however large the table is. Everything is read in one
transaction, and nothing is written here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa

from qo.core.iceberg import table_state
from qo.core.iceberg.manifest_groups import ENTRIES_MAX, Item, Position, assign, split
from qo.core.iceberg.table_schema import BY_KEY, UNPARTITIONED, key_column, table_fields
from qo.core.iceberg.table_state import Manifest, Snapshot, TableState
from qo.core.pipeline.columns import Column
from qo.dispatcher.commits import dataset_columns
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tables.data_files import DataFile, NotATable, Piece, data_files, load_pieces
from qo.dispatcher.tables.due_tables import DueTable, Head
from qo.dispatcher.tables.manifest_avro import content_hash, encode_list, encode_manifest
from qo.dispatcher.tables.table_records import StoredTable
from qo.errors import UsageError

_commits = schema.commits

# Building a statement takes longer than executing it, so these are built once.
_REVISION = sa.bindparam("revision", type_=sa.BigInteger)
_SINCE = sa.bindparam("since", type_=sa.BigInteger)
_OWN = _commits.c.generation_id == sa.bindparam("generation")
_STANDS = sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > _REVISION)
_STANDING = Prepared(sa.select(_commits.c.revision).where(_OWN, _commits.c.revision <= _REVISION, _STANDS))
_ADDED = Prepared(
    sa.select(_commits.c.partition_key, _commits.c.cursor, _commits.c.revision).where(
        _OWN, _commits.c.revision > _SINCE, _commits.c.revision <= _REVISION, _STANDS
    )
)
_REPLACED = Prepared(
    sa.select(_commits.c.revision).where(
        _OWN,
        _commits.c.revision <= _SINCE,
        _commits.c.replaced_by > _SINCE,
        _commits.c.replaced_by <= _REVISION,
    )
)
_COMMITTED_AT = Prepared(sa.select(_commits.c.committed_at).where(_commits.c.revision == _REVISION))


@dataclass(frozen=True, slots=True)
class Change:
    """How a branch comes to show a version that no snapshot shows yet."""

    head: Head
    columns: Sequence[Column]
    committed_at: datetime
    before: Snapshot | None  # The last one of its generation.
    stay: Sequence[Manifest]
    regroup: Sequence[Sequence[int]]  # Revisions of the pieces that get manifests of their own.
    added: Collection[int]  # Those that the snapshot adds.
    pieces: Mapping[int, Piece]


@dataclass(slots=True)
class TableFiles:
    """The files of metadata to be written, by name."""

    bodies: dict[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True, slots=True)
class TablePlan:
    due: DueTable
    stored: StoredTable
    state: TableState  # To begin from.
    changes: Sequence[Change]
    now: datetime

    @property
    def unmeasured(self) -> list[str]:
        """The files whose sizes are not known."""
        pieces = (piece for each in self.changes for piece in each.pieces.values())
        return sorted({uri for piece in pieces for uri in piece.unmeasured})


def plan_table(tx: Tx, due: DueTable, stored: StoredTable) -> TablePlan:
    """Return what is to be done for a table. Raises NotATable, with what to do about it."""
    if due.main is None:
        raise NotATable("nothing is committed to it yet: it becomes a table with its first commit")
    state = stored.state
    heads = [
        each for each in (due.main, due.next) if each is not None and state.find_snapshot(each.revision) is None
    ]
    changes = _changes(tx, heads, state, due.main)
    key = _needed_key(state, changes)
    if key != state.key:
        is_new = not state.snapshots
        state = table_state.begin_anew(state, key)
        if not is_new:
            # Manifests are partitioned in one way only: all of them are made anew.
            heads = [each for each in (due.main, due.next) if each is not None]
            changes = _changes(tx, heads, state, due.main)
    return TablePlan(due, stored, state, changes, tx.now)


def _changes(tx: Tx, heads: Sequence[Head], state: TableState, main: Head) -> list[Change]:
    changes: list[Change] = []
    for head in heads:
        try:
            changes.append(_plan_change(tx, head, state))
        except NotATable:
            if head == main:
                raise  # What is being built beside it is no branch then, and the table stays one.
    return changes


def _needed_key(state: TableState, changes: Sequence[Change]) -> str | None:
    """Return the name of the column with the partition key, which the columns must not have; None without one."""
    pieces = (piece for each in changes for piece in each.pieces.values())
    if state.key is None and not any(piece.partition_key is not None for piece in pieces):
        return None
    columns = {each.name: each for change in changes for each in change.columns}
    lower_names = {name.lower() for name in columns}
    if state.key is not None and state.key not in lower_names:
        return state.key
    return key_column(list(columns.values()))


def _plan_change(tx: Tx, head: Head, state: TableState) -> Change:
    columns = dataset_columns.as_of(tx, head.generation_id, head.revision)
    if columns is None:
        raise NotATable(
            "its columns are not known: let the operator say them (run.output().columns), or write it with the runtime "
            "spark, which does"
        )
    before = state.last_snapshot(head.generation_id)
    if before is not None and before.id > head.revision:
        before = None
    groups = state.groups(before)
    if before is None or groups is None:
        standing = _standing(tx, head)
        added = {each for each in standing if before is None or each > before.id}
        stay, regroup = list[Manifest](), [standing] if standing else []
    else:
        removed, new = _moved(tx, head, before.id)
        indexes, regroup = assign(groups, removed, new)
        stay, added = [groups[at] for at in indexes], {each.revision for each in new}
    pieces = load_pieces(tx, [revision for some in regroup for revision in some])
    committed_at = next((row[0] for row in tx.rows(_COMMITTED_AT, {"revision": head.revision})), tx.now)
    return Change(head, columns, committed_at, before, stay, regroup, added, pieces)


def _standing(tx: Tx, head: Head) -> list[int]:
    """Return the revisions of all pieces of a version."""
    return [row[0] for row in tx.rows(_STANDING, {"generation": head.generation_id, "revision": head.revision})]


def _moved(tx: Tx, head: Head, since: int) -> tuple[set[int], list[Position]]:
    """Return the pieces that a version has no more, and those that it has in addition, since another version."""
    values = {"generation": head.generation_id, "revision": head.revision, "since": since}
    positions = [
        Position(key or "", -1 if key is not None or cursor is None else cursor, revision)
        for key, cursor, revision in tx.rows(_ADDED, values)
    ]
    return {row[0] for row in tx.rows(_REPLACED, values)}, positions


def make_files(
    plan: TablePlan, sizes: Mapping[str, int], version: int, directory: str
) -> tuple[TableState, TableFiles]:
    """Return the next state of a table, and the manifests that it names. ``sizes``: of unmeasured files.

    Names begin with the version: a file of a later version than the stored one is about to be named. Raises NotATable.
    """
    state, files = plan.state, TableFiles()
    for each in plan.changes:
        try:
            state = _add_version(state, each, sizes, version, directory, files)
        except NotATable:
            if each.head == plan.due.main:
                raise
    due, now_ms = plan.due, _milliseconds(plan.now)
    next_ = due.next.revision if due.next is not None and state.find_snapshot(due.next.revision) else None
    assert due.main is not None
    state = table_state.set_branches(state, main=due.main.revision, next_=next_, now_ms=now_ms)
    expire = plan.stored.expire_before
    return table_state.expire(state, None if expire is None else _milliseconds(expire)), files


def _add_version(
    state: TableState, change: Change, sizes: Mapping[str, int], version: int, directory: str, files: TableFiles
) -> TableState:
    by_key = state.key is not None
    try:
        fields = table_fields(change.columns, key=state.key)
    except UsageError as error:
        raise NotATable(str(error)) from None
    state, schema_id = table_state.add_schema(state, fields)
    id_ = change.head.revision
    new_manifests: list[Manifest] = []
    for some in change.regroup:
        loaded = {
            revision: data_files(change.pieces[revision], sizes, is_added=revision in change.added)
            for revision in some
        }
        items = [Item(change.pieces[each].position, len(loaded[each])) for each in some if loaded[each]]
        for group in split(items):
            listed = [file for item in group for file in _files_of(item, loaded[item.revision])]
            body = encode_manifest(listed, fields, schema_id, BY_KEY if by_key else UNPARTITIONED, id_)
            manifest = _describe(group, listed, body, version, id_, by_key=by_key)
            files.bodies[manifest.name] = body
            new_manifests.append(manifest)
    parent = None if change.before is None else change.before.id
    manifests = sorted([*change.stay, *new_manifests], key=lambda each: (each.first, each.part or 0))
    body = encode_list(manifests, id_, parent, directory)
    before = [] if change.before is None else [state.manifests[name] for name in change.before.manifests]
    operation, summary = table_state.summarize(before, manifests, new_manifests)
    snapshot = Snapshot(
        id=id_,
        parent=parent,
        generation_id=change.head.generation_id,
        timestamp_ms=_milliseconds(change.committed_at),
        schema_id=schema_id,
        operation=operation,
        summary=summary,
        list_name=f"{version:06}-{content_hash(body)}-list.avro",
        manifests=tuple(each.name for each in manifests),
    )
    files.bodies[snapshot.list_name] = body
    return table_state.add_snapshot(state, snapshot, new_manifests)


def _files_of(item: Item, files: Sequence[DataFile]) -> Sequence[DataFile]:
    return files if item.part is None else files[item.part * ENTRIES_MAX : (item.part + 1) * ENTRIES_MAX]


def _describe(
    group: Sequence[Item], files: Sequence[DataFile], body: bytes, version: int, snapshot_id: int, *, by_key: bool
) -> Manifest:
    added = [each for each in files if each.is_added]
    existing = [each for each in files if not each.is_added]
    keys = [each.partition_key for each in files if each.partition_key is not None]
    return Manifest(
        name=f"{version:06}-{content_hash(body)}.avro",
        length=len(body),
        spec_id=BY_KEY if by_key else UNPARTITIONED,
        snapshot_id=snapshot_id,
        min_sequence_number=min([snapshot_id, *(each.revision for each in existing)]),
        added_files=len(added),
        added_rows=sum(each.rows for each in added),
        existing_files=len(existing),
        existing_rows=sum(each.rows for each in existing),
        size=sum(each.bytes for each in files),
        has_null_key=len(keys) < len(files),
        key_lower=min(keys).encode() if keys else None,
        key_upper=max(keys).encode() if keys else None,
        first=group[0].position,
        part=group[0].part,
        pieces=tuple(each.revision for each in group),
    )


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)
