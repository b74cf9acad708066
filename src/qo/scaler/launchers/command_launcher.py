"""Workers that commands of the user's start, list, drain and kill: on another cloud, another scheduler, another host.

    start NAME    starts the worker of that name, and does nothing if it runs
    list          prints the workers of the runtime as JSON: [{"name": "python-1", "state": "ready", "uid": "..."}]
    drain NAME    asks it to finish what it runs and to end (SIGTERM does)
    kill NAME     ends it at once, and removes what is left of it

A command has ended well with exit code 0. What it prints to standard error goes into the log of a failure.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from qo.ambient import SYSTEM, Ambient
from qo.core.pipeline.scaling import WorkerState
from qo.core.words import quote
from qo.scaler.launchers.launcher import LaunchedWorker, LaunchError, WorkerSpec

LIMIT_S = 60.0  # A command that takes longer is killed.
OUTPUT_MAX = 1_000_000


class CommandLauncher:
    def __init__(
        self,
        spec: WorkerSpec,
        *,
        start: Sequence[str],
        list_: Sequence[str],
        drain: Sequence[str],
        kill: Sequence[str],
        limit_s: float = LIMIT_S,
        ambient: Ambient = SYSTEM,
    ) -> None:
        self._spec, self._limit_s, self._ambient = spec, limit_s, ambient
        self._start, self._list, self._drain, self._kill = start, list_, drain, kill

    async def list(self) -> list[LaunchedWorker]:
        output = await self._run(self._list)
        try:
            return parse_list(self._spec, output)
        except ValueError as error:
            raise LaunchError(f"the command {quote(self._list[0])} lists no workers: {error}") from None

    async def start(self, place: int) -> bool:
        name = self._spec.place_name(place)
        await self._run([*self._start, name], QO_WORKER_ID=f"{name}-{self._ambient.token()[:12]}")
        return True

    async def drain(self, worker: LaunchedWorker) -> None:
        await self._run([*self._drain, worker.name])

    async def kill(self, worker: LaunchedWorker) -> None:
        await self._run([*self._kill, worker.name])

    async def close(self) -> None:
        pass

    def _environ(self, more: Mapping[str, str]) -> dict[str, str]:
        spec = self._spec
        facts = {
            "LAUNCH_RUNTIME": spec.runtime,
            "LAUNCH_SLOTS": str(spec.slots),
            "LAUNCH_DRAIN_S": f"{spec.drain_s:g}",
            "LAUNCH_IMAGE": spec.image,
            "LAUNCH_MEMORY": spec.memory,
            "LAUNCH_CPU": None if spec.cpu is None else f"{spec.cpu:g}",
        }
        return {**os.environ, **{key: value for key, value in facts.items() if value is not None}, **more}

    async def _run(self, command: Sequence[str], **more: str) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ(more),
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"the command {quote(command[0])} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(self._limit_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise LaunchError(f"the command {quote(command[0])} took longer than {self._limit_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()
        if process.returncode != 0:
            text = err.decode(errors="replace").strip()[-500:]
            raise LaunchError(f"the command {quote(command[0])} ended with {process.returncode}: {text}")
        return out


def parse_list(spec: WorkerSpec, output: bytes) -> list[LaunchedWorker]:
    """Read the workers that a list command has printed. Raises ValueError, in words for whoever wrote the command."""
    if len(output) > OUTPUT_MAX:
        raise ValueError(f"it prints more than {OUTPUT_MAX:,} bytes")
    try:
        items = json.loads(output)
    except ValueError:
        raise ValueError(f"it must print JSON, and prints {quote(output.decode(errors='replace'))}") from None
    if not isinstance(items, list):
        raise ValueError('it must print a list, such as [{"name": "python-1", "state": "ready"}]')
    workers = [_parse_worker(spec, each) for each in cast("list[Any]", items)]
    if len({each.place for each in workers}) < len(workers):
        raise ValueError("it names a worker twice")
    return workers


def _parse_worker(spec: WorkerSpec, item: Any) -> LaunchedWorker:
    fields = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
    name, state = fields.get("name"), fields.get("state")
    place = spec.place_of(name) if isinstance(name, str) else None
    if not isinstance(name, str) or place is None:
        raise ValueError(f"each needs a name such as {spec.place_name(1)}, and one is {quote(item)}")
    if state not in set(WorkerState):
        raise ValueError(f"the state of {name} must be one of {', '.join(WorkerState)}, not {quote(state)}")
    uid, detail = fields.get("uid"), fields.get("detail", "")
    if not isinstance(uid, str | None) or not isinstance(detail, str):
        raise ValueError(f"uid and detail of {name} must be texts")
    return LaunchedWorker(name, place, WorkerState(state), uid or name, is_ready_known=True, detail=detail)
