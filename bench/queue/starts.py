"""How long a task takes from the call of ``submit`` to the begin of its handler, in an idle queue on the S3 server.

Each task is submitted when the one before has ended and the worker has been idle for a while. Every request takes a
millisecond longer than the server needs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Family, Result, Target, result
from bench.lab import delayed, seaweed
from bench.process import ROOT, run
from bench.queue.sides import Qo

LATENCY_MS = 1
TOKEN = "a push token of the benchmark"


@dataclass(frozen=True)
class Mode:
    name: str
    tasks: int
    idle_s: float  # About so long the worker has been idle before each task.
    environment: Mapping[str, str]
    target_ms: float | None = None  # Of the p99.


MODES = (
    Mode("poll", 30, 3.0, {}),
    Mode("push", 200, 0.3, {"QO_PUSH": "1", "QO_PUSH_TOKEN": TOKEN}, 50.0),
    Mode("direct", 200, 0.3, {"QO_DISPATCH": "direct", "QO_PUSH": "1", "QO_PUSH_TOKEN": TOKEN}, 50.0),
    Mode("direct_without_push", 30, 3.0, {"QO_DISPATCH": "direct"}),
)


@contextmanager
def _worker(environment: Mapping[str, str], directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "qo", "worker", "--app", "bench.peers.starting:app"]
    with (directory / "worker.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=dict(environment), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure() -> Iterator[Result]:
    with seaweed() as server, delayed(server, LATENCY_MS / 1000) as endpoint:
        for mode in MODES:
            side = Qo.fresh(server, endpoint)
            environment = {"PATH": "/usr/bin:/bin", **side.environment(), **mode.environment}
            subprocess.run(
                [sys.executable, "-m", "qo", "doctor", "--fix"], cwd=ROOT, env=environment, check=True, stdout=-3
            )
            with tempfile.TemporaryDirectory() as directory, _worker(environment, Path(directory)):
                job = {"do": "latencies", "tasks": mode.tasks, "idle_s": mode.idle_s}
                found = sorted(run("bench.peers.starting", job, environment)["latencies_ms"])
            settings = {
                "tasks": mode.tasks,
                "idle_before_s": mode.idle_s,
                "added_latency_ms": LATENCY_MS,
                "server": "SeaweedFS, versioned buckets",
            }
            target = None if mode.target_ms is None else Target("value", "<=", mode.target_ms)
            p50, p99 = (found[min(len(found) - 1, int(share * len(found)))] for share in (0.5, 0.99))
            yield result(f"submit_to_start_p50_ms_{mode.name}", p50, "ms", **settings)
            yield result(f"submit_to_start_p99_ms_{mode.name}", p99, "ms", target=target, **settings)


NAMES = [f"submit_to_start_{share}_ms_{mode.name}" for mode in MODES for share in ("p50", "p99")]
FAMILIES = [Family(NAMES, measure)]
