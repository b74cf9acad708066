"""What a queue costs in a month, metered: real workers and monitors on a store in memory, for an hour of virtual time.

Every request of every process is counted, and priced as Amazon S3 does. The baseline is what `qo cost` computes.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import lab  # noqa: F401 - makes the fleet importable.
from bench.harness import Family, Result, Target, result
from qo.core.cost_model import estimate
from qo.core.load import Load

from support.worker.metered_fleet import run_fleet  # isort: skip

HOUR_S = 3600.0
TASK_S = 0.5
IDLE = Load(50, 0, kept_d=0, task_s=TASK_S)
BUSY = Load(50, 100_000, kept_d=0, task_s=TASK_S)


def measure_bills() -> Iterator[Result]:
    for name, load, bound in (("monthly_dollars_50w_100k", BUSY, 140.0), ("idle_dollars_50w", IDLE, 25.0)):
        bill = run_fleet(load, HOUR_S)
        settings = {
            "workers": load.workers,
            "tasks_per_day": load.tasks_per_day,
            "task_s": load.task_s,
            "virtual_s": HOUR_S,
            "requests": {str(operation): count for operation, count in bill.usage.counts.items()},
        }
        if bill.waits_s:
            settings |= {"wait_p50_s": bill.wait_s(0.5), "wait_p99_s": bill.wait_s(0.99)}
        yield result(
            name,
            bill.dollars_a_month,
            "dollars",
            baseline=estimate(load).total,
            target=Target("value", "<=", bound),
            **settings,
        )


FAMILIES = [Family(["monthly_dollars_50w_100k", "idle_dollars_50w"], measure_bills)]
