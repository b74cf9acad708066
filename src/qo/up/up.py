"""``qo up`` without its command line: check what can be checked, run the installation, and print a report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from qo.api.redeploying import Confirm
from qo.config import origins
from qo.errors import QoError, Refused, UsageError
from qo.pipeline.registry import configured_registry
from qo.up import file_sources, report
from qo.up.installation import DeployedVersion, Installation
from qo.up.lock import LOCK_PATH, Lock
from qo.up.redeployment import Redeployment
from qo.up.report import Report
from qo.up.rollout import Rollout
from qo.up.targets import Pipeline, read_all, require_java
from qo.up.view import View
from qo.up.watch import Watch, WatchResult
from qo.worker.shutdown import stop_on_signals

T = TypeVar("T")

HOME = LOCK_PATH.parent
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class UpRequest:
    """The arguments of ``qo up``."""

    targets: Sequence[str]
    flags: Mapping[str, Any]
    config: Path | None
    once: bool
    keep: bool
    again: bool = False  # Deploy even a version that was rolled back.
    watch: bool = True  # Deploy what is saved; not with ``once``.
    confirm: Confirm | None = None  # Asks the user about that; None if nobody can be asked.


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int  # The exit code.
    document: Mapping[str, Any]  # The report for programs.


def up(request: UpRequest, view: View) -> Outcome:
    """Run until a signal or, with ``once``, until nothing is left to do.

    Raises UsageError for a pipeline that cannot be read, ConfigError for settings that cannot work (no Java, a port
    in use), Refused if ``qo up`` runs in this directory already or the version was rolled back.
    """
    began = time.monotonic()
    settings = origins.load(request.flags, config_path=request.config)
    if not settings.location.is_shared:
        raise UsageError("the store memory: lives inside one process, and qo up starts several: use local:PATH")
    pipelines, warnings = read_all(request.targets, configured_registry(settings.runtimes))
    for text in warnings:
        view.print_line(f"warning: {text}")
    require_java(pipelines, settings)
    with Lock(LOCK_PATH) as lock:
        return asyncio.run(_up(request, pipelines, view, lock, began, warnings))


async def _up(
    request: UpRequest,
    pipelines: Sequence[Pipeline],
    view: View,
    lock: Lock,
    began: float,
    warnings: Sequence[str],
) -> Outcome:
    stop = asyncio.Event()
    async with Installation(request.flags, request.config, pipelines, HOME / "logs") as installation:
        stop_on_signals(stop, again=installation.kill)
        try:
            since, deployed = await _run_unless_stopped(stop, _start(installation, pipelines, view, lock, request))
        except Stopped:
            documents = [{"dag": each.name, "version": None} for each in pipelines]
            return Outcome(EXIT_INTERRUPTED if request.once else 0, _document(documents))
        for pipeline, each in zip(pipelines, deployed, strict=True):
            if each.answer["changed"] and each.rebuilt:
                installation.start_workers(pipeline.runtimes)
        started_s = time.monotonic() - began
        rollouts = [Rollout(each, request.keep) for each in deployed]
        with view:
            redeployment = _redeployment(request, pipelines, warnings)
            watch = Watch(installation, rollouts, view, once=request.once, redeployment=redeployment)
            result = await watch.run(stop)
        result.seconds = {"start": started_s, **result.seconds}
        reports = await installation.read(lambda tx: [report.report(tx, each, since) for each in rollouts])
        return _print_report(reports, result, installation, view)


async def _start(
    installation: Installation, pipelines: Sequence[Pipeline], view: View, lock: Lock, request: UpRequest
) -> tuple[datetime, list[DeployedVersion]]:
    """Start the dispatcher and deploy all pipelines; return the time before that, and the deployed versions."""
    await installation.start()
    lock.publish_address(installation.public)
    view.print_line(f"the dispatcher is at {installation.public}")
    since = await installation.read(lambda tx: tx.now)
    deployed = [
        await installation.deploy(each, again=request.again, confirm=request.confirm) for each in pipelines
    ]
    await _print_dashboard(installation, view)
    for pipeline, each in zip(pipelines, deployed, strict=True):
        report.print_deployed(each, view.print_line)
        for text in await file_sources.describe_unreadable(pipeline.dag, installation.settings):
            view.print_line(f"warning: {text}")
    return since, deployed


def _redeployment(
    request: UpRequest, pipelines: Sequence[Pipeline], warnings: Sequence[str]
) -> Redeployment | None:
    if request.once or not request.watch:
        return None
    registry = pipelines[0].registry
    return Redeployment(request.targets, pipelines, registry, warnings=warnings, keep=request.keep)


async def _print_dashboard(installation: Installation, view: View) -> None:
    try:
        link = await installation.dashboard_link()
        view.print_line("the dashboard is at")
        view.print_line(link)  # On a line of its own, to be copied.
    except QoError as error:
        view.print_line(f"warning: the dashboard is not available: {error}")  # Nothing else needs it.


class Stopped(Exception):
    """A signal arrived before all pipelines were deployed."""


async def _run_unless_stopped(stop: asyncio.Event, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine; cancel it and raise Stopped when the event is set."""
    work, stopping = asyncio.create_task(coroutine), asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if work.done():
        return work.result()
    work.cancel()
    await asyncio.wait({work})
    raise Stopped


def _print_report(
    reports: Sequence[Report], result: WatchResult, installation: Installation, view: View
) -> Outcome:
    print_line = view.print_line
    for rollout in result.rollouts:
        report.print_staged(rollout, print_line)
    failed = [failure for each in reports for failure in each.failures]
    if not any(each.timings for each in reports):
        report.print_nothing_done(failed, print_line)
    for each in reports:
        if len(reports) > 1:
            print_line("")
            print_line(f"Pipeline {each.plan.dag.name}")
        report.print_tables(each, print_line)
    report.print_phases(reports, result, print_line)
    print_line("")
    print_line(f"data {installation.settings.dispatcher.data}, logs {installation.logs}")
    if result.last_survey is not None:
        report.print_open(result.last_survey, print_line)
    report.print_sinks(result.sinks, print_line)
    for each in reports:
        report.print_waiting(each.waiting, print_line)
    report.print_failures(failed, print_line)
    report.print_stuck(result.stuck, print_line)
    refused = any(each.staged is not None and each.refusal is not None for each in result.rollouts)
    code = (
        EXIT_FAILED
        if failed or result.stuck or report.find_behind(result.sinks)
        else EXIT_INTERRUPTED
        if result.interrupted
        else Refused.exit_code
        if refused
        else 0
    )
    documents = [report.document(each, rollout) for each, rollout in zip(reports, result.rollouts, strict=True)]
    open_tasks = [] if result.last_survey is None else report.open_document(result.last_survey)
    stuck = [asdict(each) for each in result.stuck]
    common: dict[str, Any] = {"open": open_tasks, "unfinished": stuck, "seconds": result.seconds}
    if result.sinks:
        common["sinks"] = [each.model_dump(mode="json") for each in result.sinks]
    return Outcome(code, _document(documents, **common))


def _document(pipelines: Sequence[Mapping[str, Any]], **common: Any) -> dict[str, Any]:
    """Return the report: the fields of a single pipeline at the top, several pipelines in a list."""
    return {**pipelines[0], **common} if len(pipelines) == 1 else {"pipelines": list(pipelines), **common}
