"""What the life of a task asks of the database: statements and round trips, as the test counts them that holds them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.dispatcher.ground import DATABASES, HOW, databases
from bench.harness import Family, Result, Target, result
from bench.lab import TESTS

assert TESTS


def measure() -> Iterator[Result]:
    from integration import test_dispatcher_statements as scenario

    with databases() as fresh:
        for database in DATABASES:
            with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
                counts = asyncio.run(scenario.flow(fresh(database), Path(directory)))
            yield result(
                f"statements_per_task_{database}",
                counts.statements / scenario.TASKS,
                "statements",
                target=Target("value", "<=", 8.0),
                round_trips=round(counts.round_trips / scenario.TASKS, 2),
                tasks=scenario.TASKS,
                together=scenario.TOGETHER,
                database=HOW[database],
                note="from the event to the commit and the routing of what it announces",
            )


FAMILIES = [Family([f"statements_per_task_{database}" for database in DATABASES], measure)]
