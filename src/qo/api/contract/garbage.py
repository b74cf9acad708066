"""Collection: which prefixes of attempts, and which manifests, nobody needs any more."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from qo.api.contract.body import Answer, Body

PREFIXES_MAX = 500
Prefix = Annotated[str, Field(min_length=1, max_length=1000)]


class JudgeRequest(Body):
    # Below the data root, as they were found: dataset/generation/task/attempt, or _manifests/name/revision.json.
    prefixes: list[Prefix] = Field(min_length=1, max_length=PREFIXES_MAX)
    keep_s: float = Field(ge=0, le=100 * 366 * 86_400.0)  # What ended or was replaced later than that ago is kept.
    retired: bool = False  # Also generations that no live version has, and none that one step back goes to.
    dry_run: bool = False  # Decide nothing for good.


class PrefixVerdict(Answer):
    prefix: str
    gone: bool  # It may be deleted, now and for ever.
    why: str


class JudgeAnswer(Answer):
    judged: list[PrefixVerdict]  # In the order of the request.
