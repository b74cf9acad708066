"""The names of the dispatcher's loops. A transaction names the loops that have work to do after it."""

from __future__ import annotations

from enum import StrEnum


class LoopName(StrEnum):
    """As logs, metrics and health reports show it."""

    SOURCE_MONITOR = "source monitor"
    INVALIDATION = "invalidation"
    BACKFILL = "backfill"
    REFRESH = "refresh"
    ROUTER = "router"
    RECONCILER = "reconciler"
    COMPARISON = "comparison"
    TOPOLOGY_WATCH = "topology watch"
    BULK_CHANGE = "bulk change"
    REAPER = "reaper"
    PRESSURE = "pressure"
    RELEASE = "release"
    PUBLISHER = "publisher"
    IN_PROCESS = "in process"
    INVOKER = "invoker"
    SWEEPER = "sweeper"
    PURGE = "purge"
    HISTORY_PURGE = "history purge"
    MANIFEST = "manifest"
    TABLES = "tables"
