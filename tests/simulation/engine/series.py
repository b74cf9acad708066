"""Many new seeds of every part, and how many have passed so far.

python -m simulation.engine.series 100000                 so many more seeds of every part
python -m simulation.engine.series 10000 --part worker    of one part; may be repeated
python -m simulation.engine.series 500 --processes 1      beside other work

Each part goes on behind the last seed of the record, bench/results/simulation.json, which is written as seeds pass. A
seed that fails is printed with the command that replays it, and recorded; the others go on, and the exit code is 1.
The next series plays recorded failures again, before anything else.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bench.harness import read_settings, result, write

from simulation.engine.playing import PARTS, command, play

FIRST = 8_000_000  # Seeds below were used while the simulation itself was being written.
BATCH = 20  # Seeds that a process plays before it reports.
RECORDED = "simulation"


@dataclass(frozen=True, slots=True)
class Batch:
    part: str
    seeds: range


@dataclass
class Progress:
    """The seeds of one part, all of which were played, from ``first`` up to, but not including, ``end``."""

    part: str
    first: int
    end: int
    failed: set[int] = field(default_factory=set[int])
    # Batches that ended before earlier ones, by their first seed: where each ends.
    ahead: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, batch: Batch, failed: Sequence[int]) -> None:
        self.failed.difference_update(batch.seeds)
        self.failed.update(failed)
        if batch.seeds.start >= self.end:
            self.ahead[batch.seeds.start] = batch.seeds.stop
        while self.end in self.ahead:
            self.end = self.ahead.pop(self.end)

    @property
    def passed(self) -> int:
        return self.end - self.first - sum(self.first <= seed < self.end for seed in self.failed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="simulation.engine.series", description="New seeds of the simulation, kept in a record."
    )
    parser.add_argument("count", type=int, help="how many more seeds of each part")
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="only this part")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many play at once")
    chosen = parser.parse_args(arguments)
    parts = [part for part in PARTS if chosen.part is None or part in chosen.part]
    progress = read_record(parts)
    batches = list_batches(progress, chosen.count)
    # Fresh processes: this one may have threads, which a fork would not have.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(chosen.processes, context, initializer=_prepare_process) as pool:
        for batch, failed in _play_all(pool, batches):
            of_part = progress[batch.part]
            of_part.add(batch, failed)
            report(of_part, failed)
            if not batch.seeds.stop % (10 * BATCH):
                write_record(progress)
    write_record(progress)
    return 1 if any(each.failed for each in progress.values()) else 0


def list_batches(progress: Mapping[str, Progress], count: int) -> list[Batch]:
    """By turns over the parts, so that all of them get on when the series is stopped early."""
    again = [Batch(part, range(seed, seed + 1)) for part, each in progress.items() for seed in sorted(each.failed)]
    new = [
        Batch(part, range(each.end + start, each.end + min(start + BATCH, count)))
        for start in range(0, count, BATCH)
        for part, each in progress.items()
    ]
    return again + new


def read_record(parts: Sequence[str]) -> dict[str, Progress]:
    """Return where each part goes on."""
    recorded = read_settings(RECORDED)
    found: dict[str, Progress] = {}
    for part in parts:
        settings: Mapping[str, Any] = recorded.get(f"seeds_{part}", {})
        first, last = settings.get("first", FIRST), settings.get("last", FIRST - 1)
        found[part] = Progress(part, first, last + 1, set(settings.get("failed", ())))
    return found


def write_record(progress: Mapping[str, Progress]) -> None:
    """Write what has passed: seeds without a gap, the last of them at the commit that the record names."""
    results = [
        result(
            f"seeds_{each.part}",
            each.passed,
            "seeds",
            first=each.first,
            last=each.end - 1,
            failed=sorted(seed for seed in each.failed if seed < each.end),
        )
        for each in progress.values()
        if each.end > each.first
    ]
    write(RECORDED, results, whole=False)


def play_batch(batch: Batch) -> list[int]:
    """Return the seeds that failed."""
    return [seed for seed in batch.seeds if play(batch.part, seed).failure is not None]


def _play_all(pool: ProcessPoolExecutor, batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[int]]]:
    """Play the batches in their order, a few more than there are processes at once."""
    waiting = iter(batches)
    running: dict[Future[list[int]], Batch] = {}
    while True:
        for batch in islice(waiting, 2 * (os.cpu_count() or 1) - len(running)):
            running[pool.submit(play_batch, batch)] = batch
        if not running:
            return
        for ended in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(ended), ended.result()


def _prepare_process() -> None:
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The series itself ends all of them.
    os.nice(5)


def report(progress: Progress, failed: Sequence[int]) -> None:
    for seed in failed:
        print(f"FAILED {progress.part} {seed}: {command(progress.part, seed)}", flush=True)
    if not progress.end % 500:
        print(f"{progress.part}: {progress.passed} passed, up to {progress.end - 1}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
