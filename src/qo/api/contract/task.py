"""A task, between the dispatcher and who runs it: claim, heartbeat, events, completion."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from qo.api.contract.body import Answer, Body

NUMBER_MAX = 2**63 - 1
SIZE_MAX = 2**50  # Of one output: the sums over all of them must fit, too.
FILES_MAX = 10_000  # That one commit names.


class Fence(Body):
    """Which attempt speaks. Everything that finishes or publishes carries it; an older one is refused."""

    task_id: str = Field(min_length=1, max_length=36)
    attempt: int = Field(ge=1, le=2**31 - 1)
    lease_id: str = Field(min_length=1, max_length=36)


# Claim


class ClaimRequest(Body):
    task_id: str = Field(min_length=1, max_length=36)
    worker_id: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")  # It stands in logs.
    # Drawn by the worker, so that a claim repeated because no answer came is recognised.
    lease_id: str | None = Field(default=None, min_length=1, max_length=36)


class ColumnBody(Body):
    """A column; its type as Spark writes it in JSON."""

    name: str = Field(min_length=1, max_length=200)
    type: str | dict[str, Any]
    nullable: bool = True


class Piece(Answer):
    """A committed part of a dataset: read exactly these files."""

    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    cursor: int | None = None
    revision: int
    location: str | None = None
    files: list[str] = []
    rows: int | None = None
    bytes: int | None = None
    committed_at: datetime | None = None


class InputMode(StrEnum):
    PARTITION = "partition"  # One partition.
    CURSOR = "cursor"  # Segments after one cursor, up to another.
    WHOLE = "whole"  # Everything that is committed.


class WorkInput(Answer):
    position: int
    name: str
    dataset: str | None = None  # As dag.job, or dag.job[1].
    dataset_id: str
    generation_id: str
    mode: InputMode
    where: dict[str, Any] = {}
    cursor_after: int | None = None  # Read what lies beyond …
    cursor_upto: int | None = None  # … up to and including.
    revision: int | None = None  # The state that is read; None: nothing was ever committed.
    columns: list[ColumnBody] | None = None  # As they were then, where the writer said so.
    pieces: list[Piece] = []
    more: bool = False  # There are further pieces: GET /v1/task/inputs …
    after: str | None = None  # … after this one.


class PiecesAnswer(Answer):
    pieces: list[Piece]
    after: str | None = None  # Where to go on; None: that was all.


class WorkOutput(Answer):
    index: int
    dataset_id: str
    generation_id: str
    prefix: str  # Write below it: it belongs to this attempt alone.
    columns: list[ColumnBody] | None = None  # Of what is there already.


class StandingAnswer(PiecesAnswer):
    """What is committed of an output now."""

    revision: int | None = None


class KeptAnswer(Answer):
    """What was committed before under the key of a task, in place of what cannot be made again."""

    generation_id: str
    revision: int
    task_id: str  # Which has made it.
    committed_at: datetime
    columns: list[ColumnBody] | None = None
    pieces: list[Piece]


class WorkCode(Answer):
    """The code of the task's version: fetch it, see that it has this hash, and run that."""

    sha256: str
    location: str
    fingerprint: str  # Of the operator's code in it, as the completion is to report it.


class Work(Answer):
    """Everything an operator needs to run once."""

    task_id: str
    attempt: int
    dag: str
    job: str
    version: int
    runtime: str
    operator: str
    config: dict[str, Any] = {}
    inputs: list[WorkInput] = []
    outputs: list[WorkOutput] = []
    execution_strategy: str | None = None
    update_strategy: str
    unique_key: list[str] = []
    secrets: list[str] = []  # Logical names; the worker has the secrets themselves.
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    cursor: int | None = None
    attributes: dict[str, Any] = {}
    invalidation_id: str | None = None
    row_filter: dict[str, Any] | None = None
    timeout_seconds: float | None = None
    traceparent: str | None = None
    code: WorkCode | None = None  # Unset: the worker runs its own.
    bundle_id: str | None = None
    entrypoint: str | None = None
    drift: str = "fail"
    cursor_column: str | None = None
    expectations: list[dict[str, Any]] = []


class Claimed(Answer):
    status: Literal["claimed"] = "claimed"
    attempt: int
    lease_id: str
    at: datetime  # When the attempt began, by the dispatcher's clock: a worker's own is never asked.
    lease_expires_at: datetime
    heartbeat_s: float  # How often to be heard of.
    capability_token: str = Field(default="", repr=False)
    work: Work


class NotClaimed(Answer):
    """Nothing to do: drop the wake-up."""

    status: Literal["not_claimed"] = "not_claimed"
    reason: Literal["running", "completed", "failed", "cancelled", "not_due", "not_found"]


class TaskState(Answer):
    """For who wants to know whether to go on."""

    task_id: str
    status: str
    attempt: int
    cancel_requested: bool
    work: Work | None = None


# While it runs


class HeartbeatRequest(Fence):
    display_fields: ClassVar[frozenset[str]] = frozenset({"progress"})

    progress: Any = None


