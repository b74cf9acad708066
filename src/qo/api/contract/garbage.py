"""Garbage collection: which prefixes of attempts, and which manifests, may be deleted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from qo.api.contract.body import Answer, Body

PREFIXES_MAX = 500
Prefix = Annotated[str, Field(min_length=1, max_length=1000)]


class JudgeRequest(Body):
    # Paths below the data root: dataset/generation/task/attempt, _manifests/name/revision.json,
    # dataset/metadata/file, or _logs/day/task/attempt.
    prefixes: list[Prefix] = Field(min_length=1, max_length=PREFIXES_MAX)
    keep_s: float = Field(ge=0, le=100 * 366 * 86_400.0)  # Keep what ended or was replaced within this time.
    log_keep_s: float | None = Field(
        default=None, ge=0, le=100 * 366 * 86_400.0
    )  # The same for logs of attempts; unset: as keep_s.
    retired: bool = False  # Also generations that neither a live version nor a rollback of one step needs.
    dry_run: bool = False  # Answer without recording the decision.


class PrefixVerdict(Answer):
    prefix: str
    gone: bool  # It may be deleted; the decision is final.
    why: str


class JudgeAnswer(Answer):
    judged: list[PrefixVerdict]  # In the order of the request.
