"""Manifests and lists of manifests, as Avro files of version 2 of the format.

The same contents have the same bytes, so writing a file again changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from qo.core.iceberg.avro_file import (
    NULL,
    VALUE,
    encode_array,
    encode_boolean,
    encode_bytes,
    encode_file,
    encode_long,
    encode_optional,
    encode_text,
)
from qo.core.iceberg.table_document import VERSION, schema_document
from qo.core.iceberg.table_schema import PARTITION_FIELD_ID, Field, column_ids, partition_fields
from qo.core.iceberg.table_state import Manifest
from qo.core.pipeline.file_stats import ColumnStats
from qo.dispatcher.tables.data_files import DataFile

_EXISTING, _ADDED = encode_long(0), encode_long(1)
_DATA, _PARQUET = encode_long(0), encode_text("PARQUET")
_NOT_MEASURED = NULL * 5  # What is known of the columns of a file: nothing.


def encode_manifest(
    files: Sequence[DataFile], fields: Sequence[Field], schema_id: int, spec_id: int, snapshot_id: int
) -> bytes:
    """Return a manifest of data files. Those that the snapshot adds are marked so."""
    spec = partition_fields(spec_id, fields)
    header = {
        "schema": _json(schema_document(fields, schema_id)),
        "schema-id": str(schema_id),
        "partition-spec": _json(spec),
        "partition-spec-id": str(spec_id),
        "format-version": str(VERSION),
        "content": "data",
    }
    ids = _ColumnIds(column_ids(fields))
    entries = (_entry(each, ids, snapshot_id, has_key=bool(spec)) for each in files)
    return _encode(_manifest_json(spec[0]["name"] if spec else None), entries, header)


def encode_list(manifests: Sequence[Manifest], snapshot_id: int, parent: int | None, directory: str) -> bytes:
    """Return the list of a snapshot's manifests, which are in a directory."""
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(snapshot_id),
        "format-version": str(VERSION),
    }
    return _encode(_list_json(), (_listed(each, directory) for each in manifests), header)