class HeartbeatAnswer(Answer):
    lease_expires_at: datetime
    cancel_requested: bool = False
    paused: bool = False  # A source that reads this should hold back.
    # A fresh one, when the old one is near its end.
    capability_token: str | None = Field(default=None, repr=False)


# Other names of two fields, which events of other systems carry.
_SPELLINGS = {"dataset_uuid": "dataset_id", "dataset_version": "generation_id"}


def _describe_spellings(schema: dict[str, Any]) -> None:
    for other, name in _SPELLINGS.items():
        described = {**schema["properties"][name], "title": other, "description": f"Another name of {name}."}
        schema["properties"][other] = described


class EventBody(Body):
    model_config = ConfigDict(json_schema_extra=_describe_spellings)

    output: int | None = Field(default=None, ge=0, le=1000)  # Which output; or dataset_id and generation_id.
    dataset_id: str | None = None
    generation_id: str | None = None
    cursor: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    partition_key: str | None = None
    start: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    end: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    attributes: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _accept_spellings(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        fields = dict(cast("dict[str, Any]", body))
        for other, name in _SPELLINGS.items():
            value = fields.pop(other, None)
            if value is None:
                continue
            if fields.get(name) is None:
                fields[name] = value
            elif fields[name] != value:
                raise PydanticCustomError(
                    "two_names",
                    "{other} is another name of {name}: give one of them",
                    {"other": other, "name": name},
                )
        return fields


class EventsRequest(Fence):
    events: list[EventBody] = Field(min_length=1, max_length=1000)


class EventsAnswer(Answer):
    accepted: int
    repeated: int  # Known already: said before by this same attempt.
    event_ids: list[str]
    paused: bool = False


# The end


class Outcome(StrEnum):
    SUCCESS = "success"
    RETRYABLE = "retryable_error"
    FATAL = "fatal_error"
    CANCELLED = "cancelled"
    RELEASED = "released"  # Not done, through no fault of its own: costs no attempt.


class OutputBody(Body):
    """One committed output: where its files are. Nothing that is not named here was ever written."""

    output: int = Field(ge=0, le=1000)
    partition_key: str | None = None  # Unset: that of the task.
    start: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    end: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    cursor: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    location: str | None = Field(default=None, max_length=2000)  # Must lie below the attempt's prefix.
    files: list[str] = Field(default=[], max_length=FILES_MAX)
    rows: int | None = Field(default=None, ge=0, le=SIZE_MAX)
    bytes: int | None = Field(default=None, ge=0, le=SIZE_MAX)
    columns: list[ColumnBody] | None = Field(default=None, max_length=10_000)
    columns_seen: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="How many columns the output had when the attempt was claimed: it may lack those added since.",
    )
    stats: dict[str, Any] = {}  # What was observed while it was written.
    # Appending: the revision that the rows were compared with. Refused if something else was committed since.
    based_on: int | None = Field(default=None, ge=0, le=NUMBER_MAX)


class KeptRequest(Fence):
    """Asks for what was committed before of an output, under the key of the task."""

    output: int = Field(default=0, ge=0, le=1000)


class CommitRequest(Fence):
    """What an always-on source commits while it runs: segments, each known by its cursor."""

    outputs: list[OutputBody] = Field(min_length=1, max_length=1000)
    code: str | None = Field(default=None, max_length=64)  # As in the completion.


class CommitAnswer(Answer):
    committed: int
    repeated: int  # Their cursors had been committed before, by this attempt or another: nothing changed.
    paused: bool = False


class LastSegment(Answer):
    """How far an output is committed. All None: not at all."""

    cursor: int | None = None
    attempt: int | None = None  # Who committed it.
    location: str | None = None


class CheckBody(Body):
    """One expectation, as it was found."""

    output: int = Field(ge=0, le=1000)
    name: str = Field(min_length=1, max_length=500)
    kind: str = Field(min_length=1, max_length=20)
    severity: Literal["fail", "warn"]
    passed: bool
    observed: Any = None  # What was there …
    expected: Any = None  # … and what should have been.


class CompleteRequest(Fence):
    display_fields: ClassVar[frozenset[str]] = frozenset({"error", "traceback", "progress", "result"})

    outcome: Outcome
    outputs: list[OutputBody] = Field(default=[], max_length=1000)
    events: list[EventBody] = Field(default=[], max_length=1000)
    # The fingerprint of what ran; None: the worker's own code.
    code: str | None = Field(default=None, max_length=64)
    # Installed ones that differ from those recorded, in words.
    packages: list[str] = Field(default=[], max_length=1000)
    error: str | None = Field(default=None, max_length=20_000)  # Of one released for later: what it waits for.
    traceback: str | None = Field(default=None, max_length=100_000)
    retry_after_s: float | None = Field(default=None, ge=0, le=86_400)
    progress: Any = None
    result: Any = None  # Small, for people to see.
    checks: list[CheckBody] = Field(default=[], max_length=1000)
    rejected: list[OutputBody] = Field(
        default=[], max_length=1000
    )  # Written, but not good enough: kept to look at.


class CompleteAnswer(Answer):
    status: str  # Of the task now.
    repeated: bool = False  # This attempt had been settled already; nothing changed.
    retry_at: datetime | None = None
