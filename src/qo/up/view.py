"""How far everything is, for people: lines that stay in place on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.views.progress import JobState, VersionState
from qo.up.progress import Survey

EVERY_S = 5.0  # Between two lines where nothing can be drawn.
STILL_S = 30.0  # After so long without a change, people want to know what is waited for.
BAR = 24


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def look(self, seen: Survey, troubles: Sequence[str]) -> None:
        """Show it."""
        ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...


def open_view(*, color: bool) -> View:
    return DrawnView(color=color) if sys.stdout.isatty() else PlainView()


class SilentView:
    """For programs, which are told at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def look(self, seen: Survey, troubles: Sequence[str]) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class PlainView(SilentView):
    """Lines every few seconds, and only those in which something has changed; at the end, how it ended."""

    def __init__(self) -> None:
        self._next = 0.0
        self._told: tuple[str, ...] = ()
        self._latest: tuple[str, ...] = ()
        self._moved = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell_new(self._latest)

    def look(self, seen: Survey, troubles: Sequence[str]) -> None:
        self._latest = (*summaries(seen), *troubles)
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        if self._tell_new(self._latest):
            self._moved = now
        elif now > self._moved + STILL_S:
            self.say(waiting(seen))
            self._moved = now

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _tell_new(self, lines: tuple[str, ...]) -> bool:
        new = [line for line in lines if line not in self._told]
        for line in new:
            self.say(line)
        self._told = lines
        return bool(new)


def summaries(seen: Survey) -> list[str]:
    """A line for each live version, with all its jobs; named where there are several."""
    lines: list[str] = []
    for version in seen.versions:
        shown = [each for each in version.jobs if each.total and each.source is None]
        text = "  ".join(f"{each.name} {each.completed}/{each.total}{_remarks(each)}" for each in shown)
        if text:
            lines.append(f"{label(version)}: {text}" if len(seen.versions) > 1 else text)
    return lines


def label(version: VersionState) -> str:
    """What a version is, in a few words."""
    if version.active:
        return version.dag
    state = "ready to take over" if version.status is VersionStatus.READY else "being built"
    return f"{version.dag} version {version.number}, {state}"


def waiting(seen: Survey) -> str:
    """What is left to do, where nothing seems to happen."""
    left = [text for version in seen.versions for text in open_jobs(seen, version)]
    return f"nothing has ended for a while; open are: {', '.join(left) or 'no tasks'}; {seen.events} new events"


def open_jobs(seen: Survey, version: VersionState) -> list[str]:
    """Jobs with open tasks, and why they may wait; by their full names where there are several pipelines."""
    prefix = f"{version.dag}." if len(seen.dags) > 1 else ""
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


class DrawnView:
    """A table that is drawn over, four times a second at most."""

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

    def look(self, seen: Survey, troubles: Sequence[str]) -> None:
        self._live.update(_drawn(seen, troubles), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)  # The terminal folds what is long, and copies it whole.


def _drawn(seen: Survey, troubles: Sequence[str]) -> Any:
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
    for version in seen.versions:
        if len(seen.versions) > 1:
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
    lines = [Text(f"  {one.job} {one.about}  {one.stages}", "dim") for one in seen.running]
    return Group(table, *lines, *(Text(text, "yellow") for text in troubles))


def _number(n: int) -> str:
    return f"{n:,}" if n else ""
