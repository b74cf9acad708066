"""The demo: several hundred tasks, two workers, one of them killed with -9 midway. Every task completes.

Everything happens in ``.demo/``, on the embedded store, with nothing but ``qo`` installed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import qo
from qo.queue.roster import workers

HERE = Path(__file__).parent
STORE = Path(".demo").resolve()
TASKS = 400
KILL_AFTER = TASKS // 3
LEASE_S = 4.0  # A dead worker's tasks are taken back after this long.


def start_worker(name: str) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        "QO_STORE": f"local:{STORE}",
        "QO_WORKER_ID": name,
        "QO_CONCURRENCY": "8",
        "QO_LEASE_S": f"{LEASE_S:g}",
        "QO_HEARTBEAT_S": "0.5",
        "QO_POLL_MAX_MS": "500",
        "QO_MONITOR_CHECK_INTERVAL_S": "1",
        "QO_LOG": "error",
    }
    command = [sys.executable, "-m", "qo", "worker", "--app", "app:app"]
    return subprocess.Popen(command, cwd=HERE, env=environ, stdout=subprocess.DEVNULL)


async def watch(
    queue: qo.Queue, ids: list[str], victim: subprocess.Popen[bytes], console: Console
) -> list[qo.Task]:
    """Show progress until every task has ended; kill the victim on the way."""
    ended: dict[str, qo.Task] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("two workers", total=len(ids))
        while len(ended) < len(ids):
            seen = await asyncio.gather(*(queue.get(i) for i in ids if i not in ended))
            ended.update({task.id: task for task in seen if task.ended})
            progress.update(bar, completed=len(ended))
            if victim.poll() is None and len(ended) >= KILL_AFTER:
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                # Only now does it claim and finish no more. Beside what it ran it held what waited in its inboxes.
                left = await asyncio.gather(*(queue.get(i) for i in ids if i not in ended))
                held = sum(task.status is qo.Status.RUNNING and task.worker_id == "worker-1" for task in left)
                progress.update(bar, description="one worker left")
                console.print(f"killed worker-1 with -9 after {len(ended)} tasks; it held {held}")
            await asyncio.sleep(0.1)
    return list(ended.values())


def report(console: Console, tasks: list[qo.Task], took_s: float, requests: int, dollars: float) -> None:
    statuses = Counter(task.status for task in tasks)
    attempts = Counter(task.attempt for task in tasks)
    table = Table(title="What became of the tasks", show_header=False)
    table.add_row("tasks submitted", f"{len(tasks)}")
    table.add_row("completed", f"{statuses[qo.Status.COMPLETED]}")
    table.add_row("lost", f"{len(tasks) - statuses[qo.Status.COMPLETED]}")
    for attempt, count in sorted(attempts.items()):
        table.add_row(f"done at attempt {attempt}", f"{count}")
    table.add_row("duration", f"{took_s:.1f} s")
    table.add_row("requests to the store", f"{requests:,} ({requests / len(tasks):.1f} a task)")
    table.add_row("on S3 they would cost", f"${dollars:.4f}")
    console.print(table)


async def main() -> int:
    console = Console()
    shutil.rmtree(STORE, ignore_errors=True)
    async with qo.connect(f"local:{STORE}") as queue:
        assert queue.meter is not None
        started = time.monotonic()
        new = [qo.NewTask("resize_image", {"image": n}) for n in range(TASKS)]
        ids = [task.id for task in await queue.submit_many(new)]
        submitting = queue.meter.snapshot()
        console.print(f"submitted {len(ids)} tasks to {STORE.name}/store.db")
        victim, survivor = start_worker("worker-1"), start_worker("worker-2")
        try:
            tasks = await watch(queue, ids, victim, console)
            took_s = time.monotonic() - started
            # Both are still registered: one is alive, and the other had no chance to say goodbye.
            reported = await workers(queue.store)
        finally:
            for process in (victim, survivor):
                process.terminate()
                process.wait()
        requests = submitting.requests + sum(worker.requests for worker in reported)
        dollars = submitting.dollars() + sum(worker.dollars for worker in reported)
        report(console, tasks, took_s, requests, dollars)
        example = next((task for task in tasks if task.attempt > 1), tasks[0])
        qo_command = f".venv/bin/qo --store local:{STORE.name} history {example.id}"
        console.print(f"one that was taken back:\n  {qo_command}", soft_wrap=True, highlight=False)
    return 0 if all(task.status is qo.Status.COMPLETED for task in tasks) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
