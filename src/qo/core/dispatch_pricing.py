"""What a queue costs if new tasks are put into the inboxes of workers, from the same model as all other costs.

A routed task is read by one worker, not by all that see its notice first. In return, whoever submits looks for the
workers, and the lookout lists their inboxes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from qo.core.board import WatchTimes
from qo.core.cost_extras import NO_EXTRAS, Extras, flows_per_day
from qo.core.cost_model import CostEstimate, estimate
from qo.core.discovery import IndexMode
from qo.core.finding_pricing import adapt_to_workers, tries_per_task, views_per_day
from qo.core.load import Delivery, Load
from qo.core.pricing import DAY_S, MONTH_D, Operation, Requests, add, dollars, multiply
from qo.core.rhythm import DEFAULT_RHYTHM, INBOXES_IN_USE_S, LOOK_ANYWAY_EVERY_S, VIEW_S, Rhythm


def recovery_per_day(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests of the lookout that lists the inboxes in each round, as long as tasks are routed."""
    if not load.workers:
        return {}
    in_use = 1 - math.exp(-load.tasks_per_day * INBOXES_IN_USE_S / DAY_S)
    return {Operation.LIST: in_use * DAY_S / WatchTimes.for_checks(rhythm.check_s).round_s}


def renewals_per_day(workers: int, every_s: float) -> Requests:
    """Return the requests of workers that renew a lease on their inbox apart from their heartbeats. qo sends none: a
    heartbeat is the renewal."""
    return {Operation.PUT: workers * DAY_S / every_s}


def estimate_direct(
    load: Load,
    mode: IndexMode = IndexMode.HYBRID,
    *,
    task_bytes: int = 2048,
    rhythm: Rhythm = DEFAULT_RHYTHM,
    view_s: float = VIEW_S,
    extras: Extras = NO_EXTRAS,
) -> CostEstimate:
    """Estimate the cost of 30 days of a queue that is dispatched directly. A worker that scans all tasks has no inbox,
    and costs the same as with shared dispatch."""
    shared = estimate(load, mode, task_bytes=task_bytes, rhythm=rhythm, extras=extras)
    if mode is IndexMode.LOG_SCAN or not load.workers:
        return shared
    adapted = adapt_to_workers(rhythm, load.workers)
    in_vain = load.tasks_per_day * max(0.0, tries_per_task(load, adapted) - 1)
    looks = {Operation.LIST: load.workers * DAY_S / LOOK_ANYWAY_EVERY_S}  # Of its inbox, beside the index.
    searching = add(add(views_per_day(load, view_s), looks), {Operation.GET: -in_vain})
    finding, recovery = multiply(searching, MONTH_D), multiply(recovery_per_day(load, rhythm), MONTH_D)
    direct, board = (flows_per_day(extras, load, rhythm, each) for each in (Delivery.DIRECT, Delivery.BOARD))
    flows = multiply(add(direct, multiply(board, -1)), MONTH_D)
    return replace(
        shared,
        polling=shared.polling + dollars(finding),
        monitor=shared.monitor + dollars(recovery),
        flows=shared.flows + dollars(flows),
        requests=add(add(add(shared.requests, finding), recovery), flows),
    )
