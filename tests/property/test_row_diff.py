"""The rows in which two versions differ, against a plain model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.cli.pipelines.diff.compared_versions import ComparedVersions, Side
from qo.cli.pipelines.diff.duckdb_rows import DuckdbRows
from qo.cli.pipelines.diff.row_changes import compare_rows

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("Place", pa.struct([("x", pa.int32())])),
    ]
)
Row = dict[str, Any]

rows: st.SearchStrategy[Row] = st.fixed_dictionaries(
    {
        "id": st.integers(0, 6) | st.none(),
        "name": st.sampled_from(["a", "b", "", None]),
        "amount": st.sampled_from([0.0, 1.5, math.nan, None]),
        "tags": st.sampled_from([[], ["x"], ["x", None], None]),
        "Place": st.sampled_from([{"x": 1}, {"x": None}, None]),
    }
)
keyed = st.lists(rows, max_size=7, unique_by=lambda row: row["id"])


CONNECTION = duckdb.connect(":memory:", config={"threads": 1})  # To open one takes longer than to compare.
few = settings(max_examples=25)


@contextmanager
def engine_over(before: Sequence[Row], after: Sequence[Row]) -> Generator[DuckdbRows]:
    CONNECTION.register("before_rows", pa.Table.from_pylist(before, SCHEMA))
    CONNECTION.register("after_rows", pa.Table.from_pylist(after, SCHEMA))
    yield DuckdbRows(CONNECTION)


def changes_of(before: Sequence[Row], after: Sequence[Row], keys: Sequence[str], limit: int = 100) -> Any:
    def opened(before: Sequence[str], after: Sequence[str]) -> AbstractContextManager[DuckdbRows]:
        return engine_over(*rows_of)

    rows_of = (before, after)
    versions = ComparedVersions(Side(None, 1, None, {"a": None}), Side(None, 2, None, {"b": None}))
    return compare_rows(versions, opened, keys, [], limit)


def shown(row: Row) -> Row:
    """As samples show it: what JSON has no words for is text."""
    is_odd = (list, dict)
    return {
        name: str(value) if isinstance(value, is_odd) or value != value else value for name, value in row.items()
    }


def text(row: Mapping[str, Any]) -> str:
    return repr({name: row[name] for name in sorted(row)})


@few
@given(before=keyed, after=keyed)
def test_rows_with_a_key_are_added_removed_or_changed(before: list[Row], after: list[Row]) -> None:
    changes = changes_of(before, after, ["ID"])
    old, new = {row["id"]: shown(row) for row in before}, {row["id"]: shown(row) for row in after}
    differing = {
        key: [name for name in SCHEMA.names if repr(old[key][name]) != repr(new[key][name])]
        for key in old.keys() & new.keys()
    }
    assert (changes.added, changes.removed) == (len(new.keys() - old.keys()), len(old.keys() - new.keys()))
    assert changes.changed == sum(map(bool, differing.values()))
    assert changes.columns == Counter(name for names in differing.values() for name in names)
    assert sorted(map(text, changes.added_rows)) == sorted(text(new[key]) for key in new.keys() - old.keys())
    assert sorted(map(text, changes.removed_rows)) == sorted(text(old[key]) for key in old.keys() - new.keys())
    samples = {row["key"]["id"]: row for row in changes.changed_rows}
    assert {key: list(row["after"]) for key, row in samples.items()} == {
        key: [name for name in (*SCHEMA.names[1:],) if name in names] for key, names in differing.items() if names
    }
    for key, row in samples.items():
        assert text(row["before"]) == text({name: old[key][name] for name in row["before"]})


@few
@given(before=st.lists(rows, max_size=7), after=st.lists(rows, max_size=7))
def test_rows_without_a_key_are_compared_as_multisets(before: list[Row], after: list[Row]) -> None:
    changes = changes_of(before, after, [])
    old, new = Counter(text(shown(row)) for row in before), Counter(text(shown(row)) for row in after)
    assert (changes.added, changes.removed, changes.changed) == ((new - old).total(), (old - new).total(), 0)
    assert Counter(map(text, changes.added_rows)) == new - old
    assert Counter(map(text, changes.removed_rows)) == old - new


@few
@given(before=keyed, after=keyed, both=st.lists(rows, max_size=4), limit=st.integers(0, 3))
def test_a_file_that_both_versions_have_changes_no_answer(
    before: list[Row], after: list[Row], both: list[Row], limit: int
) -> None:
    assert changes_of(before, after, [], limit) == changes_of([*before, *both], [*both, *after], [], limit)


@few
@given(versions=keyed)
def test_equal_versions_differ_in_nothing(versions: list[Row]) -> None:
    assert changes_of(versions, list(reversed(versions)), ["id"]).is_empty
    assert changes_of(versions, list(reversed(versions)), []).is_empty
