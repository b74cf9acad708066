"""Whether a million partitions make anything slower than a thousand do. Flat is right: every question has an index."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.dispatcher.api_calls import PLAN, ApiCalls
from bench.dispatcher.crowd import JOBS, PIPELINES, deploy_crowd
from bench.dispatcher.filling import add_rebuild, fill
from bench.dispatcher.ground import HOW, databases, deployed, emit, pipeline
from bench.harness import Family, Result, Target, by_turns, result
from qo.dispatcher.engine.loops import bulk_change, reconciler, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import bulk_changes, operator_actions
from qo.dispatcher.views import datasets
from qo.dispatcher.views.why.answer import why

FEW, MANY = 1_000, 1_000_000
BATCH = 200
BATCHES = 9
BATCHES_POSTGRES = 5
PAGES = 25


class _Side:
    """A state with so many partitions."""

    def __init__(self, state: State, partitions: int) -> None:
        self.state = state
        self.keys = partitions
        fill(state, partitions)
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


def _costs(few: _Side, many: _Side, batches: int = BATCHES, pages: int = PAGES) -> dict[str, tuple[float, float]]:
    """By step, milliseconds with few partitions and with many. The quickest of several counts."""
    costs: dict[str, tuple[float, float]] = {}
    for rounds, sides in ((batches, (few.batch, many.batch)), (pages, (few.pages, many.pages))):
        if not rounds:
            continue
        first, second = by_turns(rounds, *sides)
        for step in first[0]:
            costs[step] = (1000 * min(each[step] for each in first), 1000 * min(each[step] for each in second))
    return costs


def measure() -> Iterator[Result]:
    """Half of the rows of ``partitions`` are of the source and half of the job that reads it."""
    with databases() as fresh:
        sides: list[_Side] = []
        for partitions in (FEW, MANY):
            state = fresh("sqlite")
            deployed(state, pipeline())
            sides.append(_Side(state, partitions // 2))
        costs = _costs(*sides)
    yield _result("routing_growth_1m", costs, database=HOW["sqlite"])


def measure_postgres() -> Iterator[Result]:
    """A million partitions in one dataset, beside five thousand jobs; all calls through the API's application."""
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory, databases() as fresh:
        base = fresh("postgres")
        deployed(base, pipeline())
        deploy_crowd(base)
        url = base.engine.url.database or ""
        base.close()
        few, many = (_Side(fresh("postgres", url), partitions) for partitions in (FEW, MANY))
        calls = [ApiCalls(each.state, Path(directory) / str(each.keys), each.keys) for each in (few, many)]
        costs, answers_s = _api_costs(*calls)
        costs |= _costs(few, many, BATCHES_POSTGRES, 0)
        costs |= _rebuild_costs((few, many), calls)
        for each in calls:
            each.close()
    crowd = {"jobs": PIPELINES * JOBS, "pipelines": PIPELINES}
    yield _result("growth_1m_postgres", costs, database=HOW["postgres"], bound=1.3, **crowd)
    yield result(
        "api_p99_ms_1m",
        1000 * statistics.quantiles(answers_s, n=100)[98],
        "ms",
        target=Target("value", "<=", 100.0),
        median_ms=round(1000 * statistics.median(answers_s), 1),
        answers=len(answers_s),
        partitions=MANY,
        database=HOW["postgres"],
        **crowd,
    )


def _api_costs(few: ApiCalls, many: ApiCalls) -> tuple[dict[str, tuple[float, float]], list[float]]:
    """By question, milliseconds with few partitions and with many; and all seconds with many."""
    costs: dict[str, tuple[float, float]] = {}
    answers_s: list[float] = []
    for name in (*few.questions, PLAN):
        first, second = by_turns(PAGES, partial(few.ask, name), partial(many.ask, name))
        costs[name] = 1000 * min(first), 1000 * min(second)
        answers_s += second[1:]  # The first fills what a process keeps in memory.
    return costs, answers_s


def _rebuild_costs(sides: Sequence[_Side], calls: Sequence[ApiCalls]) -> dict[str, tuple[float, float]]:
    """Milliseconds to deploy a change that has everything rebuilt, to go on with that by a step, to give it up for
    another change, to cancel the next chunk of its tasks, and to roll back."""
    seconds: dict[str, list[float]] = {}

    def note(step: str, took_s: float) -> None:
        seconds.setdefault(step, []).append(took_s)

    for side, api in zip(sides, calls, strict=True):
        api.deploy("warm")
        note("deploy", api.deploy("one"))
        note("rebuild step", min(_timed(partial(reconciler.tick, side.state)) for _ in range(2)))
        add_rebuild(side.state, side.keys)
        note("rebuild progress", min(api.ask("rebuild") for _ in range(3)))
        note("deploy and cancel", api.deploy("two"))
        if side.keys > bulk_changes.AT_ONCE:  # Else the call itself has cancelled all.
            note("cancel step", _timed(partial(bulk_change.tick, side.state)))
        api.send("PUT", "/v1/dags/shop/active", b'{"version": 4, "force": true}', "application/json")
        add_rebuild(side.state, side.keys)
        note("rollback", api.send("POST", "/v1/dags/shop/rollback", b"{}", "application/json"))
    # What there is on one side only is no growth: it is shown as it is.
    return {step: (1000 * took_s[0], 1000 * took_s[-1]) for step, took_s in seconds.items()}


def _result(name: str, costs: Mapping[str, tuple[float, float]], bound: float = 1.5, **settings: Any) -> Result:
    growth = {step: after / before for step, (before, after) in costs.items()}
    worst = max(growth, key=lambda step: growth[step])
    return result(
        name,
        growth[worst],
        "x",
        target=Target("value", "<=", bound),
        worst_of=worst,
        growth={step: round(ratio, 2) for step, ratio in growth.items()},
        ms={step: [round(each, 2) for each in both] for step, both in costs.items()},
        partitions=[FEW, MANY],
        batch=BATCH,
        **settings,
    )


FAMILIES = [
    Family(["routing_growth_1m"], measure),
    Family(["growth_1m_postgres", "api_p99_ms_1m"], measure_postgres),
]
