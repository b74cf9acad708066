"""Published datasets as tables, recorded as the dispatcher records them, with documents that a test writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State

SNAPSHOTS = [
    {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number, "summary": {}, "schema-id": 0}
    for number in (4, 7, 9)
]


def document(location: str, **fields: Any) -> dict[str, Any]:
    """A document of a table with three snapshots, of which branches name two."""
    return {
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": location,
        "current-snapshot-id": 7,
        "snapshots": [dict(each) for each in SNAPSHOTS],
        "refs": {"main": {"snapshot-id": 7, "type": "branch"}, "next": {"snapshot-id": 9, "type": "branch"}},
        **fields,
    }


def write_document(directory: Path, name: str, **fields: Any) -> Path:
    path = directory / name / "metadata" / "v1.metadata.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(str(directory / name), **fields)))
    return path


def store_record(state: State, dag: str, name: str, location: str | Path | None = None, **values: Any) -> None:
    """Record a table, or record it anew."""
    table = schema.open_tables
    with state.write() as tx:
        tx.execute(sa.delete(table).where(table.c.dag == dag, table.c.name == name))
        tx.insert(
            table,
            [
                {
                    "dag": dag,
                    "name": name,
                    "dataset_id": f"{name}-dataset",
                    "table_uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
                    "metadata_location": None if location is None else str(location),
                    "metadata_version": 0 if location is None else 1,
                    "revision": None if location is None else 7,
                    "updated_at": tx.now,
                    "problem": None,
                }
                | values
            ],
        )
