"""What ``qo up`` shows while it works."""

from __future__ import annotations

import pytest

from qo.site.survey import JobState, Running, Survey, stages
from qo.site.view import DrawnView, PlainView

pytestmark = pytest.mark.fast

SPARK = {"phase": "writing", "stages": {"done": 1, "total": 3}, "tasks": {"done": 7, "total": 20}}


def seen(done: int) -> Survey:
    departures = JobState("departures", "none", source=True, always_on=False, done=8, total=8, partitions=8)
    clean = JobState(
        "clean",
        "spark",
        source=False,
        always_on=False,
        done=done,
        total=8,
        running=1,
        pending=8 - done - 2,
        failed=1,
        rows=12_345,
        partitions=done,
    )
    running = Running("clean", "2013-01-04.csv", stages(SPARK))
    return Survey((departures, clean), 0, (running,), asleep=True)


def test_a_terminal_shows_jobs_partitions_and_spark_stages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    view = DrawnView(color=False)
    view.say("the dispatcher is at http://127.0.0.1:1")
    with view:
        view.look(seen(2), [])
        view.look(seen(4), ["worker:spark died 1 time, see .qo/logs/worker-spark.log"])
    out = capsys.readouterr().out
    assert out.startswith("the dispatcher is at http://127.0.0.1:1\n")
    header, source, job, running, trouble = [line.split() for line in out.splitlines()[1:]]
    assert header == ["job", "done", "running", "failed", "partitions", "rows"]
    assert source == ["departures", "source", "8", "8"]
    assert job[0] == "clean"
    assert "━" in job[1]
    assert job[2:] == ["4/8", "1", "1", "4", "12,345"]
    assert running == ["clean", "2013-01-04.csv", "writing,", "stages", "1/3,", "tasks", "7/20"]
    assert trouble[:3] == ["worker:spark", "died", "1"]


def test_elsewhere_a_line_says_how_far_all_jobs_are(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView() as view:
        view.look(seen(2), [])
        view.look(seen(4), [])  # Too soon after the other.
    assert capsys.readouterr().out == "clean 2/8 (1 failed)\n"
