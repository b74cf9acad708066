"""What qo up says when versions come, take over and go."""

from __future__ import annotations

import pytest

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.views.live_versions import Live, LivePipeline, LiveVersion
from qo.up.changes import EndStatuses, describe_changes

pytestmark = pytest.mark.fast

STAGED, READY, ACTIVE = VersionStatus.STAGED, VersionStatus.READY, VersionStatus.ACTIVE


def weather(active: int | None, beside: int | None = None, status: VersionStatus = STAGED) -> Live:
    serving = None if active is None else LiveVersion(active, ACTIVE, "ada")
    return {"weather": LivePipeline(serving, None if beside is None else LiveVersion(beside, status, "ben"))}


@pytest.mark.parametrize(
    ("before", "after", "fates", "line"),
    [
        ({}, weather(1), {}, "version 1 is new and active (deployed by ada)"),
        (
            weather(2, 3),
            weather(3),
            {("weather", 2): VersionStatus.RETIRED},
            "version 3 is active, in place of 2 (deployed by ada); qo dag rollback weather goes back",
        ),
        (
            weather(3),
            weather(2),
            {("weather", 3): VersionStatus.ROLLED_BACK},
            "version 2 is active again: version 3 was rolled back",
        ),
        (
            weather(2),
            weather(2, 3),
            {},
            "version 3 (deployed by ben) is built beside version 2, which keeps serving",
        ),
        (
            weather(2),
            weather(2, 3, READY),
            {},
            "version 3 (deployed by ben) is ready; qo dag activate weather 3 activates it",
        ),
        (
            weather(2, 3),
            weather(2, 4),
            {("weather", 3): VersionStatus.ABANDONED},
            "version 4 (deployed by ben) is built beside version 2, which keeps serving; "
            "version 3 is abandoned for it",
        ),
        (weather(2, 3), weather(2), {("weather", 3): VersionStatus.ABANDONED}, "version 3 is abandoned"),
    ],
)
def test_each_change_is_one_line(before: Live, after: Live, fates: EndStatuses, line: str) -> None:
    assert describe_changes(before, after, fates) == [f"weather: {line}"]


@pytest.mark.parametrize("same", [{}, weather(1), weather(1, 2), weather(1, 2, READY)])
def test_without_a_change_nothing_is_said(same: Live) -> None:
    assert describe_changes(same, same, {}) == []


def test_a_staged_version_that_becomes_ready_is_no_news_until_it_takes_over() -> None:
    assert describe_changes(weather(1, 2, STAGED), weather(1, 2, READY), {}) == []


def test_a_takeover_and_the_next_deploy_between_two_looks_are_two_lines() -> None:
    takeover, deploy = describe_changes(weather(1, 2), weather(2, 3), {("weather", 1): VersionStatus.RETIRED})
    assert takeover.startswith("weather: version 2 is active, in place of 1")
    assert deploy.startswith("weather: version 3 (deployed by ben) is built beside version 2")
