"""One worker with four slots and a hundred tasks of three to six seconds, of which some fail, and a few for good.

    python examples/mailbox/mailbox.py
    python examples/mailbox/mailbox.py --speed 20 --tasks 40

Ctrl+C lets the running tasks finish; Ctrl+C again gives them back to the queue, and the third ends the process. Start
it again to go on: the tasks have keys, so none is submitted twice. Remove the store to begin anew.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random

import qo
from qo.config.origins import load
from qo.telemetry.log_context import install_handler
from qo.worker.observe.subscriptions import TerminalFailure
from qo.worker.service import run_worker

log = logging.getLogger("mailbox")

SLOTS = 4
RETRIES_MAX = 2
WORK_S = (3.0, 6.0)
FAILURE_RATE = 0.4  # Of an attempt. With two retries, about six tasks of a hundred fail for good.

app = qo.App()
unfinished: set[str] = set()  # Ids of tasks that have neither completed nor failed for good.
all_ended = asyncio.Event()


def finish(task_id: str) -> None:
    unfinished.discard(task_id)
    if not unfinished:
        all_ended.set()


def fails(number: int, attempt: int) -> bool:
    """Whether an attempt fails: by chance, but the same in every run."""
    return random.Random(f"{number}/{attempt}").random() < FAILURE_RATE


@app.task("work")
async def work(input: dict[str, float], ctx: qo.Context) -> float:
    number = int(input["number"])
    seconds = random.Random(number).uniform(*WORK_S) / input["speed"]
    ctx.log.info("worker %s begins attempt %d at number %d", ctx.worker_id, ctx.attempt, number)
    await asyncio.sleep(seconds)
    if fails(number, ctx.attempt):
        raise ConnectionError(f"number {number} had no luck")
    finish(ctx.task_id)
    return seconds


@app.on_failure("work")
async def bury(failure: qo.Failure) -> None:
    log.info("task %s went to the dead letters: %s", failure.task_id, failure.error)
    finish(failure.task_id)


async def follow(worker: qo.Worker, every_s: float) -> None:
    """Log the worker's counters now and then, and each task that has failed for good."""
    async for event in worker.subscribe(every_s=every_s):
        if isinstance(event, TerminalFailure):
            log.info("given up after %d attempts: %s", event.attempt, event.error)
        else:
            log.info(
                "processed %d, succeeded %d, failed attempts %d, dead letters %d; %d of %d slots busy",
                event.processed,
                event.succeeded,
                event.failed,
                event.terminal_failures,
                event.busy,
                event.slots,
            )


async def stop_when_all_have_ended(worker: qo.Worker) -> None:
    """Retries wait for a while, so an empty queue is not yet the end."""
    await all_ended.wait()
    worker.stop()


async def main(store: str, tasks: int, speed: float) -> int:
    settings = load({"store": store, "worker.concurrency": SLOTS, "worker.http": "off"})
    policy = qo.RetryPolicy(initial_interval_ms=int(1_000 / speed), max_interval_ms=int(60_000 / speed))
    async with qo.connect(settings) as queue:
        submitted = await queue.submit_many(
            [
                qo.NewTask(
                    "work",
                    {"number": number, "speed": speed},
                    qo.Options(key=f"number-{number}", max_retries=RETRIES_MAX, retry_policy=policy),
                )
                for number in range(tasks)
            ]
        )
        unfinished.update(task.id for task in submitted if not task.ended)
        finish("")
        beside: list[asyncio.Task[None]] = []

        def observe(worker: qo.Worker) -> None:
            beside.append(asyncio.create_task(stop_when_all_have_ended(worker)))
            beside.append(asyncio.create_task(follow(worker, every_s=max(0.05, 5 / speed))))

        stats = await run_worker(queue, app, settings, kills=True, observer=observe)
        all_ended.set()
        await asyncio.gather(*beside)
        ended = await queue.list(task_type="work", limit=tasks)
    by_status = {status: sum(task.status is status for task in ended) for status in qo.Status}
    waiting = tasks - by_status[qo.Status.COMPLETED] - by_status[qo.Status.FAILED]
    print(
        f"{by_status[qo.Status.COMPLETED]} completed, {by_status[qo.Status.FAILED]} in the dead letters, "
        f"{waiting} still to do; this run: {stats.completed} completed, {stats.failed} failed attempts, "
        f"{stats.released} given back"
    )
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="local:.qo/mailbox", help="where the queue lives")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--speed", type=float, default=1.0, help="10: ten times as fast")
    given = parser.parse_args()
    install_handler("INFO")
    raise SystemExit(asyncio.run(main(given.store, given.tasks, given.speed)))
