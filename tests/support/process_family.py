"""Let a process and all that came from it stand still for a while.

A signal to stop reaches one thread; the others run on until that one has been given a turn, and may take a lock
meanwhile. So whoever is paused is waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STANDS_WITHIN_S = 30.0
LOOK_AGAIN_S = 0.001
STANDING = frozenset("TtZX")  # Stopped, traced, or gone.


def family_of(pid: int) -> list[int]:
    """The process and all that came from it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children.setdefault(int(_fields(entry)[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def pause(*pids: int) -> list[int]:
    """Return which of them are there, when every thread of each has stopped."""
    stopped: list[int] = []
    for each in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
            stopped.append(each)
    limit = time.monotonic() + STANDS_WITHIN_S
    while not all(map(_stands, stopped)):
        assert time.monotonic() < limit, f"{stopped} run on after SIGSTOP"
        time.sleep(LOOK_AGAIN_S)
    return stopped


def resume(*pids: int) -> None:
    """Children go on before their parents do."""
    for each in reversed(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGCONT)


@contextmanager
def paused(*pids: int) -> Iterator[None]:
    try:
        pause(*pids)
        yield
    finally:
        resume(*pids)


def _stands(pid: int) -> bool:
    try:
        return all(_fields(thread)[0] in STANDING for thread in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return not Path(f"/proc/{pid}").exists()  # Or a thread has ended meanwhile: look again.


def _fields(entry: Path) -> list[str]:
    """State, parent and so on, behind the name, which may contain spaces."""
    return (entry / "stat").read_text().rpartition(")")[2].split()
