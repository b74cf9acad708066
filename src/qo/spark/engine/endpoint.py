"""The addresses of a cluster, and a probe of whether it answers: one TCP connection, opened and closed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import urlsplit

MASTER_PORT = 7077
PROBE_S = 2.0

Endpoint = tuple[str, int]


class Reach(StrEnum):
    OPEN = "open"
    REFUSED = "refused"  # The machine answers and no process listens: it has ended.
    SILENT = "silent"  # No answer in time. The process may be alive and only unreachable.
    UNKNOWN = "unknown"  # There is no address to probe.


def master_endpoints(master: str) -> tuple[Endpoint, ...]:
    """Return the addresses of ``spark://HOST:PORT,HOST:PORT`` and ``k8s://URL``; none for masters without one."""
    if master.startswith("spark://"):
        hosts = (urlsplit(f"spark://{each}") for each in master.removeprefix("spark://").split(","))
        return tuple((each.hostname, each.port or MASTER_PORT) for each in hosts if each.hostname)
    if master.startswith("k8s://"):
        address = master.removeprefix("k8s://")
        parts = urlsplit(address if "://" in address else f"https://{address}")
        return ((parts.hostname, parts.port or (80 if parts.scheme == "http" else 443)),) if parts.hostname else ()
    return ()


def probe(endpoint: Endpoint, within_s: float = PROBE_S) -> Reach:
    try:
        with socket.create_connection(endpoint, within_s):
            return Reach.OPEN
    except ConnectionRefusedError:
        return Reach.REFUSED
    except OSError:
        return Reach.SILENT


def probe_any(endpoints: Sequence[Endpoint]) -> Reach:
    """Return OPEN if any of several masters answers."""
    results: list[Reach] = []
    for each in endpoints:
        results.append(probe(each))
        if results[-1] is Reach.OPEN:
            return Reach.OPEN
    if not results:
        return Reach.UNKNOWN
    return Reach.REFUSED if all(each is Reach.REFUSED for each in results) else Reach.SILENT


def address_text(endpoints: Sequence[Endpoint]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in endpoints)
