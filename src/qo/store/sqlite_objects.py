"""Versioned objects in one SQLite file. All operations are synchronous, for the thread that owns the file.

``heads`` has one row per key: its latest version, which is a delete marker if it has no ETag. ``versions`` has the body
of every version, in the order in which they were written, each with the number of its predecessor. So writing a key
again appends one row and changes a short one in place; nothing is copied or moved. Where no history is kept, the body
is in the head, and there is nothing else.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from qo.errors import PreconditionFailed
from qo.store.embedded import Clock, etag_of, page_of_versions
from qo.store.port import (
    UNCHANGED,
    Deletion,
    Entry,
    Page,
    PutResult,
    Stored,
    Unchanged,
    Version,
    VersionMark,
    VersionPage,
)
from qo.store.sqlite_file import begin_writing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_CHANGED = "has changed since it was read"

_LAST_VERSION = "SELECT last_version FROM counter"
_SET_LAST_VERSION = "UPDATE counter SET last_version = ?"

_BODY = "CASE WHEN heads.body IS NULL THEN versions.body ELSE heads.body END"
_GET = f"""
    SELECT {_BODY}, heads.etag, heads.version FROM heads LEFT JOIN versions ON versions.version = heads.version
    WHERE heads.key = ? AND heads.etag IS NOT NULL
"""
_GET_IF_CHANGED = f"""
    SELECT CASE WHEN heads.etag = ?2 THEN NULL ELSE {_BODY} END, heads.etag, heads.version
    FROM heads LEFT JOIN versions ON versions.version = heads.version
    WHERE heads.key = ?1 AND heads.etag IS NOT NULL
"""
_GET_VERSION = """
    SELECT body, etag, version FROM heads WHERE key = ?1 AND version = ?2 AND body IS NOT NULL
    UNION ALL
    SELECT body, etag, version FROM versions WHERE key = ?1 AND version = ?2 AND body IS NOT NULL
"""
_LIST_FROM, _LIST_AFTER = (
    f"""
    SELECT key, etag, size, modified FROM heads
    WHERE key {bound} ? AND etag IS NOT NULL ORDER BY key LIMIT ?
    """
    for bound in (">=", ">")
)
_KEYS_FROM = "SELECT key FROM heads WHERE key >= ? ORDER BY key LIMIT ?"
_VERSIONS = """
    WITH RECURSIVE chain AS (
        SELECT heads.version, versions.previous, heads.etag, heads.size, heads.modified
        FROM heads LEFT JOIN versions ON versions.version = heads.version WHERE heads.key = ?
        UNION ALL
        SELECT versions.version, versions.previous, versions.etag, length(versions.body), versions.modified
        FROM chain JOIN versions ON versions.version = chain.previous
    )
    SELECT version, etag, size, modified FROM chain
"""

_HEAD = "SELECT etag, version FROM heads WHERE key = ?"
_ADD_HEAD = """
    INSERT INTO heads (version, etag, size, modified, body, key) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO NOTHING
"""
_PUT_HEAD = """
    INSERT INTO heads (version, etag, size, modified, body, key) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, etag = excluded.etag, size = excluded.size,
        modified = excluded.modified, body = excluded.body
"""
_SET_HEAD = "UPDATE heads SET version = ?, etag = ?, size = ?, modified = ?, body = ? WHERE key = ?"
_SET_HEAD_IF = f"{_SET_HEAD} AND etag IS ?"
_ADD_VERSION = "INSERT INTO versions (version, previous, etag, modified, body, key) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_VERSION_IF = """
    INSERT INTO versions (version, etag, modified, body, previous, key)
    SELECT ?, ?, ?, ?, version, key FROM heads WHERE key = ? AND etag = ?
"""
_RESTORE_HEAD = """
    UPDATE heads SET (version, etag, size, modified, body) =
        (SELECT version, etag, ifnull(length(body), 0), modified, NULL FROM versions WHERE versions.version = ?)
    WHERE key = ?
