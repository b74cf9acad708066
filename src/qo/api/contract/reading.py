"""The committed files of a dataset, for clients that read the data."""

from __future__ import annotations

from datetime import datetime

from qo.api.contract.body import Answer
from qo.api.contract.task import ColumnBody, Piece


class ReadingAnswer(Answer):
    """The committed pieces of one generation, as of one revision: repeating the request gives the same."""

    dataset_id: str
    generation_id: str
    revision: int | None = None  # None: nothing was ever committed.
    committed_at: datetime | None = None  # When that revision was committed, if it is one of the dataset's own.
    columns: list[ColumnBody] | None = None  # The columns at that revision, if the writer reported them.
    pieces: list[Piece]
    after: str | None = None  # Continue after it, with this generation and revision; None: no more.
