"""Many tasks of next to no work, each about a partition: qo, Dagster, Prefect and a bare script, each with one warm
Spark session, by turns in one run."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.spark import sessions, venvs, work
from bench.spark.ground import SLOTS, SMALL, Installation
from bench.spark.talking import ROOT, Partner

TASKS = 200
ROUNDS = 3
# A side is warm when so many tasks take no less time than those before: until then, its JVM is busy compiling.
WARM = 100
STEADY = 0.95
WARM_ROUNDS_MAX = 10
ROWS = 1_000
START_S = 120.0

HOW = {
    "dagster": f"a partitioned asset, a run for each partition in process, {SLOTS} threads, SQLite instance",
    "dagster_one_run": "one run, an op mapped over dynamic outputs, in_process executor, SQLite instance",
    "prefect": f"a flow run for each partition in process, {SLOTS} threads, its server with SQLite",
    "prefect_one_run": f"one flow run, a task mapped over the files, ThreadPoolTaskRunner of {SLOTS}, its server",
}

Side = Callable[[Sequence[Path], str], float]  # Does the work for these files; how long that took.


@contextmanager
def prefect_server(home: Path, database: str | None = None) -> Iterator[dict[str, str]]:
    """A server of Prefect's own, with SQLite or another database; the environment of who uses it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment = {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        **({"PREFECT_API_DATABASE_CONNECTION_URL": database} if database is not None else {}),
    }
    command = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"]
    if database is not None:
        command = ["-m", "bench.dispatcher.prefect_server", str(port)]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [venvs.python_of("prefect"), *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _answering(f"http://127.0.0.1:{port}/api/health", server)
            yield environment
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answering(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError(f"no answer from {url}")


def sides(stack: ExitStack, home: Path, peers: Sequence[str] = ("dagster", "prefect")) -> dict[str, Side]:
    """All of them, with their sessions open."""
    installation = stack.enter_context(Installation(SMALL))
    found: dict[str, Side] = {"qo": lambda sources, target: installation.small(sources)}
    told = sessions.told()
    bare = stack.enter_context(Partner("bench.spark.bare"))
    bare.ask("open", **told, threads=SLOTS)
    found["bare"] = _asked(bare)
    if "dagster" in peers:
        quiet = {"DAGSTER_DISABLE_TELEMETRY": "1"}
        dagster = stack.enter_context(
            Partner("bench.spark.dagster_side", quiet, python=venvs.python_of("dagster"))
        )
        dagster.ask("open", **told, home=str(home / "dagster"), threads=SLOTS)
        found["dagster"] = _asked(dagster, "each")
        found["dagster_one_run"] = _asked(dagster)
    if "prefect" in peers:
        environment = stack.enter_context(prefect_server(home / "prefect"))
        prefect = stack.enter_context(
            Partner("bench.spark.prefect_side", environment, python=venvs.python_of("prefect"))
        )
        prefect.ask("open", **told, threads=SLOTS)
        found["prefect"] = _asked(prefect, "each")
        found["prefect_one_run"] = _asked(prefect)
    return found


def _asked(partner: Partner, do: str = "small") -> Side:
    def side(sources: Sequence[Path], target: str) -> float:
        return float(partner.ask(do, sources=[str(path) for path in sources], target=target)["seconds"])

    return side


def measure(tasks: int = TASKS, warm: int = WARM, rounds: int = ROUNDS) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory, ExitStack() as stack:
        home = Path(directory)
        found = sides(stack, home)
        turns = itertools.count()

        def turn(name: str, count: int) -> float:
            at = next(turns)
            return found[name](work.written(home / f"in-{at}", count, ROWS), f"{directory}/{name}-{at}")

        warmed = {name: _warmed(lambda name=name: turn(name, warm)) for name in found}
        taken = by_turns(rounds, *(lambda name=name: turn(name, tasks) for name in found))
    rates = {name: [60 * tasks / each for each in took] for name, took in zip(found, taken, strict=True)}
    per_minute = {name: median(of_side) for name, of_side in rates.items()}
    for peer, how in HOW.items():
        yield result(
            f"small_tasks_vs_{peer}",
            per_minute["qo"],
            "tasks/min",
            baseline=per_minute[peer],
            target=Target("ratio", ">=", 5) if peer in venvs.PEERS else None,
            tasks=tasks,
            rounds=rounds,
            of=rates["qo"],
            baseline_of=rates[peer],
            bare=[round(each, 1) for each in rates["bare"]],
            of_bare=round(per_minute["qo"] / per_minute["bare"], 3),
            bare_vs_peer=round(per_minute["bare"] / per_minute[peer], 2),
            warmed_by={name: count * warm for name, count in warmed.items() if name in ("qo", "bare", peer)},
            version=venvs.version_of(peer.removesuffix("_one_run")),
            how=how,
            note=f"read a file of {ROWS} rows, group, write a file; bare: a script with {SLOTS} threads, its ratio is "
            "what no orchestrator of this Spark can exceed",
            slots=SLOTS,
            **sessions.described(),
        )


def _warmed(turn: Callable[[], float]) -> int:
    """Until two turns were hardly faster than the best before them; how many it took."""
    best, slower = turn(), 0
    for count in range(2, WARM_ROUNDS_MAX + 1):
        took = turn()
        slower = slower + 1 if took > STEADY * best else 0
        best = min(best, took)
        if slower == 2:
            return count
    return WARM_ROUNDS_MAX


FAMILIES = [Family([f"small_tasks_vs_{peer}" for peer in HOW], measure)]
