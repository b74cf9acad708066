"""What all bodies have in common."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from qo.api.contract import storable


class Body(BaseModel):
    """Sent to us: a field we do not know is a mistake we name, not one we swallow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Only for people to read: what cannot be kept of them is replaced, not refused.
    display_fields: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _check_storable(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        fields = cast("dict[str, Any]", body)
        wrong = storable.find_unstorable(
            {name: value for name, value in fields.items() if name not in cls.display_fields}
        )
        if wrong is not None:
            raise PydanticCustomError("not_plain", "{wrong}", {"wrong": wrong})
        return fields | {
            name: storable.replace_unstorable(fields[name]) for name in cls.display_fields & fields.keys()
        }


class Answer(BaseModel):
    """Sent by us: a later version may add fields, and an older client ignores them."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(Answer):
    """Every error: what was wrong, and what to do about it."""

    error: str
    code: str = ""  # What kind of error, for programs: see qo.dispatcher.http.error_responses.
    detail: list[str] = []
