"""`python -m bench.spark.profile [tasks]`: where the time of small tasks goes, with a full queue and one at a time.

Also the CPU that each process uses for a task, which a busy machine hardly changes, and that of a script.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from bench.spark import parts, sessions, work
from bench.spark.ground import SLOTS, SMALL, Installation
from bench.spark.talking import Partner

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.profile", description=__doc__)
    parser.add_argument("tasks", nargs="?", type=int, default=100)
    parser.add_argument("--alone", type=int, default=20, help="how many one at a time")
    arguments = parser.parse_args()
    count = arguments.tasks
    with (
        tempfile.TemporaryDirectory(prefix="qo-bench-") as directory,
        Installation(SMALL) as qo,
        Partner("bench.spark.bare") as bare,
    ):
        home = Path(directory)
        bare.ask("open", **sessions.told(), threads=SLOTS)
        for turn in ("warm", "full"):
            files = work.written(home / turn, count, 1_000)
            before = cpu_s()
            took = float(bare.ask("small", sources=list(map(str, files)), target=f"{home}/{turn}-bare")["seconds"])
            used = cpu_s()
            print(f"{turn}: a script: {count / took:.1f} tasks/s")
            show_cpu(before, used, count)
            took = qo.small(files)
            print(f"{turn}: qo: {count / took:.1f} tasks/s")
            show_cpu(used, cpu_s(), count)
        show(parts.parts_ms(parts.ended(qo, last=count)))
        began = time.perf_counter()
        for path in work.written(home / "alone", arguments.alone, 1_000):
            qo.small([path])
        print(f"{1000 * (time.perf_counter() - began) / arguments.alone:.0f} ms each, one at a time")
        show(parts.parts_ms(parts.ended(qo, last=arguments.alone)))


def show(found: dict[str, float]) -> None:
    for name, each in found.items():
        print(f"  {each:8.1f} ms  {name}")


def show_cpu(before: dict[str, float], after: dict[str, float], count: int) -> None:
    for name, used in after.items():
        spent = 1000 * (used - before.get(name, 0.0)) / count
        if spent >= 0.5:
            print(f"  {spent:8.1f} ms CPU  {name}")


def cpu_s() -> dict[str, float]:
    """What this process and all that descend from it have used so far, by what they are."""
    found = {int(path.name): path for path in Path("/proc").glob("[0-9]*")}
    parents: dict[int, tuple[int, float]] = {}
    for pid, path in found.items():
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        parents[pid] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S)
    return {_name(pid): used for pid, (_, used) in parents.items() if _descends(pid, parents)}


def _descends(pid: int, parents: dict[int, tuple[int, float]]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid][0]
    return pid == os.getpid()


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        words = ["?"]
    what = "java" if words[0].endswith("java") else " ".join(word for word in words[1:4] if len(word) < 40)
    return f"{what} ({pid})"


if __name__ == "__main__":
    main()
