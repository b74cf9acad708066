"""The sink of a published dataset: a table in a database outside, or files for others, which follow every commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import assert_never

import msgspec

from qo.core.pipeline.dag import Publish, SinkKind
from qo.core.pipeline.file_pattern import is_numbered
from qo.core.struct_preload import preload

DATABASE = "data"  # The database of sinks that name none.
DIRECTORY = "files"  # The directory of sinks that name none.
KEEP_S = 3600  # How long replaced files stay if names are never used twice: readers may be at work on them.
STORAGE_SCHEMA = "qo"  # Where sinks keep their books and the rows behind their views.
_RESERVED = re.compile(r"(pg_.*|information_schema|qo)\Z")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class Sink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a dataset is copied to. Which fields are set follows from the kind."""

    kind: SinkKind
    database: str | None = None
    table: str | None = None  # Always as schema.table.
    directory: str | None = None
    file: str | None = None
    keep_s: int | None = None

    @property
    def key(self) -> tuple[str | None, ...]:
        """What two sinks cannot have in common."""
        return (self.database, self.table, self.directory, self.file)

    def __str__(self) -> str:
        if self.kind is SinkKind.FILES:
            return f"the files {self.file} in {self.directory!r}"
        return f"the table {self.table} of {self.database!r}"


preload(Sink)

# The fields of a publication that a kind has.
SINK_FIELDS: Mapping[SinkKind, tuple[str, ...]] = {
    SinkKind.POSTGRES: ("table", "database"),
    SinkKind.FILES: ("file", "directory", "keep_seconds"),
}


def find_sink(name: str, publish: Publish) -> Sink | None:
    """Return the sink of a dataset that is published under the name; None if it has none."""
    match publish.to:
        case None:
            return None
        case SinkKind.POSTGRES:
            table = publish.table or name
            return Sink(
                kind=publish.to,
                database=publish.database or DATABASE,
                table=table if "." in table else f"public.{table}",
            )
        case SinkKind.FILES:
            file = publish.file or f"{name}/{{partition}}.parquet"
            default_s = KEEP_S if is_numbered(file) else 0
            return Sink(
                kind=publish.to,
                directory=publish.directory or DIRECTORY,
                file=file,
                keep_s=default_s if publish.keep_seconds is None else publish.keep_seconds,
            )
        case _:
            assert_never(publish.to)


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
