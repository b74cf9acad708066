"""qo pause, resume, drain: what the workers are wanted to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from qo.cli.durations import format_duration, parse_duration_s
from qo.cli.output import one_line
from qo.cli.queue.task_actions import login
from qo.cli.session import Runtime, Session, command, new_app
from qo.core.control import Desired, Order, Target, WorkerOrder, in_force, targets, told, wanted
from qo.core.poll import Pace
from qo.errors import TaskFailed, UsageError
from qo.queue import control, roster
from qo.queue.control import Change
from qo.queue.options import check_task_type
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo, validate_worker_id

app = new_app()

NAMED_MAX = 10  # Workers that a message names.
LOOK_AGAIN = Pace(max_s=1.0)


def _task_type(text: str) -> str:
    check_task_type(text)
    return text


# Checked while the command line is read: a slip must not open, and so create, a store.
Worker = Annotated[
    str | None,
    typer.Option("--worker", metavar="ID", parser=validate_worker_id, help="Only this worker."),
]
TaskType = Annotated[
    str | None, typer.Option("--type", "-t", metavar="TYPE", parser=_task_type, help="Only tasks of this type.")
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; shown to whoever looks.")]
By = Annotated[str | None, typer.Option("--by", help="Who; otherwise the name you are logged in with.")]
Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="DURATION", help="Wait this long until the workers have done so; else exit 8."),
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

    Of the whole queue, unless a worker or a type is named. It holds until `qo resume`, also for workers that are
    started later. Workers follow within seconds.
    """
    target, wait_s = _target(worker, type), _wait_s(wait)
    control.check_told(by, reason)
    who = by or login()

    async def order(queue: Queue) -> Change:
        if type is not None and not any(type in info.task_types for info in await roster.workers(queue.store)):
            session.output.note(f"no worker handles type {one_line(type)} now; one that comes will find it paused")
        return await control.pause(queue, target, by=who, reason=reason)

    _give(session, target, wait_s, order, _say_pause, runtime)


@command(app, "resume")
def resume(
    session: Session,
    worker: Worker = None,
    type: TaskType = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Lift every pause, and the orders to leave that nobody followed yet.")
    ] = False,
    wait: Wait = None,
    runtime: Runtime = None,
) -> None:
    """Let workers claim tasks again.

    Lifts the pause of the whole queue, of one worker or of one type; the others stay, and are named. A worker that
    has begun to leave does not come back.
    """
    target, wait_s = _target(worker, type), _wait_s(wait)
    if everything and (worker is not None or type is not None):
        raise UsageError("--all lifts every pause: give it without --worker and --type")
    if everything:
        _give(session, target, wait_s, control.resume_all, _say_resumed_all, runtime)
    else:
        _give(session, target, wait_s, lambda queue: control.resume(queue, target), _say_resumed, runtime)


@command(app, "drain")
def drain(
    session: Session,
    worker: Annotated[
        str,
        typer.Argument(metavar="WORKER", parser=validate_worker_id, help="The worker's id, as in qo worker list."),
    ],
    reason: Reason = None,
    by: By = None,
    wait: Wait = None,
    runtime: Runtime = None,
) -> None:
    """Let a worker finish its running tasks and exit.

    With --wait, until it has left. A worker that is started later under the same id is not concerned.
    """
    wait_s = _wait_s(wait)
    control.check_told(by, reason)
    who = by or login()
    target = Target(worker=worker)

    async def order(queue: Queue) -> Change:
        return await control.drain(queue, worker, by=who, reason=reason)

    _give(session, target, wait_s, order, _say_drain, runtime)


def described(desired: Desired) -> list[str]:
    """Every pause, in words: ``the queue is paused (by ada: deploy)``. Orders to leave are not among them: they
    outlast the workers that have followed them."""
    return [_state(desired, target) for target in targets(desired) if not _leaves(desired, target)]


def _target(worker: str | None, task_type: str | None) -> Target:
    if worker is not None and task_type is not None:
        raise UsageError("give --worker or --type, not both: a type is paused for all workers")
    return Target(worker, task_type)


def _wait_s(text: str | None) -> float | None:
    wait_s = None if text is None else parse_duration_s(text, "--wait")
    if wait_s == 0:
        raise UsageError("--wait must be more than 0; leave it out in order not to wait")
    return wait_s


