"""What limits over all workers cost beside the tasks themselves.

A worker asks for a share when it finds a task and has no permit for it, again at every renewal while a task runs, and a
last time to give the share back. An ask is a GET, and a PUT if it changes anything. A rate alone costs less: its starts
are not renewed. While tasks wait because a limit is reached, workers ask more often than the model says.
"""

from __future__ import annotations

import math

from qo.core.finding_pricing import adapt_to_workers, tries_per_task
from qo.core.load import Delivery, Load
from qo.core.pricing import DAY_S, Operation, Requests
from qo.core.rhythm import DEFAULT_RHYTHM, Rhythm

EXPONENT_MAX = 50.0  # Of a share that is never given back.


def limit_per_day(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests of workers that use a limit all day long, for all their tasks."""
    asks = load.workers * DAY_S / rhythm.share_s
    return {Operation.GET: asks, Operation.PUT: asks * _share_of_writes(load.tasks_each / DAY_S * rhythm.share_s)}


def keyed_limits_per_day(
    load: Load,
    tasks_per_day: float,
    keys: int,
    rhythm: Rhythm = DEFAULT_RHYTHM,
    delivery: Delivery = Delivery.BOARD,
) -> Requests:
    """Return the requests for tasks with a limit for each of so many keys, all equally frequent, at any time of day.

    ``load`` includes these tasks. Every worker that reads one asks for a share of its key, as far as it has none.
    """
    if not load.workers or not tasks_per_day or not keys:
        return {}
    adapted = adapt_to_workers(rhythm, load.workers, delivery)
    tries = 1.0 if delivery is Delivery.DIRECT else tries_per_task(load, adapted, delivery)
    places = load.workers * keys  # Each may have a share: of one key, at one worker.
    found_per_s = tasks_per_day * tries / places / DAY_S
    run_per_s = tasks_per_day / places / DAY_S
    renewals = _renewals(run_per_s, load.task_s, rhythm.share_s)
    spells = places * DAY_S / (renewals * rhythm.share_s + 1 / found_per_s)
    return {
        Operation.GET: spells * (1 + renewals),
        Operation.PUT: spells * (2 + _writes(renewals - 1, run_per_s * rhythm.share_s)),
    }


def _renewals(tasks_per_s: float, task_s: float, share_s: float) -> float:
    """Return after how many renewals a share is given back: at the first at which no task runs.

    Tasks come at random, one of them at the beginning. So it takes as many intervals in a row without a new task as one
    runs for.
    """
    free = 1 - math.exp(-tasks_per_s * share_s)
    busy = math.expm1(min(tasks_per_s * task_s, EXPONENT_MAX)) / free if free else 0.0
    return max(1.0, math.ceil(task_s / share_s), busy)


def _writes(renewals: float, tasks_per_renewal: float) -> float:
    """Return how many of these renewals are written. The first always is: the share is then as large as it is used."""
    return min(renewals, 1.0) + max(0.0, renewals - 1) * _share_of_writes(tasks_per_renewal)


def _share_of_writes(tasks_per_renewal: float) -> float:
    """Return which part of renewals is written: those that change the share, and of the others every second one."""
    return 1 / (1 + math.exp(-2 * tasks_per_renewal))
