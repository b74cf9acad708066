"""A deployment in all its steps: deploy, wait until the version is rebuilt, mark it ready, activate it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qo.api.delivery import deploy_version
from qo.api.redeploying import Confirm, confirm_again
from qo.core.durations import format_duration
from qo.core.words import plural
from qo.errors import Refused, TaskFailed

if TYPE_CHECKING:
    from qo.api.public_client import UserClient
    from qo.pipeline.code.bundling import Bundle

POLL_S = 1.0
ACTIVATIONS_MAX = 5  # A rebuilt version that is refused this often in a row is refused for another reason.
SILENT_S = 10.0  # By then a running dispatcher and a running worker have made some progress.
PrintNote = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Deployment:
    dag: str
    source: str
    bundle: Bundle | None
    wait: bool
    activate: bool
    timeout_s: float | None
    again: bool = False  # Deploy even a version that was rolled back.
    confirm: Confirm | None = None  # Asks the user about that; None if nobody can be asked.

    async def run(self, client: UserClient, print_note: PrintNote | None) -> dict[str, Any]:
        """Run the steps and return their answers. Raises TaskFailed if the rebuild takes too long or has failures."""
        again = self.again
        if self.confirm is not None and not again:
            again = await confirm_again(client, self.dag, {"source": self.source}, self.confirm)
        deployed = await deploy_version(client, self.dag, self.source, self.bundle, again=again)
        answers: dict[str, Any] = {"deployed": deployed}
        number = deployed["version"]
        if deployed["status"] == "active":
            return answers
        if self.wait:
            answers["rebuild"] = await self._wait_until_rebuilt(client, number, print_note)
        if self.activate:
            answers["activated"] = await self._activate(client, number, answers, print_note)
        return answers

    async def _activate(
        self, client: UserClient, number: int, answers: dict[str, Any], print_note: PrintNote | None
    ) -> Any:
        """Activate the version. If new data arrived since it was rebuilt, wait until that is rebuilt, too."""
        path = f"/v1/dags/{self.dag}"
        for attempt in range(ACTIVATIONS_MAX):
            self._refuse_failures(number, answers.get("rebuild"))
            try:
                if answers["deployed"]["status"] == "staged":
                    await client.post(f"{path}/versions/{number}/ready")
                return await client.put(f"{path}/active", {"version": number})
            except Refused:
                if attempt == ACTIVATIONS_MAX - 1:
                    raise
                answers["rebuild"] = await self._wait_until_rebuilt(client, number, print_note)
        raise AssertionError("the last attempt returns or raises")

    def _refuse_failures(self, number: int, rebuild: Any) -> None:
        failed: int = 0 if rebuild is None else rebuild["tasks"].get("failed", 0)
        if failed:
            raise TaskFailed(
                f"version {number} of {self.dag} is not activated: {failed:,} of its tasks failed; see "
                f"qo run list {self.dag} --status failed, replay them, and deploy again; or take it as it is "
                f"with qo dag activate {self.dag} {number} --force"
            )

    async def _wait_until_rebuilt(self, client: UserClient, number: int, print_note: PrintNote | None) -> Any:
        last_text: str | None = None
        silence_s = 0.0
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    rebuild = await client.get(f"/v1/dags/{self.dag}/rebuild", version=number)
                    if rebuild["caught_up"] or rebuild["stuck"]:
                        return rebuild
                    before, last_text = last_text, _note_progress(number, rebuild, last_text, print_note)
                    silence_s = (
                        0.0 if last_text != before or rebuild["tasks"].get("running") else silence_s + POLL_S
                    )
                    if print_note is not None and SILENT_S <= silence_s < SILENT_S + POLL_S:
                        print_note(
                            f"no progress for {format_duration(SILENT_S)}: is a dispatcher running? And a worker?"
                        )
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise TaskFailed(
                f"version {number} of {self.dag} is not rebuilt after {format_duration(self.timeout_s or 0)}; this "
                f"goes on in the background; see qo dag show {self.dag} --version {number}"
            ) from None


def _note_progress(number: int, rebuild: Any, last_text: str | None, print_note: PrintNote | None) -> str:
    tasks = rebuild["tasks"]
    remaining = rebuild["remaining"] + sum(tasks.get(status, 0) for status in ("pending", "running"))
    text = (
        f"version {number} is being rebuilt: {plural(tasks.get('completed', 0), 'task')} done, {remaining:,} left"
    )
    if tasks.get("failed"):
        text += f", {tasks['failed']:,} failed"
    for each in rebuild["waits"]:
        text += f"; {each['job']} {each['reason']}"
    if print_note is not None and text != last_text:
        print_note(text)
    return text
