"""qo stats: how much waits in the queue, and for how long."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Runtime, Session, command, new_app
from qo.core.depth import QueueDepth, TypeDepth
from qo.core.durations import format_duration
from qo.queue.depth import READS_MAX, DepthReader
from qo.queue.queue import Queue

app = new_app()


@command(app, "stats")
def stats(
    session: Session,
    reads: Annotated[
        int,
        typer.Option(
            "--reads",
            min=1,
            metavar="NUMBER",
            help=f"Read at most so many tasks to find their types [{READS_MAX}].",
            show_default=False,
        ),
    ] = READS_MAX,
    runtime: Runtime = None,
) -> None:
    """Show how many tasks wait and run, by type, and for how long.

    Due tasks could start now: they wait for a worker, for room, or for a limit. Delayed tasks wait for their time,
    waiting ones for other tasks. The totals come from the indexes and are exact but for a moment's delay. Those of
    types are exact if no more than --reads tasks are active; beyond that they are estimates from a sample, marked
    with ~.
    """

    async def read_depth(queue: Queue) -> QueueDepth:
        return await DepthReader(queue, reads).read()

    depth = session.ask(read_depth, runtime)
    if session.json:
        session.output.document(depth)
        return
    rows = [_row(each, exact=depth.exact) for each in depth.types]
    more = "" if depth.waiting_complete else "+"
    total = (str(depth.due), str(depth.delayed), f"{depth.waiting}{more}", str(depth.running))
    columns = ("type", "due", "delayed", "waiting", "running", "oldest", "handled")
    session.output.table(columns, [*rows, ("all", *total, _age(depth.oldest_age_s), "")])
    if not depth.waiting_complete:
        session.output.note(f"more than {depth.waiting:,} tasks wait for others; these are not all counted")
    if not depth.workers:
        session.output.note("no worker is running")
    for each in depth.types:
        if each.handled is False and each.due:
            session.output.note(f"no worker has a handler for {each.task_type}: its tasks wait until one does")


def _row(each: TypeDepth, *, exact: bool) -> tuple[str, ...]:
    counts = (f"{'' if exact or not n else '~'}{n}" for n in (each.due, each.delayed, each.waiting, each.running))
    handled = {True: "yes", False: "no", None: "-"}[each.handled]
    return (each.task_type, *counts, _age(each.oldest_age_s), handled)


def _age(age_s: float | None) -> str:
    return "-" if age_s is None else format_duration(age_s)
