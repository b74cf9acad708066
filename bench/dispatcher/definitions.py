"""What a big pipeline costs: reading and checking its file, and deploying it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import yaml

from bench.dispatcher.ground import HOW, databases, deployed
from bench.harness import Family, Result, Target, by_turns, median, result
from bench.process import Stopwatch
from qo.dispatcher.state.database import State
from qo.pipeline.parsing import read

JOBS = 1_000
WIDTH = 10  # Jobs that read one source, and each other in a row.
ROUNDS = 5
DEPLOYS = 3


def _text() -> str:
    jobs: list[dict[str, object]] = []
    for number in range(JOBS):
        common = {"name": f"job{number}", "outputs": 1}
        if number % WIDTH == 0:
            jobs.append({**common, "activation": "source", "source": {"kind": "manual"}})
            continue
        runs = {"runtime": "python", "operator": f"shop.job{number}:run", "execution_strategy": "PerPartition"}
        reads = [{"from": {"job": f"job{number - 1}"}}]
        jobs.append({**common, **runs, "activation": "reactive", "inputs": reads})
    return yaml.safe_dump({"name": "big", "jobs": jobs}, sort_keys=False)


def _read(text: str) -> Stopwatch:
    with Stopwatch() as watch:
        read(text)
    return watch


def _deployed(state: State, text: str) -> Stopwatch:
    dag = read(text)
    with Stopwatch() as watch:
        deployed(state, dag)
    state.close()
    return watch


def measure() -> Iterator[Result]:
    text = _text()
    (reads,) = by_turns(ROUNDS, partial(_read, text))
    shape = {"jobs": JOBS, "shape": f"{JOBS // WIDTH} rows of {WIDTH}"}
    yield result(
        f"validate_{JOBS}_jobs_s",
        median(watch.seconds for watch in reads),
        "s",
        target=Target("value", "<=", 1.0),
        of=[watch.seconds for watch in reads],
        cpu_s=round(median(watch.cpu_seconds for watch in reads), 3),
        bytes=len(text),
        rounds=ROUNDS,
        **shape,
    )
    with databases() as fresh:
        sides = (lambda: _deployed(fresh("sqlite"), text), lambda: _deployed(fresh("postgres"), text))
        on_sqlite, on_postgres = by_turns(DEPLOYS, *sides)
    for suffix, database, watches in (("", "sqlite", on_sqlite), ("_postgres", "postgres", on_postgres)):
        yield result(
            f"deploy_{JOBS}_jobs_s{suffix}",
            median(watch.seconds for watch in watches),
            "s",
            target=Target("value", "<=", 5.0),
            of=[watch.seconds for watch in watches],
            cpu_s=round(median(watch.cpu_seconds for watch in watches), 3),
            rounds=DEPLOYS,
            database=HOW[database],
            **shape,
        )


FAMILIES = [
    Family([f"validate_{JOBS}_jobs_s", f"deploy_{JOBS}_jobs_s", f"deploy_{JOBS}_jobs_s_postgres"], measure)
]
