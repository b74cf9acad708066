"""An input of a task, as an operator sees it: exactly the files that were committed when the task was claimed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from qo.agent.dataset_files import Storage
from qo.api.contract.task import InputPart, Piece, PiecesAnswer, WorkInput


def uris(piece: Piece) -> Iterator[str]:
    """Yield the URI of every file of a committed piece."""
    for name in piece.files:
        yield name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}"


class MorePieces(Protocol):
    """Fetches a page of the pieces of an input."""

    def __call__(
        self, details: WorkInput, after: str | None, part: InputPart | None = None, /
    ) -> PiecesAnswer: ...


class RunInput:
    """An input of the task: exactly the files that were committed when the task was claimed."""

    def __init__(self, details: WorkInput, storage: Storage, more: MorePieces) -> None:
        self.details = details
        self.name = details.name
        self.where: Mapping[str, Any] = details.where
        self._storage = storage
        self._more = more

    @property
    def pieces(self) -> Iterator[Piece]:
        """Committed pieces, in the order of their commits, fetched page by page."""
        yield from self.details.pieces
        more, after = self.details.more, self.details.after  # None: no piece came with the claim.
        while more:
            page = self._more(self.details, after)
            yield from page.pieces
            after = page.after
            more = after is not None

    def part(self, part: InputPart) -> Iterator[Piece]:
        """Pieces of a part of an input that is read by changes; ``pieces`` are those that were added."""
        after: str | None = None
        while True:
            page = self._more(self.details, after, part)
            yield from page.pieces
            after = page.after
            if after is None:
                return

    @property
    def files(self) -> Iterator[str]:
        """The URI of every file."""
        for piece in self.pieces:
            yield from uris(piece)

    def read(self) -> Iterator[bytes]:
        """The body of every file."""
        return (self._storage.read(uri) for uri in self.files)

    def lines(self) -> Iterator[str]:
        """Every line of every file, as text."""
        for body in self.read():
            yield from body.decode().splitlines()
