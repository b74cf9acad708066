"""DAGs, their versions, and what becomes of them: deploy, diff, cutover, rollback, pause."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from qo.api.contract.body import Answer, Body


class DeployBundle(Body):
    """The code that travels with a version: an uploaded bundle, and the jobs that run from it."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    jobs: list[str] = Field(min_length=1, max_length=10_000)


class DeployRequest(Body):
    """The file, as it is: YAML or JSON."""

    source: str = Field(min_length=1, max_length=1_000_000)
    bundle: DeployBundle | None = None  # Unset: all jobs run the workers' own code.
    again: bool = False  # Also a version that was rolled back.


class EditedJob(Answer):
    job: str
    fields: list[str]


class RebuiltJob(Answer):
    job: str
    why: str


class DiffAnswer(Answer):
    """Against the active version; without one, everything is added."""

    dag: str
    against: int | None = None  # The number of the active version.
    same: bool = False  # Means exactly what the active version means.
    added: list[str] = []
    removed: list[str] = []
    edited: list[EditedJob] = []
    operational: list[EditedJob] = []  # Only how they are run: nothing to build again.
    rebuilt: list[RebuiltJob] = []  # What is added or edited, and everything downstream.
    carried_over: list[str] = []
    version: int | None = None  # The number of the version, if the file was deployed before.
    rolled_back: bool = False  # That version was rolled back: it is deployed only if the request says ``again``.
    rolled_back_at: datetime | None = None
    rolled_back_by: str | None = None


class VersionAnswer(Answer):
    """A version as it stands."""

    dag: str
    version: int
    version_id: str
    status: str
    content_hash: str
    created_at: datetime
    created_by: str
    ready_at: datetime | None = None
    activated_at: datetime | None = None


class DeployAnswer(Answer):
    dag: str
    version: int
    version_id: str
    status: str
    content_hash: str
    created: bool  # False: this file had been deployed before.
    changed: bool  # False: nothing to do; it was live already.
    abandoned: int | None = None  # The staged version whose place it took.
    diff: DiffAnswer


class CutoverAnswer(Answer):
    """After mark_ready, activate, rollback or abandon."""

    dag: str
    version: int  # The one that was moved; after a rollback, the one that is active again.
    status: str
    changed: bool  # False: it was so already.
    active: int | None  # The number of the active version now.
    replaced: int | None = None  # The one that was active before.
    cancelled: int = 0  # Pending tasks that were cancelled.
    cancel_requested: int = 0  # Running tasks that were asked to stop.
    withheld: int = 0  # Pending tasks that wait in case of a rollback.
    # When a version is called ready or takes over, of the jobs that it builds anew:
    rebuilt: int = 0  # Tasks that are done.
    left: int = 0  # Tasks that are still to be done.
    failed: int = 0  # Tasks that failed: without force there are none.


class ReadyRequest(Body):
    force: bool = False  # Also a version of which tasks have failed.


class PauseRequest(Body):
    reason: str = Field(default="", max_length=2000)


class PauseAnswer(Answer):
    scope: str
    paused: bool
    changed: bool
    reason: str | None = None
    by: str | None = None
    at: datetime | None = None


class DagLine(Answer):
    name: str
    active: int | None = None  # The number of the version that serves.
    next: int | None = None  # The number of the version that is staged or ready beside it.
    next_status: str | None = None
    previous: int | None = None  # Where a rollback goes.
    jobs: int = 0  # Of the active version.
    paused: str | None = None  # The reason, if the whole DAG is.
    updated_at: datetime


class DagsPage(Answer):
    dags: list[DagLine]
    next: str | None = None  # Pass it as ``after`` for the following page.


class VersionsPage(Answer):
    versions: list[VersionAnswer]  # From new to old.
    next: str | None = None  # Pass it as ``after`` for the following page.


class JobLine(Answer):
    name: str
    edition_id: str
    activation: str
    runtime: str
    operator: str
    queue: str
    reads: list[str] = []  # Jobs of the DAG, or published datasets of others.
    outputs: int
    rebuilt: bool = False  # Not as in the active version: it builds data of its own.
    tasks: dict[str, int] = {}  # By status; COUNT_MAX stands for so many or more.
    hold: str | None = None  # Why its waiting tasks are not started now.
    paused: str | None = None  # The reason, if people paused it or its DAG.
    source: str | None = None  # The state of a source.
    code: str | None = None  # What its code is known by.
    bundle: str | None = None  # The bundle that its code travels in; None: workers run their own.


class VersionShown(VersionAnswer):
    active: int | None = None
    paused: str | None = None
    publish: dict[str, str] = {}  # Job by published name, as name[output] beyond the first.
    jobs: list[JobLine] = []
    source: str = ""  # The file, as it was sent.


class JobWait(Answer):
    """A job whose tasks wait for others that make what it reads beside (``trigger: false``)."""

    job: str
    reason: str  # For people: which jobs are not done yet, and what to do where one of them failed.


class RebuildAnswer(Answer):
    """How far the jobs are that a version builds anew. Whether that is enough, somebody says: see mark_ready."""

    dag: str
    version: int
    status: str
    jobs: list[str]  # Those it builds anew, by name.
    tasks: dict[str, int] = {}  # Of these jobs, by status, without sources and side effects.
    remaining: int = 0  # Committed inputs that still have no task; the next look for them makes one.
    waiting: int = 0  # Tasks of side effects, which wait for cutover.
    waits: list[JobWait] = []  # Jobs that are built, or compared with what was built, after others.
    blocked: int = 0  # Tasks that wait for others which failed.
    stuck: bool = False  # All that is left waits for what failed: replay it, or call the version ready by force.
    caught_up: bool = False  # Nothing remains, waits or runs. Failed tasks do not count: look at them.
