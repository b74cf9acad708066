"""The verdict of a soak: what grows is found, what only varies is not."""

from __future__ import annotations

from typing import Any

import pytest

from soak.observation import Observation, Usage
from soak.verdict import judge

pytestmark = pytest.mark.fast


def part(at_s: float, *, kb_per_task: float = 8.0, **used: Any) -> list[Observation]:
    """Ten observations, a hundred tasks apart."""
    usage = Usage(**{"memory_mb": 100.0, "files": 20, "threads": 5, **used})
    return [Observation(at_s + n, {"worker": usage}, kb_per_task * 100 * n / 1024, 100 * n) for n in range(10)]


@pytest.mark.parametrize(
    ("end", "latency_s", "grown"),
    [
        ({}, 0.2, []),
        ({"memory_mb": 107.0, "files": 24}, 0.3, []),
        ({"memory_mb": 130.0}, 0.2, ["worker, memory"]),
        ({"files": 60}, 0.2, ["worker, open files"]),
        ({"threads": 50}, 0.2, ["worker, threads"]),
        ({"kb_per_task": 20.0}, 0.2, ["database, per task"]),
        ({}, 2.0, ["task, p50", "task, p99"]),
    ],
)
def test_what_has_grown_is_named(end: dict[str, Any], latency_s: float, grown: list[str]) -> None:
    figures = judge(part(0), part(100, **end), [0.2] * 50, [latency_s] * 50)
    assert [each.name for each in figures if not each.flat] == grown


def test_a_run_in_which_nothing_was_done_at_the_end_is_not_flat() -> None:
    assert any(not each.flat for each in judge(part(0), part(100), [0.2], []))
