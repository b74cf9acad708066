"""A whole installation on one machine: its processes, its state, and what is deployed to it.

with Site(...):  start (the dispatcher) -> deploy -> serve (scheduler and workers, as they are needed)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from qo.api.delivery import deploy_version
from qo.api.public_client import UserClient
from qo.api.redeploying import Confirm, confirm_again
from qo.config import sources
from qo.config.settings import DEFAULT, Settings
from qo.core.words import plural
from qo.dispatcher.state.database import State, Tx, open_state
from qo.errors import ConfigError
from qo.pipeline.registry import DEFAULT as REGISTRY
from qo.pipeline.registry import Launcher
from qo.pipeline.sources import SOURCES
from qo.store import private
from qo.store.secret_files import read_secret
from qo.up.part import DASHBOARD, SPARK_UI, WORKER
from qo.up.processes import Child, Lifeline
from qo.up.progress import Survey
from qo.up.targets import Pipeline, import_path

START_S = 60.0  # For the dispatcher to answer.
DASHBOARD_S = 10.0  # For the dashboard to say where it is; without it, all else goes on.
FREE_PORT = "127.0.0.1:0"
DISPATCHER, SCHEDULER = "dispatcher", "scheduler"

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
class Deployed:
    version: int
    status: str
    answer: Mapping[str, Any]

    @property
    def dag(self) -> str:
        return self.answer["dag"]

    @property
    def rebuilt(self) -> list[str]:
        return [each["job"] for each in self.answer["diff"]["rebuilt"]]


class Site:
    """The processes and the state of an installation. Use it as a context: all processes end with it."""

    def __init__(
        self, flags: Mapping[str, Any], config: Path | None, pipelines: Sequence[Pipeline], logs: Path
    ) -> None:
        given = sources.load(flags, config_path=config)
        chosen = {key: value for key, value in HERE.items() if given.origin(key) == DEFAULT}
        self._flags: dict[str, Any] = {**chosen, **{k: v for k, v in flags.items() if v is not None}}
        self._config = config
        self.settings: Settings = sources.load(self._flags, config_path=config)
        self._pipelines = pipelines
        # Without these, what we are to run cannot run; others' pipelines may need more.
        self._required = {
            DISPATCHER,
            SCHEDULER,
            *(f"{WORKER}{name}" for each in pipelines for name in each.runtimes),
        }
        self.logs = logs
        self.public = ""
        self._lifeline = Lifeline()
        self._children: dict[str, Child] = {}  # By role; the dispatcher comes first.
        self._dashboard: Child | None = None
        self._state: State | None = None

    async def __aenter__(self) -> Self:
        private.make_directory(self.logs)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        children = list(self._children.values())
        first, rest = children[:1], children[1:]
        # The dispatcher last: the others have something to tell it.
        await asyncio.gather(*(each.stop() for each in rest))
        await asyncio.gather(*(each.stop() for each in first))
        if self._state is not None:
            self._state.close()
        self._lifeline.close()

    def kill(self) -> None:
        """End all processes at once: what they had under way is as after any crash."""
        for each in self._children.values():
            each.kill()

    async def start(self) -> None:
        """The dispatcher, until it answers. Raises its own error if it cannot, as for a port that is taken."""
        dispatcher = self._child(DISPATCHER)
        dispatcher.start()
        addresses = await dispatcher.first_words(START_S)
        self.public, internal = addresses["public"], addresses["internal"]
        # Should it die, its successor is found where it was; and from here on, all know where that is.
        self._flags |= {
            "dispatcher.listen": self.public.removeprefix("http://"),
            "dispatcher.internal_listen": internal.removeprefix("http://"),
            "dispatcher.internal_url": internal,
        }
        for child in self._children.values():
            child.options = self._options()
        self._state = open_state(self.settings.dispatcher.state, durable=self.settings.dispatcher.state_durable)
        self._dashboard = self._child(DASHBOARD)
        self._dashboard.options["flags"] = {**self._flags, "dispatcher.url": self.public}
        self._dashboard.start()

    async def dashboard(self) -> str:
        """Where the dashboard is; whoever has the link may use it. Raises the error of one that does not start."""
        assert self._dashboard is not None
        return str((await self._dashboard.first_words(DASHBOARD_S))["link"])

    async def deploy(self, pipeline: Pipeline, *, again: bool = False, confirm: Confirm | None = None) -> Deployed:
        """``again``: also a version that was rolled back; else ``confirm`` asks, or Refused is raised."""
        dag, source = pipeline.dag.name, pipeline.source
        async with self.client() as client:
            if confirm is not None and not again:
                again = await confirm_again(client, dag, {"source": source}, confirm)
            answer = await deploy_version(client, dag, source, pipeline.bundle, again=again)
        return Deployed(answer["version"], answer["status"], answer)

    def start_workers(self, runtimes: Iterable[str]) -> None:
        """Those that are not there yet, at once: what they need to begin with takes its time."""
        for runtime in runtimes:
            self._ensure(f"{WORKER}{runtime}")

    def serve(self, seen: Survey) -> list[str]:
        """Start what the live pipelines need and is not there yet, whoever deployed them: a worker for each runtime
        that tasks wait for, and a scheduler. In words, what was started for pipelines other than ours."""
        started: list[str] = []
        for version in seen.versions:
            for job in version.jobs:
                role = None
                if job.source is not None and SOURCES[job.source].poller is not None:
                    role = SCHEDULER
                elif REGISTRY.get(job.runtime).launcher is Launcher.QUEUE and (
                    job.always_on or (job.open and not job.paused)
                ):
                    role = f"{WORKER}{job.runtime}"
                if role is not None and self._ensure(role) and role not in self._required:
                    started.append(f"{role} is started, for {version.dag}")
        return started

    def troubles(self) -> list[str]:
        """What has gone wrong with processes, in words. Raises the error of one of ours that cannot work at all."""
        found: list[str] = []
        for each in self._children.values():
            try:
                each.check()
            except ConfigError as error:
                if each.role in self._required:
                    raise
                found.append(f"{each.role} cannot work: {error}")
            if each.deaths:
                found.append(f"{each.role} died {plural(each.deaths, 'time')}, see {each.log_path}{_again(each)}")
        return found

    def spark_ui(self) -> str | None:
        """Where Spark's own interface is, if it is served."""
        worker = self._children.get(f"{WORKER}spark")
        return None if worker is None else worker.said.get(SPARK_UI)

    async def read(self, question: Callable[[Tx], Any]) -> Any:
        """Ask the state something."""

        def asked() -> Any:
            assert self._state is not None
            with self._state.read() as tx:
                return question(tx)

        return await asyncio.to_thread(asked)

    def client(self) -> UserClient:
        chosen = self.settings.dispatcher
        # Its own: a token in the settings may be meant for another dispatcher.
        token = read_secret(Path(chosen.secrets_dir, "admin.token")).decode().strip()
        return UserClient(self.public, token, patience_s=30.0)

    def _ensure(self, role: str) -> bool:
        """Start it, unless it was. Whether it was started now."""
        if role in self._children:
            return False
        self._child(role).start()
        return True

    def _child(self, role: str) -> Child:
        paths = [*map(str, import_path(self._pipelines)), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        made = Child(role, self._options(), lifeline=self._lifeline, environ=environ, logs=self.logs)
        self._children[role] = made
        return made

    def _options(self) -> dict[str, Any]:
        return {"flags": self._flags, "config": None if self._config is None else str(self._config)}


def _again(child: Child) -> str:
    """A dashboard that was started again has another key, and so another link."""
    return f"; it is at {child.said['link']} now" if "link" in child.said else ""
