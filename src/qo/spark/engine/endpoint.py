"""Where a cluster answers, and whether it does: one TCP connection, opened and closed."""

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
    REFUSED = "refused"  # The machine answers and nobody listens: the process is gone.
    SILENT = "silent"  # No answer in time. The process may be alive and only out of reach.
    UNKNOWN = "unknown"  # There is no address to ask.


def master_endpoints(master: str) -> tuple[Endpoint, ...]:
    """The addresses of ``spark://HOST:PORT,HOST:PORT`` and ``k8s://URL``; none for masters that have no address."""
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
    """Of several masters, one is enough."""
    found: list[Reach] = []
    for each in endpoints:
        found.append(probe(each))
        if found[-1] is Reach.OPEN:
            return Reach.OPEN
    if not found:
        return Reach.UNKNOWN
    return Reach.REFUSED if all(each is Reach.REFUSED for each in found) else Reach.SILENT


def address_text(endpoints: Sequence[Endpoint]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in endpoints)
