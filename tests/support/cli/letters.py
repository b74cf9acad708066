"""A pipeline that counts letters, in a directory of its own, and what ``qo up`` makes of it: tasks and processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from support.cli.command import Qo

PIPELINE = """\
name: letters
jobs:
  - name: inbox
    activation: source
    source: {kind: files, path: inbox, pattern: "*.txt", poll_seconds: 1}
    outputs: 1
  - name: counted
    activation: reactive
    runtime: python
    operator: letters:counted
    inputs: [{from: {job: inbox}}]
    execution_strategy: PerPartition
    outputs: 1
  - name: shouted
    activation: reactive
    runtime: python
    operator: letters:shouted
    inputs: [{from: {job: counted}}]
    execution_strategy: PerPartition
    outputs: 1
publish:
  counts: {from: {job: counted}}
  shouts: {from: {job: shouted}}
"""

OPERATORS = """\
def counted(run):
    print(42)
    print("null", '{"code": 2}', 70_000 * "x", sep="\\n", flush=True)
    texts = [body.decode() for body in run.input().read()]
    if "bad" in run.partition_key:
        raise ValueError("this letter cannot be read")
    run.output().write("count.txt", f"{run.partition_key} {sum(map(len, texts))}\\n", rows=1)


def shouted(run):
    run.output().write("shout.txt", "".join(line.upper() + "\\n" for line in run.input().lines()), rows=1)


def noted(run):
    pass
"""


def tasks(qo: Qo) -> list[tuple[str, str]]:
    """Job and status of every task, without those of sources."""
    with sqlite3.connect(f"file:{qo.cwd / '.qo' / 'state.db'}?mode=ro", uri=True) as state:
        known = state.execute("SELECT 1 FROM sqlite_master WHERE name = 'tasks'").fetchall()
        found = (
            state.execute("SELECT job, status FROM tasks WHERE job <> 'inbox' ORDER BY 1, 2").fetchall()
            if known
            else []
        )
    state.close()
    return found


def done(qo: Qo) -> int:
    return sum(status == "completed" for _, status in tasks(qo)) if (qo.cwd / ".qo" / "state.db").exists() else 0


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes(qo: Qo) -> dict[int, list[str]]:
    """Whatever runs in the directory, with its command line."""
    found: dict[int, list[str]] = {}
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and (each / "cwd").readlink() == qo.cwd.resolve():
                found[int(each.name)] = (each / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue  # It has ended, or is another's.
    return found


def parts(qo: Qo) -> dict[str, int]:
    """The processes of an installation by their roles."""
    named = {pid: words for pid, words in processes(qo).items() if "qo.up.child_main" in words}
    return {words[words.index("qo.up.child_main") + 1]: pid for pid, words in named.items()}
