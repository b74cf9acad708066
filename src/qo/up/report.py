"""Print the report at the end: the tables, their origins, the times taken, and the failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qo.api.contract.sink import SinkState
from qo.core.pipeline.plan import Plan
from qo.core.pipeline.topology import LIVE
from qo.core.words import plural
from qo.dispatcher.state.database import Tx
from qo.dispatcher.versions import cutover
from qo.dispatcher.views.pipeline_progress import Failure, Timing, failures, timings, version_plan
from qo.dispatcher.views.published import Table, tables
from qo.dispatcher.views.stuck import StuckTask
from qo.dispatcher.views.waiting_partitions import WaitingPartition, find_waiting
from qo.up import results
from qo.up.installation import DeployedVersion
from qo.up.pipeline_progress import Survey
from qo.up.rollout import Rollout
from qo.up.view import label, open_jobs
from qo.up.watch import WatchResult

ROWS = 4
COLUMNS = 10
ERROR_LINES = 6

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one pipeline, read in one transaction."""

    plan: Plan
    tables: Sequence[Table]
    failures: Sequence[Failure]
    timings: Sequence[Timing]
    waiting: Sequence[WaitingPartition] = ()  # Partitions that wait for others that they are made of.


def report(tx: Tx, rollout: Rollout, since: datetime) -> Report:
    """Read the report of a pipeline.

    The tables are those of the active version, which may not be the one that was deployed. The tasks are those of the
    deployed version; if that is no longer live, those of the active one.
    """
    dag, version = rollout.dag, rollout.deployed.version
    active = cutover.active(tx, dag)
    assert active is not None  # The first version of a pipeline is active at once.
    if cutover.find(tx, dag, version)["status"] not in LIVE:
        version = active["number"]
    plan = version_plan(tx, dag, active["number"])
    return Report(
        plan=plan,
        tables=tables(tx, plan, ROWS),
        failures=failures(tx, dag, version),
        timings=timings(tx, dag, version, since),
        waiting=find_waiting(tx, [job.edition_id for job in version_plan(tx, dag, version).jobs]),
    )


def print_deployed(deployed: DeployedVersion, print_line: PrintLine) -> None:
    """Print what a deploy changes: nothing, everything, or jobs that are rebuilt beside the active version."""
    diff = deployed.answer["diff"]
    name = f"{deployed.answer['dag']} version {deployed.version}"
    if not deployed.answer["changed"]:
        print_line(f"{name} is deployed already")
    elif diff["against"] is None:
        print_line(f"{name} is new: {plural(len(diff['added']), 'job')}")
    elif not deployed.rebuilt:
        print_line(f"{name} replaces version {diff['against']}: nothing has to be rebuilt")
    else:
        print_line(f"{name} is built beside version {diff['against']}, which keeps serving")
        for each in diff["rebuilt"]:
            print_line(f"  rebuilt       {each['job']}: {each['why']}")
        if diff["carried_over"]:
            print_line(f"  carried over  {', '.join(diff['carried_over'])}")


def print_tables(report: Report, print_line: PrintLine) -> None:
    """Print the tables, their origins, and the times of the jobs."""
    for table in report.tables:
        _print_table(table, print_line)
    print_line("")
    print_line("Where they come from")
    origins = results.origins(report.plan)
    width = max((len(name) for name, _ in origins), default=0)
    for name, way in origins:
        print_line(f"  {name.ljust(width)}  {way}")
    _print_timings(report.timings, print_line)


def document(report: Report, rollout: Rollout) -> dict[str, Any]:
    """Return the report for programs."""
    deployed = rollout.deployed
    return {
        "dag": report.plan.dag.name,
        "version": deployed.version,
        "rebuilt": deployed.rebuilt if deployed.answer["changed"] else [],
        "activated": rollout.activated,
        "tables": [
            {"name": each.name, "job": each.job, "rows": each.rows, "pieces": each.pieces, "bytes": each.bytes}
            for each in report.tables
        ],
        "jobs": [{"job": each.job, "tasks": each.tasks, "busy_s": each.busy_s} for each in report.timings],
        "failed": [
            {"task_id": each.task_id, "job": each.job, "about": each.about, "error": each.error}
            for each in report.failures
        ],
        "waiting": [
            {"job": each.job, "partition_key": each.partition_key, "text": each.because} for each in report.waiting
        ],
    }


