"""What qo adds to the work of examples/flights: a script with one warm session against a warm worker.

Both sides have the same operators, settings of Spark, number of threads and input files, and write the same tables,
each step to files that the next one reads. A round is a month of which nothing was done before. Three months come
first: until then, both JVMs are busy compiling.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.spark import flights, sessions
from bench.spark.ground import SLOTS, Installation
from bench.spark.talking import Partner

WARM = ("2013-01", "2013-02", "2013-03")
ROUNDS = ("2013-04", "2013-05", "2013-06")
DAYS = 181  # Of the year: the months above.
SHARE = "the work of examples/flights: ingest, clean, join, aggregate by day, then a month and its alerts"


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
                "partition_key": f"{day}.csv",
                "attributes": {"location": place, "files": [f"{day}.csv"]},
            }
            for day in days
        ]
        first = self._qo.run("departures", said, {"daily": self._days})
        closed = [{"output": 0, "partition_key": f"{month}.csv"} for month in months]
        return first + self._qo.run("months", closed, {"alerts": self._months})


def _of(days: Sequence[str], month: str) -> list[str]:
    return [day for day in days if day.startswith(month)]


def measure(warm: Sequence[str] = WARM, rounds: Sequence[str] = ROUNDS, days_max: int = 31) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        landing = Path(directory) / "landing"
        days = flights.landed(landing, DAYS)
        with Installation(flights.pipeline(), flights.EXAMPLE) as qo, Partner("bench.spark.bare") as bare:
            bare.ask("open", **sessions.told(), threads=SLOTS)
            definition = asdict(flights.definition())
            bare.ask("demo", definition=definition, landing=str(landing), target=f"{directory}/bare")
            pipeline = Pipeline(qo, landing)
            pipeline.reference()
            months = iter(rounds)
            turn = {"month": ""}

            def scripted() -> float:
                turn["month"] = next(months)
                chosen = _of(days, turn["month"])[:days_max]
                return float(bare.ask("days", days=chosen, months=[turn["month"]])["seconds"])

            def piped() -> float:
                return pipeline.days(_of(days, turn["month"])[:days_max], [turn["month"]])

            for month in warm:
                some = _of(days, month)[:days_max]
                bare.ask("days", days=some, months=[month])
                pipeline.days(some, [month])
            bare_s, qo_s = by_turns(len(rounds), scripted, piped)
    worked = [len(_of(days, month)[:days_max]) * len(flights.DAILY) + len(flights.MONTHLY) for month in rounds]
    yield from _told(bare_s, qo_s, worked, warm)


def _told(
    bare_s: Sequence[float], qo_s: Sequence[float], tasks: Sequence[int], warm: Sequence[str]
) -> Iterator[Result]:
    shared = {
        "tasks": list(tasks),
        "bare_s": [round(each, 2) for each in bare_s],
        "qo_s": [round(each, 2) for each in qo_s],
        "slots": SLOTS,
        "warmed_by": f"{len(warm)} months",
        **sessions.described(),
    }
    ratios = [ours / theirs for ours, theirs in zip(qo_s, bare_s, strict=True)]
    yield result(
        "overhead_vs_bare_pyspark",
        median(ratios),
        "times bare",
        target=Target("value", "<=", 1.15),
        of=ratios,
        note=f"{SHARE}; median of the rounds' ratios of wall-clock times",
        **shared,
    )
    added_ms = [1000 * (ours - theirs) / count for ours, theirs, count in zip(qo_s, bare_s, tasks, strict=True)]
    each = median(added_ms)
    yield result(
        "overhead_per_task_ms",
        each,
        "ms",
        target=Target("value", "<=", 100),
        of=added_ms,
        slot_ms=round(each * SLOTS, 1),
        note="(wall-clock time through qo - by the script) / tasks; slot_ms: what a task holds its slot longer",
        **shared,
    )


FAMILIES = [Family(["overhead_vs_bare_pyspark", "overhead_per_task_ms"], partial(measure))]
