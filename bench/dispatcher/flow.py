"""How many events one dispatcher routes in a second, and how many tasks it takes from their event to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from bench.dispatcher.ground import DATABASES, HOW, Unheard, databases, deployed, emit, pipeline, reached, running
from bench.harness import Family, Result, by_turns, median, result
from bench.process import Stopwatch
from qo.dispatcher.engine.loops import router
from qo.dispatcher.state.database import State

ROUNDS = 3
EVENTS = 5_000
TASKS = 2_000

Fresh = Callable[[str], State]


def _routed(fresh: Fresh, database: str) -> Stopwatch:
    """The router alone: from events that wait to tasks that wait."""
    state = fresh(database)
    deployed(state, pipeline())
    emit(state, 0, EVENTS)
    with Stopwatch() as watch:
        while router.tick(state):
            pass
    state.close()
    return watch


def _completed(fresh: Fresh, database: str) -> Stopwatch:
    """All loops, side by side: routed, released, run, committed, and the events of that routed again."""
    state = fresh(database)
    deployed(state, pipeline())
    emit(state, 0, TASKS)
    watch = Stopwatch()
    asyncio.run(_drained(state, watch))
    state.close()
    return watch


async def _drained(state: State, watch: Stopwatch) -> None:
    with watch:
        async with running(state, Unheard()):
            await reached(state, "completed", TASKS)


def _measure(name: str, count: int, side: Callable[[Fresh, str], Stopwatch], note: str) -> Iterator[Result]:
    with databases() as fresh:
        runs = by_turns(ROUNDS, *(partial(side, fresh, database) for database in DATABASES))
    for database, watches in zip(DATABASES, runs, strict=True):
        yield result(
            f"{name}_per_s_{database}",
            count / median(watch.seconds for watch in watches),
            f"{name.partition('_')[0]}/s",
            of=[count / watch.seconds for watch in watches],
            cpu_ms_each=round(1000 * median(watch.cpu_seconds for watch in watches) / count, 3),
            count=count,
            rounds=ROUNDS,
            database=HOW[database],
            note=note,
        )


def _family(name: str, count: int, side: Callable[[Fresh, str], Stopwatch], note: str) -> Family:
    return Family(
        [f"{name}_per_s_{database}" for database in DATABASES], lambda: _measure(name, count, side, note)
    )


FAMILIES = [
    _family("events_routed", EVENTS, _routed, "partition events with one reader, the router alone"),
    _family(
        "tasks_completed", TASKS, _completed, "noop in the dispatcher, from the event to the commit, all loops"
    ),
]