def _give(
    session: Session,
    target: Target,
    wait_s: float | None,
    order: Callable[[Queue], Awaitable[Change]],
    say: Callable[[Change, Target], list[str]],
    runtime: str | None,
) -> None:
    """Give the order, wait for it to be followed if asked to, and say what is so now."""
    threshold_s = session.settings().monitor.worker_health_threshold_s

    async def given(queue: Queue) -> Change:
        change = await order(queue)
        if wait_s is not None:
            await _followed(queue, change.after, target, wait_s, threshold_s)
        return change

    change = session.ask(given, runtime)
    if session.json:
        session.output.document(change.after)
        return
    for line in say(change, target):
        session.output.line(one_line(line))


async def _followed(
    queue: Queue, desired: Desired, target: Target, wait_s: float, threshold_s: float | None
) -> None:
    """Return when every worker concerned has done what is wanted. Raises TaskFailed if that takes too long."""
    pace, late = LOOK_AGAIN, list[WorkerInfo]()
    try:
        async with asyncio.timeout(wait_s):
            while late := await _late(queue, desired, target, threshold_s):
                pace = pace.after(found=False)
                await asyncio.sleep(pace.rest_s(queue.ambient.unit()))
    except TimeoutError:
        now = await queue.store.now()
        named = [f"{w.worker_id} ({w.state}, {_heard(w, now)})" for w in late[:NAMED_MAX]]
        more = [f"and {len(late) - NAMED_MAX} more"] if len(late) > NAMED_MAX else []
        raise TaskFailed(
            f"not all workers have followed after {format_duration(wait_s)}; the order stands. "
            f"Waiting for: {', '.join([*named, *more]) or 'an answer of the store'}"
        ) from None


async def _late(queue: Queue, desired: Desired, target: Target, threshold_s: float | None) -> list[WorkerInfo]:
    """The workers that have not done yet what is wanted of the target. Silent ones will never say so: they count
    only if they were named."""
    if target.worker is not None:
        named = await roster.find(queue.store, target.worker)
        return [] if named is None or _follows(named, desired, target) else [named]
    now = await queue.store.now()
    there = [w for w in await roster.workers(queue.store) if not w.stale(now, threshold_s)]
    return [worker for worker in there if not _follows(worker, desired, target)]


def _follows(worker: WorkerInfo, desired: Desired, target: Target) -> bool:
    wish = wanted(desired, worker.worker_id, worker.started_at)
    if target.worker is not None and wish.drain:
        return False  # It is still there.
    if worker.leaving:
        return True  # It claims nothing any more, and will not come back.
    if target.task_type is None:
        return (worker.state == roster.PAUSED) == wish.paused
    paused = target.task_type in worker.paused_types
    return target.task_type not in worker.task_types or paused == (target.task_type in wish.paused_types)


def _heard(worker: WorkerInfo, now: datetime) -> str:
    return f"last heard {format_duration((now - worker.last_heartbeat).total_seconds())} ago"


def _say_pause(change: Change, target: Target) -> list[str]:
    return [_state(change.after, target) + (" already" if change.after is change.before else "")]


def _say_drain(change: Change, target: Target) -> list[str]:
    return [_state(change.after, target)]


def _say_resumed(change: Change, target: Target) -> list[str]:
    return [_lifted(change.before, target), *(f"still: {line}" for line in described(change.after))]


def _say_resumed_all(change: Change, _: Target) -> list[str]:
    return [_lifted(change.before, target) for target in targets(change.before)] or ["nothing was paused"]


def _lifted(before: Desired, target: Target) -> str:
    if in_force(before, target) is None:
        return f"{target} was not paused"
    return f"{target} " + ("need not leave, unless it has begun to" if _leaves(before, target) else "goes on")


def _state(desired: Desired, target: Target) -> str:
    """What is wanted of the target now, and who wanted it."""
    order = in_force(desired, target)
    if order is None:
        return f"{target} is not paused"
    said = told(order)
    return f"{target} is {'to leave' if _leaves(desired, target) else 'paused'}" + (f" ({said})" if said else "")


def _leaves(desired: Desired, target: Target) -> bool:
    order = in_force(desired, target)
    return isinstance(order, WorkerOrder) and order.wanted is Order.DRAINED
