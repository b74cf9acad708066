"""The order of the test files: those that mostly wait beside those that mostly compute, so that both cores are busy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Folders whose tests start processes and servers, and wait for them; they set the pace.
WAITING = ("browser", "conformance", "e2e", "integration", "spark")
# Those of them that take longest come first: one that began late would be waited for in the end.
LONGEST = (
    "test_kafka.py",
    "test_exactly_once.py",
    "test_flights.py",
    "test_dispatcher_http_fuzz.py",
    "test_queue_api_fuzz.py",
    "test_processes.py",
    "test_docs.py",
    "test_up_sinks.py",
    "test_dispatcher_http_rights.py",
    "test_dispatcher_processes.py",
    "test_worker_processes.py",
    "test_cost_model.py",
    "test_rolling_restart.py",
    "test_up.py",
)
# The others compute. The short ones come last, so that all test processes end at the same time.
COMPUTING = ("simulation", "model", "property", "tidy", "unit")


def mix_files(files: Sequence[Path]) -> list[Path]:
    """Return the files, both kinds spread evenly over the whole, each kind in the order of its folders behind the
    longest."""
    kinds = [_sort_files(files, folders) for folders in (WAITING, COMPUTING)]
    places = {path: (n + 0.5) / len(kind) for kind in kinds for n, path in enumerate(kind)}
    return sorted(files, key=lambda path: places[path])


def _sort_files(files: Sequence[Path], folders: Sequence[str]) -> list[Path]:
    ranks = {path: folders.index(path.parent.name) for path in files if path.parent.name in folders}
    return sorted(ranks, key=lambda path: (_length_rank(path), ranks[path], path))


def _length_rank(path: Path) -> int:
    return LONGEST.index(path.name) if path.name in LONGEST else len(LONGEST)
