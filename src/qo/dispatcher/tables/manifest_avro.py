"""Manifests and lists of manifests, as Avro files of version 2 of the format.

The same contents have the same bytes, so writing a file again changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any

import msgspec

from qo.core.iceberg.table_document import VERSION, schema_document
from qo.core.iceberg.table_schema import PARTITION_FIELD_ID, Field, partition_fields
from qo.core.iceberg.table_state import Manifest
from qo.dispatcher.tables.data_files import DataFile

# fastavro has no types. Loaded only when a table is written.
_EXISTING, _ADDED = 0, 1
_CODEC = "deflate"


def encode_manifest(
    files: Sequence[DataFile], fields: Sequence[Field], schema_id: int, spec_id: int, snapshot_id: int
) -> bytes:
    """Return a manifest of data files. Those that the snapshot adds are marked so."""
    spec = partition_fields(spec_id, fields)
    key = spec[0]["name"] if spec else None
    header = {
        "schema": _json(schema_document(fields, schema_id)),
        "schema-id": str(schema_id),
        "partition-spec": _json(spec),
        "partition-spec-id": str(spec_id),
        "format-version": str(VERSION),
        "content": "data",
    }
    return _encode(_parsed_manifest(key), [_entry(each, key, snapshot_id) for each in files], header)


def encode_list(manifests: Sequence[Manifest], snapshot_id: int, parent: int | None, directory: str) -> bytes:
    """Return the list of a snapshot's manifests, which are in a directory."""
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(snapshot_id),
        "format-version": str(VERSION),
    }
    return _encode(_parsed_list(), [_listed(each, directory) for each in manifests], header)


def content_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _encode(schema: Any, records: Sequence[Mapping[str, Any]], header: Mapping[str, str]) -> bytes:
    fastavro: Any = import_module("fastavro")
    # A marker that follows from the contents: a random one would make each file another.
    sync_marker = hashlib.md5(_json(header).encode(), usedforsecurity=False).digest()
    body = BytesIO()
    fastavro.writer(
        body,
        schema,
        records,
        codec=_CODEC,
        codec_compression_level=1,
        metadata=dict(header),
        sync_marker=sync_marker,
    )
    return body.getvalue()


@cache
def _parsed_manifest(key: str | None) -> Any:
    fastavro: Any = import_module("fastavro")
    return fastavro.parse_schema(_manifest_schema(key))


@cache
def _parsed_list() -> Any:
    fastavro: Any = import_module("fastavro")
    return fastavro.parse_schema(_LIST)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _entry(file: DataFile, key: str | None, snapshot_id: int) -> dict[str, Any]:
    # What an earlier snapshot added has the number of the commit that did.
    number = snapshot_id if file.is_added else file.revision
    return {
        "status": _ADDED if file.is_added else _EXISTING,
        "snapshot_id": number,
        "sequence_number": number,
        "file_sequence_number": number,
        "data_file": {
            "content": 0,
            "file_path": file.path,
            "file_format": "PARQUET",
            "partition": {} if key is None else {key: file.partition_key},
            "record_count": file.rows,
            "file_size_in_bytes": file.bytes,
            **file.metrics,
        },
    }


def _listed(manifest: Manifest, directory: str) -> dict[str, Any]:
    summary = {
        "contains_null": manifest.has_null_key,
        "contains_nan": None,
        "lower_bound": manifest.key_lower,
        "upper_bound": manifest.key_upper,
    }
    return {
        "manifest_path": f"{directory}/{manifest.name}",
        "manifest_length": manifest.length,
        "partition_spec_id": manifest.spec_id,
        "content": 0,
        "sequence_number": manifest.snapshot_id,
        "min_sequence_number": manifest.min_sequence_number,
        "added_snapshot_id": manifest.snapshot_id,
        "added_files_count": manifest.added_files,
        "existing_files_count": manifest.existing_files,
        "deleted_files_count": 0,
        "added_rows_count": manifest.added_rows,
        "existing_rows_count": manifest.existing_rows,
        "deleted_rows_count": 0,
        "partitions": [summary] if manifest.spec_id else [],
    }


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
