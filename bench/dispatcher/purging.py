"""What purging history costs, and whether the space is used again: all partitions are corrected again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import sqlalchemy as sa

from bench.dispatcher.filling import add_correction, fill
from bench.dispatcher.ground import HOW, databases, deployed, pipeline
from bench.harness import Family, Result, result
from qo.dispatcher.engine.purging import purge_round
from qo.dispatcher.engine.purging.purge_round import Keep, PurgeCounts
from qo.dispatcher.state import sizes
from qo.dispatcher.state.database import State

PARTITIONS = 50_000
CORRECTIONS = 6
KEEP = Keep(history=timedelta(days=1))


def measure() -> Iterator[Result]:
    """Purges follow each correction from the second on: then a correction more leaves as many tasks as before."""
    for database in HOW:
        with databases() as fresh:
            state = fresh(database)
            deployed(state, pipeline())
            fill(state, PARTITIONS)
            megabytes: list[float] = []
            purged, took_s = PurgeCounts(), 0.0
            for number in range(1, CORRECTIONS + 1):
                add_correction(state, PARTITIONS, number)
                began_s = time.process_time() if database == "sqlite" else time.perf_counter()
                purged += sum(purge_round.run(state, KEEP), start=PurgeCounts())
                took_s += (time.process_time() if database == "sqlite" else time.perf_counter()) - began_s
                _reclaim(state)
                megabytes.append(sizes.measure(state).bytes / 1e6)
            tables = {
                each.name: (each.bytes or 0) + (each.index_bytes or 0) for each in sizes.measure(state).tables
            }
        settings = {
            "database": HOW[database],
            "partitions": PARTITIONS,
            "megabytes": [round(each) for each in megabytes],
            "purged_tasks": purged.tasks,
            "purged_events": purged.events,
            "bytes_of": {name: size for name, size in tables.items() if size > 1e6},
        }
        rate = (purged.tasks + purged.events) / took_s
        yield result(f"purge_per_s_{database}", rate, "rows/s", **settings)
        growth = (megabytes[-1] - megabytes[1]) / (len(megabytes) - 2)
        yield result(f"growth_per_correction_{database}", 1e6 * growth / PARTITIONS, "bytes", **settings)


def _reclaim(state: State) -> None:
    """As autovacuum does within a minute."""
    if state.engine.dialect.name == "postgresql":
        with state.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM"))


FAMILIES = [
    Family(
        [f"{figure}_{database}" for database in HOW for figure in ("purge_per_s", "growth_per_correction")],
        measure,
    )
]
