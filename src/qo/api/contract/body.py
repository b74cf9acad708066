"""What all bodies have in common."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from qo.api.contract import plain


class Body(BaseModel):
    """Sent to us: a field we do not know is a mistake we name, not one we swallow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Only for people to read: what cannot be kept of them is replaced, not refused.
    told: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cast("dict[str, Any]", given)
        wrong = plain.unfit({name: value for name, value in fields.items() if name not in cls.told})
        if wrong is not None:
            raise PydanticCustomError("not_plain", "{wrong}", {"wrong": wrong})
        return fields | {name: plain.mended(fields[name]) for name in cls.told & fields.keys()}


class Answer(BaseModel):
    """Sent by us: a later version may add fields, and an older client ignores them."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(Answer):
    """Every error: what was wrong, and what to do about it."""

    error: str
    code: str = ""  # What kind of error, for programs: see qo.dispatcher.http.error_responses.
    detail: list[str] = []
