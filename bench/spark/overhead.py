"""What qo adds to the work of examples/flights: a script with one warm session against a warm worker.

All sides have the same operators, settings of Spark SQL, number of threads and input files, and write the same tables,
each step to files that the next one reads. The script runs twice: in a session as it comes from PyPI, and in one as qo
sets it up. A round is a month of which nothing was done before. Three months come first: until then, the JVMs are busy
compiling.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.spark import flights, sessions
from bench.spark.ground import SLOTS, Installation
from bench.spark.talking import Partner

WARM = ("2013-01", "2013-02", "2013-03")
ROUNDS = ("2013-04", "2013-05", "2013-06")
DAYS = 181  # Of the year: the months above.
SHARE = "the work of examples/flights: ingest, clean, join, aggregate by day, then a month and its alerts"

Side = Callable[[Sequence[str], Sequence[str]], float]  # Does these days, then these months; how long that took.


class Pipeline:
    """qo's side."""

    def __init__(self, installation: Installation, landing: Path) -> None:
        self._qo, self._landing = installation, landing
        self._days = self._months = 0

    def reference(self) -> None:
        files = [self._landing / "reference" / f"{name}.csv" for name in flights.REFERENCE]
        said = [
            {"output": at, "cursor": 1, "attributes": {"location": f"file:{path.parent}", "files": [path.name]}}
            for at, path in enumerate(files)
        ]
        self._qo.run("tables", said, dict.fromkeys(flights.REFERENCE, 1))

    def days(self, days: Sequence[str], months: Sequence[str]) -> float:
        self._days += len(days)
        self._months += len(months)
        place = f"file:{self._landing}/flights"
        said = [
            {
                "output": 0,
                "partition_key": day,
                "attributes": {"location": place, "files": [f"{day}.csv"]},
            }
            for day in days
        ]
        # The month follows from its days.
        return self._qo.run("departures", said, {"daily": self._days, "alerts": self._months})


def _of(days: Sequence[str], month: str) -> list[str]:
    return [day for day in days if day.startswith(month)]


class Script:
    """The side without qo: the same operators, called by a script."""

    def __init__(self, partner: Partner, told: Mapping[str, Any], landing: Path, target: Path) -> None:
        self._partner = partner
        partner.ask("open", **told, threads=SLOTS)
        partner.ask("demo", definition=asdict(flights.definition()), landing=str(landing), target=str(target))

    def days(self, days: Sequence[str], months: Sequence[str]) -> float:
        return float(self._partner.ask("days", days=list(days), months=list(months))["seconds"])


def measure(warm: Sequence[str] = WARM, rounds: Sequence[str] = ROUNDS, days_max: int = 31) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory, ExitStack() as stack:
        home = Path(directory)
        landing = home / "landing"
        days = flights.landed(landing, DAYS)
        worked_on = sorted(day for month in (*warm, *rounds) for day in _of(days, month)[:days_max])
        pipeline = Pipeline(
            stack.enter_context(Installation(flights.pipeline(worked_on), flights.EXAMPLE)), landing
        )
        pipeline.reference()
        sessions_ = {"bare": sessions.ordinary(), "same": sessions.told()}
        scripts = {
            name: Script(stack.enter_context(Partner("bench.spark.bare")), told, landing, home / name)
            for name, told in sessions_.items()
        }
        sides = {"qo": pipeline.days, **{name: each.days for name, each in scripts.items()}}
        for month in warm:
            for side in sides.values():
                side(_of(days, month)[:days_max], [month])

        def months_of(side: Side) -> Callable[[], float]:
            left = iter(rounds)

            def next_one() -> float:
                month = next(left)
                return side(_of(days, month)[:days_max], [month])

            return next_one

        taken = dict(zip(sides, by_turns(len(rounds), *map(months_of, sides.values())), strict=True))
    worked = [len(_of(days, month)[:days_max]) * len(flights.DAILY) + len(flights.MONTHLY) for month in rounds]
    yield from _told(taken, worked, warm)


def _told(taken: Mapping[str, Sequence[float]], tasks: Sequence[int], warm: Sequence[str]) -> Iterator[Result]:
    shared = {
        "tasks": list(tasks),
        "bare_s": [round(each, 2) for each in taken["bare"]],
        "same_session_s": [round(each, 2) for each in taken["same"]],
        "qo_s": [round(each, 2) for each in taken["qo"]],
        "slots": SLOTS,
        "warmed_by": f"{len(warm)} months",
        **sessions.described(),
    }
    for name, side, session in (
        ("overhead_vs_bare_pyspark", "bare", "Spark as it comes from PyPI"),
        ("overhead_vs_same_session", "same", "the session that qo sets up, which is faster"),
    ):
        ratios = [ours / theirs for ours, theirs in zip(taken["qo"], taken[side], strict=True)]
        yield result(
            name,
            median(ratios),
            "times the script",
            target=Target("value", "<=", 1.15),
            of=ratios,
            note=f"{SHARE}; the script has {session}; median of the rounds' ratios of wall-clock times",
            **shared,
        )
    added_ms = [
        1000 * (ours - theirs) / count
        for ours, theirs, count in zip(taken["qo"], taken["same"], tasks, strict=True)
    ]
    each = median(added_ms)
    yield result(
        "overhead_per_task_ms",
        each,
        "ms",
        target=Target("value", "<=", 100),
        of=added_ms,
        slot_ms=round(each * SLOTS, 1),
        note="(wall-clock time through qo - by the script in the same session) / tasks; slot_ms: what a task holds its "
        "slot longer",
        **shared,
    )


FAMILIES = [
    Family(["overhead_vs_bare_pyspark", "overhead_vs_same_session", "overhead_per_task_ms"], partial(measure))
]
