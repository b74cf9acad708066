"""Secrets as encrypted rows of the state database, for dispatchers that share the database and no directory.

Each row is sealed as payloads of tasks are (``qo.queue.sealer``), with a key from outside the database, and bound to
its name: whoever reads the database learns nothing, and whoever writes it can delete a secret but not make one.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from qo.core.sealed import parse_sealed
from qo.dispatcher.secrets.secret_store import SecretListing, Veto, prefix_of
from qo.dispatcher.state import schema
from qo.dispatcher.state.advisory_locks import lock_names
from qo.dispatcher.state.database import State, Tx, batches
from qo.errors import CorruptRecord
from qo.queue.sealer import Sealer

REFRESH_MIN_S = 0.5  # Between two questions, whoever asks.
_FIELD = "content"
_LOCK = "secrets"
_table = schema.secrets


class _Row(NamedTuple):
    revision: str
    sealed: str


class DatabaseSecrets:
    """Knows the rows as it last saw them; ``refresh`` asks for those that are new."""

    def __init__(self, state: State, load_sealer: Callable[[], Sealer]) -> None:
        """``load_sealer`` is called again for a row whose key is unknown: its file may have got a new key since."""
        self._state = state
        self._load_sealer = load_sealer
        self._sealer = load_sealer()
        self._lock = threading.Lock()
        self._rows: Mapping[str, _Row] = {}
        self._views: dict[str, Mapping[str, str]] = {}
        self._contents: dict[str, bytes] = {}  # By revision.
        self._asked_at_s: float | None = None

    @property
    def place(self) -> str:
        return "the state database"

    def entries(self, prefix: str) -> Mapping[str, str]:
        views, rows = self._views, self._rows
        if prefix not in views:
            views[prefix] = {name: row.revision for name, row in sorted(rows.items()) if name.startswith(prefix)}
        return views[prefix]

    def read(self, name: str) -> bytes | None:
        row = self._rows.get(name)
        if row is None:
            return None
        if (content := self._contents.get(row.revision)) is None:
            content = self._contents[row.revision] = self._open(name, row.sealed)
        return content

    def create(self, name: str, content: bytes, *, unless: Veto | None = None) -> bool:
        with self._state.write() as tx:
            self._hold(tx)
            if unless is not None and unless(_names(tx, prefix_of(name))):
                is_new = False
            else:
                is_new = bool(tx.insert_absent(_table, [self._row(tx, name, content)], returning=_table.c.name))
        self.refresh(at_once=True)
        return is_new

    def create_all(self, contents: Mapping[str, bytes], *, only_if_empty: bool = False) -> list[str]:
        """Create the secrets that are not there, all or none; return their names."""
        with self._state.write() as tx:
            self._hold(tx)
            if only_if_empty and tx.one(sa.select(_table.c.name).limit(1)) is not None:
                return []
            rows = [self._row(tx, name, content) for name, content in sorted(contents.items())]
            names = tx.insert_absent(_table, rows, returning=_table.c.name)
        self.refresh(at_once=True)
        return sorted(names)

    def replace(self, name: str, expected: bytes, content: bytes) -> bool:
        with self._state.write() as tx:
            row = tx.one(tx.lock(sa.select(_table).where(_table.c.name == name)))
            is_expected = row is not None and hmac.compare_digest(self._open(name, row["sealed"]), expected)
            if is_expected:
                values = self._row(tx, name, content)
                del values["name"], values["created_at"]
                tx.execute(sa.update(_table).where(_table.c.name == name).values(**values))
        self.refresh(at_once=True)
        return is_expected

    def delete(self, name: str) -> None:
        with self._state.write() as tx:
            tx.execute(sa.delete(_table).where(_table.c.name == name))
        self.refresh(at_once=True)

    def rewrap(self) -> list[str]:
        """Encrypt again, with the first key, what other keys encrypt; return the names. All or none."""
        self._sealer = self._load_sealer()
        with self._state.write() as tx:
            self._hold(tx)
            query = (
                sa.select(_table).where(_table.c.sealed_with != self._sealer.current_id).order_by(_table.c.name)
            )
            rows = tx.all(tx.lock(query))
            for row in rows:
                name = row["name"]
                values = self._row(tx, name, self._open(name, row["sealed"]))
                del values["name"], values["created_at"], values["changed_at"]
                tx.execute(sa.update(_table).where(_table.c.name == name).values(**values))
        self.refresh(at_once=True)
        return [row["name"] for row in rows]

    def list_secrets(self, prefix: str) -> list[SecretListing]:
        with self._state.read() as tx:
            rows = tx.all(sa.select(_table).order_by(_table.c.name))
        return [
            SecretListing(row["name"], row["created_at"], row["changed_at"], row["sealed_with"])
            for row in rows
            if row["name"].startswith(prefix)
        ]

    def refresh(self, *, at_once: bool = False) -> bool:
        with self._lock:  # Who comes second finds that the first has asked just now.
            now = self._state.ambient.monotonic()
            if not at_once and self._asked_at_s is not None and now - self._asked_at_s < REFRESH_MIN_S:
                return False
            rows = self._load_rows()
            self._asked_at_s = now
            if rows == self._rows:
                return False
            self._rows, self._views = rows, {}
            revisions = {row.revision for row in rows.values()}
            self._contents = {key: value for key, value in list(self._contents.items()) if key in revisions}
            return True

    def _load_rows(self) -> Mapping[str, _Row]:
        """Return all rows; only those are fetched whole whose revision is new."""
        with self._state.read() as tx:
            revisions = {
                row["name"]: row["revision"] for row in tx.all(sa.select(_table.c.name, _table.c.revision))
            }
            rows = {name: row for name, row in self._rows.items() if revisions.get(name) == row.revision}
            for names in batches(sorted(revisions.keys() - rows.keys())):
                rows |= _fetch(tx, names)
        return rows

    def _row(self, tx: Tx, name: str, content: bytes) -> dict[str, Any]:
        return {
            "name": name,
            "revision": tx.ambient.task_id(),
            "sealed": self._sealer.seal(content, name, _FIELD),
            "sealed_with": self._sealer.current_id,
            "created_at": tx.now,
            "changed_at": tx.now,
        }

    def _open(self, name: str, sealed: str) -> bytes:
        text = parse_sealed(sealed)
        if text is None:
            raise CorruptRecord(f"the secret {name} in the database is not encrypted: somebody has changed it")
        if not self._sealer.has_key(text.key_id):
            self._sealer = self._load_sealer()
        return self._sealer.open(text, name, _FIELD)

    def _hold(self, tx: Tx) -> None:
        lock_names(tx, _LOCK, [_LOCK])


def _names(tx: Tx, prefix: str) -> list[str]:
    return [name for name in tx.execute(sa.select(_table.c.name)).scalars() if name.startswith(prefix)]


def _fetch(tx: Tx, names: Sequence[str]) -> dict[str, _Row]:
    query = sa.select(_table.c.name, _table.c.revision, _table.c.sealed).where(_table.c.name.in_(names))
    return {row["name"]: _Row(row["revision"], row["sealed"]) for row in tx.all(query)}


def sealing_keys(state: State) -> list[str]:
    """Return the ids of the keys that encrypt secrets of this database; empty if it holds none."""
    with state.read() as tx:
        return list(
            tx.execute(sa.select(_table.c.sealed_with).distinct().order_by(_table.c.sealed_with)).scalars()
        )
