"""What ran when, as handlers and operators note it themselves, and whether two attempts ran at once.

A line is a task, an attempt, who runs it, ``begin`` or ``end``, and the time of a clock that all processes share.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from process_handlers import note as write_line

GivenUp = Callable[[str, int], bool]


@dataclass(frozen=True, slots=True)
class Execution:
    task_id: str
    attempt: int
    by: str
    began: float
    ended: float | None = None  # None: it was killed before it could note its end.


@contextmanager
def note(path: str, task_id: str, attempt: int, by: str) -> Iterator[None]:
    write_line(path, task_id, attempt, by, "begin", time.monotonic())
    try:
        yield
    finally:
        write_line(path, task_id, attempt, by, "end", time.monotonic())


def executions(lines: Iterable[str]) -> list[Execution]:
    """In the order in which they began."""
    open_: dict[tuple[str, int, str], float] = {}
    found: list[Execution] = []
    for line in lines:
        task_id, attempt, by, what, at = line.split()
        key = (task_id, int(attempt), by)
        if what == "begin":
            open_[key] = float(at)
        else:
            found.append(Execution(*key, open_.pop(key), float(at)))
    found += [Execution(*key, began) for key, began in open_.items()]
    return sorted(found, key=lambda each: each.began)


def violations(found: Collection[Execution], given_up: GivenUp) -> list[str]:
    """Attempts of one task that ran at once, or one attempt that ran twice.

    ``given_up``: whether the lease of an attempt ran out. Only then may the next begin while its handler still runs:
    nobody can stop the handler of a machine that is paused.
    """
    wrong: list[str] = []
    by_task = sorted(found, key=lambda each: (each.task_id, each.began))
    for task_id, its in itertools.groupby(by_task, key=lambda each: each.task_id):
        runs = list(its)
        for before, after in itertools.combinations(runs, 2):
            if before.attempt == after.attempt:
                wrong.append(f"task {task_id}: attempt {before.attempt} ran twice, by {before.by} and {after.by}")
            elif before.ended is not None and after.began < before.ended and not given_up(task_id, before.attempt):
                wrong.append(
                    f"task {task_id}: attempt {after.attempt} of {after.by} began while attempt {before.attempt} "
                    f"of {before.by} ran and had its lease"
                )
    return wrong
