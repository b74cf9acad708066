"""Datasets: generations, partitions, commits, lineage."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from qo.api.contract.body import Answer
from qo.api.contract.sink import SinkState
from qo.api.contract.task import ColumnBody, InputMode


class DatasetLine(Answer):
    id: str
    dag: str
    job: str
    output: int
    name: str | None = None  # The name under which it is published.
    generation_id: str | None = None  # The current one; None: no version of its DAG is active.


class DatasetsPage(Answer):
    datasets: list[DatasetLine]
    next: str | None = None  # Pass it as ``after`` for the following page.


class GenerationAnswer(Answer):
    id: str
    edition_id: str
    status: str  # current, staged, ready, retired, or collected: its files are gone
    versions: list[int] = []  # Numbers of the DAG's versions that point to it.
    created_at: datetime
    partitions: int
    segments: int
    rows: int
    bytes: int
    cursor: int | None = None


class StaleInput(Answer):
    """An input that has changed since an output was built from it."""

    input: str  # The name that the job gives it.
    dataset: str
    other_generation: bool = False  # The generation that was read is no longer the current one.
    partition_key: str | None = None  # The partition that changed last; None: not partitioned.
    read_revision: int | None = None  # The revision that was read; None: nothing was committed then.
    revision: int | None = None  # The revision of its last change.
    text: str  # The same as a sentence.


class StaleCount(Answer):
    """How many partitions are stale: built from inputs that have changed since."""

    partitions: int
    at_least: bool = False  # There may be more: the count stops at a bound.


class FreshnessState(Answer):
    """How fresh a dataset is by the clock, beside what its job declares."""

    column: str
    within: str  # As declared: 90s, 15m, 6h, 2d.
    latest: datetime | None = None  # The latest value; None: nothing was measured yet.
    late_since: datetime | None = None  # None: it is not late.
    text: str


class ColumnAnswer(Answer):
    """A column of the current generation."""

    name: str
    type: str | dict[str, Any]  # In Spark's JSON format.
    nullable: bool = True
    revision: int  # Since when it exists: the first commit with it.
    since: datetime | None = None  # When that was committed.


class SchemaChange(Answer):
    """A commit that added columns to a generation; the first one added all that it had."""

    revision: int
    committed_at: datetime | None = None
    added: list[str]
    columns: list[ColumnBody]  # All, from then on.


class SchemaPage(Answer):
    dataset_id: str
    generation_id: str
    changes: list[SchemaChange]  # In order of revision; a generation has only a few.


class DatasetAnswer(Answer):
    dataset: DatasetLine
    generations: list[GenerationAnswer]  # The current one first, then from new to old.
    readers: list[str] = []  # Jobs of live versions that read it, as dag.job.
    events: dict[str, int] = {}  # By state.
    stale: StaleCount | None = None  # Of the current generation; None: there is none.
    sinks: list[SinkState] = []  # Tables outside that follow it, and how far they are.
    columns: list[ColumnAnswer] | None = None  # Of the current generation; None: not known.
    keys: list[str] = []  # Columns that tell its rows apart, as its job declares; empty: none.
    freshness: list[FreshnessState] = []  # One for each freshness that its job declares.


class PartitionAnswer(Answer):
    partition_key: str
    start: int | None = None
    end: int | None = None
    revision: int
    location: str | None = None
    files: int = 0
    rows: int | None = None
    bytes: int | None = None
    task_id: str
    committed_at: datetime
    stale: bool = False  # Built from inputs that have changed since.
    stale_inputs: list[StaleInput] = []  # The inputs that have changed.


class PartitionsPage(Answer):
    dataset_id: str
    generation_id: str
    partitions: list[PartitionAnswer]  # In order of key.
    next: str | None = None  # Pass it as ``after`` for the following page.


class CommitAnswer(Answer):
    """One commit: a version of the dataset."""

    revision: int
    generation_id: str
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    cursor: int | None = None
    files: int = 0
    rows: int | None = None
    bytes: int | None = None
    task_id: str
    attempt: int
    committed_at: datetime
    replaced_by: int | None = None  # The revision that replaced it; None: it is current.
    replaced_at: datetime | None = None
    removed: bool = False  # The commit removed the partition.


class CommitsPage(Answer):
    commits: list[CommitAnswer]  # Newest first.
    next: int | None = None  # Pass it as ``before`` for the following page.


class ChangeAnswer(Answer):
    """The change of a partition or segment between two revisions."""

    change: Literal["added", "replaced", "appended", "removed"]
    partition_key: str | None = None
    cursor: int | None = None
    revision: int  # Of the last commit that changed it.
    task_id: str
    rows: int  # The difference; below 0: fewer than before.
    bytes: int


class ChangesPage(Answer):
    dataset_id: str
    generation_id: str
    from_revision: int
    to_revision: int
    changes: list[ChangeAnswer]  # In the order of their commits.
    next: int | None = None  # Pass it as ``after`` for the following page.


class LineageEdge(Answer):
    """A partition that was made from another one, by which task.

    If an input was read whole or by a range of cursors, the task is the last one that had committed to it.
    """

    depth: int  # 1: directly.
    dataset: str
    dataset_id: str
    generation_id: str
    partition_key: str | None = None  # None: a cursor range, or everything.
    cursor_after: int | None = None
    cursor_upto: int | None = None
    revision: int | None = None  # The revision that the task committed; None: nothing had been committed.
    mode: InputMode = InputMode.PARTITION
    as_of: int | None = None  # If everything was read: up to this revision; None: one partition was read.
    pieces: int | None = None  # If it was read whole: how many pieces it had, if that is cheap to count.
    task_id: str  # Empty: nothing had been committed.


class LineageAnswer(Answer):
    dataset: str
    dataset_id: str
    generation_id: str
    partition_key: str
    revision: int
    task_id: str  # The task that built it.
    upstream: list[LineageEdge] = []
    downstream: list[LineageEdge] = []
    more: bool = False  # The walk stopped at its bound.
