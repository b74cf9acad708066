"""The filters of qo replay, cancel and archive: a preview of many tasks, a question, progress and a summary."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from qo.cli.confirmation import confirm, is_interactive
from qo.cli.invocation import Session
from qo.cli.queue import task_view
from qo.core.durations import parse_duration_s
from qo.core.task import Status
from qo.core.words import plural
from qo.errors import StoreError, UsageError
from qo.queue.bulk import Action, BulkReport, Move, act_on_matching, check_criteria
from qo.queue.listing import Filter
from qo.queue.queue import Queue

StatusOption = Annotated[Status | None, typer.Option("--status", help="All tasks with this status.")]
TypeOption = Annotated[str | None, typer.Option("--type", "-t", help="All tasks of this type.")]
ShardOption = Annotated[str | None, typer.Option("--shard", help="All tasks of this shard, for example a.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="DURATION", help="Tasks that changed within this time, as 1h.")
]
OlderOption = Annotated[
    str | None,
    typer.Option("--older-than", metavar="DURATION", help="Tasks that last changed longer ago than this, as 7d."),
]
ErrorOption = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Tasks whose last error contains this text.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Change at most this many.")]
AfterOption = Annotated[
    str | None, typer.Option("--after", metavar="KEY", help="Continue where an interrupted run stopped.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print which tasks match.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Change them without asking.")]

PROGRESS_EVERY = 1_000  # Tasks.


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The options of a command that name tasks by a filter."""

    status: Status | None = None
    task_type: str | None = None
    shard: str | None = None
    since: str | None = None
    older_than: str | None = None
    error: str | None = None
    limit: int | None = None
    after: str | None = None
    dry_run: bool = False
    yes: bool = False

    @property
    def filters(self) -> bool:
        """Whether any option chooses tasks."""
        return any(
            each is not None
            for each in (self.status, self.task_type, self.shard, self.since, self.older_than, self.error)
        )


def require_one_way(selection: Selection, task_ids: list[str]) -> bool:
    """Return whether tasks are named by a filter. Raises UsageError if they are named twice or not at all."""
    others = selection.limit is not None or selection.after is not None or selection.dry_run or selection.yes
    if task_ids and (selection.filters or others):
        raise UsageError("give the ids of tasks or a filter, not both")
    if not task_ids and not selection.filters:
        raise UsageError("say which tasks: give their ids, or a filter such as --status failed --type T")
    return not task_ids


def act_on_selection(
    session: Session, action: Action, selection: Selection, move_with: Callable[[Queue], Move]
) -> int:
    """Show which tasks match, ask, and change them. Return the exit code."""
    since_s = None if selection.since is None else parse_duration_s(selection.since, "--since")
    older_s = None if selection.older_than is None else parse_duration_s(selection.older_than, "--older-than")
    check_criteria(action, Filter(status=selection.status))

    async def work(queue: Queue) -> tuple[BulkReport, bool]:
        now = await queue.store.now()
        criteria = Filter(
            status=selection.status,
            task_type=selection.task_type,
            shard=selection.shard,
            since=None if since_s is None else now - timedelta(seconds=since_s),
            before=None if older_s is None else now - timedelta(seconds=older_s),
            error=selection.error,
        )
        options: dict[str, Any] = {"limit": selection.limit, "after": selection.after or ""}
        if selection.dry_run or not selection.yes:
            preview = await act_on_matching(queue, action, criteria, None, **options)
            _show_preview(session, preview)
            asks = not selection.dry_run and is_interactive(session) and preview.matched
            if not asks or not await confirm(f"{action.capitalize()} {plural(preview.matched, 'task')}?"):
                return preview, False
        progress = _Progress(session)
        try:
            report = await act_on_matching(
                queue, action, criteria, move_with(queue), on_progress=progress.note, **options
            )
        except BaseException:
            progress.note_interruption()
            raise
        return report, True

    report, acted = session.ask(work)
    if session.json:
        session.output.document({**_counts(report), "dry_run": not acted})
    elif acted:
        _show_summary(session, report)
    elif not selection.dry_run and not is_interactive(session):
        session.output.note("nothing was changed; say --yes to change these tasks")
    for error in report.errors:
        sys.stderr.write(f"error: {error}\n")
    return StoreError.exit_code if report.failed else 0


class _Progress:
    """Notes how far a run has come, on a terminal now and then, and when it is interrupted."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next = PROGRESS_EVERY
        self._report = BulkReport()

    def note(self, report: BulkReport) -> None:
        self._report = report
        if report.matched >= self._next and is_interactive(self._session):
            self._next = report.matched + PROGRESS_EVERY
            self._session.output.note(f"{report.changed:,} changed so far")

    def note_interruption(self) -> None:
        if self._report.after:
            amount = plural(self._report.changed, "task")
            self._session.output.note(f"stopped after {amount}; continue with --after {self._report.after}")


def _counts(report: BulkReport) -> dict[str, Any]:
    by_type = [
        {"type": task_type, "status": status, "tasks": count}
        for (task_type, status), count in sorted(report.by_type.items())
    ]
    names = ("matched", "changed", "refused", "failed", "complete", "after")
    return {"by_type": by_type, **{name: getattr(report, name) for name in names}}


def _show_preview(session: Session, report: BulkReport) -> None:
    if session.json:
        return
    rows = [
        (task_type, str(status), f"{count:,}") for (task_type, status), count in sorted(report.by_type.items())
    ]
    if rows:
        session.output.table(("type", "status", "tasks"), rows)
        session.output.line("for example:")
        task_view.show_list(session, report.examples)
    session.output.line(f"{plural(report.matched, 'task')} {'matches' if report.matched == 1 else 'match'}")


def _show_summary(session: Session, report: BulkReport) -> None:
    parts = [f"{plural(report.changed, 'task')} changed"]
    if report.refused:
        parts.append(f"{report.refused:,} refused, because they changed meanwhile")
    if report.failed:
        parts.append(f"{report.failed:,} failed; run it again for those")
    session.output.line("; ".join(parts))
    if not report.complete:
        session.output.note("stopped at the limit; run it again for more")
