"""Whether a million partitions make anything slower than a thousand do. Flat is right: every question has an index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from bench.dispatcher.filling import fill
from bench.dispatcher.ground import HOW, databases, deployed, emit, pipeline
from bench.harness import Family, Result, Target, by_turns, result
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.views import datasets
from qo.dispatcher.views.why.answer import why

FEW, MANY = 1_000, 1_000_000
# On PostgreSQL fewer: a million rows of each table take it minutes to write.
MANY_POSTGRES = 200_000
BATCH = 200
BATCHES = 9
PAGES = 25


class _Side:
    """A state with so many partitions."""

    def __init__(self, state: State, partitions: int) -> None:
        deployed(state, pipeline())
        self.state = state
        self.keys = fill(state, partitions)
        self._next = self.keys

    def batch(self) -> dict[str, float]:
        """Seconds for each step of a batch of new partitions."""
        emit(self.state, self._next, BATCH)
        self._next += BATCH
        return {
            "route": _timed(lambda: router.tick(self.state)),
            "release": _timed(lambda: release.tick(self.state, Limits())),
            "run": _timed(self._run),
        }

    def pages(self) -> dict[str, float]:
        """Seconds for each question somebody may ask, about the middle of the history."""
        middle = self.keys // 2
        asked: Mapping[str, Callable[[Tx], object]] = {
            "why": lambda tx: why(tx, f"shop.clean@p{middle}"),
            "partitions": lambda tx: datasets.list_partitions(tx, "shop.clean", after=f"p{middle}"),
            "events": lambda tx: datasets.list_events(tx, "shop.orders", before=middle),
            "tasks": lambda tx: operator_actions.list_tasks(tx),
            "tasks of a job": lambda tx: operator_actions.list_tasks(
                tx, dag="shop", job="clean", status="completed"
            ),
        }
        return {name: _timed(partial(self._ask, question)) for name, question in asked.items()}

    def _run(self) -> None:
        while in_process.tick(self.state, "file:/bench"):
            pass

    def _ask(self, question: Callable[[Tx], object]) -> None:
        with self.state.read() as tx:
            question(tx)


def _timed(step: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    step()
    return time.perf_counter() - began_s


def _costs(few: _Side, many: _Side) -> dict[str, tuple[float, float]]:
    """By step, milliseconds with few partitions and with many. The quickest of several counts."""
    costs: dict[str, tuple[float, float]] = {}
    for rounds, sides in ((BATCHES, (few.batch, many.batch)), (PAGES, (few.pages, many.pages))):
        first, second = by_turns(rounds, *sides)
        for step in first[0]:
            costs[step] = (1000 * min(each[step] for each in first), 1000 * min(each[step] for each in second))
    return costs


def measure(database: str, of: str, partitions: int) -> Iterator[Result]:
    with databases() as fresh:
        few, many = _Side(fresh(database), FEW), _Side(fresh(database), partitions)
        costs = _costs(few, many)
    growth = {step: after / before for step, (before, after) in costs.items()}
    worst = max(growth, key=lambda step: growth[step])
    yield result(
        f"routing_growth_{of}",
        growth[worst],
        "x",
        target=Target("value", "<=", 1.5),
        worst_of=worst,
        growth={step: round(ratio, 2) for step, ratio in growth.items()},
        ms={step: [round(each, 2) for each in both] for step, both in costs.items()},
        partitions=[FEW, partitions],
        batch=BATCH,
        database=HOW[database],
    )


FAMILIES = [
    Family(["routing_growth_1m"], partial(measure, "sqlite", "1m", MANY)),
    Family(["routing_growth_200k_postgres"], partial(measure, "postgres", "200k_postgres", MANY_POSTGRES)),
]
