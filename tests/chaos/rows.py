"""The rows of the state database, judged: each task once, each attempt once, one commit for what was accepted."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def violations(
    job: str, partitions: Collection[str], tasks: Sequence[Row], attempts: Sequence[Row], commits: Sequence[Row]
) -> list[str]:
    """What is wrong with the tasks of a job, of which there must be one for each partition, with one output."""
    wrong = differences(f"{job}: tasks", partitions, [row["partition_key"] for row in tasks])
    tried, made = _by_task(attempts), _by_task(commits)
    for task in tasks:
        name = f"{job} {task['partition_key']}"
        if task["status"] != "completed":
            wrong.append(f"{name}: is {task['status']} ({task['last_error']})")
        wrong += [f"{name}: {each}" for each in _attempts(task, tried[task["id"]])]
        committed = [row["attempt"] for row in made[task["id"]]]
        if task["status"] == "completed" and committed != [task["attempt"]]:
            wrong.append(f"{name}: attempt {task['attempt']} was accepted, attempts {committed} were committed")
    return wrong


def _attempts(task: Row, attempts: Sequence[Row]) -> list[str]:
    rows = sorted(attempts, key=lambda row: row["attempt"])
    wrong: list[str] = []
    if [row["attempt"] for row in rows] != list(range(1, task["attempt"] + 1)):
        wrong.append(f"is at attempt {task['attempt']}, and its attempts are {[row['attempt'] for row in rows]}")
    accepted = [row["attempt"] for row in rows if row["outcome"] == "completed"]
    if task["status"] == "completed" and accepted != [task["attempt"]]:
        wrong.append(f"attempts {accepted} were accepted, and it stands at {task['attempt']}")
    for before, after in itertools.pairwise(rows):
        if before["ended_at"] is None or before["ended_at"] > after["started_at"]:
            wrong.append(f"attempt {after['attempt']} began before attempt {before['attempt']} had ended")
    return wrong


def differences(what: str, expected: Iterable[Any], found: Iterable[Any], shown: int = 5) -> list[str]:
    """Those that are missing, and those that are too many."""
    wanted, there = Counter(list(expected)), Counter(list(found))
    return [
        f"{what}: {plural.total()} {how}, such as {list(plural)[:shown]}"
        for how, plural in (("missing", wanted - there), ("too many", there - wanted))
        if plural
    ]


def _by_task(rows: Iterable[Row]) -> Mapping[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["task_id"]].append(row)
    return found
