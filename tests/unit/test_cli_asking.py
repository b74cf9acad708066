"""What commands ask of a dispatcher."""

from __future__ import annotations

from typing import Any, cast

import pytest

from qo.api.public_client import UserClient
from qo.cli.pipelines.dispatcher_client import route
from qo.cli.pipelines.planning import fetch_plan
from qo.errors import Refused

pytestmark = pytest.mark.fast


class Planning:
    """A client that is told what to answer, in turn."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def post(self, path: str, body: Any = None, **asked: Any) -> Any:
        return self._answers.pop(0)


def client(*answers: Any) -> UserClient:
    return cast("UserClient", Planning(*answers))


def test_a_name_stays_one_part_of_a_path_whatever_it_is_made_of() -> None:
    assert route("tasks", "a/b?c=d#e", "cancel") == "/v1/tasks/a%2Fb%3Fc%3Dd%23e/cancel"
    assert route("dags", "flights", "versions", 2) == "/v1/dags/flights/versions/2"


async def test_a_plan_is_of_one_moment() -> None:
    def page(against: int, *jobs: dict[str, Any]) -> dict[str, Any]:
        return {"diff": {"against": against}, "rebuilds": [*jobs]}

    def job(first: list[str], further: str | None) -> dict[str, Any]:
        return {"job": "clean", "first": first, "next": further}

    found = await fetch_plan(client(page(1, job(["a"], "a")), page(1, job(["b"], None))), "/", "", every=True)
    assert found["rebuilds"] == [job(["a", "b"], None)]
    for then in (page(2), page(2, job(["b"], None))):
        with pytest.raises(Refused, match="another version was activated meanwhile"):
            await fetch_plan(client(page(1, job(["a"], "a")), then), "/", "", every=True)
