"""The way of one version that we deployed, until it serves: built, called ready, activated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qo.core.pipeline.topology import VersionStatus
from qo.core.task import Status
from qo.dispatcher.versions import rebuilding
from qo.dispatcher.views.live_versions import LivePipeline
from qo.errors import Refused
from qo.up.machine import Deployed, Site

REFUSALS_MAX = 3  # Refused so often in a row although it is built, it is refused for another reason.


@dataclass(frozen=True, slots=True)
class Staged:
    """How far a version is that is built beside the one that serves. What it has taken over from that one, and what
    failed there, is no part of it."""

    built: bool = False  # Nothing of it is open any more but what waits for a failed task; some may have failed.
    failed: int = 0
    blocked: int = 0  # Tasks that wait until what has failed is done.
    waits: tuple[str, ...] = ()  # Which jobs wait for others, and for which, in words.


@dataclass(slots=True)
class Rollout:
    deployed: Deployed
    keep: bool = False  # Build it, and leave it at that.
    staged: Staged | None = None  # None: it serves, or somebody has deployed another one in its place.
    activated: Mapping[str, Any] | None = None  # By us.
    refusal: str | None = None  # Why the dispatcher does not let it take over.
    _refused_at: int = -1
    _refusals: int = 0  # In a row.

    def __post_init__(self) -> None:
        if self.deployed.status != VersionStatus.ACTIVE:
            self.staged = Staged()

    @property
    def dag(self) -> str:
        return self.deployed.dag

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be expected of it by itself."""
        return self.staged is None or (self.staged.built and self.obstacle is not None)

    @property
    def obstacle(self) -> str | None:
        """Why it does not serve though it is deployed; None: it does, or will."""
        if self.staged is None:
            return None
        if self.staged.failed:
            return f"{self.staged.failed:,} of its tasks failed"
        if self.refusal is not None:
            return self.refusal
        if self.keep and self.staged.built:
            which = f"{self.dag} {self.deployed.version}"
            return f"it is built, and kept; qo dag ready {which} and qo dag activate {which} let it take over"
        return None

    async def advance(self, site: Site, live: LivePipeline, epoch: int) -> bool:
        """See how far it is, and let it take over as soon as it is built. Whether it has taken over now.

        ``epoch``: of the topology, as it was looked at; what was refused then is tried again when it has changed.
        """
        version = self.deployed.version
        if self.staged is None or live.beside is None or live.beside.number != version:
            self.staged = None
            return False
        found = await site.read(lambda tx: rebuilding.rebuild(tx, self.dag, version))
        waits = tuple(f"{self.dag}: {each.job} of version {version} {each.reason}" for each in found.waits)
        failed = found.tasks.get(Status.FAILED, 0)
        self.staged = Staged(found.caught_up or found.stuck, failed, found.blocked, waits)
        if not found.caught_up or failed or self.keep or self._refused_at == epoch:
            return False
        try:
            answer = await self._activate(site, live.beside.status)
        except Refused as error:
            # Perhaps something new came up just now, or another was deployed: the next look tells.
            self._refusals += 1
            if self._refusals == REFUSALS_MAX:
                self.refusal, self._refused_at, self._refusals = str(error), epoch, 0
            return False
        self.staged = self.refusal = None
        if answer["changed"]:  # Else somebody was quicker.
            self.activated = answer
        return bool(answer["changed"])

    async def _activate(self, site: Site, status: VersionStatus) -> Mapping[str, Any]:
        path = f"/v1/dags/{self.dag}"
        async with site.client() as client:
            if status is VersionStatus.STAGED:
                await client.post(f"{path}/versions/{self.deployed.version}/ready")
            return await client.put(f"{path}/active", {"version": self.deployed.version})
