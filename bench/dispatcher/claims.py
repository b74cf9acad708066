"""How many tasks workers can claim and complete in a second over HTTP, with nothing to do in between.

The dispatcher serves in a process of its own, as it does for real; the clients are the ones that workers use.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import sqlalchemy as sa

from bench.dispatcher.ground import DATABASES, HOW, counted, databases, deployed, emit, pipeline
from bench.harness import Family, Result, Target, result
from bench.process import ROOT
from qo.api.contract.task import Claimed, CompleteRequest, Outcome, OutputBody
from qo.api.internal_client import DispatcherClient
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State

TASKS = 600
CLIENTS = 2  # Workers.
SLOTS = 16  # Of each worker.
TOKEN = "worker-token-of-the-benchmark"

# Only serves: the tasks were released before, and nothing should happen beside.
SERVER = """
import asyncio, sys
from pathlib import Path
sys.path.append("tests")
from support.dispatcher.listeners import context_of, listening
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.state.database import open_state
from dataclasses import replace

async def main(url, directory, token):
    context = replace(context_of(open_state(url), Path(directory)), tokens=LocalTokens((token,)))
    async with listening(context) as addresses:
        print(addresses.internal, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def _served(state: State) -> AsyncIterator[str]:
    """The address of the internal listener of a dispatcher on this state."""
    url = state.engine.url.render_as_string(hide_password=False).replace("+psycopg", "").replace(":///", ":", 1)
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVER, url, directory, TOKEN),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not (address := (await process.stdout.readline()).decode().strip()):
                raise RuntimeError("the dispatcher did not start")
            yield address
        finally:
            process.stdin.close()
            await process.wait()


async def _worker(address: str, number: int, tasks: Sequence[str]) -> None:
    async with DispatcherClient(address, TOKEN) as client:
        slots = (_slot(client, f"bench-{number}", tasks[slot::SLOTS]) for slot in range(SLOTS))
        await asyncio.gather(*slots)


async def _slot(client: DispatcherClient, worker_id: str, tasks: Sequence[str]) -> None:
    for task_id in tasks:
        held = await client.claim(task_id, worker_id)
        if not isinstance(held, Claimed):
            raise TypeError(f"task {task_id} was not claimed: {held.reason}")
        done = CompleteRequest(
            task_id=task_id,
            attempt=held.attempt,
            lease_id=held.lease_id,
            outcome=Outcome.SUCCESS,
            outputs=[OutputBody(output=0, location=held.work.outputs[0].prefix, files=["part-0.parquet"])],
        )
        await client.complete(held.capability_token, done)


async def _claimed(state: State, tasks: Sequence[str]) -> float:
    """Seconds until all were done."""
    async with _served(state) as address:
        began_s = time.perf_counter()
        await asyncio.gather(*(_worker(address, number, tasks[number::CLIENTS]) for number in range(CLIENTS)))
        return time.perf_counter() - began_s


def _released(fresh: Callable[[str], State], database: str) -> tuple[State, list[str]]:
    state = fresh(database)
    deployed(state, pipeline("python", "shop.clean:run"))
    emit(state, 0, TASKS)
    while router.tick(state) + release.tick(state, Limits()):
        pass
    with state.read() as tx:
        ids = tx.execute(sa.select(schema.tasks.c.id).where(schema.tasks.c.job == "clean")).scalars().all()
    return state, list(ids)


def measure() -> Iterator[Result]:
    with databases() as fresh:
        for database in DATABASES:
            state, tasks = _released(fresh, database)
            seconds = asyncio.run(_claimed(state, tasks))
            if counted(state, "completed") != TASKS:
                raise RuntimeError("not all tasks were completed")
            yield result(
                f"http_claim_complete_per_s_{database}",
                TASKS / seconds,
                "tasks/s",
                tasks=TASKS,
                workers=CLIENTS,
                slots=SLOTS,
                database=HOW[database],
                target=Target("value", ">=", 440.0) if database == "postgres" else None,
                note="a claim and a completion with one output each, over loopback",
            )


FAMILIES = [Family([f"http_claim_complete_per_s_{database}" for database in DATABASES], measure)]
