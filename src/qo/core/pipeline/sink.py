"""The sink of a published dataset: a table in a database outside, which follows every commit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qo.core.pipeline.dag import Publish, SinkKind

DATABASE = "data"  # The database of sinks that name none.
STORAGE_SCHEMA = "qo"  # Where sinks keep their books and the rows behind their views.
_RESERVED = re.compile(r"(pg_.*|information_schema|qo)\Z")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class Sink:
    kind: SinkKind
    database: str
    table: str  # Always as schema.table.


def find_sink(name: str, publish: Publish) -> Sink | None:
    """Return the sink of a dataset that is published under the name; None if it has none."""
    if publish.to is None:
        return None
    table = publish.table or name
    return Sink(publish.to, publish.database or DATABASE, table if "." in table else f"public.{table}")


def table_problem(table: str) -> str | None:
    """Return what is wrong with the name of a table; None if it can be used."""
    schema, dot, name = table.rpartition(".")
    for part in (schema, name) if dot else (name,):
        if not _NAME.match(part):
            return (
                f"{part!r} is no name of a table or schema: take at most 63 lower-case letters, digits and _, "
                "beginning with a letter or _"
            )
    if _RESERVED.match(schema):
        return f"the schema {schema!r} is reserved"
    return None
