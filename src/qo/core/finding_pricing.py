"""How many requests it takes that workers find tasks: polls, notices, and tries in vain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from qo.core.board import PREFERRED, Reader, rest_max_s, turn_s
from qo.core.discovery import IndexMode
from qo.core.load import Delivery, Load
from qo.core.pricing import DAY_S, Operation, Requests, add
from qo.core.rhythm import (
    DEFAULT_RHYTHM,
    LOOK_ANYWAY_EVERY_S,
    PAGE,
    POST_EVERY_S,
    SCAN_EVERY_S,
    VIEW_RECORDS_MAX,
    VIEW_S,
    Rhythm,
)


def polls_per_day(tasks_per_day: float, rhythm: Rhythm = DEFAULT_RHYTHM) -> float:
    """Return the polls of one worker that finds this many tasks, evenly spread over the day.

    Even spacing is the most expensive pattern: each task resets the pauses, and none shares a page with another. A
    worker without work polls at the longest pause; a busy one takes a page of tasks with each poll.
    """
    if not tasks_per_day:
        return DAY_S / rhythm.poll_max_s
    gap_s = DAY_S / tasks_per_day
    if gap_s < rhythm.poll_min_s:
        return max(2 * DAY_S / rhythm.poll_min_s, tasks_per_day / rhythm.ready_page)
    return tasks_per_day * (1 + sum(share for share, _ in _pauses_within(gap_s, rhythm)))


def _pauses_within(gap_s: float, rhythm: Rhythm) -> Iterator[tuple[float, float]]:
    """Yield the pauses that fit into a gap, each with how often: they double from the shortest to the longest."""
    pause_s = rhythm.poll_min_s
    while pause_s < gap_s and pause_s < rhythm.poll_max_s:
        yield 1.0, pause_s
        gap_s, pause_s = gap_s - pause_s, min(2 * pause_s, rhythm.poll_max_s)
    yield gap_s / pause_s, pause_s


def tries_per_task(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM, delivery: Delivery = Delivery.BOARD) -> float:
    """Return how many workers read a task because of its notice: those that read the board soon after it was posted,
    and a few that the task prefers, or the owner of its shard. Workers that have just had a task read the board more
    often."""
    leased = delivery is Delivery.LEASED
    window_s = Reader("", load.workers, rhythm.poll_max_s, frozenset() if leased else None).window_s
    gap_s = DAY_S / load.tasks_each if load.tasks_each else DAY_S
    pauses = list(_pauses_within(gap_s, rhythm))
    at_hand = sum(share * min(pause_s, window_s) for share, pause_s in pauses) / gap_s
    preferred = min(1.0, (1.0 if leased else PREFERRED) / max(1, load.workers))
    return load.workers * (1 - (1 - min(1.0, at_hand)) * (1 - preferred))


def finding_per_day(
    load: Load, mode: IndexMode, rhythm: Rhythm = DEFAULT_RHYTHM, delivery: Delivery = Delivery.BOARD
) -> Requests:
    """Return the requests that all workers, and the submitters, make so that tasks are found."""
    if not load.workers:
        return notices_per_day(load)
    if delivery is Delivery.PUSH:
        return add(finding_per_day(load, mode, rhythm), views_per_day(load))
    if mode is IndexMode.LOG_SCAN:
        polls = polls_per_day(load.tasks_each, rhythm)
        reads = _scan_reads(polls * rhythm.log_scan_page, load, rhythm)
        return add(
            notices_per_day(load), {Operation.LIST: load.workers * polls, Operation.GET: load.workers * reads}
        )
    rhythm = adapt_to_workers(rhythm, load.workers, delivery)
    reads = load.workers * polls_per_day(load.tasks_each, rhythm)
    in_vain = load.tasks_per_day * max(0.0, tries_per_task(load, rhythm, delivery) - 1)
    scans = DAY_S / SCAN_EVERY_S if mode is IndexMode.HYBRID else 0.0
    lists = 2 if delivery is Delivery.LEASED else 1  # Of its own shards, and of late tasks in others.
    looking = {
        Operation.GET: reads + in_vain + _scan_reads(scans * rhythm.log_scan_page, load, rhythm),
        Operation.LIST: scans + lists * load.workers * DAY_S / LOOK_ANYWAY_EVERY_S,
    }
    return add(notices_per_day(load), looking)


def adapt_to_workers(rhythm: Rhythm, workers: int, delivery: Delivery = Delivery.BOARD) -> Rhythm:
    """Return the rhythm with the longest pause of so many workers."""
    longest_s = (turn_s if delivery is Delivery.LEASED else rest_max_s)(workers, rhythm.poll_max_s)
    return replace(rhythm, poll_max_s=longest_s)


def views_per_day(load: Load, view_s: float = VIEW_S) -> Requests:
    """Return the requests of one submitter that looks for workers: at its next task after a view has grown old."""
    if not load.tasks_per_day:
        return {}
    views = DAY_S / (view_s + DAY_S / load.tasks_per_day)
    return {
        Operation.LIST: views * max(1, math.ceil(load.workers / PAGE)),
        Operation.GET: views * min(load.workers, VIEW_RECORDS_MAX),
    }


def notices_per_day(load: Load) -> Requests:
    """Return the requests to post notices, by one submitter: it reads the board and writes it."""
    per_s = load.tasks_per_day / DAY_S
    posts = load.tasks_per_day / (1 + per_s * POST_EVERY_S)
    return {Operation.GET: posts, Operation.PUT: posts}


def _scan_reads(listed: float, load: Load, rhythm: Rhythm) -> float:
    """Return how many tasks one scan reads: each once after it has ended, if the scan can remember them all."""
    return listed if load.tasks_kept > rhythm.log_scan_memory else min(listed, load.tasks_per_day)
