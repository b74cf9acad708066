"""Looking on while an installation works: start what is needed, cut over, say what changes, end when all is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.sources import live_sources
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views.live_versions import Live, LivePipeline, ended_versions, live_pipelines
from qo.dispatcher.views.stuck import StuckTask
from qo.pipeline.sources import SOURCES
from qo.up.arrivals import announced
from qo.up.changes import Fates, describe_changes
from qo.up.machine import Site
from qo.up.processes import rest
from qo.up.progress import Survey, survey
from qo.up.rollout import Rollout
from qo.up.view import View

LOOK_S = 0.5
SETTLE_S = 3.0  # An always-on source that has been silent for so long is taken to have said what it knows.
QUIET_LOOKS = 3  # Between an event and what it starts, there is a moment in which neither is to be seen.


@dataclass(slots=True)
class Ran:
    """What became of it."""

    rollouts: Sequence[Rollout]
    seen: Survey | None = None  # As it was last.
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    interrupted: bool = False
    stuck: Sequence[StuckTask] = ()  # What it was ended in spite of.


@dataclass(frozen=True, slots=True)
class Look:
    survey: Survey
    live: Live
    fates: Fates


class Watch:
    """``once``: end when the pipelines that we deployed have nothing left to do. Others' are served, and not waited
    for."""

    def __init__(self, site: Site, rollouts: Sequence[Rollout], view: View, *, once: bool) -> None:
        self._site, self._rollouts, self._view, self._once = site, rollouts, view, once
        self._dags = {each.dag for each in rollouts}
        self._live: Live | None = None
        self._said: set[str] = set()

    async def run(self, stop: asyncio.Event) -> Ran:
        """Until told to stop or, once, until all is done. Raises the error of a process that cannot work."""
        ran = Ran(self._rollouts)
        began, quiet = time.monotonic(), 0
        while not stop.is_set():
            look = await self._site.read(self._look)
            ran.seen = look.survey
            self._tell(look)
            self._view.look(look.survey, [*self._site.troubles(), *self._waits()])
            if await self._advance(look):
                ran.seconds["rebuild"] = time.monotonic() - began
            if self._is_done(look.survey) or (self._once and look.survey.over(self._dags)):
                quiet, ran.stuck = quiet + 1, look.survey.stuck
            elif not self._tries_again(look.survey, ran.stuck):
                quiet, ran.stuck = 0, ()
            # What is announced after a look is not in it: only looks from here on count.
            if self._once and quiet == 1 and not await self._all_announced():
                quiet = 0
            if self._once and quiet == QUIET_LOOKS:
                break
            await rest(stop, LOOK_S)
        ran.interrupted = self._once and stop.is_set()
        ran.stuck = () if ran.interrupted else [each for each in ran.stuck if each.dag in self._dags]
        ran.seconds["work"] = time.monotonic() - began
        return ran

    def _look(self, tx: Tx) -> Look:
        live = live_pipelines(tx)
        return Look(survey(tx, settle_s=SETTLE_S), live, ended_versions(tx, self._live or {}, live))

    def _tell(self, look: Look) -> None:
        """What others did since the last look, and what was started."""
        if self._live is not None:
            for text in describe_changes(self._live, look.live, look.fates):
                self._view.say(text)
        self._live = look.live
        for text in self._site.serve(look.survey):
            self._view.say(text)
        if (url := self._site.spark_ui()) is not None:
            self._say_once(f"Spark's UI is at {url}")

    async def _advance(self, look: Look) -> bool:
        """Whether one of our versions has taken over now."""
        moved = False
        for each in self._rollouts:
            live = look.live.get(each.dag, LivePipeline())
            if await each.advance(self._site, live, look.survey.epoch):
                moved = True
                self._tell_takeover(each, live)
            elif each.settled and each.obstacle is not None and not self._once:
                self._say_once(f"{each.dag}: version {each.deployed.version} was not activated: {each.obstacle}")
        return moved

    def _tell_takeover(self, rollout: Rollout, live: LivePipeline) -> None:
        assert rollout.activated is not None
        assert live.beside is not None
        self._view.say(
            f"{rollout.dag}: version {rollout.deployed.version} has taken over from {rollout.activated['replaced']}, "
            f"all tables at once; qo dag rollback {rollout.dag} goes back"
        )
        # It is no news at the next look.
        active = replace(live.beside, status=VersionStatus.ACTIVE)
        self._live = {**(self._live or {}), rollout.dag: LivePipeline(active)}

    def _waits(self) -> list[str]:
        """What keeps our versions from being built, in words."""
        return [text for each in self._rollouts if each.staged is not None for text in each.staged.waits]

    def _is_done(self, seen: Survey) -> bool:
        blocked = sum(each.staged.blocked for each in self._rollouts if each.staged is not None)
        return all(each.settled for each in self._rollouts) and seen.quiet(self._dags, blocked)

    def _tries_again(self, seen: Survey, stuck: Sequence[StuckTask]) -> bool:
        """Whether what is open beside the stuck tasks is only one of them, at another attempt."""
        left = sum(seen.open(each) for each in self._dags)
        return bool(stuck) and not seen.stuck and left <= len(stuck) and not seen.concerned & self._dags

    async def _all_announced(self) -> bool:
        kinds = [kind for kind, spec in SOURCES.items() if spec.place is not None]
        answers = [await self._site.read(partial(live_sources.list_sources, kind=kind)) for kind in kinds]
        ours = [each for answer in answers for each in answer.sources if each.dag in self._dags]
        return all([await announced(each, self._site.settings) for each in ours])

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._view.say(text)
