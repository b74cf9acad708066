"""Base classes of all bodies."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from qo.api.contract import storable


class Body(BaseModel):
    """A body that clients send. An unknown field is refused, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Fields that only people read: characters that cannot be stored are replaced, not refused.
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
    """A body that the server sends. A later version may add fields; older clients ignore them."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(Answer):
    """The body of every error: what is wrong, and what to do about it."""

    error: str
    code: str = ""  # The kind of error, for programs: see qo.asgi.error_responses.
    detail: list[str] = []
