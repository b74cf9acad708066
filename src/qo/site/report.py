"""What is printed at the end: the tables, where they came from, how long it took, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from qo.core.flow.plan import Plan
from qo.core.words import plural
from qo.dispatcher.state.database import Tx
from qo.site import published
from qo.site.published import Table
from qo.site.site import Deployed, Ran, Staged
from qo.site.survey import Failure, Stuck, Timing, failures, planned, timings

ROWS = 4
COLUMNS = 10
ERROR_LINES = 6

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is told, read in one go."""

    plan: Plan
    tables: Sequence[Table]
    failures: Sequence[Failure]
    timings: Sequence[Timing]


def report(tx: Tx, dag: str, version: int, serving: int, since: datetime) -> Report:
    """``serving``: the version whose tables people read, which may be an older one."""
    return Report(
        plan=planned(tx, dag, serving),
        tables=published.tables(tx, planned(tx, dag, serving), ROWS),
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


def tell(found: Report, ran: Ran, say: Say) -> None:
    """Tables first: they are what it was all for."""
    for table in found.tables:
        _table(table, say)
    say("")
    say("Where they come from")
    ways = published.origins(found.plan)
    width = max((len(name) for name, _ in ways), default=0)
    for name, way in ways:
        say(f"  {name.ljust(width)}  {way}")
    _timings(found.timings, ran, say)


def document(found: Report, ran: Ran) -> dict[str, Any]:
    """The same for programs."""
    return {
        "dag": found.plan.dag.name,
        "version": ran.deployed.version,
        "rebuilt": ran.deployed.rebuilt if ran.deployed.answer["changed"] else [],
        "activated": ran.activated,
        "tables": [
            {"name": each.name, "job": each.job, "rows": each.rows, "pieces": each.pieces, "bytes": each.bytes}
            for each in found.tables
        ],
        "jobs": [{"job": each.job, "tasks": each.tasks, "busy_s": each.busy_s} for each in found.timings],
        "failed": [
            {"task_id": each.task_id, "job": each.job, "about": each.about, "error": each.error}
            for each in found.failures
        ],
        "unfinished": [asdict(each) for each in ran.stuck],
        "seconds": ran.seconds,
    }


def tell_cutover(ran: Ran, say: Say) -> None:
    if ran.staged is not None:
        say(f"version {ran.deployed.version} was not activated: {_held(ran.staged, ran.deployed)}")
    if ran.activated is not None:
        say(
            f"version {ran.activated['version']} has taken over from {ran.activated['replaced']}, all tables at once; "
            f"qo dag rollback {ran.activated['dag']} goes back"
        )


def _held(staged: Staged, deployed: Deployed) -> str:
    if staged.failed:
        return f"{staged.failed:,} of its tasks failed"
    if not staged.built:
        return "it is not built yet; qo up goes on with it"
    which = f"{deployed.answer['dag']} {deployed.version}"
    return f"it is built, and kept; qo dag ready {which} and qo dag activate {which} let it take over"


def tell_rest(failed: Sequence[Failure], say: Say) -> None:
    """Of a run in which nothing has run: whether that is well."""
    well = "what has failed before is not tried again by itself" if failed else "everything is as it should be"
    say(f"nothing was to be done: {well}")


def tell_stuck(stuck: Sequence[Stuck], say: Say) -> None:
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
        say("when the cause is mended, qo runs replay TASK... runs them again")


def _table(table: Table, say: Say) -> None:
    say("")
    size = f"{plural(table.rows, 'row')} in {plural(table.pieces, 'piece')}, {_size(table.bytes)}"
    say(f"{table.name}: {size}, made by {table.job}")
    header, rows = published.sample(table, ROWS)
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


def _timings(found: Sequence[Timing], ran: Ran, say: Say) -> None:
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
    say(f"  {_phases(ran.seconds)}")
    work_s, tasks = ran.seconds.get("work", 0.0), sum(each.tasks for each in found)
    say(f"  {plural(tasks, 'task')}, {tasks / work_s if work_s else 0:.1f} a second")


def _phases(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items())
