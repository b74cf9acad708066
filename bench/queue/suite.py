"""The families of the queue suite, in the order they are measured."""

from __future__ import annotations

from bench.queue import bill, claims, drain, embedded, growth, kept, limit, requests, starts, startup

FAMILIES = [
    *startup.FAMILIES,
    *bill.FAMILIES,
    *requests.FAMILIES,
    *drain.FAMILIES,
    *limit.FAMILIES,
    *embedded.FAMILIES,
    *growth.FAMILIES,
    *claims.FAMILIES,
    *starts.FAMILIES,
    *kept.FAMILIES,
]
