"""The rollout of a deployed version: it is built, marked ready, and activated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qo.core.pipeline.topology import VersionStatus
from qo.core.task import Status
from qo.dispatcher.versions import rebuilding
from qo.dispatcher.views.live_versions import LivePipeline
from qo.errors import Refused
from qo.up.installation import DeployedVersion, Installation

REFUSALS_MAX = 3  # A built version that is refused this often in a row is refused for another reason.


@dataclass(frozen=True, slots=True)
class Staged:
    """The progress of a version that is built beside the active one. Jobs that both share do not count."""

    built: bool = False  # No task is open, except those that wait for a failed one; some may have failed.
    failed: int = 0
    blocked: int = 0  # Tasks that wait for failed ones.
    waits: tuple[str, ...] = ()  # Which jobs wait for others, and for which, in words.


@dataclass(slots=True)
class Rollout:
    deployed: DeployedVersion
    keep: bool = False  # Build it, but do not activate it.
    staged: Staged | None = None  # None if it is active, or if another version was deployed in its place.
    activated: Mapping[str, Any] | None = None  # The answer, if this rollout has activated it.
    refusal: str | None = None  # Why the dispatcher refuses to activate it.
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
        """Whether it will not change any more by itself."""
        return self.staged is None or (self.staged.built and self.obstacle is not None)

    @property
    def obstacle(self) -> str | None:
        """Why it will not become active; None if it is, or will be."""
        if self.staged is None:
            return None
        if self.staged.failed:
            return f"{self.staged.failed:,} of its tasks failed"
        if self.refusal is not None:
            return self.refusal
        if self.keep and self.staged.built:
            which = f"{self.dag} {self.deployed.version}"
            return f"it is built, and kept; activate it with qo dag ready {which} and qo dag activate {which}"
        return None

    async def advance(self, installation: Installation, live: LivePipeline, epoch: int) -> bool:
        """Read its progress, activate it as soon as it is built, and return whether it was activated now.

        After a refusal it is tried again when ``epoch``, that of the topology, has changed.
        """
        version = self.deployed.version
        if self.staged is None or live.beside is None or live.beside.number != version:
            self.staged = None
            return False
        rebuild = await installation.read(lambda tx: rebuilding.rebuild(tx, self.dag, version))
        waits = tuple(f"{self.dag}: {each.job} of version {version} {each.reason}" for each in rebuild.waits)
        failed = rebuild.tasks.get(Status.FAILED, 0)
        self.staged = Staged(rebuild.caught_up or rebuild.stuck, failed, rebuild.blocked, waits)
        if not rebuild.caught_up or failed or self.keep or self._refused_at == epoch:
            return False
        try:
            answer = await self._activate(installation, live.beside.status)
        except Refused as error:
            # New data may have arrived, or another version: the next call will see it.
            self._refusals += 1
            if self._refusals == REFUSALS_MAX:
                self.refusal, self._refused_at, self._refusals = str(error), epoch, 0
            return False
        self.staged = self.refusal = None
        if answer["changed"]:  # Otherwise somebody else was faster.
            self.activated = answer
        return bool(answer["changed"])

    async def _activate(self, installation: Installation, status: VersionStatus) -> Mapping[str, Any]:
        path = f"/v1/dags/{self.dag}"
        async with installation.client() as client:
            if status is VersionStatus.STAGED:
                await client.post(f"{path}/versions/{self.deployed.version}/ready")
            return await client.put(f"{path}/active", {"version": self.deployed.version})
