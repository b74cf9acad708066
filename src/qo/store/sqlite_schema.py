"""The tables of a local store, and how those of an earlier qo become these.

``heads`` has the latest version of each key, ``versions`` the bodies of all, each naming the one before itself. Where
no history is kept, the body is in ``heads``, and ``versions`` has no row. A version without ETag and body is a delete
marker. ``modified`` is in microseconds since 1970.
"""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 2  # Raised when an older qo could no longer read or write the file correctly.

_HEADS = """
    CREATE TABLE heads (
        key TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        etag TEXT,
        size INTEGER NOT NULL,
        modified INTEGER NOT NULL,
        body BLOB
    ) WITHOUT ROWID
"""
_CREATE = (
    _HEADS,
    """
    CREATE TABLE versions (
        version INTEGER PRIMARY KEY,
        previous INTEGER,
        key TEXT NOT NULL,
        etag TEXT,
        modified INTEGER NOT NULL,
        body BLOB
    )
    """,
    "CREATE TABLE counter (last_version INTEGER NOT NULL)",
    "INSERT INTO counter VALUES (0)",
)


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database. Call it within a transaction."""
    for statement in _CREATE:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def upgrade(connection: sqlite3.Connection, forget: tuple[str, ...]) -> None:
    """Convert the tables of format 1, where ``heads`` had the body of each latest version and ``archive`` the rest.
    Call it within a transaction. It copies the latest version of each object."""
    without_history = " OR ".join(["substr(key, 1, length(?)) = ?"] * len(forget)) or "FALSE"
    prefixes = [prefix for prefix in forget for _ in range(2)]
    connection.execute("ALTER TABLE heads RENAME TO heads_1")
    connection.execute("ALTER TABLE archive RENAME TO versions")
    connection.execute(_HEADS)
    connection.execute(
        f"""
        INSERT INTO heads (key, version, etag, size, modified, body)
        SELECT key, version, etag, ifnull(length(body), 0), modified, CASE WHEN {without_history} THEN body END
        FROM heads_1
        """,
        prefixes,
    )
    connection.execute(
        f"""
        INSERT INTO versions (version, previous, key, etag, modified, body)
        SELECT version, previous, key, etag, modified, body FROM heads_1 WHERE NOT ({without_history}) ORDER BY version
        """,
        prefixes,
    )
    connection.execute("DROP TABLE heads_1")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
