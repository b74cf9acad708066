"""Tables and views of a sink: the rows of each generation, and the view by which readers see one of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from qo.errors import Refused
from qo.sink.arrow_columns import REVISION
from qo.sink.books import Connection

log = logging.getLogger(__name__)

_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_SOURCE = """
SELECT DISTINCT n.nspname, c.relname
FROM pg_rewrite AS r
JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
JOIN pg_class AS c ON c.oid = d.refobjid AND c.relkind = 'r'
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE r.ev_class = to_regclass(%s)
"""
_GRANTS = """
SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END, a.privilege_type
FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner
"""
_INDEXES = "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = to_regclass(%s)"
_INDEX = re.compile(r"CREATE (UNIQUE )?INDEX \S+ ON (?:ONLY )?\S+ (USING .*)\Z", re.DOTALL)


def columns_of(connection: Connection, relation: sql.Identifier) -> dict[str, str]:
    """Return the columns of a table or view with their types; nothing if it does not exist."""
    rows = connection.execute(_COLUMNS, [relation.as_string(connection)]).fetchall()
    return {name: type_ for name, type_ in rows if name != REVISION}


def exists(connection: Connection, relation: sql.Identifier) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", [relation.as_string(connection)]).fetchone()
    return row != (None,)


def source_of(connection: Connection, view: sql.Identifier) -> str | None:
    """Return the table that a view shows, quoted; None if there is no such view."""
    row = connection.execute(_SOURCE, [view.as_string(connection)]).fetchone()
    return None if row is None else sql.Identifier(*row).as_string(connection)


def create_storage(connection: Connection, storage: sql.Identifier) -> None:
    """Create the table of a generation, without columns of its own."""
    revision = sql.Identifier(REVISION)
    connection.execute(sql.SQL("CREATE TABLE {} ({} bigint NOT NULL)").format(storage, revision))
    connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(storage, revision))


def add_columns(connection: Connection, storage: sql.Identifier, columns: Mapping[str, str]) -> None:
    if not columns:
        return
    added = [
        sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), sql.SQL(cast("LiteralString", type_)))
        for name, type_ in columns.items()
    ]
    connection.execute(sql.SQL("ALTER TABLE {} {}").format(storage, sql.SQL(", ").join(added)))


def copy_indexes(connection: Connection, source: sql.Identifier, target: sql.Identifier) -> None:
    """Create the indexes that people have added to the table of another generation."""
    have = {_index_body(each) for each in _index_definitions(connection, target)}
    for unique, body in {_index_body(each) for each in _index_definitions(connection, source)} - have:
        statement = sql.SQL("CREATE {}INDEX ON {} {}").format(_raw(unique), target, _raw(body))
        try:
            with connection.transaction():
                connection.execute(statement)
        except psycopg.Error as error:
            log.warning("an index of %s was not carried over: %s", source.as_string(connection), error)


def _index_definitions(connection: Connection, table: sql.Identifier) -> Sequence[str]:
    return [row[0] for row in connection.execute(_INDEXES, [table.as_string(connection)]).fetchall()]


def _index_body(definition: str) -> tuple[str, str]:
    match = _INDEX.match(definition)
    return (match[1] or "", match[2]) if match is not None else ("", "")


def replace_view(connection: Connection, view: sql.Identifier, storage: sql.Identifier) -> None:
    """Let the view show the rows of a table. Its privileges stay. Raises Refused if other relations depend on it."""
    have, new = columns_of(connection, view), columns_of(connection, storage)
    # PostgreSQL replaces a view only by one that has the same columns in the same order, and further ones after them.
    ordered = [*(name for name in have if name in new), *(name for name in new if name not in have)]
    replaceable = all(new.get(name) == type_ for name, type_ in have.items())
    grants: list[tuple[Any, ...]] = []
    if not replaceable:
        grants = connection.execute(_GRANTS, [view.as_string(connection)]).fetchall()
        try:
            connection.execute(sql.SQL("DROP VIEW {}").format(view))
        except psycopg.errors.DependentObjectsStillExist as error:
            raise Refused(
                f"columns of {view.as_string(connection)} have changed or are gone, and other views depend on it: "
                f"drop these first. {error.diag.message_detail or ''}"
            ) from error
    names = sql.SQL(", ").join(map(sql.Identifier, ordered))
    connection.execute(sql.SQL("CREATE OR REPLACE VIEW {} AS SELECT {} FROM {}").format(view, names, storage))
    for grantee, privilege in grants:
        grant = sql.SQL("GRANT {} ON {} TO {}").format(_raw(privilege), view, _raw(grantee))
        connection.execute(grant)


def _raw(text: str) -> sql.SQL:
    """Text that PostgreSQL itself has written."""
    return sql.SQL(cast("LiteralString", text))
