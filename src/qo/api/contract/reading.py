"""What there is to read of a dataset, for whoever wants the data itself."""

from __future__ import annotations

from datetime import datetime

from qo.api.contract.body import Answer
from qo.api.contract.task import ColumnBody, Piece


class ReadingAnswer(Answer):
    """The committed pieces of one generation, as they were at one revision: asking again gives the same."""

    dataset_id: str
    generation_id: str
    revision: int | None = None  # None: nothing was ever committed.
    committed_at: datetime | None = None  # Of that revision, where it is one of the dataset's own.
    columns: list[ColumnBody] | None = None  # As they were then, where the writer said so.
    pieces: list[Piece]
    after: str | None = None  # Where to go on, with this generation and revision; None: that was all.
