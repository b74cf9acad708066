"""The documents of tables, as they lie in the data root.

A document never changes: the next one has another name. So the last few are kept in memory, and a table that nobody
commits to is served without reading a file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, cast

import msgspec

from qo.config.settings import Settings
from qo.errors import CorruptRecord
from qo.store.blocking_files import BlockingFiles

KEPT_BYTES_MAX = 32 * 1024 * 1024


class TableDocuments:
    """Reads documents by their location. Safe for threads."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, location: str, settings: Settings) -> dict[str, Any]:
        """Return a document. Blocks.

        Raises NotFound if there is none, CorruptRecord if it is not one, Unavailable if the bucket does not answer.
        """
        with self._lock:
            body = self._bodies.get(location)
            if body is not None:
                self._bodies.move_to_end(location)
        if body is None:
            body = BlockingFiles(settings).read(_uri(location))
            self._keep(location, body)
        return _decode(location, body)

    def _keep(self, location: str, body: bytes) -> None:
        with self._lock:
            if location in self._bodies or len(body) > self._kept_bytes_max:
                return
            self._bodies[location] = body
            self._bytes += len(body)
            while self._bytes > self._kept_bytes_max:
                _, dropped = self._bodies.popitem(last=False)
                self._bytes -= len(dropped)


def keep_only_referenced(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with no other snapshots than those that a branch or a tag names."""
    referenced = {each["snapshot-id"] for each in document.get("refs", {}).values()}
    snapshots = [each for each in document.get("snapshots", []) if each["snapshot-id"] in referenced]
    return {**document, "snapshots": snapshots}


def locations_of(location: str, document: dict[str, Any]) -> list[str]:
    """Return the directories that a document names: the table's own, and the one that it lies in."""
    return [str(document.get("location", "")), location.rpartition("/")[0]]


def _uri(location: str) -> str:
    return f"file:{location}" if location.startswith("/") else location


def _decode(location: str, body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"{location} is not the document of a table: {error}") from None
    if not isinstance(document, dict):
        raise CorruptRecord(f"{location} is not the document of a table: it holds no object")
    return cast("dict[str, Any]", document)
