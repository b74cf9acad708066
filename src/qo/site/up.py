"""``qo up`` without its command line: check everything that can be checked, then run the site and tell of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from qo.config import sources
from qo.config.location import Memory
from qo.config.settings import Settings
from qo.core.flow.dag import Dag
from qo.dispatcher import cutover
from qo.dispatcher.definition.loading import SUFFIXES, load_whole
from qo.dispatcher.redeploying import Confirm
from qo.dispatcher.state.database import Tx
from qo.errors import ConfigError, NotFound, QoError, UsageError
from qo.site import arrivals, report
from qo.site.lock import Lock
from qo.site.report import Report
from qo.site.site import Deployed, Pipeline, Ran, Site
from qo.site.view import View
from qo.worker.shutdown import stop_on_signals

T = TypeVar("T")

HOME = Path(".qo")
FILES = ("pipeline.yaml", "pipeline.yml", "pipeline.json")
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    target: Path
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
    if isinstance(settings.location, Memory):
        raise UsageError(
            "the store memory: lives inside one process, and an installation has several: use local:PATH"
        )
    pipeline, warnings = read(wanted.target)
    for text in warnings:
        view.say(f"warning: {text}")
    _require_java(pipeline.dag, settings)
    with Lock(HOME / "up.lock"):
        return asyncio.run(_up(wanted, pipeline, view, began))


def read(target: Path) -> tuple[Pipeline, tuple[str, ...]]:
    """The pipeline in a file or a directory, known by the code of its operators too; and what to warn of."""
    file = _file(target)
    whole = load_whole(str(file))
    return Pipeline(whole.dag, whole.source, file.parent.absolute()), whole.warnings


def _file(target: Path) -> Path:
    if target.is_dir():
        found = [target / name for name in FILES if (target / name).is_file()]
        if not found:
            raise NotFound(f"there is no {FILES[0]} in {target}: name the file")
        return found[0]
    if not target.is_file():
        raise NotFound(f"there is no pipeline {target}: name a file ({', '.join(SUFFIXES)}) or its directory")
    return target


def _require_java(dag: Dag, settings: Settings) -> None:
    """Better now than in the log of a worker. Raises ConfigError."""
    elsewhere = settings.spark.remote not in (None, "local")  # A local server is started here, and needs it too.
    if elsewhere or not any(job.runtime == "spark" for job in dag.jobs):
        return
    try:
        from qo.spark.java import find
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"a pipeline on Spark needs {missing.name}: install qo with its extra, from a checkout, "
            "pip install '.[dispatcher,spark]'"
        ) from None
    find(settings.spark, os.environ)


async def _up(wanted: Wanted, pipeline: Pipeline, view: View, began: float) -> Outcome:
    stop = asyncio.Event()
    async with Site(wanted.flags, wanted.config, pipeline, HOME / "logs") as site:
        stop_on_signals(stop, again=site.kill)
        try:
            since, deployed = await _unless(stop, _start(site, view, wanted))
        except Stopped:
            return Outcome(EXIT_INTERRUPTED if wanted.once else 0, {"dag": pipeline.dag.name, "version": None})
        site.work(at_once=bool(deployed.answer["changed"]) and bool(deployed.rebuilt))
        started_s = time.monotonic() - began
        with view:
            ran = await site.run(deployed, once=wanted.once, keep=wanted.keep, stop=stop, look=view.look)
        ran.seconds = {"start": started_s, **ran.seconds}
        found = await site.read(
            lambda tx: report.report(
                tx, pipeline.dag.name, deployed.version, _serving(tx, pipeline.dag.name), since
            )
        )
        return _told(found, ran, site, view)


async def _start(site: Site, view: View, wanted: Wanted) -> tuple[datetime, Deployed]:
    """Until the pipeline is deployed: what it was deployed as, and from when on it counts."""
    await site.start()
    view.say(f"the dispatcher is at {site.public}")
    since = await site.read(lambda tx: tx.now)
    deployed = await site.deploy(again=wanted.again, confirm=wanted.confirm)
    await _tell_dashboard(site, view)
    report.tell_deployed(deployed, view.say)
    for text in await arrivals.unreadable(site.pipeline.dag, site.settings):
        view.say(f"warning: {text}")
    return since, deployed


async def _tell_dashboard(site: Site, view: View) -> None:
    try:
        view.say(f"the dashboard is at {await site.dashboard()}")
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


def _serving(tx: Tx, dag: str) -> int:
    active = cutover.active(tx, dag)
    assert active is not None  # The first version of a pipeline is active at once.
    return int(active["number"])


def _told(found: Report, ran: Ran, site: Site, view: View) -> Outcome:
    say = view.say
    report.tell_cutover(ran, say)
    if not found.timings:
        report.tell_rest(found.failures, say)
    report.tell(found, ran, say)
    say("")
    say(f"data {site.settings.dispatcher.data}, logs {site.logs}")
    report.tell_failures(found.failures, say)
    code = EXIT_FAILED if found.failures else EXIT_INTERRUPTED if ran.interrupted else 0
    return Outcome(code, report.document(found, ran))
