"""Advisory locks with names, on PostgreSQL. First come, first served; on SQLite a writer is alone anyway."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from qo.dispatcher.state.database import Tx


def number_of(kind: str, name: str) -> int:
    """Return the number of the lock with this name, among those of its kind."""
    digest = hashlib.blake2b(f"{kind}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def lock_names(tx: Tx, kind: str, names: Collection[str], *, shared: bool = False) -> None:
    """Hold the locks with these names until the transaction ends, alone or shared."""
    mode = "_shared" if shared else ""
    # In order: two transactions that take the same locks must not deadlock.
    numbers = sorted(number_of(kind, each) for each in names)
    execute_locks(tx, [f"pg_advisory_xact_lock{mode}({number})" for number in numbers])


def try_names(tx: Tx, kind: str, names: Collection[str]) -> set[str]:
    """Hold those of the locks, until the transaction ends, that are free; return their names. All on SQLite."""
    if not names or not tx.on_postgres:
        return set(names)
    ordered = sorted(names)
    calls = ", ".join(f"pg_try_advisory_xact_lock({number_of(kind, each)})" for each in ordered)
    [row] = tx.call(f"SELECT {calls}")
    return {name for name, is_held in zip(ordered, row, strict=True) if is_held}


def execute_locks(tx: Tx, calls: Collection[str]) -> None:
    """Make these calls of the database's functions, in order."""
    if calls and tx.on_postgres:
        tx.call(f"SELECT {', '.join(calls)}")
