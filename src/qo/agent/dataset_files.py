"""Files of datasets, wherever the data root is: ``file:PATH`` or ``s3://BUCKET/PREFIX``."""

from __future__ import annotations

from typing import Protocol

from qo.config.location import path_text


class Storage(Protocol):
    """Whole files by URI, as ``qo.store.blocking_files`` has them. Blocks: operators have threads of their own."""

    def read(self, uri: str) -> bytes: ...

    def write(self, uri: str, body: bytes) -> None: ...


def resolve_uri(place: str, here: str) -> str:
    """Return the URI of a place in a job's config. ``here``: the directory that relative paths start from."""
    if place.startswith("s3://"):
        return place
    path = path_text(place)
    return f"file:{path}" if path.startswith("/") else f"file:{here}/{path.removeprefix('./')}"
