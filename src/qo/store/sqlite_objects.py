"""Versioned objects in one SQLite file. All operations are synchronous, for the thread that owns the file.

``heads`` has one row per key: its latest version, which is a delete marker if it has no ETag. ``archive`` has the older
versions, each with the number of its predecessor. So writing a key again touches its row and the end of the archive,
but no index: half as many pages as one indexed table of all versions would.
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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_CHANGED = "has changed since it was read"

_LAST_VERSION = "SELECT last_version FROM counter"
_SET_LAST_VERSION = "UPDATE counter SET last_version = ?"

_GET = "SELECT body, etag, version FROM heads WHERE key = ? AND body IS NOT NULL"
_GET_IF_CHANGED = """
    SELECT CASE WHEN etag = ?2 THEN NULL ELSE body END, etag, version FROM heads
    WHERE key = ?1 AND body IS NOT NULL
"""
_GET_VERSION = """
    SELECT body, etag, version FROM heads WHERE key = ?1 AND version = ?2 AND body IS NOT NULL
    UNION ALL
    SELECT body, etag, version FROM archive WHERE key = ?1 AND version = ?2 AND body IS NOT NULL
"""
_LIST_FROM, _LIST_AFTER = (
    f"""
    SELECT key, etag, length(body), modified FROM heads
    WHERE key {bound} ? AND body IS NOT NULL ORDER BY key LIMIT ?
    """
    for bound in (">=", ">")
)
_KEYS_FROM = "SELECT key FROM heads WHERE key >= ? ORDER BY key LIMIT ?"
_VERSIONS = """
    WITH RECURSIVE chain AS (
        SELECT version, previous, etag, length(body) AS size, modified FROM heads WHERE key = ?
        UNION ALL
        SELECT archive.version, archive.previous, archive.etag, length(archive.body), archive.modified
        FROM chain JOIN archive ON archive.version = chain.previous
    )
    SELECT version, etag, size, modified FROM chain
"""

_ETAG = "SELECT etag FROM heads WHERE key = ? AND etag IS NOT NULL"
_ADD_HEAD = """
    INSERT INTO heads (version, etag, modified, body, key) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_SET_HEAD = """
    UPDATE heads SET previous = version, version = ?, etag = ?, modified = ?, body = ? WHERE key = ?
"""
_ARCHIVE_HEAD = """
    INSERT INTO archive (version, previous, key, etag, modified, body)
    SELECT version, previous, key, etag, modified, body FROM heads WHERE key = ? AND (? OR etag IS ?)
"""
_OVERWRITE_HEAD = """
    UPDATE heads SET previous = NULL, version = ?, etag = ?, modified = ?, body = ?
    WHERE key = ? AND (? OR etag IS ?)
"""
_RESTORE_HEAD = """
    UPDATE heads SET (version, previous, etag, modified, body) =
        (SELECT version, previous, etag, modified, body FROM archive WHERE archive.version = heads.previous)
    WHERE key = ?
"""
_DROP_HEAD = "DELETE FROM heads WHERE key = ?"
_DROP_HEAD_IF = "DELETE FROM heads WHERE key = ? AND etag = ?"
_DROP_ARCHIVED = "DELETE FROM archive WHERE version = ?"
_RELINK_HEAD = "UPDATE heads SET previous = ? WHERE version = ? AND key = ?"
_RELINK_ARCHIVED = "UPDATE archive SET previous = ? WHERE version = ? AND key = ?"


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
        self._execute("BEGIN IMMEDIATE" if writing else "BEGIN")
        if writing:
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
        keeps_no_history = key.startswith(self._forget)
        version = self._last_version + 1
        row = (version, etag, self._modified, body, key)
        # The statements that write check the conditions too: a query before them would cost a quarter more.
        if if_match is not None or not self._changed(_ADD_HEAD, row):
            # There is a head, or there has to be one. If the key has to be free, that is a delete marker, whose
            # ETag is NULL.
            expected = (if_match is None and not if_absent, if_match)
            if keeps_no_history:
                replaced = self._changed(_OVERWRITE_HEAD, (*row, *expected))
            else:
                replaced = self._changed(_ARCHIVE_HEAD, (key, *expected)) and self._changed(_SET_HEAD, row)
            if not replaced:
                raise PreconditionFailed(f"{key} {'exists already' if if_absent else _CHANGED}")
        self._last_version = version
        return PutResult(
            etag, None if keeps_no_history else str(version)
        )  # Where none are kept, none can be named.

    def delete(self, key: str, if_match: str | None) -> None:
        keeps_no_history = key.startswith(self._forget)
        if not keeps_no_history or if_match is not None:
            current = self._execute(_ETAG, (key,)).fetchone()
            if current is None:
                return
            if if_match not in (None, current[0]):
                raise PreconditionFailed(f"{key} {_CHANGED}")
        if keeps_no_history:
            self._execute(_DROP_HEAD, (key,))
        else:
            self._last_version += 1
            self._execute(_ARCHIVE_HEAD, (key, True, None))
            self._execute(_SET_HEAD, (self._last_version, None, self._modified, None, key))

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
            relink = _RELINK_HEAD if place == 1 else _RELINK_ARCHIVED
            self._execute(relink, (before, chain[place - 1], key))
            self._execute(_DROP_ARCHIVED, (version,))
        elif before is not None:
            self._execute(_RESTORE_HEAD, (key,))
            self._execute(_DROP_ARCHIVED, (before,))
        else:
            self._execute(_DROP_HEAD, (key,))
