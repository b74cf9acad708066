"""Typed inputs and outputs: what a handler declares is what it gets, or the task is rejected with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from qo.core import wire
from qo.worker.api.handler import Handler, make_handler
from qo.worker.api.inputs import convert, dump
from qo.worker.api.signals import Reject

pytestmark = pytest.mark.fast


class Line(pydantic.BaseModel):
    sku: str
    count: int = 1


class Order(pydantic.BaseModel):
    customer: str
    day: date
    lines: list[Line] = []


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: int
    at: datetime | None = None


@dataclass
class Letter:
    to: str
    copies: int = 1
    points: list[Point] = field(default_factory=list[Point])

    def __post_init__(self) -> None:
        if not self.to:
            raise ValueError("a letter needs somebody to go to")


class Opaque:
    pass


def handler(declared: Any) -> Handler:
    async def work(input: Any) -> None:
        pass

    work.__annotations__["input"] = declared
    return make_handler("work", work)


@pytest.mark.parametrize(
    ("declared", "value", "wanted"),
    [
        (
            Order,
            {"customer": "c", "day": "2026-03-01", "lines": [{"sku": "s"}]},
            Order(customer="c", day=date(2026, 3, 1), lines=[Line(sku="s")]),
        ),
        (Point, {"x": 1, "at": "2026-03-01T00:00:00Z"}, Point(1, datetime(2026, 3, 1, tzinfo=UTC))),
        (Letter, {"to": "you", "points": [{"x": 2}]}, Letter("you", points=[Point(2)])),
    ],
    ids=["pydantic", "struct", "dataclass"],
)
def test_an_input_becomes_what_the_handler_declares_and_goes_back_to_json(
    declared: Any, value: Any, wanted: Any
) -> None:
    got = convert(handler(declared), value)
    assert got == wanted
    assert type(got) is declared
    taken = wire.payload(dump(got), "the output")  # Refuses what would not survive JSON.
    assert convert(handler(declared), taken.value) == wanted


@pytest.mark.parametrize("declared", [Any, dict[str, Any], dict, int, str, Opaque, None, Point | None])
@pytest.mark.parametrize("value", [None, 1, "text", {"x": 1}, [1, 2]])
def test_anything_else_is_passed_as_it_is(declared: Any, value: Any) -> None:
    assert convert(handler(declared), value) is value


@pytest.mark.parametrize(
    ("declared", "value", "parts"),
    [
        (
            Order,
            {"day": "soon", "lines": [{"sku": "s", "count": "many"}]},
            ["Order", "customer: ", "lines.0.count: "],
        ),
        (Order, None, ["Order"]),
        (Point, {"x": "1"}, ["Point", "`$.x`"]),
        (Point, {"x": 1, "y": 2}, ["Point", "`y`"]),
        (Point, [], ["Point"]),
        (Letter, {"to": "you", "points": [{"x": 1.5}]}, ["Letter", "points[0].x"]),
        (Letter, {"copies": 2}, ["Letter", "`to`"]),
        (Letter, {"to": ""}, ["Letter", "somebody to go to"]),
    ],
)
def test_a_misfit_is_rejected_and_named(declared: Any, value: Any, parts: list[str]) -> None:
    with pytest.raises(Reject) as rejected:
        convert(handler(declared), value)
    text = str(rejected.value)
    assert text.startswith("the input does not fit ")
    assert [part for part in parts if part not in text] == []
    assert "http" not in text
    assert "\n" not in text


def test_a_rule_of_the_model_is_told_without_what_was_in_the_input() -> None:
    class Login(pydantic.BaseModel):
        password: str

        @pydantic.field_validator("password")
        @classmethod
        def long_enough(cls, value: str) -> str:
            if len(value) < 8:
                raise ValueError("too short")
            return value

    with pytest.raises(Reject, match="does not fit Login: password: Value error, too short") as rejected:
        convert(handler(Login), {"password": "hunter2"})
    assert "hunter2" not in str(rejected.value)


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "text", [1], {"a": 1}, (1, 2), {3}, Opaque(), Point, Order])
def test_what_is_no_record_is_returned_untouched(value: Any) -> None:
    assert dump(value) is value


def test_dates_in_a_returned_record_become_text() -> None:
    assert dump(Point(1, datetime(2026, 3, 1, tzinfo=UTC))) == {"x": 1, "at": "2026-03-01T00:00:00Z"}
    assert dump(Order(customer="c", day=date(2026, 3, 1))) == {"customer": "c", "day": "2026-03-01", "lines": []}
