"""What is printed at the end: the tables, where they came from, how long it took, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qo.core.pipeline.plan import Plan
from qo.core.pipeline.topology import LIVE
from qo.core.words import plural
from qo.dispatcher.state.database import Tx
from qo.dispatcher.versions import cutover
from qo.dispatcher.views.progress import Failure, Timing, failures, timings, version_plan
from qo.dispatcher.views.published import Table, tables
from qo.dispatcher.views.stuck import StuckTask
from qo.up import results
from qo.up.machine import Deployed
from qo.up.progress import Survey
from qo.up.rollout import Rollout
from qo.up.view import label, open_jobs
from qo.up.watch import Ran

ROWS = 4
COLUMNS = 10
ERROR_LINES = 6

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is told of one pipeline, read in one go."""

    plan: Plan
    tables: Sequence[Table]
    failures: Sequence[Failure]
    timings: Sequence[Timing]


def report(tx: Tx, rollout: Rollout, since: datetime) -> Report:
    """Tables are those of the version that serves, which may be another one than we deployed. Of tasks, ours count; if
    our version is gone meanwhile, those of the one that serves."""
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
    )


def tell_deployed(deployed: Deployed, say: Say) -> None:
    """What a deploy means: nothing, everything, or a part that is rebuilt beside what serves."""
    diff = deployed.answer["diff"]
    name = f"{deployed.answer['dag']} version {deployed.version}"
    if not deployed.answer["changed"]:
        say(f"{name} is deployed already")
    elif diff["against"] is None:
        say(f"{name} is new: {plural(len(diff['added']), 'job')}")
    elif not deployed.rebuilt:
        say(f"{name} takes over from {diff['against']}: nothing is to be built again")
    else:
        say(f"{name} is built beside version {diff['against']}, which goes on serving")
        for each in diff["rebuilt"]:
            say(f"  rebuilt       {each['job']}: {each['why']}")
        if diff["carried_over"]:
            say(f"  carried over  {', '.join(diff['carried_over'])}")


def tell(found: Report, say: Say) -> None:
    """Tables first: they are what it was all for."""
    for table in found.tables:
        _table(table, say)
    say("")
    say("Where they come from")
    ways = results.origins(found.plan)
    width = max((len(name) for name, _ in ways), default=0)
    for name, way in ways:
        say(f"  {name.ljust(width)}  {way}")
    _timings(found.timings, say)


def document(found: Report, rollout: Rollout) -> dict[str, Any]:
    """The same for programs."""
    deployed = rollout.deployed
    return {
        "dag": found.plan.dag.name,
        "version": deployed.version,
        "rebuilt": deployed.rebuilt if deployed.answer["changed"] else [],
        "activated": rollout.activated,
        "tables": [
            {"name": each.name, "job": each.job, "rows": each.rows, "pieces": each.pieces, "bytes": each.bytes}
            for each in found.tables
        ],
        "jobs": [{"job": each.job, "tasks": each.tasks, "busy_s": each.busy_s} for each in found.timings],
        "failed": [
            {"task_id": each.task_id, "job": each.job, "about": each.about, "error": each.error}
            for each in found.failures
        ],
    }


def tell_staged(rollout: Rollout, say: Say) -> None:
    """Of a version that does not serve at the end: why."""
    if rollout.staged is not None:
        why = rollout.obstacle or "it is not built yet; qo up goes on with it"
        say(f"{rollout.dag}: version {rollout.deployed.version} was not activated: {why}")


def tell_open(seen: Survey, say: Say) -> None:
    """What is left to do, by version."""
    for version in seen.versions:
        if version.open:
            say(f"open: {label(version)}: {', '.join(open_jobs(seen, version))}")


def open_document(seen: Survey) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {"dag": version.dag, "version": version.number, "job": each.name, "tasks": each.open}
        for version in seen.versions
        for each in version.jobs
        if each.open
    ]


def tell_rest(failed: Sequence[Failure], say: Say) -> None:
    """Of a run in which nothing has run: whether that is well."""
    well = "what has failed before is not tried again by itself" if failed else "everything is as it should be"
    say(f"nothing was to be done: {well}")


def tell_stuck(stuck: Sequence[StuckTask], say: Say) -> None:
    for each in stuck:
        why = f": {each.reason}" if each.reason else ""
        say(
            f"unfinished: {each.job} {each.about} (task {each.task_id}), rescheduled {plural(each.times, 'time')}{why}"
        )
    if stuck:
        jobs = sorted({name for each in stuck for name in each.failed})
        say(
            f"    it cannot go on before the failed tasks of {', '.join(jobs)} are mended; then qo up goes on with it"
        )


def tell_failures(failed: Sequence[Failure], say: Say) -> None:
    for each in failed:
        say(f"failed: {each.job} {each.about} (task {each.task_id})")
        for line in each.error.splitlines()[:ERROR_LINES]:
            say(f"    {line}")
    if failed:
        say("when the cause is mended, qo run replay TASK... runs them again")


def _table(table: Table, say: Say) -> None:
    say("")
    size = f"{plural(table.rows, 'row')} in {plural(table.pieces, 'piece')}, {_size(table.bytes)}"
    say(f"{table.name}: {size}, made by {table.job}")
    header, rows = results.sample(table, ROWS)
    if not header:
        return
    cells = [_narrow(row) for row in (header, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    for row in cells:
        say("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if table.rows > len(rows):
        say("  …")


def _narrow(row: list[str]) -> list[str]:
    return row if len(row) <= COLUMNS else [*row[:COLUMNS], "…"]


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _timings(found: Sequence[Timing], say: Say) -> None:
    if not found:
        return
    say("")
    say("How long it took")
    width = max(len(each.job) for each in found)
    for each in found:
        span = (each.ended - each.began).total_seconds()
        noun = "task " if each.tasks == 1 else "tasks"
        say(
            f"  {each.job.ljust(width)}  {each.tasks:5,} {noun}  {1000 * each.busy_s / each.tasks:7,.0f} ms each  "
            f"{span:6.1f} s from first to last"
        )


def tell_phases(found: Sequence[Report], ran: Ran, say: Say) -> None:
    """Of all pipelines together."""
    if not any(each.timings for each in found):
        return
    say(f"  {', '.join(f'{name} {took:.1f} s' for name, took in ran.seconds.items())}")
    work_s = ran.seconds.get("work", 0.0)
    tasks = sum(each.tasks for report in found for each in report.timings)
    say(f"  {plural(tasks, 'task')}, {tasks / work_s if work_s else 0:.1f} a second")
