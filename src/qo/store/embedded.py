"""What the embedded stores (``memory`` and ``local``) have in common: ETags, a clock and checks of arguments, as S3 has
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import md5

from qo.core.storetime import steady
from qo.errors import UsageError
from qo.store.port import (
    DELETE_LIMIT_MAX,
    LIST_LIMIT_MAX,
    Deletion,
    Version,
    VersionEntry,
    VersionMark,
    VersionPage,
)


def etag_of(body: bytes) -> str:
    """Return the MD5 of the body in quotes, as S3 does for an object written in one request."""
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'


def machine_time() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - an embedded store's time is the time of its machine.


class Clock:
    """A clock that never goes back, except when the machine's clock was set back. Safe to share between threads."""

    def __init__(self, read: Callable[[], datetime] | None = None) -> None:
        self._read = read or machine_time
        self._last = datetime.min.replace(tzinfo=UTC)
        self._lock = threading.Lock()

    def now(self) -> datetime:
        with self._lock:
            self._last = steady(self._last, self._read())
            return self._last


def check_put(key: str, if_match: str | None, if_absent: bool) -> None:
    if not key:
        raise UsageError("an object needs a key: the key is empty")
    if if_match is not None and if_absent:
        raise UsageError(f"{key} cannot be both unchanged and absent: give if_match or if_absent, not both")


def check_delete_many(deletions: Sequence[Deletion]) -> None:
    if len(deletions) > DELETE_LIMIT_MAX:
        raise UsageError(f"{len(deletions)} deletes in one request: send at most {DELETE_LIMIT_MAX} at a time")


def check_limit(limit: int) -> int:
    """Return the size of a page: the given limit, but as on S3 at most LIST_LIMIT_MAX."""
    if limit < 1:
        raise UsageError(f"a page cannot have {limit} entries: ask for at least 1")
    return min(limit, LIST_LIMIT_MAX)


def page_of_versions(
    keys: Iterable[str], versions_of: Callable[[str], Sequence[Version]], after: VersionMark | None, limit: int
) -> VersionPage:
    """Return the first page of the versions of these keys, which are in order and not before ``after``."""
    entries: list[VersionEntry] = []
    for key in keys:
        versions = versions_of(key)
        if after is not None and key == after.key:
            ids = [each.version for each in versions]
            versions = versions[ids.index(after.version) + 1 :] if after.version in ids else ()
        for each in versions:
            if len(entries) == limit:
                return VersionPage(entries, VersionMark(entries[-1].key, entries[-1].version.version))
            entries.append(VersionEntry(key, each))
    return VersionPage(entries, None)