"""
_DROP_HEAD = "DELETE FROM heads WHERE key = ?"
_DROP_HEAD_IF = "DELETE FROM heads WHERE key = ? AND etag = ?"
_DROP_VERSION = "DELETE FROM versions WHERE version = ?"
_RELINK = "UPDATE versions SET previous = ? WHERE version = ?"


def _instant(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


class SqliteObjects:
    """The objects behind a connection. Operations run between ``begin`` and ``commit`` or ``rollback``.

    An operation that raises an error of qo has changed nothing. After any sqlite3.Error, roll back.
    """

    def __init__(self, connection: sqlite3.Connection, clock: Clock, forget: tuple[str, ...]) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._clock = clock
        self._forget = forget
        self._modified = 0
        self._last_version = self._last_saved = 0

    def begin(self, *, writing: bool) -> None:
        if not writing:
            self._execute("BEGIN")
        else:
            begin_writing(self._connection)
            self._modified = (self._clock.now() - _EPOCH) // _MICROSECOND
            (self._last_saved,) = self._execute(_LAST_VERSION).fetchone()
            self._last_version = self._last_saved

    def commit(self) -> None:
        if self._last_version != self._last_saved:
            self._execute(_SET_LAST_VERSION, (self._last_version,))
            self._last_saved = self._last_version
        self._execute("COMMIT")

    def rollback(self) -> None:
        self._last_version = self._last_saved  # Drawn in vain; other processes may have drawn them by now.
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def get(self, key: str, version: str | None) -> Stored | None:
        if version is None:
            row = self._execute(_GET, (key,)).fetchone()
        else:
            row = self._execute(_GET_VERSION, (key, version)).fetchone()
        return row and Stored(row[0], row[1], str(row[2]))

    def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        row = self._execute(_GET_IF_CHANGED, (key, etag)).fetchone()
        if row is None:
            return None
        return UNCHANGED if row[0] is None else Stored(row[0], row[1], str(row[2]))

    def put(self, key: str, body: bytes, if_match: str | None, if_absent: bool) -> PutResult:
        etag = etag_of(body)
        version = self._last_version + 1
        if key.startswith(self._forget):
            self._put_without_history((version, etag, len(body), self._modified, body, key), if_match, if_absent)
            self._last_version = version
            return PutResult(etag, None)  # Where none are kept, none can be named.
        row = (version, etag, len(body), self._modified, None, key)
        # The statements that write check the condition too: a query before them would cost a quarter more.
        if if_match is not None:
            if not self._changed(_ADD_VERSION_IF, (version, etag, self._modified, body, key, if_match)):
                raise PreconditionFailed(f"{key} {_CHANGED}")
            self._execute(_SET_HEAD, row)
        else:
            previous = None
            if not self._changed(_ADD_HEAD, row):
                current, previous = self._execute(_HEAD, (key,)).fetchone()
                if if_absent and current is not None:
                    raise PreconditionFailed(f"{key} exists already")
                self._execute(_SET_HEAD, row)
            self._execute(_ADD_VERSION, (version, previous, etag, self._modified, body, key))
        self._last_version = version
        return PutResult(etag, str(version))

    def _put_without_history(self, row: tuple[object, ...], if_match: str | None, if_absent: bool) -> None:
        key = row[-1]
        if if_match is not None:
            if not self._changed(_SET_HEAD_IF, (*row, if_match)):
                raise PreconditionFailed(f"{key} {_CHANGED}")
        elif not if_absent:
            self._execute(_PUT_HEAD, row)
        elif not self._changed(_ADD_HEAD, row) and not self._changed(_SET_HEAD_IF, (*row, None)):
            raise PreconditionFailed(f"{key} exists already")

    def delete(self, key: str, if_match: str | None) -> None:
        current, version = self._execute(_HEAD, (key,)).fetchone() or (None, None)
        if current is None:
            return
        if if_match not in (None, current):
            raise PreconditionFailed(f"{key} {_CHANGED}")
        if key.startswith(self._forget):
            self._execute(_DROP_HEAD, (key,))
        else:
            self._last_version += 1
            self._execute(_ADD_VERSION, (self._last_version, version, None, self._modified, None, key))
            self._execute(_SET_HEAD, (self._last_version, None, 0, self._modified, None, key))

    def delete_many(self, deletions: Sequence[Deletion]) -> None:
        for key, version, etag in deletions:
            if version is not None:
                self._erase(key, version)
            elif etag is not None and key.startswith(self._forget):
                self._execute(_DROP_HEAD_IF, (key, etag))  # The most frequent case, in one statement.
            else:
                with contextlib.suppress(PreconditionFailed):
                    self.delete(key, etag)

    def list(self, prefix: str, start_after: str, limit: int) -> Page:
        query, start = (_LIST_FROM, prefix) if start_after < prefix else (_LIST_AFTER, start_after)
        entries: list[Entry] = []
        rows = self._execute(query, (start, limit + 1))
        for key, etag, size, modified in rows:
            if not key.startswith(prefix):
                break
            entries.append(Entry(key, etag, size, _instant(modified)))
        rows.close()
        return Page(entries[:limit], truncated=len(entries) > limit)

    def versions(self, key: str) -> Sequence[Version]:
        return [
            Version(
                str(version), etag or "", size or 0, _instant(modified), latest=place == 0, deleted=etag is None
            )
            for place, (version, etag, size, modified) in enumerate(self._execute(_VERSIONS, (key,)))
        ]

    def list_versions(self, prefix: str, after: VersionMark | None, limit: int) -> VersionPage:
        # Every key has a version at least, and the first may be the one that the page before ended with.
        start = max(prefix, "" if after is None else after.key)
        rows = self._execute(_KEYS_FROM, (start, limit + 2)).fetchall()
        keys = [key for (key,) in rows if key.startswith(prefix)]
        return page_of_versions(keys, self.versions, after, limit)

    def _changed(self, statement: str, values: tuple[object, ...]) -> bool:
        return self._execute(statement, values).rowcount == 1

    def _erase(self, key: str, version: str) -> None:
        """Remove one version for good; if it was the latest, the one before it is that again."""
        chain = [str(number) for number, *_ in self._execute(_VERSIONS, (key,))]
        if version not in chain:
            return
        place = chain.index(version)
        before = chain[place + 1] if place + 1 < len(chain) else None
        if place > 0:
            self._execute(_RELINK, (before, chain[place - 1]))
        elif before is not None:
            self._execute(_RESTORE_HEAD, (before, key))
        else:
            self._execute(_DROP_HEAD, (key,))
        self._execute(_DROP_VERSION, (version,))
