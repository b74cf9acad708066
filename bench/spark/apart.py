"""The tasks of ``small`` as Dagster and Prefect run them where they are deployed: each run in a process of its own.

Dagster's default run launcher and Prefect's process worker both start one for every run, so that no Spark session stays
warm. What those launchers add themselves, a daemon that looks for queued runs or a worker that asks its server, is left
out, in the peers' favour; and as a run takes seconds, a few say enough.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.harness import Family, Result, by_turns, median, result
from bench.spark import sessions, venvs, work
from bench.spark.ground import SLOTS, SMALL, Installation
from bench.spark.small import ROWS, prefect_server
from bench.spark.talking import Partner

TASKS = 4  # Of a peer.
OURS = 60
ROUNDS = 3
_QUIET = {"DAGSTER_DISABLE_TELEMETRY": "1"}


class Runs:
    """A peer whose every run begins with a process."""

    def __init__(self, peer: str, home: Path, environment: Mapping[str, str]) -> None:
        self._peer, self._home, self._environment = peer, home, environment
        self._python = venvs.python_of(peer)
        self._told = sessions.told()
        self._numbers = itertools.count()

    def done(self, sources: Sequence[Path]) -> float:
        """Tasks a minute."""
        began = time.perf_counter()
        with ThreadPoolExecutor(SLOTS) as pool:
            list(pool.map(self._one, sources))
        return 60 * len(sources) / (time.perf_counter() - began)

    def _one(self, source: Path) -> None:
        number = next(self._numbers)
        more: dict[str, Any] = {"home": str(self._home / f"dagster-{number}")} if self._peer == "dagster" else {}
        with Partner(f"bench.spark.{self._peer}_side", self._environment, python=self._python) as process:
            process.ask("open", **self._told, **more, threads=1)
            process.ask("each", sources=[str(source)], target=f"{self._home}/out-{self._peer}-{number}")


def measure(tasks: int = TASKS, ours: int = OURS, rounds: int = ROUNDS) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory, ExitStack() as stack:
        home = Path(directory)
        qo = stack.enter_context(Installation(SMALL))
        environments = {"dagster": _QUIET, "prefect": stack.enter_context(prefect_server(home / "prefect"))}
        peers = {name: Runs(name, home, environment) for name, environment in environments.items()}
        numbers = itertools.count()

        def fresh(count: int) -> list[Path]:
            return work.written(home / f"in-{next(numbers)}", count, ROWS)

        def quick() -> float:
            return 60 * ours / qo.small(fresh(ours))

        quick()  # Warm.
        slow = (lambda name=name: peers[name].done(fresh(tasks)) for name in peers)
        mine, *theirs = by_turns(rounds, quick, *slow)
    for peer, rates in zip(peers, theirs, strict=True):
        yield result(
            f"small_tasks_vs_{peer}_apart",
            median(mine),
            "tasks/min",
            baseline=median(rates),
            of=mine,
            baseline_of=rates,
            tasks={"qo": ours, peer: tasks},
            rounds=rounds,
            version=venvs.version_of(peer),
            how=f"a process and a Spark session for each run, {SLOTS} at a time, as it comes where it is deployed",
            slots=SLOTS,
            **sessions.described(),
        )


FAMILIES = [Family([f"small_tasks_vs_{peer}_apart" for peer in venvs.PEERS], measure)]
