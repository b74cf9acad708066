"""The operators of the Python workers."""

from __future__ import annotations

import time

import qo
from chaos.handlers import spooled
from chaos.notes import note


def copy(run: qo.Run) -> str:
    """What it reads, and a line of its own. Read twice or written twice, the lines would say so."""
    with note(run.config["notes"], run.work.task_id, run.work.attempt, run.config["group"]):
        time.sleep(0.1)
        spooled(run.partition_key or "")
        lines = [*run.input().lines(), f"{run.work.job} {run.partition_key}"]
        run.output().write("lines.txt", "\n".join(lines) + "\n", rows=len(lines))
        return "copied"
