"""qo purge: remove ended tasks for good."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from qo.cli.confirmation import confirm, is_interactive
from qo.cli.invocation import Session, command, new_app
from qo.cli.queue import task_view
from qo.core.durations import parse_duration_s
from qo.core.retention import Allowance, Keep, Policy
from qo.core.task import ENDED, Status
from qo.core.words import plural
from qo.errors import UsageError
from qo.queue.options import check_task_type
from qo.queue.purger import Purger, PurgeReport
from qo.queue.queue import Queue

app = new_app()


@command(app, "purge")
def purge(
    session: Session,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Purge tasks that ended longer ago than this, instead of what the settings say.",
        ),
    ] = None,
    status: Annotated[
        list[Status] | None,
        typer.Option(
            "--status", help="With --older-than: only tasks with this status; may be repeated [completed]."
        ),
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", "-t", help="With --older-than: only tasks of this type.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be purged.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Purge without asking.")] = False,
    requests_per_minute: Annotated[
        int | None,
        typer.Option("--requests-per-minute", min=1, help="Make no more requests than this on average."),
    ] = None,
) -> None:
    """Remove ended tasks for good, with their history and data.

    The data are large inputs and outputs, also those that belong to no task any more. Which tasks are
    removed is set under [retention] in the settings, or by --older-than. Shows what would be removed and asks; without
    a terminal, nothing is removed unless you say --yes. Idempotency keys of removed tasks may be used again. If it is
    interrupted, run it again.
    """
    policy, by_settings = _choose_policy(session, older_than, status, type)

    async def work(queue: Queue) -> tuple[PurgeReport, bool]:
        purger = Purger(queue, policy)
        if not yes or dry_run:
            preview = await purger.purge_all(dry_run=True)
            _show(session, preview, preview_only=True)
            asks = not dry_run and is_interactive(session) and (preview.tasks or preview.data)
            if not asks or not await confirm("Remove them for good?"):
                return preview, False
        allowance = None if requests_per_minute is None else Allowance(requests_per_minute)
        if by_settings:
            return await _purge_round(purger, allowance), True
        return await purger.purge_all(allowance=allowance), True

    report, removed = session.ask(work)
    if session.json:
        session.output.document({**_counts(report), "dry_run": not removed})
        return
    if removed:
        _show(session, report, preview_only=False)
    elif not dry_run and not is_interactive(session):
        session.output.note("nothing was removed; say --yes to remove these tasks")


async def _purge_round(purger: Purger, allowance: Allowance | None) -> PurgeReport:
    """Finish the round that is under way, or do a whole one, however long its allowance makes it take."""
    report = await purger.purge(at_once=True, allowance=allowance, wait=True)
    if report.skipped:
        raise UsageError("a monitor purges this queue at the moment; see its log, or try again later")
    return report


def _choose_policy(
    session: Session, older_than: str | None, status: list[Status] | None, task_type: str | None
) -> tuple[Policy, bool]:
    """Return the policy to apply, and whether it is that of the settings."""
    if older_than is None:
        if status or task_type is not None:
            raise UsageError("--status and --type need --older-than; without it, the settings say what is purged")
        policy = session.settings().retention.policy
        if not policy.limits:
            raise UsageError(
                "no time is set after which tasks are purged: set it in qo.toml, for example "
                'keep_completed = "30d" under [retention], or say --older-than 30d'
            )
        return policy, True
    age = timedelta(seconds=parse_duration_s(older_than, "--older-than"))
    statuses = status or [Status.COMPLETED]
    if active := sorted(set(statuses) - ENDED):
        raise UsageError(f"--status {active[0]}: only ended tasks can be purged; cancel them first with qo cancel")
    keep = Keep(**{str(each): age for each in statuses})
    if task_type is None:
        return Policy(keep), False
    check_task_type(task_type)
    return Policy(Keep(), {task_type: keep}), False


def _counts(report: PurgeReport) -> dict[str, Any]:
    by_type = [
        {"type": task_type, "status": status, "tasks": count}
        for (task_type, status), count in sorted(report.purged.items())
    ]
    names = ("tasks", "versions", "data", "orphans", "bytes", "changed", "corrupt", "listed", "read", "requests")
    return {"purged": by_type, **{name: getattr(report, name) for name in names}}


def _show(session: Session, report: PurgeReport, *, preview_only: bool) -> None:
    if session.json:
        return
    rows = [(task_type, str(status), f"{count:,}") for (task_type, status), count in sorted(report.purged.items())]
    if rows:
        session.output.table(("type", "status", "tasks"), rows)
    if preview_only and report.examples:
        session.output.line("for example:")
        task_view.show_list(session, report.examples)
    verb = "would be removed" if preview_only else "removed"
    beside = f" and {plural(report.data, 'large value')}" if report.data else ""
    session.output.line(
        f"{plural(report.tasks, 'task')}{beside} {verb}; {plural(report.listed, 'task')} looked at"
    )
    if report.changed:
        session.output.note(f"{plural(report.changed, 'task')} changed meanwhile and stay")
    if report.corrupt:
        session.output.note(f"{plural(report.corrupt, 'task')} cannot be read and stay; see the log")