def content_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _encode(schema: bytes, records: Iterable[bytes], header: Mapping[str, str]) -> bytes:
    # A marker that follows from the contents: a random one would make each file another.
    marker = hashlib.md5(_json(header).encode(), usedforsecurity=False).digest()
    return encode_file(schema, records, {name: value.encode() for name, value in header.items()}, marker)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class _ColumnIds(dict[str, bytes | None]):
    """The encoded id of each column, by its name in files; None: the table does not have it."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids

    def __missing__(self, name: str) -> bytes | None:
        id_ = self._ids.get(name.lower())
        encoded = self[name] = None if id_ is None else encode_long(id_)
        return encoded


def _entry(file: DataFile, ids: Mapping[str, bytes | None], snapshot_id: int, *, has_key: bool) -> bytes:
    # What an earlier snapshot added has the number of the commit that did.
    number = encode_long(snapshot_id if file.is_added else file.revision)
    parts = (
        _ADDED if file.is_added else _EXISTING,
        VALUE + number,  # Of the snapshot,
        VALUE + number,  # of the data,
        VALUE + number,  # and of the file.
        _DATA,
        encode_text(file.path),
        _PARQUET,
        _key(file.partition_key) if has_key else b"",
        encode_long(file.rows),
        encode_long(file.bytes),
        _NOT_MEASURED if file.columns is None else _metrics(file.columns, ids),
    )
    return b"".join(parts)


def _key(key: str | None) -> bytes:
    return NULL if key is None else VALUE + encode_text(key)


def _metrics(columns: Mapping[str, ColumnStats], ids: Mapping[str, bytes | None]) -> bytes:
    """Return five lists by column: sizes, values, nulls, and bounds where they are known."""
    sizes: list[bytes] = []
    values: list[bytes] = []
    nulls: list[bytes] = []
    lowers: list[bytes] = []
    uppers: list[bytes] = []
    for name, stats in columns.items():
        id_ = ids[name]
        if id_ is None:
            continue
        sizes.append(id_ + encode_long(stats.size))
        values.append(id_ + encode_long(stats.values))
        if stats.nulls is not None:
            nulls.append(id_ + encode_long(stats.nulls))
        if stats.lower is not None:
            lowers.append(id_ + encode_bytes(stats.lower))
        if stats.upper is not None:
            uppers.append(id_ + encode_bytes(stats.upper))
    return b"".join(VALUE + encode_array(each) for each in (sizes, values, nulls, lowers, uppers))


def _listed(manifest: Manifest, directory: str) -> bytes:
    numbers = (
        manifest.length,
        manifest.spec_id,
        0,  # It lists data files.
        manifest.snapshot_id,
        manifest.min_sequence_number,
        manifest.snapshot_id,
        manifest.added_files,
        manifest.existing_files,
        0,  # Files that were deleted are not listed.
        manifest.added_rows,
        manifest.existing_rows,
        0,
    )
    keys = [_key_range(manifest)] if manifest.spec_id else []
    parts = [encode_text(f"{directory}/{manifest.name}"), *map(encode_long, numbers), VALUE, encode_array(keys)]
    return b"".join(parts)


def _key_range(manifest: Manifest) -> bytes:
    lower, upper = (
        None if bound is None else encode_bytes(bound) for bound in (manifest.key_lower, manifest.key_upper)
    )
    nans = NULL  # Keys are texts.
    return encode_boolean(manifest.has_null_key) + nans + encode_optional(lower) + encode_optional(upper)


@cache
def _manifest_json(key: str | None) -> bytes:
    return msgspec.json.encode(_manifest_schema(key))


@cache
def _list_json() -> bytes:
    return msgspec.json.encode(_LIST)


def _field(name: str, id_: int, type_: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "field-id": id_}


def _optional(name: str, id_: int, type_: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", type_], "default": None, "field-id": id_}


def _map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    """A map with numbers as keys, which Avro does not have: a list of pairs."""
    fields = [_field("key", key_id, "int"), _field("value", value_id, value)]
    pair = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields}
    return {"type": "array", "logicalType": "map", "items": pair}


def _manifest_schema(key: str | None) -> dict[str, Any]:
    partition = [] if key is None else [_optional(key, PARTITION_FIELD_ID, "string")]
    data_file = [
        _field("content", 134, "int"),
        _field("file_path", 100, "string"),
        _field("file_format", 101, "string"),
        _field("partition", 102, {"type": "record", "name": "r102", "fields": partition}),
        _field("record_count", 103, "long"),
        _field("file_size_in_bytes", 104, "long"),
        _optional("column_sizes", 108, _map(117, 118, "long")),
        _optional("value_counts", 109, _map(119, 120, "long")),
        _optional("null_value_counts", 110, _map(121, 122, "long")),
        _optional("lower_bounds", 125, _map(126, 127, "bytes")),
        _optional("upper_bounds", 128, _map(129, 130, "bytes")),
    ]
    entry = [
        _field("status", 0, "int"),
        _optional("snapshot_id", 1, "long"),
        _optional("sequence_number", 3, "long"),
        _optional("file_sequence_number", 4, "long"),
        _field("data_file", 2, {"type": "record", "name": "r2", "fields": data_file}),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": entry}


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", 509, "boolean"),
        _optional("contains_nan", 518, "boolean"),
        _optional("lower_bound", 510, "bytes"),
        _optional("upper_bound", 511, "bytes"),
    ],
}
_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", 500, "string"),
        _field("manifest_length", 501, "long"),
        _field("partition_spec_id", 502, "int"),
        _field("content", 517, "int"),
        _field("sequence_number", 515, "long"),
        _field("min_sequence_number", 516, "long"),
        _field("added_snapshot_id", 503, "long"),
        _field("added_files_count", 504, "int"),
        _field("existing_files_count", 505, "int"),
        _field("deleted_files_count", 506, "int"),
        _field("added_rows_count", 512, "long"),
        _field("existing_rows_count", 513, "long"),
        _field("deleted_rows_count", 514, "long"),
        _optional("partitions", 507, {"type": "array", "items": _SUMMARY, "element-id": 508}),
    ],
}
