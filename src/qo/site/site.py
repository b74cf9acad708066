"""A whole installation on one machine, for one pipeline: start it, deploy, wait, cut over, end it.

with Site(...):  dispatcher -> deploy -> scheduler and workers -> (rebuilt) activate -> until quiet, or told to stop
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qo.config import sources
from qo.config.settings import DEFAULT, Settings
from qo.core.flow.dag import Dag, SourceKind
from qo.core.flow.topology import VersionStatus
from qo.core.task import Status
from qo.core.words import plural
from qo.dispatcher import sources as live_sources
from qo.dispatcher.auth.secret_files import read_secret
from qo.dispatcher.redeploying import Confirm, confirm_again
from qo.dispatcher.registry import DEFAULT as REGISTRY
from qo.dispatcher.registry import Launcher
from qo.dispatcher.state.database import State, Tx, open_state
from qo.dispatcher.user_client import UserClient
from qo.errors import Refused
from qo.site.arrivals import announced
from qo.site.part import DASHBOARD, WORKER
from qo.site.processes import Child, Lifeline, rest
from qo.site.survey import Survey, survey

LOOK_S = 0.5
START_S = 60.0  # For the dispatcher to answer.
DASHBOARD_S = 10.0  # For the dashboard to say where it is; without it, all else goes on.
SETTLE_S = 3.0  # An always-on source that has been silent for so long is taken to have said what it knows.
TAKE_OVERS_MAX = 3  # Refused so often in a row although it is built, it is refused for another reason.
FREE_PORT = "127.0.0.1:0"

# What suits the processes of one machine; the defaults have requests to a bucket in mind. Each can be set.
HERE: Mapping[str, Any] = {
    "dispatcher.listen": FREE_PORT,
    "dispatcher.internal_listen": FREE_PORT,
    "worker.poll_min_ms": "20",
    "worker.poll_max_ms": "50",
    "worker.shutdown_grace_s": "2",
    "worker.cancel_grace_s": "5",
}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What to run: the DAG, the text to deploy, and where its operators are."""

    dag: Dag
    source: str
    directory: Path


@dataclass(frozen=True, slots=True)
class Deployed:
    version: int
    status: str
    answer: Mapping[str, Any]

    @property
    def rebuilt(self) -> list[str]:
        return [each["job"] for each in self.answer["diff"]["rebuilt"]]


@dataclass(frozen=True, slots=True)
class Staged:
    """How far a version is that is built beside the one that serves. What it has taken over from that one, and what
    failed there, is no part of it."""

    built: bool = False  # Nothing of it is open any more; some of it may have failed.
    failed: int = 0
    waiting: int = 0  # Tasks that run only once it serves, or once what failed is done.
    waits: tuple[str, ...] = ()  # Which jobs wait for others, and for which, in words.


@dataclass(slots=True)
class Ran:
    """What became of it."""

    deployed: Deployed
    activated: Mapping[str, Any] | None = None
    staged: Staged | None = None  # Of a version that does not serve yet.
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    interrupted: bool = False


Look = Callable[[Survey, Sequence[str]], None]


