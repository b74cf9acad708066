"""Tables of Apache Iceberg, written by PyIceberg, for tests of readers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.memory import InMemoryCatalog


def write_table(location: str, versions: Sequence[pa.Table], properties: Mapping[str, Any] | None = None) -> str:
    """Write a table with a snapshot for each of these; the last replaces no row of the ones before. Return where its
    document lies."""
    catalog = InMemoryCatalog("tests", warehouse=location, **(properties or {}))
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", versions[0].schema, location=location)
    for each in versions:
        table.append(each)
    return table.metadata_location
