"""qo worker run, list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import (
    Session,
    command,
    default_to,
    new_app,
    refuse_memory,
    setting_option,
    start_logging,
)
from qo.cli.pipelines.dispatcher_client import require_extra
from qo.cli.run.worker_list import list_workers
from qo.config.settings import Settings
from qo.core.words import plural
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.queue.queue import Queue
    from qo.worker.observe.stats import Stats

_HELP = "Run a worker, or list the workers."


app = new_app()
worker = new_app(help=_HELP, cls=default_to("run"))


@worker.callback(help=f"{_HELP}\n\n`qo worker OPTIONS` is short for `qo worker run OPTIONS`; see its --help.")
def _accept_options() -> None:
    pass


app.add_typer(worker, name="worker")
command(worker, "list")(list_workers)


@command(worker, "run", settings="worker")
def run(
    session: Session,
    flags: dict[str, Any],
    target: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="The handlers: a module and the qo.App in it."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime", metavar="NAME", help="Run the pipeline tasks of this runtime, instead of an app's tasks."
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when no task is ready any more.")] = False,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
    report: Annotated[int | None, typer.Option(hidden=True)] = None,
    dispatch: Annotated[str | None, setting_option("queue.dispatch")] = None,
    routing: Annotated[str | None, setting_option("queue.routing")] = None,
) -> None:
    """Run a worker, or several: claim tasks and run their handlers.

    Runs until SIGTERM, SIGINT or SIGHUP: the first signal lets running tasks finish, the second stops them and gives
    them back to the queue, the third ends the process at once.
    """
    from qo.worker.observe.stats import completed_of, failed_of, plain_counts

    if (target is None) == (runtime is None):
        raise UsageError("give either --app MODULE:APP for tasks, or --runtime NAME for pipelines")
    flags |= {"queue.dispatch": dispatch, "queue.routing": routing}
    settings = session.settings(flags)
    if drain and settings.worker.shard_leasing.enabled:
        raise UsageError(
            "--drain does not work with shard leasing, since the worker has to look at all shards: leave out --drain, "
            "or switch leasing off with QO_SHARD_LEASING=false"
        )
    if lifeline is not None:
        from qo.worker.lifeline import end_with_parent

        end_with_parent(lifeline)
    if settings.worker.workers > 1:
        counts = _run_processes(session, flags, settings, target=target, runtime=runtime, drain=drain)
    elif target is not None and settings.worker.queue:
        counts = _run_queues(settings, target, drain)
    elif target is not None:
        counts = plain_counts(_run_app(session, settings, target, drain))
    else:
        counts = _run_runtime(settings, runtime, drain)
    completed, failed = completed_of(counts), failed_of(counts)
    if report is not None:
        _report_counts(report, counts)
    elif session.json:
        session.output.document({"completed": completed, "failed": failed, **counts})
    else:
        session.output.line(
            f"completed {completed}, failed attempts {failed}, given back {counts['released']}; "
            f"{plural(counts['requests'], 'request')}, ${counts['dollars']:.4f} on S3"
        )


def _run_processes(
    session: Session,
    flags: dict[str, Any],
    settings: Settings,
    *,
    target: str | None,
    runtime: str | None,
    drain: bool,
) -> dict[str, Any]:
    import asyncio

    from qo.cli.run.worker_processes import list_commands, run_processes

    refuse_memory(settings)
    start_logging(settings.log_level)
    options = {"--config": session.config_path, "--app": target, "--runtime": runtime}
    arguments = [text for flag, value in options.items() if value is not None for text in (flag, str(value))]
    command_line = ["worker", "run", *arguments, *(["--drain"] if drain else [])]
    return asyncio.run(run_processes(list_commands(command_line, {**session.flags, **flags}, settings)))


def _report_counts(report: int, counts: dict[str, Any]) -> None:
    """Hand the counters to the process that runs several workers."""
    import json
    import os

    with os.fdopen(report, "w") as channel:
        json.dump(counts, channel)


def _run_queues(settings: Settings, target: str, drain: bool) -> dict[str, Any]:
    import asyncio

    from qo.worker.api.app import load_app
    from qo.worker.queue_group import run_queues

    refuse_memory(settings)
    start_logging(settings.log_level)
    return asyncio.run(run_queues(load_app(target), settings, stop_when_empty=drain, kills=True))


def _run_app(session: Session, settings: Settings, target: str, drain: bool) -> Stats:
    from qo.worker.api.app import load_app
    from qo.worker.service import run_worker

    handlers = load_app(target)

    async def work(queue: Queue) -> Stats:
        return await run_worker(queue, handlers, settings, stop_when_empty=drain, kills=True)

    return session.run(settings, work)


def _run_runtime(settings: Settings, runtime: str | None, drain: bool) -> dict[str, Any]:
    import asyncio

    refuse_memory(settings)
    start_logging(settings.log_level)
    with require_extra():
        from qo.agent.service import PLAIN, run_runtime
        from qo.spark import SPARK
    executors = {**PLAIN, **SPARK}
    return asyncio.run(run_runtime(settings, runtime or "", executors, stop_when_empty=drain, kills=True))
