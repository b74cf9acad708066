"""What ``qo up`` shows while it works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.views.pipeline_progress import JobState, VersionState
from qo.up.pipeline_progress import Running, Survey, stages
from qo.up.view import PlainView, TableView, describe_waiting, summaries

pytestmark = pytest.mark.fast

ACTIVE, STAGED = VersionStatus.ACTIVE, VersionStatus.STAGED
SPARK = {"phase": "writing", "stages": {"done": 1, "total": 3}, "tasks": {"done": 7, "total": 20}}


CLEAN = JobState("clean", "spark", completed=4, running=1, pending=2, failed=1, rows=12_345, partitions=4)


def version(
    *jobs: JobState, dag: str = "flights", number: int = 1, status: VersionStatus = ACTIVE
) -> VersionState:
    return VersionState(dag, number, status, jobs)


def seen(done: int) -> Survey:
    departures = JobState("departures", "none", source=SourceKind.FILES, completed=8, partitions=8)
    clean = replace(CLEAN, completed=done, pending=6 - done, partitions=done)
    running = Running("clean", "2013-01-04.csv", stages(SPARK))
    return Survey((version(departures, clean),), 0, (running,))


def test_a_terminal_shows_jobs_partitions_and_spark_stages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    view = TableView(color=False)
    view.print_line("the dispatcher is at http://127.0.0.1:1")
    with view:
        view.show(seen(2), [])
        view.show(seen(4), ["worker:spark died 1 time, see .qo/logs/worker-spark.log"])
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


def test_a_spark_task_without_a_cluster_says_what_it_waits_for() -> None:
    assert stages({**SPARK, "waiting": "waits for Spark executors"}) == "waits for Spark executors"


def test_elsewhere_a_line_says_how_far_all_jobs_are(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView() as view:
        view.show(seen(2), [])
        view.show(seen(4), [])  # Too soon after the other.
        assert capsys.readouterr().out == "clean 2/8 (1 failed)\n"
    assert capsys.readouterr().out == "clean 4/8 (1 failed)\n"  # At the end, how it ended.


def test_several_versions_are_told_apart_and_what_is_staged_is_called_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    effect = JobState("mailed", "python", pending=3, parked=True)
    staged = version(JobState("clean", "spark", completed=2, pending=6), effect, number=2, status=STAGED)
    other = version(JobState("hourly", "spark", pending=26, paused=True), dag="weather")
    found = Survey((version(CLEAN), staged, other), 5, ())
    assert summaries(found) == [
        "flights: clean 4/8 (1 failed)",
        "flights version 2, being built: clean 2/8  mailed 0/3 (3 waiting for the cutover)",
        "weather: hourly 0/26",
    ]
    assert describe_waiting(found) == (
        "no task has ended for a while; open: flights.clean (1 running, 2 waiting), "
        "flights.clean (0 running, 6 waiting), weather.hourly (0 running, 26 waiting, paused); 5 new events"
    )
    idle = Survey((version(JobState("clean", "spark", completed=8)),), 0, ())
    assert describe_waiting(idle) == "all tasks have ended; waiting for new data"
    monkeypatch.setenv("COLUMNS", "120")
    with TableView(color=False) as view:
        view.show(found, [])
    out = capsys.readouterr().out
    assert [" ".join(line.split("━")[0].split()) for line in out.splitlines()[1:]] == [
        "flights",
        "clean",
        "flights version 2, being built",
        "clean",
        "mailed 0/3",
        "weather",
        "hourly 0/26",
    ]


def test_what_is_to_come_counts_and_what_waits_for_others_is_not_open() -> None:
    assert JobState("a", "python", completed=2, running=1, pending=3, failed=1, expected=4).total == 11
    assert JobState("a", "python", running=1, pending=3).open == 4
    assert JobState("a", "python", pending=3, parked=True).open == 0
    assert JobState("a", "python", running=1, source=SourceKind.ALWAYS_ON).open == 0


def test_only_the_pipelines_that_are_asked_for_must_be_quiet() -> None:
    other = version(JobState("hourly", "spark", pending=26), dag="weather")
    done = version(JobState("clean", "spark", completed=8))
    found = Survey((done, other), 0, ())
    assert found.is_idle(["flights"])
    assert not found.is_idle(["flights", "weather"])
    assert not replace(found, events=1, affected=frozenset({"flights"})).is_idle(["flights"])
    assert not replace(found, starting=frozenset({"flights"})).is_idle(["flights"])
