"""Watch an installation: start the processes it needs, activate versions, print changes, end when all is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from qo.api.contract.sink import SinkState
from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.sources import live_sources
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views.live_versions import Live, LivePipeline, ended_versions, live_pipelines
from qo.dispatcher.views.sinks import find_states_of_dags
from qo.dispatcher.views.stuck import StuckTask
from qo.pipeline.sources import SOURCES
from qo.up.changes import EndStatuses, describe_changes
from qo.up.file_sources import is_fully_announced
from qo.up.installation import Installation
from qo.up.pipeline_progress import Survey, survey
from qo.up.process_group import wait_or_stop
from qo.up.rollout import Rollout
from qo.up.view import View

if TYPE_CHECKING:
    from qo.up.redeployment import Redeployment

POLL_S = 0.5
SETTLE_S = 3.0  # An always-on source that has run for this long is taken to have emitted what it had at its start.
IDLE_SNAPSHOTS = 3  # Between an event and the task it creates there is a moment in which neither is visible.


@dataclass(slots=True)
class WatchResult:
    """What happened until the watch ended."""

    rollouts: Sequence[Rollout]
    last_survey: Survey | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    interrupted: bool = False
    stuck: Sequence[StuckTask] = ()  # The tasks that could not end.
    sinks: Sequence[SinkState] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    survey: Survey
    live: Live
    end_statuses: EndStatuses
    sinks: Sequence[SinkState] = ()  # Of the pipelines of this ``qo up``.


class Watch:
    """Watches until a signal; with ``once``, until the pipelines of this ``qo up`` have nothing left to do.

    Pipelines that others have deployed are served, but not waited for.
    """

    def __init__(
        self,
        installation: Installation,
        rollouts: list[Rollout],
        view: View,
        *,
        once: bool,
        redeployment: Redeployment | None = None,
    ) -> None:
        self._installation, self._rollouts, self._view, self._once = installation, rollouts, view, once
        self._redeployment = redeployment  # None: files that are saved change nothing.
        self._dags = {each.dag for each in rollouts}
        self._live: Live | None = None
        self._printed: set[str] = set()
        self._began: datetime | None = None  # By the clock of the state: what was reported before is not news.

    async def run(self, stop: asyncio.Event) -> WatchResult:
        """Watch until the end. Raises the error of a process that cannot work."""
        result = WatchResult(self._rollouts)
        began, idle = time.monotonic(), 0
        while not stop.is_set():
            snapshot = await self._installation.read(self._read_snapshot)
            result.last_survey, result.sinks = snapshot.survey, snapshot.sinks
            self._print_changes(snapshot)
            self._view.show(snapshot.survey, self._describe_problems(snapshot))
            if await self._advance(snapshot):
                result.seconds["rebuild"] = time.monotonic() - began
            if self._is_ended(snapshot):
                idle, result.stuck = idle + 1, snapshot.survey.stuck
            elif not self._is_retrying(snapshot.survey, result.stuck):
                idle, result.stuck = 0, ()
            # Events that arrive after a snapshot are not in it: only later snapshots count.
            if self._once and idle == 1 and not await self._all_announced():
                idle = 0
            if self._once and idle == IDLE_SNAPSHOTS:
                break
            await self._redeploy()
            await wait_or_stop(stop, POLL_S)
        result.interrupted = self._once and stop.is_set()
        result.stuck = () if result.interrupted else [each for each in result.stuck if each.dag in self._dags]
        result.seconds["work"] = time.monotonic() - began
        return result

    def _read_snapshot(self, tx: Tx) -> Snapshot:
        live = live_pipelines(tx)
        self._began = self._began or tx.now
        return Snapshot(
            survey(tx, settle_s=SETTLE_S),
            live,
            ended_versions(tx, self._live or {}, live),
            find_states_of_dags(tx, self._dags) if self._installation.has_sinks else (),
        )

    def _print_changes(self, snapshot: Snapshot) -> None:
        """Print what others changed since the last snapshot, and which processes were started."""
        if self._live is not None:
            for text in describe_changes(self._live, snapshot.live, snapshot.end_statuses):
                self._view.print_line(text)
        self._live = snapshot.live
        for text in self._installation.serve(snapshot.survey):
            self._view.print_line(text)
        if (url := self._installation.spark_ui()) is not None:
            self._print_once(f"Spark's UI is at {url}")

    async def _redeploy(self) -> None:
        """Deploy what was saved. The next snapshot is the first that has the new version."""
        if self._redeployment is not None and await self._redeployment.advance(
            self._installation, self._rollouts, self._view.print_line
        ):
            self._live = await self._installation.read(live_pipelines)  # So that it is not printed as another's.

    async def _advance(self, snapshot: Snapshot) -> bool:
        """Activate versions that are built; return whether one was activated now."""
        activated = False
        for each in self._rollouts:
            live = snapshot.live.get(each.dag, LivePipeline())
            if await each.advance(self._installation, live, snapshot.survey.epoch):
                activated = True
                self._print_takeover(each, live)
            elif each.settled and each.obstacle is not None and not self._once:
                self._print_once(f"{each.dag}: version {each.deployed.version} was not activated: {each.obstacle}")
        return activated

    def _print_takeover(self, rollout: Rollout, live: LivePipeline) -> None:
        assert rollout.activated is not None
        assert live.beside is not None
        self._view.print_line(
            f"{rollout.dag}: version {rollout.deployed.version} has taken over from {rollout.activated['replaced']}, "
            f"all tables at once; qo dag rollback {rollout.dag} goes back"
        )
        # So that the next snapshot does not print it again.
        active = replace(live.beside, status=VersionStatus.ACTIVE)
        self._live = {**(self._live or {}), rollout.dag: LivePipeline(active)}

    def _describe_waits(self) -> list[str]:
        """Return what our versions wait for while they are built, in words."""
        return [text for each in self._rollouts if each.staged is not None for text in each.staged.waits]

    def _describe_problems(self, snapshot: Snapshot) -> list[str]:
        failing = [f"sink {each.name}: {each.text}" for each in snapshot.sinks if each.error is not None]
        return [*self._installation.problems(), *self._describe_waits(), *failing]

    def _is_ended(self, snapshot: Snapshot) -> bool:
        """Return whether our pipelines have nothing left to do that can be done."""
        tasks_ended = self._is_done(snapshot.survey) or (self._once and snapshot.survey.is_blocked(self._dags))
        return tasks_ended and not any(map(self._is_loading, snapshot.sinks))

    def _is_loading(self, sink: SinkState) -> bool:
        """Return whether a table is still to be brought up to date. One that fails is not waited for."""
        is_heard = sink.reported_at is not None and self._began is not None and sink.reported_at >= self._began
        return not sink.is_current and (sink.error is None or not is_heard)

    def _is_done(self, survey: Survey) -> bool:
        blocked = sum(each.staged.blocked for each in self._rollouts if each.staged is not None)
        return all(each.settled for each in self._rollouts) and survey.is_idle(self._dags, blocked)

    def _is_retrying(self, survey: Survey, stuck: Sequence[StuckTask]) -> bool:
        """Return whether the only open tasks are the stuck ones, one of which is being attempted again."""
        open_count = sum(survey.open_tasks(each) for each in self._dags)
        return bool(stuck) and not survey.stuck and open_count <= len(stuck) and not survey.affected & self._dags

    async def _all_announced(self) -> bool:
        kinds = [kind for kind, spec in SOURCES.items() if spec.place is not None]
        listings = [await self._installation.read(partial(live_sources.list_sources, kind=kind)) for kind in kinds]
        ours = [(each, answer.now) for answer in listings for each in answer.sources if each.dag in self._dags]
        return all([await is_fully_announced(each, self._installation.settings, at) for each, at in ours])

    def _print_once(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            self._view.print_line(text)
