"""Deploying as one piece of work: deploy, wait until the version is rebuilt, mark it ready, activate it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qo.api.delivery import deploy_version
from qo.api.redeploying import Confirm, confirm_again
from qo.cli.durations import format_duration
from qo.core.words import plural
from qo.errors import Refused, TaskFailed

if TYPE_CHECKING:
    from qo.api.public_client import UserClient
    from qo.pipeline.code.bundling import Bundle

LOOK_S = 1.0
TAKE_OVERS_MAX = 5  # Refused so often in a row although it is rebuilt, it is refused for another reason.
SILENT_S = (
    10.0  # A dispatcher and a worker that run do something by then, or the look for what is missing is near.
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Deploying:
    dag: str
    source: str
    bundle: Bundle | None
    wait: bool
    activate: bool
    timeout_s: float | None
    again: bool = False  # Also a version that was rolled back.
    confirm: Confirm | None = None  # Asks whether it should be; None: nobody can be asked.

    async def run(self, client: UserClient, say: Say | None) -> dict[str, Any]:
        """What was done: the answers of each step. Raises TaskFailed if the rebuild takes too long or fails in part."""
        again = self.again
        if self.confirm is not None and not again:
            again = await confirm_again(client, self.dag, {"source": self.source}, self.confirm)
        deployed = await deploy_version(client, self.dag, self.source, self.bundle, again=again)
        done: dict[str, Any] = {"deployed": deployed}
        number = deployed["version"]
        if deployed["status"] == "active":
            return done
        if self.wait:
            done["rebuild"] = await self._rebuilt(client, number, say)
        if self.activate:
            done["activated"] = await self._take_over(client, number, done, say)
        return done

    async def _take_over(self, client: UserClient, number: int, done: dict[str, Any], say: Say | None) -> Any:
        """Activate what is rebuilt. Where something new came up since that was seen, it is rebuilt first."""
        path = f"/v1/dags/{self.dag}"
        for attempt in range(TAKE_OVERS_MAX):
            self._refuse_failures(number, done.get("rebuild"))
            try:
                if done["deployed"]["status"] == "staged":
                    await client.post(f"{path}/versions/{number}/ready")
                return await client.put(f"{path}/active", {"version": number})
            except Refused:
                if attempt == TAKE_OVERS_MAX - 1:
                    raise
                done["rebuild"] = await self._rebuilt(client, number, say)
        raise AssertionError("the last attempt returns or raises")

    def _refuse_failures(self, number: int, rebuild: Any) -> None:
        failed: int = 0 if rebuild is None else rebuild["tasks"].get("failed", 0)
        if failed:
            raise TaskFailed(
                f"version {number} of {self.dag} is not activated: {failed:,} of its tasks failed; see "
                f"qo run list {self.dag} --status failed, replay them, and deploy again; or take it as it is "
                f"with qo dag activate {self.dag} {number} --force"
            )

    async def _rebuilt(self, client: UserClient, number: int, say: Say | None) -> Any:
        told: str | None = None
        silence_s = 0.0
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    found = await client.get(f"/v1/dags/{self.dag}/rebuild", version=number)
                    if found["caught_up"] or found["stuck"]:
                        return found
                    before, told = told, _progress(number, found, told, say)
                    silence_s = 0.0 if told != before or found["tasks"].get("running") else silence_s + LOOK_S
                    if say is not None and SILENT_S <= silence_s < SILENT_S + LOOK_S:
                        say(
                            f"nothing has moved for {format_duration(SILENT_S)}: does a dispatcher run? And a worker?"
                        )
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise TaskFailed(
                f"version {number} of {self.dag} is not rebuilt after {format_duration(self.timeout_s or 0)}: it goes "
                f"on in the background; see qo dag show {self.dag} --version {number}"
            ) from None


def _progress(number: int, found: Any, told: str | None, say: Say | None) -> str:
    tasks = found["tasks"]
    left = found["remaining"] + sum(tasks.get(status, 0) for status in ("pending", "running"))
    text = f"version {number} is being rebuilt: {plural(tasks.get('completed', 0), 'task')} done, {left:,} left"
    if tasks.get("failed"):
        text += f", {tasks['failed']:,} failed"
    for each in found["waits"]:
        text += f"; {each['job']} {each['reason']}"
    if say is not None and text != told:
        say(text)
    return text
