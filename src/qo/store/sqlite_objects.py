"""Versioned objects in one SQLite file, one synchronous operation at a time, for the thread that owns the file.

``heads`` has one row for each key: its latest version, which is a delete marker if it has no body. ``archive`` has
the versions before, each naming the one before itself. So writing a key again touches its row and the end of the
archive, and no index: half the pages that a table of all versions would touch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from qo.errors import PreconditionFailed
from qo.store.embedded import Clock, etag_of
from qo.store.port import Doomed, Entry, Page, Stored, Version, Written

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_LAST_VERSION = "SELECT last_version FROM counter"
_SET_LAST_VERSION = "UPDATE counter SET last_version = ?"

_GET = "SELECT body, etag, version FROM heads WHERE key = ? AND body IS NOT NULL"
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
_VERSIONS = """
    WITH RECURSIVE chain AS (
        SELECT version, previous, etag, length(body) AS size, modified FROM heads WHERE key = ?
        UNION ALL
        SELECT archive.version, archive.previous, archive.etag, length(archive.body), archive.modified
        FROM chain JOIN archive ON archive.version = chain.previous
    )
    SELECT version, etag, size, modified FROM chain
"""

_HEAD = "SELECT id, version, etag FROM heads WHERE key = ?"
_ADD_HEAD = "INSERT INTO heads (version, previous, etag, modified, body, key) VALUES (?, ?, ?, ?, ?, ?)"
_SET_HEAD = "UPDATE heads SET version = ?, previous = ?, etag = ?, modified = ?, body = ? WHERE id = ?"
_DROP_HEAD = "DELETE FROM heads WHERE id = ?"
_ARCHIVE_HEAD = """
    INSERT INTO archive (version, previous, key, etag, modified, body)
    SELECT version, previous, key, etag, modified, body FROM heads WHERE id = ?
"""
_RESTORE_HEAD = """
    UPDATE heads SET (version, previous, etag, modified, body) =
        (SELECT version, previous, etag, modified, body FROM archive WHERE archive.version = heads.previous)
    WHERE id = ?
"""
_DROP_ARCHIVED = "DELETE FROM archive WHERE version = ?"
_RELINK_HEAD = "UPDATE heads SET previous = ? WHERE version = ? AND key = ?"
_RELINK_ARCHIVED = "UPDATE archive SET previous = ? WHERE version = ? AND key = ?"


class _Head(NamedTuple):
    id: int
    version: int
    etag: str | None  # None: deleted.


def _instant(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


class SqliteObjects:
    """The objects in ``path``. Operations run between ``begin`` and ``commit`` or ``rollback``.

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

    def put(self, key: str, body: bytes, if_match: str | None, if_absent: bool) -> Written:
        head = self._head(key)
        current = head.etag if head else None
        if if_absent and current is not None:
            raise PreconditionFailed(f"{key} exists already")
        if if_match is not None and current != if_match:
            raise PreconditionFailed(f"{key} has changed since it was read")
        etag = etag_of(body)
        return Written(etag, str(self._write(key, head, etag, body)))

    def delete(self, key: str, if_match: str | None) -> None:
        head = self._head(key)
        if head is None or head.etag is None:
            return
        if if_match is not None and head.etag != if_match:
            raise PreconditionFailed(f"{key} has changed since it was read")
        if key.startswith(self._forget):
            self._execute(_DROP_HEAD, (head.id,))
        else:
            self._write(key, head, None, None)

    def delete_many(self, doomed: Sequence[Doomed]) -> None:
        for key, version in doomed:
            if version is None:
                self.delete(key, None)
            else:
                self._erase(key, version)

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

    def _head(self, key: str) -> _Head | None:
        row = self._execute(_HEAD, (key,)).fetchone()
        return row and _Head(*row)

    def _write(self, key: str, head: _Head | None, etag: str | None, body: bytes | None) -> int:
        """Make this the latest version, and archive the one before. None and None make a delete marker."""
        self._last_version += 1
        version = self._last_version
        if head is None:
            self._execute(_ADD_HEAD, (version, None, etag, self._modified, body, key))
            return version
        previous = None
        if not key.startswith(self._forget):
            previous = head.version
            self._execute(_ARCHIVE_HEAD, (head.id,))
        self._execute(_SET_HEAD, (version, previous, etag, self._modified, body, head.id))
        return version

    def _erase(self, key: str, version: str) -> None:
        """Remove one version for good; if it was the latest, the one before it is that again."""
        head = self._head(key)
        chain = [str(number) for number, *_ in self._execute(_VERSIONS, (key,))]
        if head is None or version not in chain:
            return
        place = chain.index(version)
        before = chain[place + 1] if place + 1 < len(chain) else None
        if place > 0:
            relink = _RELINK_HEAD if place == 1 else _RELINK_ARCHIVED
            self._execute(relink, (before, chain[place - 1], key))
            self._execute(_DROP_ARCHIVED, (version,))
        elif before is not None:
            self._execute(_RESTORE_HEAD, (head.id,))
            self._execute(_DROP_ARCHIVED, (before,))
        else:
            self._execute(_DROP_HEAD, (head.id,))
