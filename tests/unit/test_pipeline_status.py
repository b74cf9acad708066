"""What qo status and qo plan make of a dispatcher's answers."""

from __future__ import annotations

import pytest

from qo.cli.pipelines.pipeline_status import BAR, describe_condition, estimate_s, progress_bar
from qo.cli.pipelines.planning import estimate_cost

pytestmark = pytest.mark.fast

QUIET = {"paused": None, "sources_failed": 0, "failed": 0, "held": 0, "running": 0, "waiting": 0}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "up to date"),
        ({"running": 1, "waiting": 3}, "running"),
        ({"waiting": 3}, "waiting"),
        ({"held": 1, "running": 1}, "held back"),
        ({"held": 1, "late": 1}, "late"),
        ({"held": 1, "failed": 2, "late": 1}, "failed"),
        ({"failed": 2, "sources_failed": 1}, "1 source does not run"),
        ({"failed": 2, "paused": ""}, "paused"),
        ({"paused": "lunch"}, "paused: lunch"),
    ],
)
def test_the_worst_thing_about_a_pipeline_is_its_state(change: dict[str, object], text: str) -> None:
    assert describe_condition({**QUIET, **change}) == text


@pytest.mark.parametrize(
    ("counts", "bar"),
    [
        ((0, 0, 0, 0), "." * BAR),
        ((7, 0, 0, 0), "#" * BAR),
        ((10, 0, 10, 0), "#" * 10 + "." * 10),
        ((1, 1, 100_000, 1), "#>x" + "." * 17),
        ((100_000, 1, 0, 1), "#" * 19 + ">"),
    ],
)
def test_a_bar_shows_the_shares_and_never_hides_what_runs(counts: tuple[int, int, int, int], bar: str) -> None:
    assert progress_bar(*counts) == bar


def test_the_time_left_counts_on_as_many_tasks_side_by_side_as_now() -> None:
    assert estimate_s(0, 0, 2.0) is None
    assert estimate_s(2, 10, None) is None
    assert estimate_s(0, 10, 2.0) == 20.0
    assert estimate_s(2, 9, 2.0) == 10.0


def test_a_plan_costs_what_the_last_runs_took_and_what_requests_cost() -> None:
    rebuilds = [{"job": "clean", "tasks": 1000}, {"job": "new", "tasks": 10}, {"job": "idle", "tasks": 0}]
    estimate = estimate_cost(rebuilds, {"clean": 0.5})
    assert (estimate["tasks"], estimate["work_s"], estimate["jobs_without_runs"]) == (1010, 500.0, ["new"])
    assert estimate["dollars"] == pytest.approx(1010 * (6 * 0.005 + 3 * 0.0004) / 1000)
    assert estimate_cost([], {}) == {"tasks": 0, "work_s": 0, "jobs_without_runs": [], "dollars": 0.0}
