"""Whether the evidence shows that nothing was lost, nothing ran twice at once, and all is as on a quiet day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chaos import expected, history, notes, rows
from chaos.evidence import Evidence
from qo.core.task import Status, Task
from support.spark.sites import tables_of


def violations(found: Evidence, numbers: Iterable[int], wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """``numbers``: the queue tasks that were promised; ``wanted``: by job of the pipelines, the partitions."""
    wrong = [
        each for states in (*found.fleet.values(), *found.wake_ups.values()) for each in history.violations(states)
    ]
    wrong += queue_violations([states[-1] for states in found.fleet.values()], expected.outputs_of(numbers))
    for job, partitions in wanted.items():
        wrong += job_violations(found, job, partitions)
    wrong += found.books
    wrong += table_violations(found.tables, quiet_tables(wanted))
    return wrong + notes.violations(found.executions, _given_up(found))


def queue_violations(tasks: Iterable[Task], outputs: Mapping[tuple[str, str], Any]) -> list[str]:
    """Whether these are the tasks that were promised, each of them once, completed and with its output."""
    keyed = [((task.task_type, task.input["number"]), task) for task in tasks]
    wrong = rows.differences("tasks", outputs, [key for key, _ in keyed])
    for key, task in keyed:
        if task.status is not Status.COMPLETED:
            wrong.append(f"task {task.id} ({task.task_type}) is {task.status}: {task.last_error}")
        elif task.output != outputs.get(key):
            wrong.append(f"task {task.id} ({task.task_type}) has the output {task.output}")
    return wrong


def job_violations(found: Evidence, job: str, partitions: Sequence[str]) -> list[str]:
    tasks = [row for row in found.tasks if row["job"] == job]
    ids = {row["id"] for row in tasks}
    attempts = [row for row in found.attempts if row["task_id"] in ids]
    commits = [row for row in found.commits if row["task_id"] in ids]
    return rows.violations(job, partitions, tasks, attempts, commits)


def quiet_tables(wanted: Mapping[str, Sequence[str]]) -> dict[str, Sequence[tuple[Any, ...]]]:
    """By job: the rows of an undisturbed run."""
    python = {job: names for job, names in wanted.items() if job in ("first", "second", "counted")}
    tables: dict[str, Sequence[tuple[Any, ...]]] = {**expected.pipeline_rows(python)}
    if "orders" in wanted:
        tables.update(tables_of(wanted["orders"]))
    return tables


def table_violations(
    tables: Mapping[str, Sequence[tuple[Any, ...]]], quiet: Mapping[str, Sequence[tuple[Any, ...]]]
) -> list[str]:
    return [
        each for job, its_rows in quiet.items() for each in rows.differences(f"{job}: rows", its_rows, tables[job])
    ]


def _given_up(found: Evidence) -> notes.GivenUp:
    lapsed = {(states[0].id, attempt) for states in found.fleet.values() for attempt in history.lapsed(states)} | {
        (row["task_id"], row["attempt"]) for row in found.attempts if row["outcome"] == "timed_out"
    }
    return lambda task_id, attempt: (task_id, attempt) in lapsed
