"""Print the progress for people: a table that is redrawn on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.views.pipeline_progress import JobState, VersionState
from qo.up.pipeline_progress import Survey

LINE_EVERY_S = 5.0  # Between two lines where no table can be drawn.
NO_CHANGE_S = 30.0  # After this long without a change, print what is waited for.
BAR = 24


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, survey: Survey, problems: Sequence[str]) -> None:
        """Show the progress and the problems."""
        ...

    def print_line(self, text: str) -> None:
        """Print a line that stays."""
        ...


def open_view(*, color: bool) -> View:
    return TableView(color=color) if sys.stdout.isatty() else PlainView()


class SilentView:
    """Prints nothing: for programs, which get a report at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, survey: Survey, problems: Sequence[str]) -> None:
        pass

    def print_line(self, text: str) -> None:
        pass


class PlainView(SilentView):
    """Prints the lines that have changed every few seconds, and the last state at the end."""

    def __init__(self) -> None:
        self._next_line_at = 0.0
        self._printed: tuple[str, ...] = ()
        self._latest: tuple[str, ...] = ()
        self._changed_at = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print_new(self._latest)

    def show(self, survey: Survey, problems: Sequence[str]) -> None:
        self._latest = (*summaries(survey), *problems)
        now = time.monotonic()
        if now < self._next_line_at:
            return
        self._next_line_at = now + LINE_EVERY_S
        if self._print_new(self._latest):
            self._changed_at = now
        elif now > self._changed_at + NO_CHANGE_S:
            self.print_line(describe_waiting(survey))
            self._changed_at = now

    def print_line(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _print_new(self, lines: tuple[str, ...]) -> bool:
        new = [line for line in lines if line not in self._printed]
        for line in new:
            self.print_line(line)
        self._printed = lines
        return bool(new)


def summaries(survey: Survey) -> list[str]:
    """Return a line for each live version, with all its jobs; labelled if there are several versions."""
    lines: list[str] = []
    for version in survey.versions:
        jobs = [each for each in version.jobs if each.total and each.source is None]
        text = "  ".join(f"{each.name} {each.completed}/{each.total}{_remarks(each)}" for each in jobs)
        if text:
            lines.append(f"{label(version)}: {text}" if len(survey.versions) > 1 else text)
    return lines


def label(version: VersionState) -> str:
    """Return the name and state of a version."""
    if version.active:
        return version.dag
    state = "ready to take over" if version.status is VersionStatus.READY else "being built"
    return f"{version.dag} version {version.number}, {state}"


def describe_waiting(survey: Survey) -> str:
    """Return which tasks are open, for a time without progress."""
    jobs = [text for version in survey.versions for text in open_jobs(survey, version)]
    if not jobs and not survey.events:
        return "all tasks have ended; waiting for new data"
    return f"no task has ended for a while; open: {', '.join(jobs) or 'no tasks'}; {survey.events} new events"


def open_jobs(survey: Survey, version: VersionState) -> list[str]:
    """Return the jobs with open tasks, and whether they are paused; by full name if there are several pipelines."""
    prefix = f"{version.dag}." if len(survey.dags) > 1 else ""
    return [
        f"{prefix}{each.name} ({each.running} running, {each.pending} waiting{', paused' if each.paused else ''})"
        for each in version.jobs
        if each.open
    ]


def _remarks(job: JobState) -> str:
    remarks = [f"{job.failed} failed"] if job.failed else []
    if job.parked and job.pending:
        remarks.append(f"{job.pending} waiting for the cutover")
    return f" ({', '.join(remarks)})" if remarks else ""


class TableView:
    """Draws a table, and redraws it with each call of ``show``."""

    def __init__(self, *, color: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False, no_color=not color, emoji=False, markup=False)
        self._live: Any = Live(console=self._console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, survey: Survey, problems: Sequence[str]) -> None:
        self._live.update(_make_table(survey, problems), refresh=True)

    def print_line(self, text: str) -> None:
        self._console.print(
            text, soft_wrap=True
        )  # A long line is wrapped by the terminal, and can still be copied whole.


def _make_table(survey: Survey, problems: Sequence[str]) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for header, justify in (("job", "left"), ("", "left"), ("done", "right"), ("running", "right")):
        table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("failed", justify="right")
    table.add_column("partitions", justify="right")
    table.add_column("rows", justify="right")
    for version in survey.versions:
        if len(survey.versions) > 1:
            table.add_row(Text(label(version), "bold"))
        for each in version.jobs:
            if each.source is not None:
                bar: Any = Text("source", "dim")
            else:
                bar = ProgressBar(
                    max(each.total, 1), each.completed, BAR, complete_style="green", finished_style="green"
                )
            failed = Text(str(each.failed), "red") if each.failed else Text("")
            count = f"{each.completed:,}" if each.source is not None else f"{each.completed:,}/{each.total:,}"
            running = _number(each.running)
            table.add_row(each.name, bar, count, running, failed, _number(each.partitions), _number(each.rows))
    lines = [Text(f"  {one.job} {one.about}  {one.stages}", "dim") for one in survey.running]
    return Group(table, *lines, *(Text(text, "yellow") for text in problems))


def _number(n: int) -> str:
    return f"{n:,}" if n else ""
