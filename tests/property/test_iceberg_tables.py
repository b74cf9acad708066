"""Tables of Iceberg against plain models: groups of manifests, snapshots and their log, schemas, and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from qo.core.iceberg import table_state
from qo.core.iceberg.iceberg_types import encode_bound
from qo.core.iceberg.manifest_groups import ENTRIES_MAX, Item, Position, assign, split
from qo.core.iceberg.table_document import Place, table_document
from qo.core.iceberg.table_schema import highest_id, table_fields
from qo.core.iceberg.table_state import Manifest, Snapshot, TableState
from qo.core.pipeline.columns import Column
from qo.core.pipeline.file_stats import ColumnStats, FileStats, pack_stats, unpack_stats

KEYS = st.text("abc", min_size=1, max_size=2)
COMMITS = st.lists(
    st.tuples(KEYS, st.sampled_from([0, 1, 2, 300, 600, 999, 1000, 1001, 2500]), st.booleans()), max_size=25
)


@dataclass(frozen=True)
class Group:
    first: Position
    pieces: tuple[int, ...]
    entries: int
    part: int | None


def group_of(items: list[Item]) -> Group:
    entries = sum(each.entries for each in items)
    return Group(items[0].position, tuple(each.revision for each in items), entries, items[0].part)


@given(COMMITS)
def test_every_piece_is_in_its_place_and_no_manifest_is_too_large(commits: list[tuple[str, int, bool]]) -> None:
    groups: list[Group] = []
    pieces: dict[int, Item] = {}
    for revision, (key, files, appends) in enumerate(commits, 1):
        removed = [] if appends else [each for each, item in pieces.items() if item.position.partition_key == key]
        for each in removed:
            del pieces[each]
        pieces[revision] = Item(Position(key, -1, revision), files)
        stay, regroup = assign(groups, removed, [pieces[revision].position])
        changed = [
            group_of(group)
            for some in regroup
            for group in split(pieces[each] for each in some if pieces[each].entries)
        ]
        groups = sorted([*(groups[at] for at in stay), *changed], key=lambda each: (each.first, each.part or 0))
        assert all(each.entries <= ENTRIES_MAX for each in groups)
        whole = [revision for each in groups if each.part is None for revision in each.pieces]
        parts = {revision for each in groups if each.part is not None for revision in each.pieces}
        assert sorted([*whole, *parts]) == sorted(each for each, item in pieces.items() if item.entries)
        assert sum(each.entries for each in groups) == sum(item.entries for item in pieces.values())
        assert len(regroup) <= 3
        # In order: what is between two manifests is in none of both.
        spans = [[pieces[each].position for each in group.pieces] for group in groups if group.part is None]
        assert [each for span in spans for each in span] == sorted(each for span in spans for each in span)


def test_a_commit_to_a_large_table_rewrites_one_manifest() -> None:
    items = [Item(Position(f"{n:05}", -1, n), 1) for n in range(10_000)]
    groups = [group_of(each) for each in split(items)]
    assert 10 <= len(groups) <= 15
    stay, regroup = assign(groups, [5_000], [Position("05000", -1, 20_000)])
    assert (len(stay), len(regroup)) == (len(groups) - 1, 1)
    assert len(regroup[0]) <= ENTRIES_MAX


MOVES = st.lists(st.tuples(st.sampled_from(["commit", "main", "next", "expire"]), st.integers(0, 5)), max_size=30)


def manifest(revision: int) -> Manifest:
    position = Position("a", -1, revision)
    counts: dict[str, Any] = {
        "added_files": 1,
        "added_rows": 1,
        "existing_files": 0,
        "existing_rows": 0,
        "size": 1,
    }
    keys: dict[str, Any] = {"has_null_key": False, "key_lower": b"a", "key_upper": b"a"}
    about: dict[str, Any] = {"name": f"{revision}.avro", "length": 1, "spec_id": 0, "snapshot_id": revision}
    return Manifest(**about, min_sequence_number=1, **counts, **keys, first=position, pieces=(revision,))


@given(MOVES)
def test_the_log_is_the_history_of_main_and_branches_show_what_is_listed(moves: list[tuple[str, int]]) -> None:
    state, _ = table_state.add_schema(TableState(), table_fields([Column(name="id", type="long")], key=None))
    heads: dict[str, int] = {}
    history: list[int] = []
    for now, (move, n) in enumerate(moves, 1):
        generation = f"g{n % 3}"
        if (move == "commit" and generation not in heads) or (move == "commit" and n < 4):
            one = manifest(now)
            before = state.last_snapshot(generation)
            parent = None if before is None else before.id
            snapshot = Snapshot(now, parent, generation, now, 0, "append", {}, f"{now}-list.avro", (one.name,))
            state = table_state.add_snapshot(state, snapshot, [one])
            heads[generation] = now
            state = table_state.set_branches(state, main=state.main or now, next_=state.next, now_ms=now)
        elif move == "main" and state.find_snapshot(heads.get(generation)) is not None:
            state = table_state.set_branches(state, main=heads[generation], next_=None, now_ms=now)
        elif move == "next" and state.main and state.find_snapshot(heads.get(generation)) is not None:
            state = table_state.set_branches(state, main=state.main, next_=heads[generation], now_ms=now)
        elif move == "expire" and state.main:
            state = table_state.expire(state, now - n)
        if state.main is not None and (not history or history[-1] != state.main):
            history.append(state.main)
        listed = {each.id for each in state.snapshots}
        assert {each for each in (state.main, state.next) if each is not None} <= listed
        assert {each.parent for each in state.snapshots if each.parent is not None} <= listed
        assert [each.snapshot_id for each in state.log] == history[len(history) - len(state.log) :]
        assert {each.snapshot_id for each in state.log} <= listed
        times = [each.timestamp_ms for each in state.log]
        assert times == sorted(times)
        assert {name for each in state.snapshots for name in each.manifests} == set(state.manifests)
        if state.main is not None:
            assert state.log[-1].snapshot_id == state.main
            document = table_document(state, Place("u", "/t", {}))
            assert document["refs"]["main"]["snapshot-id"] == document["current-snapshot-id"] == state.main
        packed = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=TableState)
        assert packed == state


@given(st.text(), st.text())
def test_bounds_of_texts_are_around_every_value(one: str, other: str) -> None:
    low, high = sorted((one, other))
    lower, upper = encode_bound(low, "string", upper=False), encode_bound(high, "string", upper=True)
    assert lower is not None
    for each in (low, high):
        assert lower <= each.encode("utf-8", "replace")
        assert upper is None or upper >= each.encode("utf-8", "replace")
        assert len(lower.decode()) <= 16


@given(st.binary(), st.binary())
def test_bounds_of_bytes_are_around_every_value(one: bytes, other: bytes) -> None:
    low, high = sorted((one, other))
    lower, upper = encode_bound(low, "binary", upper=False), encode_bound(high, "binary", upper=True)
    assert lower is not None
    assert lower <= low
    assert upper is None or upper >= high


@given(st.integers(-(10**15), 10**15), st.integers(0, 6))
def test_a_decimal_is_its_unscaled_number(unscaled: int, scale: int) -> None:
    body = encode_bound(Decimal(unscaled).scaleb(-scale), f"decimal(20,{scale})", upper=True)
    assert body is not None
    assert int.from_bytes(body, "big", signed=True) == unscaled


TYPES = st.recursive(
    st.sampled_from(["string", "long", "decimal(10,2)", "timestamp_ntz"]),
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "elementType": each}),
        st.tuples(inner, inner).map(lambda each: {"type": "map", "keyType": each[0], "valueType": each[1]}),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda each: {
                "type": "struct",
                "fields": [{"name": f"f{at}", "type": type_} for at, type_ in enumerate(each)],
            }
        ),
    ),
    max_leaves=6,
)


def ids_of(value: Any) -> list[int]:
    if isinstance(value, dict):
        own = [value[name] for name in ("id", "element-id", "key-id", "value-id") if name in value]
        return own + [id_ for each in value.values() for id_ in ids_of(each)]
    return [id_ for each in value for id_ in ids_of(each)] if isinstance(value, list) else []


@given(st.lists(TYPES, min_size=1, max_size=5), st.integers(1, 5))
def test_no_two_fields_share_an_id_and_none_changes_its_own_when_columns_are_added(
    types: list[Any], before: int
) -> None:
    columns = [Column(name=f"c{at}", type=each) for at, each in enumerate(types)]
    fields = table_fields(columns, key="partition_key")
    ids = ids_of(fields)
    assert len(set(ids)) == len(ids)
    assert highest_id(fields) == max(ids)
    assert table_fields(columns[:before], key=None) == fields[: len(columns[:before])]


@given(st.dictionaries(st.text(), st.integers(0, 99)), st.binary())
def test_statistics_of_files_survive_their_way_and_damaged_ones_are_none(
    files: dict[str, int], damage: bytes
) -> None:
    stats = {name: FileStats(rows, 1, {name: ColumnStats(1, rows, None, b"a")}) for name, rows in files.items()}
    packed = pack_stats(stats)
    assert unpack_stats(packed) == stats
    assert set(unpack_stats(pack_stats(stats, bytes_max=0))) == set(files)
    assert isinstance(unpack_stats(damage + packed), dict)
    assert isinstance(unpack_stats(packed[: len(damage)]), dict)
