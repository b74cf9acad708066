"""The metadata document of a table, version 2 of the format, and the schema within manifests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from qo.core.iceberg.table_schema import (
    BY_KEY,
    PARTITION_FIELD_ID,
    UNPARTITIONED,
    Field,
    highest_id,
    name_mapping,
    partition_fields,
)
from qo.core.iceberg.table_state import Snapshot, TableState, branch_refs

VERSION = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Which table it is, and where."""

    uuid: str
    location: str  # Covers data and metadata; without a slash at its end.
    properties: Mapping[str, str]

    def metadata(self, name: str) -> str:
        """Return where a file of the metadata is."""
        return f"{self.location}/metadata/{name}"


def document_name(version: int) -> str:
    return f"v{version}.metadata.json"


def table_document(state: TableState, place: Place) -> dict[str, Any]:
    """Return the document of a table that has at least one schema."""
    main = state.find_snapshot(state.main)
    current_schema = main.schema_id if main is not None else len(state.schemas) - 1
    spec_id = UNPARTITIONED if state.key is None else BY_KEY
    return {
        "format-version": VERSION,
        "table-uuid": place.uuid,
        "location": place.location,
        "last-sequence-number": state.last_sequence_number,
        "last-updated-ms": state.updated_ms,
        "last-column-id": max(map(highest_id, state.schemas)),
        "current-schema-id": current_schema,
        "schemas": [schema_document(fields, id_) for id_, fields in enumerate(state.schemas)],
        "default-spec-id": spec_id,
        "partition-specs": [
            {"spec-id": each, "fields": partition_fields(each, state.schemas[-1])} for each in range(spec_id + 1)
        ],
        "last-partition-id": PARTITION_FIELD_ID - 1 + spec_id,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {
            **place.properties,
            "schema.name-mapping.default": msgspec.json.encode(name_mapping(state.schemas)).decode(),
        },
        "current-snapshot-id": -1 if state.main is None else state.main,
        "refs": branch_refs(state),
        "snapshots": [_snapshot(each, place) for each in state.snapshots],
        "snapshot-log": [
            {"timestamp-ms": each.timestamp_ms, "snapshot-id": each.snapshot_id} for each in state.log
        ],
        "metadata-log": [
            {"timestamp-ms": each.timestamp_ms, "metadata-file": place.metadata(document_name(each.version))}
            for each in state.documents
        ],
    }


def schema_document(fields: Sequence[Field], schema_id: int) -> dict[str, Any]:
    return {"type": "struct", "schema-id": schema_id, "fields": list(fields)}


def _snapshot(snapshot: Snapshot, place: Place) -> dict[str, Any]:
    parent = {} if snapshot.parent is None else {"parent-snapshot-id": snapshot.parent}
    return {
        "snapshot-id": snapshot.id,
        **parent,
        "sequence-number": snapshot.id,
        "timestamp-ms": snapshot.timestamp_ms,
        "summary": {"operation": snapshot.operation, **snapshot.summary},
        "manifest-list": place.metadata(snapshot.list_name),
        "schema-id": snapshot.schema_id,
    }
