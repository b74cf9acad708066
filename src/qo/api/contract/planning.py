"""Plans: what deploying a definition would build anew, before it does."""

from __future__ import annotations

from qo.api.contract.body import Answer
from qo.api.contract.dag import DiffAnswer


class PlannedPartition(Answer):
    """A partition of what the job reads, and so a task of it."""

    partition_key: str
    start: int | None = None
    end: int | None = None
    rows: int | None = None
    bytes: int | None = None


class PlannedRebuild(Answer):
    job: str
    why: str
    tasks: int  # To be made for what is committed now.
    partitions: int  # Of these, by partition; the others follow a cursor.
    done: int  # Partitions that are there already, from an earlier time that it was deployed.
    rows: int  # To be read, all inputs and tasks together, as far as their writers said.
    bytes: int
    estimated: bool  # What it reads is made anew, too: counted as it is now.
    note: str | None = None  # Why nothing is made of what is there.
    first: list[PlannedPartition] = []  # In order of key.
    next: str | None = None  # Pass it as ``after``, with the job, for the following ones.


class PlanAnswer(Answer):
    dag: str
    diff: DiffAnswer
    rebuilds: list[PlannedRebuild]  # Each after those that it reads.
    tasks: int
    rows: int
    bytes: int