class Site:
    """The processes and the state of an installation. Use it as a context: all processes end with it."""

    def __init__(self, flags: Mapping[str, Any], config: Path | None, pipeline: Pipeline, logs: Path) -> None:
        given = sources.load(flags, config_path=config)
        chosen = {key: value for key, value in HERE.items() if given.origin(key) == DEFAULT}
        self._flags: dict[str, Any] = {**chosen, **{k: v for k, v in flags.items() if v is not None}}
        self._config = config
        self.settings: Settings = sources.load(self._flags, config_path=config)
        self.pipeline = pipeline
        self.logs = logs
        self.public = ""
        self._lifeline = Lifeline()
        self._children: list[Child] = []
        self._waiting: dict[str, Child] = {}  # Workers by runtime, that have had nothing to do yet.
        self._dashboard: Child | None = None
        self._state: State | None = None

    async def __aenter__(self) -> Self:
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first, rest = self._children[:1], self._children[1:]
        # The dispatcher last: the others have something to tell it.
        await asyncio.gather(*(each.stop() for each in rest))
        await asyncio.gather(*(each.stop() for each in first))
        if self._state is not None:
            self._state.close()
        self._lifeline.close()

    def kill(self) -> None:
        """End all processes at once: what they had under way is as after any crash."""
        for each in self._children:
            each.kill()

    async def start(self) -> None:
        """The dispatcher, until it answers. Raises its own error if it cannot, as for a port that is taken."""
        dispatcher = self._child("dispatcher")
        dispatcher.start()
        addresses = await dispatcher.first_words(START_S)
        self.public, internal = addresses["public"], addresses["internal"]
        # Should it die, its successor is found where it was; and from here on, all know where that is.
        self._flags |= {
            "dispatcher.listen": self.public.removeprefix("http://"),
            "dispatcher.internal_listen": internal.removeprefix("http://"),
            "dispatcher.internal_url": internal,
        }
        for child in self._children:
            child.options = self._options()
        self._state = open_state(self.settings.dispatcher.state)
        self._dashboard = self._child(DASHBOARD)
        self._dashboard.options["flags"] = {**self._flags, "dispatcher.url": self.public}
        self._dashboard.start()

    async def dashboard(self) -> str:
        """Where the dashboard is; whoever has the link may use it. Raises the error of one that does not start."""
        assert self._dashboard is not None
        return str((await self._dashboard.first_words(DASHBOARD_S))["link"])

    async def deploy(self, *, again: bool = False, confirm: Confirm | None = None) -> Deployed:
        """``again``: also a version that was rolled back; else ``confirm`` asks, or Refused is raised."""
        dag = self.pipeline.dag.name
        async with self._client() as client:
            body = {"source": self.pipeline.source, "again": again}
            if confirm is not None and not again:
                body["again"] = await confirm_again(client, dag, body, confirm)
            answer = await client.post(f"/v1/dags/{dag}/versions", body)
        return Deployed(answer["version"], answer["status"], answer)

    def work(self, *, at_once: bool) -> None:
        """Start whatever feeds and runs the pipeline. ``at_once``: also workers for which nothing waits yet."""
        jobs = self.pipeline.dag.jobs
        kinds = {job.source.kind for job in jobs if job.source is not None}
        if kinds & {SourceKind.FILES, SourceKind.CRON}:
            self._child("scheduler").start()
        runtimes = sorted({job.runtime for job in jobs if REGISTRY.get(job.runtime).launcher is Launcher.QUEUE})
        self._waiting = {runtime: self._child(f"{WORKER}{runtime}") for runtime in runtimes}
        always = {
            job.runtime for job in jobs if job.source is not None and job.source.kind is SourceKind.ALWAYS_ON
        }
        for runtime in runtimes:
            if at_once or runtime in always:
                self._waiting.pop(runtime).start()

    async def run(self, deployed: Deployed, *, once: bool, keep: bool, stop: asyncio.Event, look: Look) -> Ran:
        """Look on until told to stop or, once, until nothing is left to do; cut over as soon as that is possible."""
        ran = Ran(deployed)
        staged = Staged() if deployed.status != VersionStatus.ACTIVE else None
        began, quiet = time.monotonic(), 0
        while not stop.is_set():
            seen = await self.read(lambda tx: survey(tx, self._dag, deployed.version, settle_s=SETTLE_S))
            self._wake(seen)
            look(seen, [*self.troubles(), *(staged.waits if staged is not None else ())])
            if staged is not None:
                staged = await self._staged(deployed.version)
                if staged.built and not staged.failed and not keep:
                    ran.activated = await self._activate(deployed)
                    if ran.activated is not None:
                        ran.seconds["rebuild"] = time.monotonic() - began
                        staged = None
            done = seen.quiet() if staged is None else staged.built and seen.quiet(staged.waiting)
            quiet = quiet + 1 if done else 0
            # What is announced after a look is not in it: only looks from here on count.
            if once and quiet == 1 and not await self._all_announced():
                quiet = 0
            # Twice in a row: between an event and what it starts, there is a moment in which neither is to be seen.
            if once and quiet == 3:
                break
            await rest(stop, LOOK_S)
        ran.interrupted = once and stop.is_set()
        ran.staged = staged
        ran.seconds["work"] = time.monotonic() - began
        return ran

    def troubles(self) -> list[str]:
        """What has gone wrong with processes, in words. Raises the error of one that cannot work at all."""
        for each in self._children:
            each.check()
        return [
            f"{each.role} died {plural(each.deaths, 'time')}, see {each.log_path}{_again(each)}"
            for each in self._children
            if each.deaths
        ]

    async def read(self, question: Callable[[Tx], Any]) -> Any:
        """Ask the state something."""

        def asked() -> Any:
            assert self._state is not None
            with self._state.read() as tx:
                return question(tx)

        return await asyncio.to_thread(asked)

    @property
    def _dag(self) -> str:
        return self.pipeline.dag.name

    def _wake(self, seen: Survey) -> None:
        for job in seen.jobs:
            if job.open and job.runtime in self._waiting:
                self._waiting.pop(job.runtime).start()

    async def _staged(self, version: int) -> Staged:
        async with self._client() as client:
            found = await client.get(f"/v1/dags/{self._dag}/rebuild", version=version)
        return Staged(
            found["caught_up"] or found["stuck"],
            found["tasks"].get(Status.FAILED, 0),
            found["waiting"] + found["blocked"],
            tuple(f"version {version}: {each['job']} {each['reason']}" for each in found["waits"]),
        )

    async def _activate(self, deployed: Deployed) -> Mapping[str, Any] | None:
        """None: something new came up since it was seen that the version is built. It is built first."""
        path = f"/v1/dags/{self._dag}"
        for attempt in range(TAKE_OVERS_MAX):
            try:
                async with self._client() as client:
                    if deployed.status == VersionStatus.STAGED:
                        await client.post(f"{path}/versions/{deployed.version}/ready")
                    return await client.put(f"{path}/active", {"version": deployed.version})
            except Refused:
                now = await self._staged(deployed.version)
                if now.built and not now.failed and attempt == TAKE_OVERS_MAX - 1:
                    raise
                if not now.built or now.failed:
                    return None
        return None

    async def _all_announced(self) -> bool:
        found = await self.read(lambda tx: live_sources.list_sources(tx, kind=SourceKind.FILES))
        mine = [each for each in found.sources if each.dag == self._dag]
        return all([await announced(each, self.settings) for each in mine])

    def _client(self) -> UserClient:
        chosen = self.settings.dispatcher
        # Its own: a token in the settings may be meant for another dispatcher.
        token = read_secret(Path(chosen.secrets_dir, "admin.token")).decode().strip()
        return UserClient(self.public, token, patience_s=30.0)

    def _child(self, role: str) -> Child:
        paths = [str(self.pipeline.directory), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        made = Child(role, self._options(), lifeline=self._lifeline, environ=environ, logs=self.logs)
        self._children.append(made)
        return made

    def _options(self) -> dict[str, Any]:
        return {"flags": self._flags, "config": None if self._config is None else str(self._config)}


def _again(child: Child) -> str:
    """A dashboard that was started again has another key, and so another link."""
    return f"; it is at {child.said['link']} now" if "link" in child.said else ""
