"""The rows of an outbox as a relay sees them. Every call is blocking, and a transaction of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from qo.outbox.outbox_table import Dialect, claim_sql, now_sql


class Row(NamedTuple):
    id: int
    key: str
    task: str
    traceparent: str | None
    tries: int  # How often it was claimed, this time included.


class ParkedRow(NamedTuple):
    id: int
    key: str
    task: str
    reason: str


class Outbox(Protocol):
    """Raises Unavailable if the database does not answer; then it connects anew at the next call."""

    def claim(self, relay_id: str, limit: int, lease_s: float) -> list[Row]:
        """Claim rows for a while, the oldest first."""
        ...

    def finish(
        self, relay_id: str, submitted: Sequence[int], parked: Mapping[int, str], later: Mapping[int, float]
    ) -> None:
        """Delete rows, park others with a reason, and give others back for so many seconds later."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when there may be new rows, after the timeout at the latest."""
        ...

    def count(self) -> tuple[int, int]:
        """Return how many rows wait, and how many are parked."""
        ...

    def parked(self, limit: int) -> list[ParkedRow]: ...

    def retry(self, ids: Sequence[int]) -> int:
        """Give parked rows back; all without ids. Return how many."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of a relay on one table. Rows are named by id, and by the relay that has claimed them: one
    whose claim has lapsed changes nothing."""

    claim: str
    delete: str  # id, claimed_by
    park: str  # reason, id, claimed_by
    postpone: str  # seconds, id, claimed_by
    count: str
    parked: str  # limit
    retry: str  # id
    retry_all: str

    @classmethod
    def of(cls, dialect: Dialect, table: str) -> Statements:
        mark, now = dialect.mark, now_sql(dialect)
        held = f"WHERE id = {mark} AND claimed_by = {mark}"
        later = f"{now} + {mark}" if dialect is Dialect.SQLITE else f"{now} + {mark} * interval '1 second'"
        free = "claimed_by = NULL, claimed_until = NULL, parked_at = NULL, parked_reason = NULL, tries = 0"
        return cls(
            claim=claim_sql(dialect, table),
            delete=f"DELETE FROM {table} {held}",
            park=f"UPDATE {table} SET parked_at = {now}, parked_reason = {mark} {held}",
            postpone=f"UPDATE {table} SET claimed_until = {later} {held}",
            count=f"SELECT count(*), count(parked_at) FROM {table}",
            parked=f"SELECT id, key, task, parked_reason FROM {table} WHERE parked_at IS NOT NULL"
            f" ORDER BY id LIMIT {mark}",
            retry=f"UPDATE {table} SET {free} WHERE id = {mark} AND parked_at IS NOT NULL",
            retry_all=f"UPDATE {table} SET {free} WHERE parked_at IS NOT NULL",
        )


def rows_of(records: Sequence[Sequence[Any]]) -> list[Row]:
    """Return claimed rows in their order: a database returns them in any."""
    return sorted(Row(int(each[0]), str(each[1]), str(each[2]), each[3], int(each[4])) for each in records)
