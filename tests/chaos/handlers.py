"""The handlers of the queue's workers. Each notes when it begins and ends, and its output follows from its input."""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import Any

import qo
from chaos.expected import child_numbers, digest, output_of
from chaos.notes import note
from qo.core.task import RetryPolicy
from qo.queue.options import NewTask, Options

app = qo.App()

# However often its worker is killed or the store is away: a task of this load never fails for good.
PATIENT = {
    "max_retries": 1000,
    "max_deliveries": 1000,
    "retry_policy": RetryPolicy(initial_interval_ms=200, max_interval_ms=2_000),
}
SPOOLED = 64 * 1024


def new_task(kind: str, number: str, notes: str) -> NewTask:
    return NewTask(kind, {"number": number, "notes": notes}, Options(key=number, **PATIENT))


@app.task("awaited")
async def awaited(input: Any, ctx: Any) -> Any:
    with note(input["notes"], ctx.task_id, ctx.attempt, ctx.worker_id):
        await asyncio.sleep(0.05)
        return output_of("awaited", input["number"])


@app.task("child")
async def child(input: Any, ctx: Any) -> Any:
    with note(input["notes"], ctx.task_id, ctx.attempt, ctx.worker_id):
        await asyncio.sleep(0.02)
        return output_of("child", input["number"])


@app.task("parent")
async def parent(input: Any, ctx: Any) -> Any:
    with note(input["notes"], ctx.task_id, ctx.attempt, ctx.worker_id):
        children = [new_task("child", each, input["notes"]) for each in child_numbers(input["number"])]
        await ctx.producer.enqueue_many(children)
        return output_of("parent", input["number"])


@app.task("failing")
async def failing(input: Any, ctx: Any) -> Any:
    with note(input["notes"], ctx.task_id, ctx.attempt, ctx.worker_id):
        if ctx.attempt == 1:
            raise qo.Retry("not at the first attempt", delay_s=0.2)
        return output_of("failing", input["number"])


@app.task("threaded")
def threaded(input: Any, ctx: Any) -> Any:
    """Goes through a file, so that a full disk fails it."""
    with note(input["notes"], ctx.task_id, ctx.attempt, ctx.worker_id):
        time.sleep(0.1)
        return {"number": input["number"], "digest": spooled(f"threaded {input['number']}")}


@app.task("forked", kind="process")
def forked(input: Any, ctx: Any) -> Any:
    with note(input["notes"], ctx.task_id, ctx.attempt, ctx.worker_id):
        time.sleep(0.05)
        return output_of("forked", input["number"])


def spooled(text: str) -> str:
    """The digest of the text, after it was written to the disk for work many times over, and read back."""
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write((text + "\n") * (SPOOLED // (len(text) + 1)))
        file.flush()
        file.seek(0)
        return digest(file.readline().rstrip("\n"))
