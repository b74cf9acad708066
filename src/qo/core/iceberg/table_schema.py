"""The schema of a table: the columns of a dataset, each with its id, and the column that holds the partition's key.

Files need not have the ids. The name mapping, which every table has, says by which names to find columns in them. The
partition key is in no file: it is an identity partition, whose value is in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from qo.core.iceberg.iceberg_types import to_iceberg
from qo.core.pipeline.columns import Column
from qo.core.pipeline.field_ids import FIELD_ID_MAX, FIELD_ID_MIN, field_id

KEY_COLUMN = "partition_key"
PARTITION_FIELD_ID = 1000  # Where Iceberg begins to count.
UNPARTITIONED, BY_KEY = 0, 1  # The ids of the two ways in which files are partitioned.

Field = dict[str, Any]  # As in the metadata.


def key_column(columns: Sequence[Column]) -> str:
    """Return the name of the column with the partition's key: one that the dataset does not have."""
    names = {each.name.lower() for each in columns}
    name = KEY_COLUMN
    while name in names:
        name += "_"
    return name


def table_fields(columns: Sequence[Column], *, key: str | None) -> list[Field]:
    """Return the fields of a schema, the column with the partition's key last.

    Raises UsageError for a type that Iceberg lacks. Columns keep their ids when others are added behind them.
    """
    used: set[int] = set()

    def allocate(path: str) -> int:
        id_ = field_id(path)
        while id_ in used:
            id_ = id_ + 1 if id_ < FIELD_ID_MAX else FIELD_ID_MIN
        used.add(id_)
        return id_

    fields: list[Field] = []
    for each in columns:
        id_ = allocate(each.name)
        type_ = to_iceberg(each.type, each.name, allocate)
        fields.append({"id": id_, "name": each.name, "required": False, "type": type_})
    if key is not None:
        fields.append({"id": allocate(key), "name": key, "required": False, "type": "string"})
    return fields


def column_ids(fields: Sequence[Field]) -> dict[str, int]:
    """Return the ids of the outermost columns by name in lower case, as qo compares names."""
    return {each["name"].lower(): each["id"] for each in fields}


def highest_id(fields: Iterable[Field]) -> int:
    return max((id_ for each in fields for id_ in _ids(each)), default=0)


def _ids(field: Field) -> Iterable[int]:
    yield field["id"]
    for inner in _inner_fields(field["type"]):
        yield from _ids(inner)


def _inner_fields(type_: Any) -> list[Field]:
    """Return the fields directly within a type, those of lists and maps by the names that files give them."""
    parts = cast("dict[str, Any]", type_) if isinstance(type_, dict) else {}
    match parts.get("type"):
        case "struct":
            return parts["fields"]
        case "list":
            return [{"id": parts["element-id"], "name": "element", "type": parts["element"]}]
        case "map":
            return [
                {"id": parts["key-id"], "name": "key", "type": parts["key"]},
                {"id": parts["value-id"], "name": "value", "type": parts["value"]},
            ]
        case _:
            return []


def name_mapping(schemas: Iterable[Sequence[Field]]) -> list[dict[str, Any]]:
    """Return under which names the columns of all schemas are in files. The last schema that has a column counts."""
    by_id = {each["id"]: each for fields in schemas for each in fields}
    return [_mapped(each) for each in by_id.values()]


def _mapped(field: Field) -> dict[str, Any]:
    inner = [_mapped(each) for each in _inner_fields(field["type"])]
    mapped: dict[str, Any] = {"field-id": field["id"], "names": [field["name"]]}
    return mapped | ({"fields": inner} if inner else {})


def partition_fields(spec_id: int, fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Return the fields by which files are partitioned. ``fields``: of the schema; the key is the last."""
    if spec_id == UNPARTITIONED:
        return []
    key = fields[-1]
    identity = {"source-id": key["id"], "field-id": PARTITION_FIELD_ID, "transform": "identity"}
    return [{**identity, "name": key["name"]}]
