"""The scaler's turns: list the workers, ask the dispatcher for the load and the right to decide, decide, report.

While the dispatcher does not answer, nothing is started and nothing is drained: what is there stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from qo.api.public_client import UserClient
from qo.config.scaling import ScalerSettings
from qo.core.pipeline.scaling import Load, WorkerState
from qo.errors import Unavailable
from qo.scaler.fleet import LIVE, Fleet
from qo.scaler.launchers.launcher import LaunchError

log = logging.getLogger(__name__)

DRAIN_LOOK_S = 0.5
_LOAD_FIELDS = ("waiting", "running", "oldest_s", "task_s", "in_flight_max", "held")


class Scaler:
    """``name``: unique among scalers, for the dispatcher tells them apart by it."""

    def __init__(self, client: UserClient, fleets: Sequence[Fleet], settings: ScalerSettings, name: str) -> None:
        self._client, self._fleets, self._settings, self.name = client, list(fleets), settings, name
        self._time = asyncio.get_running_loop().time
        self._is_away = False
        self._holders: dict[str, str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Take turns until stopped. The workers stay. Raises Unauthenticated or Forbidden for a token that is wrong."""
        while not stop.is_set():
            await self.take_turn()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.interval_s):
                    await stop.wait()

    async def take_turn(self) -> None:
        await asyncio.gather(*(each.look() for each in self._fleets))
        asked_at = self._time()
        try:
            granted = await self._ask()
        except Unavailable as error:
            if not self._is_away:
                log.warning("the dispatcher does not answer, all workers stay as they are: %s", error)
            self._is_away = True
            return
        if self._is_away:
            log.info("the dispatcher answers again")
        self._is_away = False
        self._note_holders(granted["holders"])
        loads = {each["runtime"]: each for each in granted["loads"]}

        def may_act() -> bool:
            return self._time() < asked_at + self._settings.lease_s

        held = [each for each in self._fleets if each.spec.runtime in loads]
        acts = await asyncio.gather(
            *(each.act(*_read_load(loads[each.spec.runtime]), may_act=may_act) for each in held)
        )
        reports = [
            {"runtime": fleet.spec.runtime, "action": act.action, "workers": act.workers, "code": act.code}
            | {"reason": act.reason[:1000]}
            for fleet, acts_of_fleet in zip(held, acts, strict=True)
            for act in acts_of_fleet
        ]
        if reports:
            with suppress(Unavailable):  # It is done all the same; only the record lacks it.
                await self._client.post("/v1/scaling/decisions", {"scaler": self.name, "decisions": reports})

    async def drain_all(self, stop: asyncio.Event) -> None:
        """Drain the workers of the runtimes that this scaler holds; wait until they have ended, or for the event."""
        own = [each for each in self._fleets if self._holders.get(each.spec.runtime) == self.name]
        while not stop.is_set():
            await asyncio.gather(*(each.look() for each in own))
            with suppress(LaunchError):
                await asyncio.gather(*(each.drain_all() for each in own))
            if not any(each.count(*LIVE, WorkerState.DRAINING) for each in own):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_LOOK_S):
                    await stop.wait()

    async def _ask(self) -> dict[str, Any]:
        fleets = [_describe_fleet(each) for each in self._fleets]
        body = {"scaler": self.name, "lease_s": self._settings.lease_s, "fleets": fleets}
        return await self._client.post("/v1/scaling/turns", body)

    def _note_holders(self, holders: dict[str, str]) -> None:
        for fleet in self._fleets:
            runtime = fleet.spec.runtime
            holder, before = holders.get(runtime, ""), self._holders.get(runtime)
            if holder != before:
                log.info("%s decides for %s", "this scaler" if holder == self.name else holder, runtime)
            if holder != self.name:
                fleet.forget()
        self._holders = holders


def _describe_fleet(fleet: Fleet) -> dict[str, Any]:
    return {
        "runtime": fleet.spec.runtime,
        "launcher": fleet.kind,
        "min": fleet.policy.min,
        "max": fleet.policy.max,
        "slots": fleet.policy.slots,
        "problem": None if fleet.problem is None else fleet.problem[:1000],
        **{state.value: fleet.count(state) for state in WorkerState},
    }


def _read_load(answer: dict[str, Any]) -> tuple[Load, dict[str, int]]:
    return Load(**{key: answer[key] for key in _LOAD_FIELDS}), answer["busy"]
