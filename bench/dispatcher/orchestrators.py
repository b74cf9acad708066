"""No-op tasks a second: qo, Dagster and Prefect on one PostgreSQL that waits for the disk, by turns in one run.

qo runs as in ``throughput``: a dispatcher and two workers, processes that talk over HTTP, and each task goes from its
event to its commit. The others get as many processes as qo has workers, run their tasks within these, and need neither
a queue nor a worker that is told of a task: the fastest way that each of them has. Of their two ways, a run for each
task and one run for all, the faster one counts.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench.dispatcher import throughput
from bench.dispatcher.throughput import SLOTS, WORKERS, durable_postgres
from bench.harness import Family, Result, Target, result
from bench.spark import venvs
from bench.spark.small import prefect_server
from bench.spark.talking import Partner

if TYPE_CHECKING:
    from support.servers.postgres import PostgresServer

TASKS = 200  # Of the others, all processes together; qo's flood is larger, so that its start does not count.
WARM_UP = 20
ROUNDS = 3
WAYS = ("each", "mapped")
HOW = {
    "dagster": f"{WORKERS} processes, each one run at a time, in process (execute_in_process), storage in PostgreSQL",
    "prefect": f"{WORKERS} processes of {SLOTS} threads, flows in process, one server with its database in "
    "PostgreSQL, without the indexes of pg_trgm",
}
PYTHONS = {"dagster": "dagster-postgres", "prefect": "prefect"}  # The environment of each.


class Peer:
    """The processes of one orchestrator. Use it as a context."""

    def __init__(self, name: str, server: PostgresServer, home: Path) -> None:
        self.name, self._server, self._home = name, server, home
        self._stack = ExitStack()
        self._partners: list[Partner] = []

    def __enter__(self) -> Peer:
        url, python = self._server.make_database(), venvs.python_of(PYTHONS[self.name])
        environment: Mapping[str, str] = {"DAGSTER_DISABLE_TELEMETRY": "1"}
        if self.name == "prefect":
            database = url.replace("postgresql://", "postgresql+asyncpg://")
            environment = self._stack.enter_context(prefect_server(self._home / "prefect", database))
        for number in range(WORKERS):
            module = f"bench.dispatcher.{self.name}_noop"
            partner = self._stack.enter_context(Partner(module, environment, python=python))
            if self.name == "dagster":
                partner.ask("open", home=str(self._home / f"dagster{number}"), database=url)
            else:
                partner.ask("open", threads=SLOTS)
            self._partners.append(partner)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tasks_per_s(self, way: str, count: int) -> float:
        """All processes do their share at the same time; the slowest one counts."""
        share = count // len(self._partners)
        with ThreadPoolExecutor(len(self._partners)) as pool:
            answers = list(pool.map(lambda each: each.ask(way, count=share), self._partners))
        return share * len(self._partners) / max(float(each["seconds"]) for each in answers)


def measure(tasks: int = TASKS, rounds: int = ROUNDS, flood: int = throughput.TASKS) -> Iterator[Result]:
    own: list[float] = []
    found: dict[tuple[str, str], list[float]] = {(name, way): [] for name in HOW for way in WAYS}
    with (
        durable_postgres() as server,
        tempfile.TemporaryDirectory(prefix="qo-bench-") as home,
        ExitStack() as stack,
    ):
        peers = [stack.enter_context(Peer(name, server, Path(home))) for name in HOW]
        for peer in peers:
            for way in WAYS:
                peer.tasks_per_s(way, WARM_UP)
        for _ in range(rounds):  # By turns: a slow moment of the machine hits every side.
            # Not pinned: all sides share the database and all cores.
            flooded = throughput.measured(server.make_database(), 1, server, tasks=flood, pin=False)
            own.append(asyncio.run(flooded).per_s)
            for peer in peers:
                for way in WAYS:
                    found[peer.name, way].append(peer.tasks_per_s(way, tasks))
    per_s = statistics.median(own)
    for name, how in HOW.items():
        by_way = {way: statistics.median(found[name, way]) for way in WAYS}
        yield result(
            f"tasks_vs_{name}_postgres",
            per_s / max(by_way.values()),
            "times",
            target=Target("value", ">=", 10.0),
            qo_per_s=per_s,
            qo_of=own,
            peer_per_s={"a run for each task": by_way["each"], "one run for all": by_way["mapped"]},
            peer_of={way: found[name, way] for way in WAYS},
            peer=f"{name} {venvs.version_of(name, PYTHONS[name])}: {how}",
            qo=f"one dispatcher, {WORKERS} workers of {SLOTS} slots, queue in a local store, {flood} tasks",
            tasks=tasks,
            rounds=rounds,
            cores=os.cpu_count(),
            database=throughput.HOW["postgres"],
            note="the faster of the peer's two ways counts",
        )


FAMILIES = [Family([f"tasks_vs_{name}_postgres" for name in HOW], measure)]
