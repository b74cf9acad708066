"""The whole suite, step by step; a step that fails does not keep the next one from running.

python -m suite                          what make test runs
python -m suite --shuffle 7              in another order, which the number decides (0: one that is drawn)
python -m suite --alone                  every test file in a process of its own
python -m suite --stable 5               make stable: every file alone, then all of it 5 times in each way
python -m suite --prove all              make prove: what is too long for make test; or one part of it
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.errors import QoError
from qo.spark.engine import class_archive, java
from suite.step import Result, Step, run_step
from suite.steps import file_step, list_files, list_proofs, list_steps, list_test_steps

SEEDS = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suite", description=__doc__)
    parser.add_argument("--shuffle", type=int, help="the order's number; 0 draws one")
    parser.add_argument("--alone", action="store_true", help="every test file in a process of its own")
    parser.add_argument("--stable", type=int, metavar="RUNS", help="repeat the whole so often, in both ways")
    parser.add_argument("--prove", metavar="PART", choices=["all", *(each.name for each in list_proofs())])
    chosen = parser.parse_args()
    if chosen.stable is not None and chosen.stable < 1:
        parser.error("--stable needs at least 1 run")
    if chosen.prove is not None:
        return _conclude(run_steps([each for each in list_proofs() if chosen.prove in ("all", each.name)]))
    if chosen.alone:
        return _conclude(run_alone())
    if chosen.stable is not None:
        return _conclude(run_stable(chosen.stable))
    return _conclude(run_whole(None if chosen.shuffle is None else chosen.shuffle or _draw_seed()))


def run_whole(shuffle: int | None) -> list[Result]:
    return run_ordered(shuffle, list_steps(shuffle))


def run_ordered(shuffle: int | None, steps: Sequence[Step], title: str = "") -> list[Result]:
    if shuffle is not None:
        _print(f"The order of the tests follows from --shuffle {shuffle} (make test SHUFFLE={shuffle}).")
    start_class_archive()
    return run_steps(steps, title)


def start_class_archive() -> None:
    """So that it is there when the step on Spark begins, where each of some thirty sessions starts more quickly with
    it. The first of them would start it too, but at the lowest priority beside all others."""
    settings = SparkSettings()
    with suppress(QoError):  # Without Java, the step says so.
        class_archive.build_in_background(java.find(settings, os.environ), settings)


def run_steps(steps: Sequence[Step], title: str = "") -> list[Result]:
    results: list[Result] = []
    with ThreadPoolExecutor() as threads:
        running: list[Future[Result]] = []
        for step in steps:
            if step.in_background:
                running.append(threads.submit(run_step, step, quiet=True))
            else:
                results.append(run_step(step))
    for ended in [each.result() for each in running]:
        _print(ended.output)
        results.append(ended)
    for each in results:
        _print(f"{title}{each.name}: {'passed' if each.ok else 'FAILED'} in {each.wall_s:.0f} s")
    return results


def run_alone() -> list[Result]:
    """Every file in a process of its own, as many side by side as there are cores."""

    def run_file(path: Path) -> Result:
        return run_step(file_step(path), quiet=True)

    results: list[Result] = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for result in threads.map(run_file, list_files()):
            _print(f"{'passed' if result.ok else 'FAILED'}  {result.wall_s:6.1f} s  {result.name}")
            if not result.ok:
                _print(result.output)
            results.append(result)
    return results


def run_stable(runs: int) -> list[Result]:
    """The first run is whole; the others repeat the tests."""
    results = run_alone()
    for number in range(1, runs + 1):
        steps = list_steps(None) if number == 1 else list_test_steps(None)
        results += run_ordered(None, steps, f"run {number}, as it comes: ")
        seed = _draw_seed()
        results += run_ordered(seed, list_test_steps(seed), f"run {number}, shuffled by {seed}: ")
    return results


def _conclude(results: Sequence[Result]) -> int:
    failures = [line for each in results for line in each.lines()]
    for line in failures:
        _print(line)
    if failures:
        _print(f"{len(failures)} failures, listed above")
    return 1 if failures else 0


def _draw_seed() -> int:
    return random.randrange(1, SEEDS)


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
