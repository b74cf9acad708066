"""What a running site uses, and how quick it is, at one moment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process."""

    memory_mb: float
    files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Observation:
    at_s: float  # Since the load began.
    processes: Mapping[str, Usage]
    database_mb: float
    completed: int  # Tasks so far.


def observe_process(pid: int) -> Usage:
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    memory_kb = int(fields["VmRSS"].split()[0])
    return Usage(memory_kb / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]))


def observe(state: State, pids: Mapping[str, int], at_s: float, database: Path | None) -> Observation:
    """``database``: the file of a state on SQLite; None: PostgreSQL is asked."""
    tasks = schema.tasks
    with state.read() as tx:
        completed = tx.value(sa.select(sa.func.count()).where(tasks.c.status == "completed"))
        size = (
            _file_size(database) if database else tx.value(sa.text("SELECT pg_database_size(current_database())"))
        )
    return Observation(at_s, {name: observe_process(pid) for name, pid in pids.items()}, size / 2**20, completed)


def read_latencies(state: State, after_s: float, until_s: float) -> list[float]:
    """Seconds from the creation of each task to its end, of those that were created in this part of the run."""
    tasks = schema.tasks
    query = sa.select(tasks.c.created_at, tasks.c.completed_at).where(
        tasks.c.status == "completed", tasks.c.completed_at.is_not(None), tasks.c.job != "feed"
    )
    with state.read() as tx:
        rows = tx.execute(query.order_by(tasks.c.created_at)).all()
    if not rows:
        return []
    first = rows[0][0]
    ages = [((created - first).total_seconds(), (ended - created).total_seconds()) for created, ended in rows]
    return [latency for age, latency in ages if after_s <= age < until_s]


def _file_size(database: Path) -> int:
    return sum(each.stat().st_size for each in database.parent.glob(f"{database.name}*"))
