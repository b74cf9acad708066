"""The log of an attempt, as shown to people."""

from __future__ import annotations

from datetime import datetime

from qo.api.contract.body import Answer

LINES_MAX = 5_000  # In one answer.


class LogLine(Answer):
    n: int  # From 1 on. Numbers that are missing were dropped.
    at: datetime  # By the clock of the dispatcher; of stream spark, by its own.
    stream: str  # stdout, stderr, log or spark
    text: str
    level: str | None = None  # Of streams log and spark.
    logger: str | None = None


class RunLog(Answer):
    """Lines of one attempt, in order."""

    task_id: str
    status: str  # The task's status now.
    attempt: int | None = None  # None: there was no attempt yet.
    running: bool = False  # The attempt has not ended: more lines may come.
    outcome: str | None = None  # How it ended.
    error: str | None = None
    lines: list[LogLine]
    after: int  # Continue after this line.
    more: bool = False  # There are further lines already.
    dropped: int = 0  # Lines between these, or before the first of them, that were not kept.
