"""What the first pages of a dashboard show: health of pipelines, partitions over jobs, runs over time, names."""

from __future__ import annotations

from datetime import datetime

from qo.api.contract.body import Answer


class PublishedHealth(Answer):
    """A published dataset of a pipeline, and when it last changed."""

    name: str
    dataset: str  # The job that makes it, as dag.job.
    committed_at: datetime | None = None  # Null: it is empty.
    partitions: int = 0
    rows: int = 0
    bytes: int = 0


class PipelineHealth(Answer):
    """The live versions of a pipeline at a glance."""

    name: str
    active: int | None = None
    next: int | None = None  # The version beside it, which is being built.
    next_status: str | None = None
    paused: str | None = None
    jobs: int
    running: int
    waiting: int  # Tasks that are due or will be, and do not run.
    failed: int  # Open failures.
    held: int  # Jobs that are held back or paused.
    late: int = 0  # Datasets that are less fresh than declared, by the clock.
    sources: int
    sources_failed: int  # Always-on sources that do not run.
    published: list[PublishedHealth] = []


class HealthPage(Answer):
    now: datetime
    pipelines: list[PipelineHealth]
    next: str | None = None


class GridCell(Answer):
    """A partition of a job: what is committed, and what is going on."""

    key: str
    state: str  # done, running, waiting or failed
    committed_at: datetime | None = None  # Null: nothing is committed.
    rows: int | None = None
    task_id: str | None = None  # Of the task that is open or has failed; else of the one that committed it.
    since: datetime | None = None  # When that task was created, or its attempt began.


class GridRow(Answer):
    job: str
    edition_id: str
    cells: list[GridCell]  # Newest key first; keys that the job has nothing for are left out.


class GridAnswer(Answer):
    """Partitions over jobs: columns are keys, rows are jobs, each after those that it reads."""

    dag: str
    version: int
    keys: list[str]  # In descending order.
    rows: list[GridRow]
    before: str | None = None  # Pass it to see older keys; null: there are none.
    more_jobs: bool = False  # Jobs beyond the first 200 are left out.


class GridRange(Answer):
    """Some keys that follow each other. Pass ``from_key`` and ``before`` to see only these."""

    first: str
    last: str
    keys: int  # Of the job that has the most of them.
    from_key: str | None = None  # Null: and all that come before.
    before: str | None = None  # The next range begins there; null: and all that follow.


class RangeCounts(Answer):
    """How far a job is with each range: counts of partitions, one for each range."""

    job: str
    edition_id: str
    done: list[int]  # Committed; those that are made again, too.
    running: list[int]
    waiting: list[int]
    failed: list[int]
    at_least: bool = False  # There is more open work than was counted.


class GridRangesAnswer(Answer):
    """Ranges of partitions over jobs, however many partitions there are."""

    dag: str
    version: int
    keys: int  # Of the job that has the most of them.
    ranges: list[GridRange]  # In ascending order of keys.
    rows: list[RangeCounts]
    older: str | None = None  # Pass it as ``before`` to see older keys; null: there are none.
    more_jobs: bool = False  # Jobs beyond the first 200 are left out.


class WaitingPartition(Answer):
    """A partition that is made of others, and waits for the rest of them."""

    job: str
    partition_key: str
    since: datetime  # When the first of what it is made of came.
    due_at: datetime | None = None  # When it is made of what is there; null: it waits for all.
    because: str  # What it waits for, in words.


class WaitingPage(Answer):
    """Partitions that wait for others, by job and key."""

    dag: str
    version: int
    partitions: list[WaitingPartition]
    next: str | None = None


class TimelineAttempt(Answer):
    attempt: int
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    worker_id: str | None = None


class TimelineTask(Answer):
    """A task with the times that it waited and ran."""

    id: str
    job: str
    status: str
    partition_key: str | None = None
    cursor: int | None = None
    created_at: datetime
    available_at: datetime  # Before this it was not due.
    completed_at: datetime | None = None
    attempts: list[TimelineAttempt] = []


class TimelineAnswer(Answer):
    """The newest tasks of a pipeline, newest first."""

    now: datetime
    tasks: list[TimelineTask]
    before: datetime | None = None  # Pass it to see older tasks; null: there are none.


class JobDurations(Answer):
    """How long the last completed tasks of a job took, in its live edition."""

    job: str
    tasks: int  # How many were looked at: the last hundred at most.
    mean_s: float | None = None  # From the start of the last attempt to the end; null: none was completed.
    p95_s: float | None = None


class DurationsAnswer(Answer):
    dag: str
    jobs: list[JobDurations]


class EffortPeriod(Answer):
    """The tasks of a job that ended in a period."""

    begin: datetime
    tasks: int = 0
    failed: int = 0  # Of these.
    attempts: int = 0
    median_s: float | None = (
        None  # Half of the completed ones ran no longer, all their attempts together; null: none.
    )
    p95_s: float | None = None  # The same of 95 % of them.
    waited_s: float | None = None  # Half of all waited no longer, from when they were due.
    worker_s: float = 0  # All attempts together: so long somebody worked, also for what failed.


class EffortAnswer(Answer):
    """How long the last tasks of a job ran and waited, and what worker time they took, over time."""

    dag: str
    job: str
    period_s: int  # How long each period is; they are multiples of it in UTC.
    tasks: int  # How many were looked at: the last thousand at most, of the last ten editions.
    more: bool = False  # There are older ones.
    periods: list[EffortPeriod]  # From old to new, without gaps; 61 at most.


class SearchHit(Answer):
    kind: str  # pipeline, job, dataset, partition or task
    name: str
    about: str = ""  # In words: what it belongs to.
    dag: str | None = None
    job: str | None = None
    task_id: str | None = None
    dataset: str | None = None
    partition_key: str | None = None


class SearchAnswer(Answer):
    hits: list[SearchHit]
    more: bool = False
