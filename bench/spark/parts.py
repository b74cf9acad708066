"""Where the time of tasks goes, by what the dispatcher keeps of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from bench.harness import median
from bench.spark.ground import Installation, events, tasks

STEPS = ("received_at", "created_at", "released_at", "started_at", "completed_at")


def ended(installation: Installation, job: str = "totals", last: int = 1_000) -> list[Mapping[str, Any]]:
    """The latest tasks of a job, with when the event came that each is about."""
    query = (
        sa.select(tasks, events.c.received_at)
        .join(events, events.c.seq == tasks.c.event_seq)
        .where(tasks.c.job == job, tasks.c.status == "completed")
        .order_by(tasks.c.event_seq.desc())
        .limit(last)
    )
    return installation.rows(query)


def latencies_ms(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    """From the event to the commit, in order."""
    return sorted(_ms(row["received_at"], row["completed_at"]) for row in rows)


def parts_ms(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Medians: from step to step, what the worker measured between claim and commit, and what is left of that."""
    found = {
        f"{before.removesuffix('_at')} to {after.removesuffix('_at')}": median(
            _ms(row[before], row[after]) for row in rows
        )
        for before, after in pairwise(STEPS)
    }
    phases = [row["output"]["seconds"] for row in rows]
    for name in sorted({name for each in phases for name in each}):
        found[f"worker: {name}"] = median(1000 * each.get(name, 0.0) for each in phases)
    found["worker: the rest, and complete"] = median(
        _ms(row["started_at"], row["completed_at"]) - 1000 * sum(each.values())
        for row, each in zip(rows, phases, strict=True)
    )
    return {name: round(each, 1) for name, each in found.items()}


def _ms(before: datetime, after: datetime) -> float:
    return 1000 * (after - before).total_seconds()