def print_staged(rollout: Rollout, print_line: PrintLine) -> None:
    """Print why the version is not active at the end, if so."""
    if rollout.staged is not None:
        why = rollout.obstacle or "it is not built yet; the next qo up continues"
        print_line(f"{rollout.dag}: version {rollout.deployed.version} was not activated: {why}")


def print_open(survey: Survey, print_line: PrintLine) -> None:
    """Print the open tasks, by version."""
    for version in survey.versions:
        if version.open:
            print_line(f"open: {label(version)}: {', '.join(open_jobs(survey, version))}")


def open_document(survey: Survey) -> list[dict[str, Any]]:
    """Return the report for programs."""
    return [
        {"dag": version.dag, "version": version.number, "job": each.name, "tasks": each.open}
        for version in survey.versions
        for each in version.jobs
        if each.open
    ]


def print_nothing_done(failed: Sequence[Failure], print_line: PrintLine) -> None:
    """Print why there was nothing to do."""
    why = "tasks that failed before are not retried automatically" if failed else "everything is up to date"
    print_line(f"nothing to do: {why}")


def print_waiting(waiting: Sequence[WaitingPartition], print_line: PrintLine) -> None:
    """Print which partitions wait for others, and for which."""
    for each in waiting:
        print_line(f"not made: {each.job} {each.partition_key}: {each.because}")


def print_stuck(stuck: Sequence[StuckTask], print_line: PrintLine) -> None:
    for each in stuck:
        why = f": {each.reason}" if each.reason else ""
        print_line(
            f"unfinished: {each.job} {each.about} (task {each.task_id}), rescheduled {plural(each.times, 'time')}{why}"
        )
    if stuck:
        jobs = sorted({name for each in stuck for name in each.failed})
        print_line(f"    it waits for the failed tasks of {', '.join(jobs)}: replay those, then run qo up again")


def find_behind(sinks: Sequence[SinkState]) -> list[SinkState]:
    """Return the sinks whose tables lack something because loading them fails."""
    return [each for each in sinks if each.error is not None and not each.is_current]


def print_sinks(sinks: Sequence[SinkState], print_line: PrintLine) -> None:
    """Print how far the tables of databases are."""
    for each in sinks:
        print_line(f"sink {each.name}: {each.text}")


def print_failures(failed: Sequence[Failure], print_line: PrintLine) -> None:
    for each in failed:
        print_line(f"failed: {each.job} {each.about} (task {each.task_id})")
        for line in each.error.splitlines()[:ERROR_LINES]:
            print_line(f"    {line}")
    if failed:
        print_line("fix the cause, then run them again with qo run replay TASK...")


def _print_table(table: Table, print_line: PrintLine) -> None:
    print_line("")
    size = f"{plural(table.rows, 'row')} in {plural(table.pieces, 'piece')}, {_size(table.bytes)}"
    print_line(f"{table.name}: {size}, made by {table.job}")
    header, rows = results.sample(table, ROWS)
    if not header:
        return
    cells = [_narrow(row) for row in (header, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    for row in cells:
        print_line("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if table.rows > len(rows):
        print_line("  …")


def _narrow(row: list[str]) -> list[str]:
    return row if len(row) <= COLUMNS else [*row[:COLUMNS], "…"]


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _print_timings(timings: Sequence[Timing], print_line: PrintLine) -> None:
    if not timings:
        return
    print_line("")
    print_line("How long it took")
    width = max(len(each.job) for each in timings)
    for each in timings:
        span = (each.ended - each.began).total_seconds()
        noun = "task " if each.tasks == 1 else "tasks"
        print_line(
            f"  {each.job.ljust(width)}  {each.tasks:5,} {noun}  {1000 * each.busy_s / each.tasks:7,.0f} ms each  "
            f"{span:6.1f} s from first to last"
        )


def print_phases(reports: Sequence[Report], result: WatchResult, print_line: PrintLine) -> None:
    """Print the times of all pipelines together."""
    if not any(each.timings for each in reports):
        return
    print_line(f"  {', '.join(f'{name} {took:.1f} s' for name, took in result.seconds.items())}")
    work_s = result.seconds.get("work", 0.0)
    tasks = sum(each.tasks for report in reports for each in report.timings)
    print_line(f"  {plural(tasks, 'task')}, {tasks / work_s if work_s else 0:.1f} a second")
