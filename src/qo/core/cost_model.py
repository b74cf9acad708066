"""A model of how many requests a queue makes: the figures of `qo cost`.

Metered runs of real workers are held against it. It covers the normal case, and leaves out what depends on the tasks:
failed attempts (each costs another claim and two PUTs), large inputs and outputs, clients that wait for results, and
more delayed tasks than one page holds (the lookout then needs several LISTs).
"""

from __future__ import annotations

from dataclasses import dataclass

from qo.core.cost_extras import NO_EXTRAS, Extras, flows_per_day, serving_per_day
from qo.core.discovery import IndexMode
from qo.core.finding_pricing import finding_per_day
from qo.core.load import Delivery, Load
from qo.core.pricing import DAY_S, MONTH_D, STORAGE_PRICE_GB_MONTH, Operation, Requests, dollars, multiply
from qo.core.rhythm import DEFAULT_RHYTHM, DELETE_EVERY_S, DELETE_ONE_BY_ONE_MAX, INDEX_LEASE_AFTER_S, Rhythm
from qo.core.watching_pricing import VERSIONS_PER_TASK, heartbeats_per_day, watching_per_day
from qo.errors import UsageError

GB = 10**9


def requests_per_task(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests for a task that is submitted, claimed once and completed, without those to find it."""
    renewals = load.task_s // rhythm.renew_s
    is_long = load.task_s > INDEX_LEASE_AFTER_S
    moves = is_long + renewals * rhythm.renew_s / 60  # The key of a lease hint names a minute.
    batch = keys_per_delete((1 + moves) * load.tasks_each, rhythm)
    one_by_one = batch <= DELETE_ONE_BY_ONE_MAX
    return {
        # Submit: task and ready hint. Claim: task. Complete: task.
        Operation.PUT: 4 + moves + renewals,
        Operation.GET: 1,  # Claim reads the task; completing keeps the ETag and need not.
        Operation.DELETE: 1 + moves if one_by_one else 0.0,
        Operation.DELETE_MANY: 0.0 if one_by_one else (1 + moves) / batch,
    }


def keys_per_delete(keys_per_day: float, rhythm: Rhythm = DEFAULT_RHYTHM) -> float:
    """Return the average batch of one worker that removes this many hints, evenly spread over the day."""
    return min(max(1.0, keys_per_day * DELETE_EVERY_S / DAY_S), rhythm.delete_batch)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """US dollars for 30 days, by what they are spent on, and the requests behind them."""

    tasks: float
    polling: float
    heartbeats: float
    monitor: float
    flows: float
    serving: float
    storage: float
    requests: Requests

    @property
    def total(self) -> float:
        watching = self.polling + self.heartbeats + self.monitor
        return self.tasks + watching + self.flows + self.serving + self.storage


def estimate(
    load: Load,
    mode: IndexMode = IndexMode.HYBRID,
    *,
    delivery: Delivery = Delivery.BOARD,
    extras: Extras = NO_EXTRAS,
    task_bytes: int = 2048,
    rhythm: Rhythm = DEFAULT_RHYTHM,
) -> CostEstimate:
    """Estimate the cost of 30 days. ``Load.kept_d`` 0 leaves out storage, and the sweep and purge of it."""
    if load.workers < 0 or load.tasks_per_day < 0 or load.kept_d < 0 or load.task_s < 0:
        raise UsageError("workers, tasks per day, days kept and seconds per task cannot be negative")
    parts = {
        "tasks": multiply(requests_per_task(load, rhythm), load.tasks_per_day * MONTH_D),
        "polling": multiply(finding_per_day(load, mode, rhythm, delivery), MONTH_D),
        "heartbeats": multiply(heartbeats_per_day(load, rhythm), load.workers * MONTH_D),
        "monitor": multiply(watching_per_day(load, rhythm, delivery), MONTH_D),
        "flows": multiply(flows_per_day(extras, load, rhythm, delivery), MONTH_D),
        "serving": multiply(serving_per_day(extras, load.task_s), MONTH_D),
    }
    return CostEstimate(
        **{name: dollars(requests) for name, requests in parts.items()},
        storage=load.tasks_kept * VERSIONS_PER_TASK * task_bytes / GB * STORAGE_PRICE_GB_MONTH,
        requests={each: sum(part.get(each, 0.0) for part in parts.values()) for each in Operation},
    )
