"""``qo up`` without its command line: check everything that can be checked, then run the site and tell of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from qo.api.redeploying import Confirm
from qo.config import sources
from qo.errors import QoError, Refused, UsageError
from qo.up import arrivals, report
from qo.up.lock import Lock
from qo.up.machine import Deployed, Site
from qo.up.report import Report
from qo.up.rollout import Rollout
from qo.up.targets import Pipeline, read_all, require_java
from qo.up.view import View
from qo.up.watch import Ran, Watch
from qo.worker.shutdown import stop_on_signals

T = TypeVar("T")

HOME = Path(".qo")
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    targets: Sequence[str]
    flags: Mapping[str, Any]
    config: Path | None
    once: bool
    keep: bool
    again: bool = False  # Also a version that was rolled back.
    confirm: Confirm | None = None  # Asks whether it should be; None: nobody can be asked.


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int  # What to exit with.
    document: Mapping[str, Any]  # All that was told, for programs.


def up(wanted: Wanted, view: View) -> Outcome:
    """Run until told to stop or, once, until all is done.

    Raises UsageError for a pipeline that cannot be read, ConfigError for settings that cannot work (no Java, a port
    that is taken), Refused if another one runs in this directory or the version was rolled back.
    """
    began = time.monotonic()
    settings = sources.load(wanted.flags, config_path=wanted.config)
    if not settings.location.is_shared:
        raise UsageError(
            "the store memory: lives inside one process, and an installation has several: use local:PATH"
        )
    pipelines, warnings = read_all(wanted.targets)
    for text in warnings:
        view.say(f"warning: {text}")
    require_java(pipelines, settings)
    with Lock(HOME / "up.lock"):
        return asyncio.run(_up(wanted, pipelines, view, began))


async def _up(wanted: Wanted, pipelines: Sequence[Pipeline], view: View, began: float) -> Outcome:
    stop = asyncio.Event()
    async with Site(wanted.flags, wanted.config, pipelines, HOME / "logs") as site:
        stop_on_signals(stop, again=site.kill)
        try:
            since, deployed = await _unless(stop, _start(site, pipelines, view, wanted))
        except Stopped:
            documents = [{"dag": each.name, "version": None} for each in pipelines]
            return Outcome(EXIT_INTERRUPTED if wanted.once else 0, _document(documents))
        for pipeline, each in zip(pipelines, deployed, strict=True):
            if each.answer["changed"] and each.rebuilt:
                site.start_workers(pipeline.runtimes)
        started_s = time.monotonic() - began
        rollouts = [Rollout(each, wanted.keep) for each in deployed]
        with view:
            ran = await Watch(site, rollouts, view, once=wanted.once).run(stop)
        ran.seconds = {"start": started_s, **ran.seconds}
        found = await site.read(lambda tx: [report.report(tx, each, since) for each in rollouts])
        return _told(found, ran, site, view)


async def _start(
    site: Site, pipelines: Sequence[Pipeline], view: View, wanted: Wanted
) -> tuple[datetime, list[Deployed]]:
    """Until all pipelines are deployed: what they were deployed as, and from when on it counts."""
    await site.start()
    view.say(f"the dispatcher is at {site.public}")
    since = await site.read(lambda tx: tx.now)
    deployed = [await site.deploy(each, again=wanted.again, confirm=wanted.confirm) for each in pipelines]
    await _tell_dashboard(site, view)
    for pipeline, each in zip(pipelines, deployed, strict=True):
        report.tell_deployed(each, view.say)
        for text in await arrivals.unreadable(pipeline.dag, site.settings):
            view.say(f"warning: {text}")
    return since, deployed


async def _tell_dashboard(site: Site, view: View) -> None:
    try:
        link = await site.dashboard()
        view.say("the dashboard is at")
        view.say(link)  # On a line of its own: it is long, and to be copied.
    except QoError as error:
        view.say(f"warning: there is no dashboard: {error}")  # Nothing else needs it.


class Stopped(Exception):
    """Who runs it wants it to end."""


async def _unless(stop: asyncio.Event, doing: Coroutine[Any, Any, T]) -> T:
    """Do it, or give it up once the event is set. Raises Stopped."""
    wanted, stopped = asyncio.create_task(doing), asyncio.create_task(stop.wait())
    await asyncio.wait({wanted, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if wanted.done():
        return wanted.result()
    wanted.cancel()
    await asyncio.wait({wanted})
    raise Stopped


def _told(found: Sequence[Report], ran: Ran, site: Site, view: View) -> Outcome:
    say = view.say
    for rollout in ran.rollouts:
        report.tell_staged(rollout, say)
    failed = [failure for each in found for failure in each.failures]
    if not any(each.timings for each in found):
        report.tell_rest(failed, say)
    for each in found:
        if len(found) > 1:
            say("")
            say(f"Pipeline {each.plan.dag.name}")
        report.tell(each, say)
    report.tell_phases(found, ran, say)
    say("")
    say(f"data {site.settings.dispatcher.data}, logs {site.logs}")
    if ran.seen is not None:
        report.tell_open(ran.seen, say)
    report.tell_failures(failed, say)
    report.tell_stuck(ran.stuck, say)
    refused = any(each.staged is not None and each.refusal is not None for each in ran.rollouts)
    code = (
        EXIT_FAILED
        if failed or ran.stuck
        else EXIT_INTERRUPTED
        if ran.interrupted
        else Refused.exit_code
        if refused
        else 0
    )
    documents = [report.document(each, rollout) for each, rollout in zip(found, ran.rollouts, strict=True)]
    opened = [] if ran.seen is None else report.open_document(ran.seen)
    stuck = [asdict(each) for each in ran.stuck]
    return Outcome(code, _document(documents, open=opened, unfinished=stuck, seconds=ran.seconds))


def _document(pipelines: Sequence[Mapping[str, Any]], **common: Any) -> dict[str, Any]:
    """One pipeline stands by itself, several in a list."""
    return {**pipelines[0], **common} if len(pipelines) == 1 else {"pipelines": list(pipelines), **common}
