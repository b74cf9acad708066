"""Manifests and lists of manifests, read by a library for Avro that knows nothing of them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from qo.core.iceberg.avro_file import encode_file, encode_long, encode_text
from qo.core.iceberg.manifest_groups import Position
from qo.core.iceberg.table_schema import BY_KEY, UNPARTITIONED, Field
from qo.core.iceberg.table_state import Manifest
from qo.core.pipeline.file_stats import NUMBER_MAX, ColumnStats
from qo.dispatcher.tables.data_files import DataFile
from qo.dispatcher.tables.manifest_avro import encode_list, encode_manifest

FIELDS: list[Field] = [
    {"id": 7, "name": "Item", "required": False, "type": "string"},
    {"id": 1_234_567, "name": "price", "required": False, "type": "double"},
    {"id": 9, "name": "partition_key", "required": False, "type": "string"},
]
IDS = {"Item": 7, "item": 7, "price": 1_234_567}  # By their names in files, whatever the case.
NUMBERS = st.integers(0, NUMBER_MAX)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
BYTES = st.binary(max_size=40)
COLUMNS = st.builds(
    ColumnStats,
    size=NUMBERS,
    values=NUMBERS,
    nulls=st.none() | NUMBERS,
    lower=st.none() | BYTES,
    upper=st.none() | BYTES,
)
FILES = st.lists(
    st.builds(
        DataFile,
        path=TEXTS,
        partition_key=st.none() | TEXTS,
        revision=NUMBERS,
        rows=NUMBERS,
        bytes=NUMBERS,
        columns=st.none() | st.dictionaries(st.sampled_from(["Item", "price", "gone"]), COLUMNS),
        is_added=st.booleans(),
    ),
    max_size=5,
)


def records_of(body: bytes) -> list[Any]:
    return list(fastavro.reader(BytesIO(body)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_number_is_read_as_it_was_written(number: int) -> None:
    body = encode_file(b'"long"', [encode_long(number)], {}, bytes(16))
    assert records_of(body) == [number]


@given(st.integers(0, 400), st.integers(0, 2_000))
def test_a_file_of_many_blocks_has_every_record_once_and_in_order(count: int, length: int) -> None:
    texts = [f"{at} " + "x" * length for at in range(count)]
    body = encode_file(b'"string"', map(encode_text, texts), {"about": b"texts"}, b"0123456789abcdef")
    assert records_of(body) == texts


@given(FILES, NUMBERS, st.booleans())
def test_a_manifest_is_read_as_it_was_written(files: list[DataFile], snapshot_id: int, has_key: bool) -> None:
    body = encode_manifest(files, FIELDS, 3, BY_KEY if has_key else UNPARTITIONED, snapshot_id)
    assert records_of(body) == [entry_of(each, snapshot_id, has_key=has_key) for each in files]
    header = fastavro.reader(BytesIO(body)).metadata
    assert (header["schema-id"], header["content"], header["format-version"]) == ("3", "data", "2")
    assert msgspec.json.decode(header["schema"])["fields"] == FIELDS
    assert encode_manifest(files, FIELDS, 3, BY_KEY if has_key else UNPARTITIONED, snapshot_id) == body


def entry_of(file: DataFile, snapshot_id: int, *, has_key: bool) -> dict[str, Any]:
    number = snapshot_id if file.is_added else file.revision
    about = {"content": 0, "file_path": file.path, "file_format": "PARQUET", "record_count": file.rows}
    partition = {"partition_key": file.partition_key} if has_key else {}
    measured = {name: by_column(file, name) for name in METRICS}
    return {
        "status": 1 if file.is_added else 0,
        "snapshot_id": number,
        "sequence_number": number,
        "file_sequence_number": number,
        "data_file": about | {"partition": partition, "file_size_in_bytes": file.bytes} | measured,
    }


METRICS = {
    "column_sizes": "size",
    "value_counts": "values",
    "null_value_counts": "nulls",
    "lower_bounds": "lower",
    "upper_bounds": "upper",
}


def by_column(file: DataFile, metric: str) -> list[dict[str, Any]] | None:
    """The pairs of a column's id and what is known of it; of a column that the table lacks, nothing is said."""
    if file.columns is None:
        return None
    known = {name: getattr(stats, METRICS[metric]) for name, stats in file.columns.items() if name in IDS}
    return [{"key": IDS[name], "value": value} for name, value in known.items() if value is not None]


@given(
    st.lists(
        st.builds(
            Manifest,
            name=TEXTS,
            length=NUMBERS,
            spec_id=st.sampled_from([UNPARTITIONED, BY_KEY]),
            snapshot_id=NUMBERS,
            min_sequence_number=NUMBERS,
            added_files=st.integers(0, 1_000),
            added_rows=NUMBERS,
            existing_files=st.integers(0, 1_000),
            existing_rows=NUMBERS,
            size=NUMBERS,
            has_null_key=st.booleans(),
            key_lower=st.none() | BYTES,
            key_upper=st.none() | BYTES,
            first=st.just(Position()),
        ),
        max_size=5,
    ),
    st.none() | NUMBERS,
)
def test_a_list_of_manifests_is_read_as_it_was_written(manifests: list[Manifest], parent: int | None) -> None:
    body = encode_list(manifests, 12, parent, "s3://bucket/table/metadata")
    for record, manifest in zip(records_of(body), manifests, strict=True):
        assert record["manifest_path"] == f"s3://bucket/table/metadata/{manifest.name}"
        assert (record["manifest_length"], record["partition_spec_id"]) == (manifest.length, manifest.spec_id)
        assert (record["sequence_number"], record["added_snapshot_id"]) == (manifest.snapshot_id,) * 2
        assert record["min_sequence_number"] == manifest.min_sequence_number
        assert (record["added_files_count"], record["added_rows_count"]) == (
            manifest.added_files,
            manifest.added_rows,
        )
        assert (record["existing_files_count"], record["existing_rows_count"]) == (
            manifest.existing_files,
            manifest.existing_rows,
        )
        assert (record["content"], record["deleted_files_count"], record["deleted_rows_count"]) == (0, 0, 0)
        keys = {
            "contains_null": manifest.has_null_key,
            "contains_nan": None,
            "lower_bound": manifest.key_lower,
            "upper_bound": manifest.key_upper,
        }
        assert record["partitions"] == ([keys] if manifest.spec_id else [])
    header = fastavro.reader(BytesIO(body)).metadata
    assert header["parent-snapshot-id"] == ("null" if parent is None else str(parent))
