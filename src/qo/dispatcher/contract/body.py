"""What all bodies have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """Sent to us: a field we do not know is a mistake we name, not one we swallow."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """Sent by us: a later version may add fields, and an older client ignores them."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(Answer):
    """Every error: what was wrong, and what to do about it."""

    error: str
    code: str = ""  # What kind of error, for programs: see qo.dispatcher.http.errors.
    detail: list[str] = []
