"""An installation on one machine: its processes, its state, and the pipelines that are deployed to it.

async with Installation(...):  start (the dispatcher) -> deploy -> serve (scheduler and workers, as they are needed)
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
from qo.config import origins
from qo.config.settings import DEFAULT, Settings
from qo.core.words import plural
from qo.dispatcher.state.database import State, Tx, open_state
from qo.dispatcher.state.topology import use_registry
from qo.errors import ConfigError
from qo.pipeline.registry import SPARK, Launcher, configured_registry
from qo.pipeline.sources import SOURCES
from qo.store import private
from qo.store.secret_files import read_secret
from qo.up.child_main import DASHBOARD, SINK, SPARK_UI, WORKER
from qo.up.pipeline_progress import Survey
from qo.up.process_group import ChildProcess
from qo.up.targets import Pipeline, import_path
from qo.worker.lifeline import Lifeline

START_S = 60.0  # How long the dispatcher may take to answer.
DASHBOARD_S = 10.0  # How long the dashboard may take to start; without it, everything else goes on.
FREE_PORT = "127.0.0.1:0"
DISPATCHER, SCHEDULER = "dispatcher", "scheduler"

# Defaults for processes on one machine; the general ones are chosen for a bucket. Each can be set.
LOCAL_DEFAULTS: Mapping[str, Any] = {
    "dispatcher.listen": FREE_PORT,
    "dispatcher.internal_listen": FREE_PORT,
    "worker.idle_timeout": "jobs",  # A worker is started again when there is work for it.
    "worker.poll_min_ms": "20",
    "worker.poll_max_ms": "50",
    "worker.shutdown_grace_s": "2",
    "worker.cancel_grace_s": "5",
}


@dataclass(frozen=True, slots=True)
class DeployedVersion:
    version: int
    status: str
    answer: Mapping[str, Any]

    @property
    def dag(self) -> str:
        return self.answer["dag"]

    @property
    def rebuilt(self) -> list[str]:
        return [each["job"] for each in self.answer["diff"]["rebuilt"]]


class Installation:
    """The processes and the state of an installation. A context manager: all processes end with it."""

    def __init__(
        self, flags: Mapping[str, Any], config: Path | None, pipelines: Sequence[Pipeline], logs: Path
    ) -> None:
        configured = origins.load(flags, config_path=config)
        defaults = {key: value for key, value in LOCAL_DEFAULTS.items() if configured.origin(key) == DEFAULT}
        self._flags: dict[str, Any] = {**defaults, **{k: v for k, v in flags.items() if v is not None}}
        self._config = config
        self.settings: Settings = origins.load(self._flags, config_path=config)
        self._registry = configured_registry(self.settings.runtimes)
        self._pipelines = pipelines
        # The pipelines of this ``qo up`` need these; pipelines that others deploy may need more.
        self._required = {
            DISPATCHER,
            SCHEDULER,
            SINK,
            *(f"{WORKER}{name}" for each in pipelines for name in each.runtimes),
        }
        self.logs = logs
        self.public = ""
        self._lifeline = Lifeline()
        self._children: dict[str, ChildProcess] = {}  # By role; the dispatcher comes first.
        self._dashboard: ChildProcess | None = None
        self._state: State | None = None

    async def __aenter__(self) -> Self:
        private.make_directory(self.logs)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        children = list(self._children.values())
        first, rest = children[:1], children[1:]
        # The dispatcher last: the others still report to it.
        await asyncio.gather(*(each.stop() for each in rest))
        await asyncio.gather(*(each.stop() for each in first))
        if self._state is not None:
            self._state.close()
        self._lifeline.close()

    def kill(self) -> None:
        """Kill all processes; their running tasks are recovered as after a crash."""
        for each in self._children.values():
            each.kill()

    async def start(self) -> None:
        """Start the dispatcher and wait until it answers. Raises its error if it cannot start, as for a port in use."""
        dispatcher = self._child(DISPATCHER)
        dispatcher.start()
        addresses = await dispatcher.first_message(START_S)
        self.public, internal = addresses["public"], addresses["internal"]
        # A restarted dispatcher listens at the same address, and all other processes get that address.
        self._flags |= {
            "dispatcher.listen": self.public.removeprefix("http://"),
            "dispatcher.internal_listen": internal.removeprefix("http://"),
            "dispatcher.internal_url": internal,
        }
        for child in self._children.values():
            child.options = self._options()
        self._state = open_state(self.settings.dispatcher.state, durable=self.settings.dispatcher.state_durable)
        use_registry(self._state, self._registry)
        self._dashboard = self._child(DASHBOARD)
        self._dashboard.options["flags"] = {**self._flags, "dispatcher.url": self.public}
        self._dashboard.start()

    async def dashboard_link(self) -> str:
        """Return the link of the dashboard; whoever has it may use it. Raises the error of one that does not start."""
        assert self._dashboard is not None
        return str((await self._dashboard.first_message(DASHBOARD_S))["link"])

    async def deploy(
        self, pipeline: Pipeline, *, again: bool = False, confirm: Confirm | None = None
    ) -> DeployedVersion:
        """Deploy the pipeline. Raises Refused for a version that was rolled back, without ``again`` and ``confirm``."""
        dag, source = pipeline.dag.name, pipeline.source
        async with self.client() as client:
            if confirm is not None and not again:
                again = await confirm_again(client, dag, {"source": source}, confirm)
            answer = await deploy_version(client, dag, source, pipeline.bundle, again=again)
        return DeployedVersion(answer["version"], answer["status"], answer)

    def start_workers(self, runtimes: Iterable[str]) -> None:
        """Start the workers of these runtimes that do not run yet, early, since their start takes a while."""
        for runtime in runtimes:
            self._ensure(f"{WORKER}{runtime}")

    def serve(self, survey: Survey) -> list[str]:
        """Start the missing processes of live pipelines: a worker for each runtime with open tasks, and a scheduler.

        Returns a sentence for each process that was started for pipelines that others deployed.
        """
        started: list[str] = []
        if self.has_sinks:
            self._ensure(SINK)
        for version in survey.versions:
            for job in version.jobs:
                role = None
                if job.source is not None and SOURCES[job.source].poller is not None:
                    role = SCHEDULER
                elif self._has_workers(job.runtime) and (job.always_on or (job.open and not job.paused)):
                    role = f"{WORKER}{job.runtime}"
                if role is not None and self._ensure(role) and role not in self._required:
                    started.append(f"started {role} for {version.dag}")
        return started

    @property
    def has_sinks(self) -> bool:
        """Whether a pipeline of this ``qo up`` publishes to a database."""
        return any(publish.to is not None for each in self._pipelines for publish in each.dag.publish.values())

    def _has_workers(self, name: str) -> bool:
        # A job of an earlier deploy may have a runtime that the settings no longer have.
        runtime = self._registry.runtimes.get(name)
        return runtime is not None and runtime.launcher is Launcher.QUEUE

    def problems(self) -> list[str]:
        """Return the problems of processes, in words. Raises the error of a required process that cannot work."""
        problems: list[str] = []
        for each in self._children.values():
            try:
                each.check()
            except ConfigError as error:
                if each.role in self._required:
                    raise
                problems.append(f"{each.role} cannot work: {error}")
            if each.deaths:
                problems.append(
                    f"{each.role} died {plural(each.deaths, 'time')}, see {each.log_path}{_new_link(each)}"
                )
        return problems

    def spark_ui(self) -> str | None:
        """Return the address of Spark's UI, if it is served."""
        names = [each.name for each in self._registry.runtimes.values() if each.works_like == SPARK]
        workers = [self._children[role] for name in names if (role := f"{WORKER}{name}") in self._children]
        return next((url for each in workers if (url := each.last_message.get(SPARK_UI))), None)

    async def read(self, question: Callable[[Tx], Any]) -> Any:
        """Call ``question`` with a transaction of the state, on a thread."""

        def call() -> Any:
            assert self._state is not None
            with self._state.read() as tx:
                return question(tx)

        return await asyncio.to_thread(call)

    def client(self) -> UserClient:
        dispatcher = self.settings.dispatcher
        # The token of this dispatcher: the one in the settings may be for another.
        token = read_secret(Path(dispatcher.secrets_dir, "admin.token")).decode().strip()
        return UserClient(self.public, token, patience_s=30.0)

    def _ensure(self, role: str) -> bool:
        """Start the process of a role, unless it runs; return whether it was started for the first time."""
        if role in self._children:
            if self._children[role].has_retired:
                self._children[role].start()
            return False
        self._child(role).start()
        return True

    def _child(self, role: str) -> ChildProcess:
        paths = [*map(str, import_path(self._pipelines)), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        child = ChildProcess(role, self._options(), lifeline=self._lifeline, environ=environ, logs=self.logs)
        self._children[role] = child
        return child

    def _options(self) -> dict[str, Any]:
        return {"flags": self._flags, "config": None if self._config is None else str(self._config)}


def _new_link(child: ChildProcess) -> str:
    """Return the new link of a restarted dashboard: its key, and so its link, have changed."""
    return f"; it is at {child.last_message['link']} now" if "link" in child.last_message else ""
