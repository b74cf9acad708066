"""Operators that work on data of their own, and some that try others'."""

from __future__ import annotations

import qo
from qo.errors import AccessDenied

PLACES: dict[str, list[str]] = {"read": [], "write": []}  # That ``reach_out`` tries.
REFUSED: list[str] = []


def write(run: qo.Run) -> None:
    """Write what the partition is called."""
    run.output().write("part-0.txt", f"{run.work.job} {run.partition_key}", rows=1)


def copy(run: qo.Run) -> None:
    run.output().write("part-0.txt", "\n".join(run.input().lines()), rows=1)


def reach_out(run: qo.Run) -> None:
    """Try the places, and note which are refused."""
    run.output().write("part-0.txt", "mine")
    REFUSED.clear()
    for uri in PLACES["read"]:
        try:
            run.storage.read(uri)
        except AccessDenied:
            REFUSED.append(f"read {uri}")
    for uri in PLACES["write"]:
        try:
            run.storage.write(uri, b"not mine")
        except AccessDenied:
            REFUSED.append(f"write {uri}")
