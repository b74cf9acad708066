"""DAGs and their versions: deploy, diff, cutover, rollback, pause."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from qo.api.contract.body import Answer, Body


class DeployBundle(Body):
    """The code that travels with a version: an uploaded bundle, and the jobs that run from it."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    jobs: list[str] = Field(min_length=1, max_length=10_000)


class DeployRequest(Body):
    """Deploy a definition: the text of the file, YAML or JSON, unchanged."""

    source: str = Field(min_length=1, max_length=1_000_000)
    bundle: DeployBundle | None = None  # Unset: all jobs run the workers' own code.
    again: bool = False  # Also deploy a version that was rolled back.


class EditedJob(Answer):
    job: str
    fields: list[str]


class RebuiltJob(Answer):
    job: str
    why: str


class DiffAnswer(Answer):
    """Changes against the active version; without one, every job is added."""

    dag: str
    against: int | None = None  # The number of the active version.
    same: bool = False  # Equivalent to the active version.
    added: list[str] = []
    removed: list[str] = []
    edited: list[EditedJob] = []
    operational: list[EditedJob] = []  # Jobs that only run differently: nothing is rebuilt.
    rebuilt: list[RebuiltJob] = []  # Added and edited jobs, and everything downstream of them.
    carried_over: list[str] = []
    version: int | None = None  # The number of the version, if the file was deployed before.
    rolled_back: bool = False  # That version was rolled back: it is deployed only if the request says ``again``.
    rolled_back_at: datetime | None = None
    rolled_back_by: str | None = None


class VersionAnswer(Answer):
    """A version and its status."""

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
    created: bool  # False: the same definition was deployed before.
    changed: bool  # False: the version was live already.
    abandoned: int | None = None  # The staged version that it replaced.
    diff: DiffAnswer


class CutoverAnswer(Answer):
    """The result of mark_ready, activate, rollback or abandon."""

    dag: str
    version: int  # The version that changed; after a rollback, the one that is active again.
    status: str
    changed: bool  # False: it had this status already.
    active: int | None  # The number of the active version now.
    replaced: int | None = None  # The one that was active before.
    cancelled: int = 0  # Pending tasks that were cancelled.
    cancelling: bool = False  # There are many more pending tasks, which are being cancelled.
    cancel_requested: int = 0  # Running tasks that were asked to stop.
    withheld: int = 0  # Pending tasks that wait in case of a rollback.
    # Only when a version is marked ready or activated, of the jobs that it rebuilds:
    rebuilt: int = 0  # Tasks that are done.
    left: int = 0  # Tasks that are still to be done.
    failed: int = 0  # Tasks that failed; always 0 without force.


class ReadyRequest(Body):
    force: bool = False  # Also mark a version ready that has failed tasks.


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
    previous: int | None = None  # The number of the version that a rollback activates.
    jobs: int = 0  # Of the active version.
    paused: str | None = None  # The reason, if the whole DAG is paused.
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
    group: str | None = None  # Jobs that people see together.
    reads: list[str] = []  # Jobs of the DAG, or published datasets of others.
    outputs: int
    rebuilt: bool = False  # It differs from the active version, so it builds data of its own.
    tasks: dict[str, int] = {}  # By status; COUNT_MAX means that many or more.
    hold: str | None = None  # Why its waiting tasks are not started now.
    paused: str | None = None  # The reason, if people paused it or its DAG.
    source: str | None = None  # The state of a source.
    code: str | None = None  # The fingerprint of its code.
    bundle: str | None = None  # The bundle with its code; None: workers run their own code.


class VersionShown(VersionAnswer):
    active: int | None = None
    paused: str | None = None
    publish: dict[str, str] = {}  # Job by published name, as name[output] beyond the first.
    jobs: list[JobLine] = []
    source: str = ""  # The file, as it was sent.


class JobWait(Answer):
    """A job whose tasks wait for the jobs that build its other inputs (``trigger: false``)."""

    job: str
    reason: str  # For people: which jobs are not done yet, and what to do where one of them failed.


class RebuildAnswer(Answer):
    """Progress of the jobs that a version rebuilds. An operator decides when it is enough: see mark_ready."""

    dag: str
    version: int
    status: str
    jobs: list[str]  # Names of the jobs that it rebuilds.
    tasks: dict[str, int] = {}  # Tasks of these jobs by status, without sources and side effects.
    remaining: int = 0  # Committed inputs that have no task yet; the dispatcher's next pass creates one.
    waiting: int = 0  # Tasks of side effects, which wait for cutover.
    waits: list[JobWait] = []  # Jobs that are built, or compared with earlier results, after others.
    blocked: int = 0  # Tasks that wait for others which failed.
    stuck: bool = False  # Everything left waits for failed tasks: replay them, or mark the version ready by force.
    caught_up: bool = False  # Nothing remains, waits or runs. Failed tasks do not count: look at them.
