"""Sinks: tables in databases outside, and files for others, that follow published datasets."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from qo.api.contract.body import Answer, Body
from qo.api.contract.task import Piece

ERROR_MAX = 2000


class SinkGeneration(Answer):
    """A generation whose rows are kept: of a live version, or of one that a rollback returns to."""

    id: str
    is_followed: bool  # It is current, or may become so without a rollback: its rows are kept up.
    revision: int  # Its last one; 0: nothing was ever committed.


class LiveSink(Answer):
    """A sink of an active version, and the generations of its dataset."""

    name: str  # The published name of the dataset.
    dataset_id: str
    kind: str
    database: str | None = None  # postgres: by the name that the settings of the loader give it.
    table: str | None = None  # postgres: as schema.table.
    directory: str | None = None  # files: by the name that the settings of the loader give it.
    file: str | None = None  # files: the pattern of their names.
    keep_s: int | None = None  # files: how long replaced ones stay.
    epoch: int  # Of the topology: of two answers about what is current, the one with the higher epoch counts.
    current: str | None = None  # The generation that it is to show.
    generations: list[SinkGeneration] = []


class SinksAnswer(Answer):
    sinks: list[LiveSink]
    now: datetime  # By the database.


class SinkStep(Answer):
    """What changes between two revisions of a generation. Apply all of it in one transaction, or nothing."""

    generation_id: str
    after: int  # The revision that the sink has; 0: none.
    upto: int  # The revision that it has afterwards.
    latest: int  # The last revision; 0: nothing was ever committed.
    add: list[Piece] = []  # Commits whose rows are to be added.
    drop: list[int] = []  # Revisions of commits whose rows are to be deleted.


class SinkReport(Body):
    """How far a loader has got with a sink. The table's own books are the truth; this is for people."""

    display_fields = frozenset({"error"})

    generation_id: str | None = Field(default=None, max_length=36)  # What it shows; None: nothing yet.
    revision: int = Field(default=0, ge=0, le=2**63 - 1)
    error: str | None = Field(default=None, max_length=ERROR_MAX)  # Why the last try failed.


class SinkState(Answer):
    """How far a sink is."""

    name: str
    kind: str
    database: str | None = None
    table: str | None = None
    directory: str | None = None
    file: str | None = None
    keep_s: int | None = None
    generation_id: str | None = None  # What it shows; None: nothing yet.
    revision: int = 0  # As of which it shows it.
    latest: int = 0  # The last revision of the current generation.
    is_current: bool = False  # It shows the current generation as of the latest revision.
    lag_s: float | None = None  # How long the oldest commit that it lacks has waited; None: it lacks none.
    error: str | None = None
    reported_at: datetime | None = None  # When a loader was last heard of; None: never.
    text: str  # The same as a sentence.
