"""qo pause, resume, drain: control what the workers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from qo.cli.invocation import Runtime, Session, command, new_app
from qo.cli.output import one_line
from qo.cli.queue.task_actions import login
from qo.core.control import Desired, Order, Target, WorkerOrder, describe, in_force, orders_for, targets
from qo.core.durations import format_duration, parse_duration_s
from qo.core.poll import Pace
from qo.errors import TaskFailed, UsageError
from qo.queue import control, roster
from qo.queue.control import Change
from qo.queue.options import check_task_type
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo, validate_worker_id

app = new_app()

NAMED_MAX = 10  # How many workers a message names.
POLL_PACE = Pace(max_s=1.0)


def _task_type(text: str) -> str:
    check_task_type(text)
    return text


# Validated while the command line is parsed: a typo must not open, and so create, a store.
Worker = Annotated[
    str | None,
    typer.Option("--worker", metavar="ID", parser=validate_worker_id, help="Only this worker."),
]
TaskType = Annotated[
    str | None, typer.Option("--type", "-t", metavar="TYPE", parser=_task_type, help="Only tasks of this type.")
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; shown beside the list of workers.")]
By = Annotated[str | None, typer.Option("--by", help="Who gives the order [your login name].")]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="Wait until the workers have followed; exit 8 if they take longer than this.",
    ),
]


@command(app, "pause")
def pause(
    session: Session,
    worker: Worker = None,
    type: TaskType = None,
    reason: Reason = None,
    by: By = None,
    wait: Wait = None,
    runtime: Runtime = None,
) -> None:
    """Stop workers from claiming tasks; running tasks go on.

    Applies to the whole queue, unless a worker or a type is named. It holds until `qo resume`, also for workers that
    start later. Workers follow within seconds.
    """
    target, wait_s = _target(worker, type), _wait_s(wait)
    control.check_order_text(by, reason)
    who = by or login()

    async def order(queue: Queue) -> Change:
        if type is not None and not any(type in info.task_types for info in await roster.workers(queue.store)):
            session.output.note(
                f"no worker handles type {one_line(type)} now; a worker that starts later will find it paused"
            )
        return await control.pause(queue, target, by=who, reason=reason)

    _give_order(session, target, wait_s, order, _describe_pause, runtime)


@command(app, "resume")
def resume(
    session: Session,
    worker: Worker = None,
    type: TaskType = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Lift every pause, and every drain that no worker has begun to follow.")
    ] = False,
    wait: Wait = None,
    runtime: Runtime = None,
) -> None:
    """Let workers claim tasks again.

    Lifts the pause of the whole queue, of one worker or of one type; other pauses stay, and are listed. A worker that
    has begun to drain does not come back.
    """
    target, wait_s = _target(worker, type), _wait_s(wait)
    if everything and (worker is not None or type is not None):
        raise UsageError("--all lifts every pause: give it without --worker and --type")
    if everything:
        _give_order(session, target, wait_s, control.resume_all, _describe_resume_all, runtime)
    else:
        _give_order(
            session, target, wait_s, lambda queue: control.resume(queue, target), _describe_resume, runtime
        )


@command(app, "drain")
def drain(
    session: Session,
    worker: Annotated[
        str,
        typer.Argument(
            metavar="WORKER", parser=validate_worker_id, help="The id of the worker, as in qo worker list."
        ),
    ],
    reason: Reason = None,
    by: By = None,
    wait: Wait = None,
    runtime: Runtime = None,
) -> None:
    """Let a worker finish its running tasks and exit.

    With --wait, waits until it has exited. A worker that starts later under the same id is not affected.
    """
    wait_s = _wait_s(wait)
    control.check_order_text(by, reason)
    who = by or login()
    target = Target(worker=worker)

    async def order(queue: Queue) -> Change:
        return await control.drain(queue, worker, by=who, reason=reason)

    _give_order(session, target, wait_s, order, _describe_drain, runtime)


def describe_pauses(desired: Desired) -> list[str]:
    """Return a sentence for every pause, such as ``the queue is paused (by ada: deploy)``.

    Drains are left out: they are kept longer than the workers that have followed them.
    """
    return [_describe_order(desired, target) for target in targets(desired) if not _is_drain(desired, target)]


def _target(worker: str | None, task_type: str | None) -> Target:
    if worker is not None and task_type is not None:
        raise UsageError("give --worker or --type, not both: a type is paused for all workers")
    return Target(worker, task_type)


def _wait_s(text: str | None) -> float | None:
    wait_s = None if text is None else parse_duration_s(text, "--wait")
    if wait_s == 0:
        raise UsageError("--wait must be more than 0; leave it out to return at once")
    return wait_s


def _give_order(
    session: Session,
    target: Target,
    wait_s: float | None,
    order: Callable[[Queue], Awaitable[Change]],
    describe: Callable[[Change, Target], list[str]],
    runtime: str | None,
) -> None:
    """Give the order, wait until the workers follow if ``wait_s`` is set, and print the outcome."""
    threshold_s = session.settings().monitor.worker_health_threshold_s

    async def give_and_wait(queue: Queue) -> Change:
        change = await order(queue)
        if wait_s is not None:
            await _wait_until_followed(queue, change.after, target, wait_s, threshold_s)
        return change

    change = session.ask(give_and_wait, runtime)
    if session.json:
        session.output.document(change.after)
        return
    for line in describe(change, target):
        session.output.line(one_line(line))


async def _wait_until_followed(
    queue: Queue, desired: Desired, target: Target, wait_s: float, threshold_s: float | None
) -> None:
    """Return once every affected worker follows the order. Raises TaskFailed if that takes too long."""
    pace, lagging = POLL_PACE, list[WorkerInfo]()
    try:
        async with asyncio.timeout(wait_s):
            while lagging := await _lagging_workers(queue, desired, target, threshold_s):
                pace = pace.after(found_work=False)
                await asyncio.sleep(pace.rest_s(queue.ambient.unit()))
    except TimeoutError:
        now = await queue.store.now()
        names = [f"{w.worker_id} ({w.state}, {_last_heartbeat(w, now)})" for w in lagging[:NAMED_MAX]]
        more = [f"and {len(lagging) - NAMED_MAX} more"] if len(lagging) > NAMED_MAX else []
        raise TaskFailed(
            f"not all workers have followed after {format_duration(wait_s)}; the order stands. "
            f"Waiting for: {', '.join([*names, *more]) or 'an answer of the store'}"
        ) from None


async def _lagging_workers(
    queue: Queue, desired: Desired, target: Target, threshold_s: float | None
) -> list[WorkerInfo]:
    """Return the workers that do not follow the order yet. A stale worker counts only if it was named."""
    if target.worker is not None:
        worker = await roster.find(queue.store, target.worker)
        return [] if worker is None or _follows(worker, desired, target) else [worker]
    now = await queue.store.now()
    alive = [w for w in await roster.workers(queue.store) if not w.is_stale(now, threshold_s)]
    return [worker for worker in alive if not _follows(worker, desired, target)]


def _follows(worker: WorkerInfo, desired: Desired, target: Target) -> bool:
    wish = orders_for(desired, worker.worker_id, worker.started_at)
    if target.worker is not None and wish.drain:
        return False  # A drained worker follows by being gone.
    if worker.is_leaving:
        return True  # It claims no more tasks, and will not come back.
    if target.task_type is None:
        return (worker.state == roster.PAUSED) == wish.paused
    paused = target.task_type in worker.paused_types
    return target.task_type not in worker.task_types or paused == (target.task_type in wish.paused_types)


def _last_heartbeat(worker: WorkerInfo, now: datetime) -> str:
    return f"last heard {format_duration((now - worker.last_heartbeat).total_seconds())} ago"


def _describe_pause(change: Change, target: Target) -> list[str]:
    return [_describe_order(change.after, target) + (" already" if change.after is change.before else "")]


def _describe_drain(change: Change, target: Target) -> list[str]:
    return [_describe_order(change.after, target)]


def _describe_resume(change: Change, target: Target) -> list[str]:
    return [_describe_lifted(change.before, target), *(f"still: {line}" for line in describe_pauses(change.after))]


def _describe_resume_all(change: Change, _: Target) -> list[str]:
    return [_describe_lifted(change.before, target) for target in targets(change.before)] or ["nothing was paused"]


def _describe_lifted(before: Desired, target: Target) -> str:
    if in_force(before, target) is None:
        return f"{target} was not paused"
    return f"{target} " + ("need not leave, unless it has begun to" if _is_drain(before, target) else "goes on")


def _describe_order(desired: Desired, target: Target) -> str:
    """Return the order in force for the target in words, and who gave it."""
    order = in_force(desired, target)
    if order is None:
        return f"{target} is not paused"
    attribution = describe(order)
    return f"{target} is {'to leave' if _is_drain(desired, target) else 'paused'}" + (
        f" ({attribution})" if attribution else ""
    )


def _is_drain(desired: Desired, target: Target) -> bool:
    order = in_force(desired, target)
    return isinstance(order, WorkerOrder) and order.kind is Order.DRAINED
