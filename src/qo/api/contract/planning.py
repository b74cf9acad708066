"""Plans: what deploying a definition would rebuild."""

from __future__ import annotations

from qo.api.contract.body import Answer
from qo.api.contract.dag import DiffAnswer


class PlannedPartition(Answer):
    """A partition of the job's input, which gives one task."""

    partition_key: str
    start: int | None = None
    end: int | None = None
    rows: int | None = None
    bytes: int | None = None


class PlannedRebuild(Answer):
    job: str
    why: str
    tasks: int  # Tasks that would be created for what is committed now.
    partitions: int  # How many of them are for a partition; the others follow a cursor.
    done: int  # Partitions that an earlier deployment has built already.
    rows: int  # Rows to read, over all inputs and tasks, as far as their writers reported them.
    bytes: int
    estimated: bool  # Its inputs are rebuilt, too, so the numbers are those of the current data.
    note: str | None = None  # Why existing data gives no tasks.
    first: list[PlannedPartition] = []  # In order of key.
    next: str | None = None  # Pass it as ``after``, with the job, for the following ones.


class PlanAnswer(Answer):
    dag: str
    diff: DiffAnswer
    rebuilds: list[PlannedRebuild]  # Each after the jobs that it reads.
    tasks: int
    rows: int
    bytes: int
