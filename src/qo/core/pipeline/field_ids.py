"""Field ids of columns, by which Apache Iceberg finds a column in a file.

An id follows from the column's name alone. So every worker and every dispatcher finds the same one without asking, and
a column that is dropped and added again has its old id. Two names of one dataset may have the same id, once in a
million datasets of 60 columns; its files then carry no ids, and readers find columns by their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

# Iceberg reserves ids above 2147483447; clients number their own fields upwards from the highest id, and fields of
# partitions from 1000.
FIELD_ID_MIN = 10_000
FIELD_ID_MAX = 2_000_000_000


def field_id(path: str) -> int:
    """Return the id of a column, or of a field within one by its dotted path. Upper and lower case are the same."""
    digest = hashlib.sha256(path.lower().encode("utf-8", "surrogatepass")).digest()
    return FIELD_ID_MIN + int.from_bytes(digest[:8], "big") % (FIELD_ID_MAX - FIELD_ID_MIN + 1)


def assign_field_ids(paths: Iterable[str]) -> dict[str, int] | None:
    """Return the id of every column of a schema; None if two columns have the same id, and so none may have one."""
    ids = {path: field_id(path) for path in paths}
    return ids if len(set(ids.values())) == len(ids) else None
