"""What the handlers of all contestants do: leave a line that says which task came to its end, where and when.

The lines go to one file, whatever the number of processes: each is one short write at the file's end, so none is
torn and none is lost with the process that wrote it.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

STAMPS = "BENCH_STAMPS"  # In the environment: the file.
NAP_S = 0.05  # How long the tasks take that a worker is killed over.


class Stamp(NamedTuple):
    number: int  # Of the task.
    process: int
    at_s: float  # By the machine's monotonic clock, which all its processes share.


def stamp(number: int) -> None:
    os.write(_file(), f"{number} {os.getpid()} {time.monotonic()}\n".encode())


@cache
def _file() -> int:
    return os.open(os.environ[STAMPS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def read(path: Path) -> list[Stamp]:
    """In the order of time."""
    lines = path.read_text().splitlines() if path.exists() else []
    fields = (line.split() for line in lines)
    stamps = (Stamp(int(number), int(process), float(at_s)) for number, process, at_s in fields)
    return sorted(stamps, key=lambda each: each.at_s)
